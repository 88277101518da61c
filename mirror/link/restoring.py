"""Where to make batches what they were takes most of the time: whether they had better come as they are.

gzip is made at 60 MB/s of a core, or less. Over a narrow link recoded batches still bring more records than
those that are left alone, over a wide one they bring fewer; so both are tried, each for some seconds.

Pure; moments are arguments, in monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror.kafka.fetch import Key

LIMIT_ABOVE, LOOK_SECONDS = 0.8, 5.0
"""So much of so long, and restoring is what limits the copy."""
FASTER = 1.1
"""Bytes that are paid for are sent only where they bring so many times as much."""
DECIDED_SECONDS = 600.0
"""Then it is looked at again: others write, or the link has changed."""


class Restoring:
    """Decides for all partitions of one flow that are recoded.

    Attributes:
        left: Partitions that are left as they are.
    """

    def __init__(self) -> None:
        self.left: set[Key] = set()
        self._decided_until = 0.0
        self._recoded_rate: float | None = None
        """Of records in bytes a second, before they were left as they are; None once that is decided."""
        self._since, self._seconds, self._bytes = 0.0, 0.0, 0
        self._seen: set[Key] = set()

    def took(
        self, recoded: Mapping[Key, int], plain: Mapping[Key, int], seconds: float, now: float
    ) -> Collection[Key]:
        """A frame was taken. Answers partitions that are to come the other way from now on.

        Args:
            recoded: Bytes of records that were restored, by partition.
            plain: Of those that came as they are.
            seconds: It took to restore them.
        """
        if self.left:
            return self._look_at_plain(sum(plain.get(key, 0) for key in self.left), now)
        if now < self._decided_until:
            return ()
        self._seen.update(recoded)
        self._bytes += sum(recoded.values())
        self._seconds += seconds
        period = now - self._since
        if period < LOOK_SECONDS:
            return ()
        if self._seconds > LIMIT_ABOVE * period:
            self._recoded_rate, self.left = self._bytes / period, self._seen
        self._begin(now)
        return self.left

    def _look_at_plain(self, size: int, now: float) -> Collection[Key]:
        if self._recoded_rate is None:
            return self._recode_again(now) if now >= self._decided_until else ()
        if not self._seconds:
            self._seconds = float(size > 0)  # from now on: what was on its way recoded is not counted
            self._since = now
            return ()
        self._bytes += size
        period = now - self._since
        if period < LOOK_SECONDS:
            return ()
        faster = self._bytes > FASTER * self._recoded_rate * period
        self._recoded_rate, self._decided_until = None, now + DECIDED_SECONDS
        return () if faster else self._recode_again(now)

    def _recode_again(self, now: float) -> Collection[Key]:
        again, self.left = self.left, set()
        self._begin(now)
        return again

    def _begin(self, now: float) -> None:
        self._since, self._seconds, self._bytes, self._seen = now, 0.0, 0, set()
