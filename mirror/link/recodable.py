"""Of which partitions batches may be recoded for the way just now: those of which they come out the same.

A batch that does not is asked for as it is, and what comes behind it recoded again. Each time what is on its
way is sent in vain; so where that happens often a partition is left as it is for a while. So are all where it
takes longer to make them what they were than to bring them over as they are: gzip goes at 60 MB/s of a core.

Pure; moments are arguments, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mirror.kafka.fetch import Key

ODD_MAX, ODD_WITHIN_SECONDS = 2, 60.0
"""So many batches within so long, and it is not worth while."""
REST_SECONDS = 600.0
"""Then it is tried again: others write."""
RESTORING_ABOVE, RESTORING_SECONDS = 0.8, 5.0
"""So much of so long, and restoring is what limits the copy."""


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
        self._restoring: set[Key] = set()
        self._restoring_since, self._restoring_seconds = 0.0, 0.0

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

    def allows(self, key: Key, offset: int, now: float) -> bool:
        """Whether what is read of a partition from an offset on may be recoded."""
        odd = self._odd.get(key)
        return odd is None or (offset >= odd.ends_at and now >= odd.rests_until)

    def restored(self, keys: Iterable[Key], seconds: float, now: float) -> Collection[Key]:
        """It has taken so long to restore batches of these partitions; answers those that are left as they
        are from now on: all of late, where hardly anything else was done.
        """
        self._restoring.update(keys)
        self._restoring_seconds += seconds
        period = now - self._restoring_since
        if period < RESTORING_SECONDS:
            return ()
        slow = self._restoring if self._restoring_seconds > RESTORING_ABOVE * period else ()
        for key in slow:
            self._odd.setdefault(key, _Odd(now)).rests_until = now + REST_SECONDS
        self._restoring, self._restoring_seconds, self._restoring_since = set(), 0.0, now
        return slow
