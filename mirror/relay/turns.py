"""Of the partitions that are behind, those of the lowest rank are read first, whichever broker has them; but
nothing waits for a broker that does not answer.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from mirror.link.protocol import RANK_LAST


class Turns:
    """How many partitions of which rank are behind on each lane, and which ranks have their turn.

    Attributes:
        served: Of the partitions that are behind, those of this rank and of lower ones are read.
    """

    def __init__(self) -> None:
        self.served = RANK_LAST
        self._ranks: dict[Hashable, Counter[int]] = {}
        self._silent: set[Hashable] = set()

    def count(self, lane: Hashable, rank: int, by: int) -> bool:
        """Count ``by`` more partitions of a rank as behind; True if others have their turn now."""
        ranks = self._ranks.setdefault(lane, Counter())
        ranks[rank] += by
        if not ranks[rank]:
            del ranks[rank]
        return self._reckon()

    def silent(self, lane: Hashable) -> bool:
        """Its broker has not answered for a while: until it does, the lane does not count; likewise."""
        self._silent.add(lane)
        return self._reckon()

    def heard(self, lane: Hashable) -> bool:
        """Its broker has answered; likewise."""
        if lane not in self._silent:
            return False
        self._silent.remove(lane)
        return self._reckon()

    def _reckon(self) -> bool:
        before = self.served
        counted = (rank for lane, ranks in self._ranks.items() if lane not in self._silent for rank in ranks)
        self.served = min(counted, default=RANK_LAST)
        return self.served != before
