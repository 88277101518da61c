"""Which partitions' batches may be recoded for the link at the moment: those whose batches come out the same.

A batch that does not is requested again as it is, and what follows it recoded. Each time what is in flight is
sent in vain; so a partition where that happens often is not recoded for a while.

Pure; moments are arguments, in monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror.kafka.fetch import Key

ODD_MAX, ODD_WITHIN_SECONDS = 2, 60.0
"""After this many such batches within this time recoding stops."""
REST_SECONDS = 600.0
"""After this time recoding is tried again: other producers may write by then."""


@dataclass(slots=True)
class _Odd:
    """Batches of a partition that did not come out as they were: since when, how many, where the last one
    ends, and until when the partition is not recoded.
    """

    since: float
    count: int = 0
    ends_at: int = 0
    rests_until: float = 0.0


class Recodable:
    """Remembers which batches did not come out as they were."""

    def __init__(self) -> None:
        self._odd: dict[Key, _Odd] = {}

    def met(self, key: Key, ends_at: int, now: float) -> None:
        """Note a batch that did not come out as it was.

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
        """A partition is no longer read."""
        self._odd.pop(key, None)

    def allows(self, key: Key, offset: int, now: float) -> bool:
        """Whether batches of a partition from this offset on may be recoded."""
        odd = self._odd.get(key)
        return odd is None or (offset >= odd.ends_at and now >= odd.rests_until)
