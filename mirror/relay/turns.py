"""Of what is behind that of the lowest rank is read first, whichever broker has it; but nobody waits for a
broker that does not answer.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from mirror.link.protocol import RANK_LAST


class Turns:
    """Who is behind, on which lane, and whose turn it is.

    Attributes:
        served: Of those that are behind, partitions of this rank are read, and of lower ones.
    """

    def __init__(self) -> None:
        self.served = RANK_LAST
        self._ranks: dict[Hashable, Counter[int]] = {}
        self._silent: set[Hashable] = set()

    def count(self, lane: Hashable, rank: int, by: int) -> bool:
        """One more or one less that is behind; True where others have their turn now."""
        ranks = self._ranks.setdefault(lane, Counter())
        ranks[rank] += by
        if not ranks[rank]:
            del ranks[rank]
        return self._reckon()

    def silent(self, lane: Hashable) -> bool:
        """It has not answered for a while: what it has does not count until it does; likewise."""
        self._silent.add(lane)
        return self._reckon()

    def heard(self, lane: Hashable) -> bool:
        """It answers; likewise."""
        if lane not in self._silent:
            return False
        self._silent.remove(lane)
        return self._reckon()

    def _reckon(self) -> bool:
        before = self.served
        counted = (rank for lane, ranks in self._ranks.items() if lane not in self._silent for rank in ranks)
        self.served = min(counted, default=RANK_LAST)
        return self.served != before
