"""Of which partitions batches may be recoded for the way just now: those of which they come out the same.

A batch that does not is asked for as it is, and what comes behind it recoded again. Each time what is on its
way is sent in vain; so where that happens often a partition is left as it is for a while.

Pure; moments are arguments, in monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror.kafka.fetch import Key

ODD_MAX, ODD_WITHIN_SECONDS = 2, 60.0
"""So many batches within so long, and it is not worth while."""
REST_SECONDS = 600.0
"""Then it is tried again: others write."""


@dataclass(slots=True)
class _Odd:
    """Batches of a partition that did not come out as they were: how many since when, and the last one."""

    since: float
    count: int = 0
    ends_at: int = 0
    rests_until: float = 0.0


class Recodable:
    """Remembers which batches did not come out as they were."""

    def __init__(self) -> None:
        self._odd: dict[Key, _Odd] = {}

    def met(self, key: Key, ends_at: int, now: float) -> None:
        """One did not.

        Args:
            ends_at: The offset after it.
        """
        odd = self._odd.get(key)
        if odd is None or now - odd.since > ODD_WITHIN_SECONDS:
            odd = self._odd[key] = _Odd(now)
        odd.count += 1
        odd.ends_at = ends_at
        if odd.count >= ODD_MAX:
            odd.rests_until = now + REST_SECONDS

    def forget(self, key: Key) -> None:
        """A partition comes no more."""
        self._odd.pop(key, None)

    def allows(self, key: Key, offset: int, now: float) -> bool:
        """Whether what is read of a partition from an offset on may be recoded."""
        odd = self._odd.get(key)
        return odd is None or (offset >= odd.ends_at and now >= odd.rests_until)
