"""How much may wait of one partition where all come one behind the other over one stream.

To leave a partition out costs what is on its way of it. So one that is being written may hold half of all;
one of which nothing is acknowledged no more than what is meant for each, or a part of what is free: what
waits for a broker of the target that does not answer leaves room for the others.

Pure.
"""

from __future__ import annotations

from mirror.kafka.fetch import Key

WRITTEN_SHARE = 2
FREE_SHARE = 4
"""Of what is free a partition gets the fourth part: several that take theirs in turn leave some."""


class Crowding:
    """Says which partitions have enough.

    Args:
        bytes_max: Of all buffers.
        partition_bytes_max: What a partition may have however little is free.
    """

    def __init__(self, bytes_max: int, partition_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._written: dict[Key, tuple[float, int]] = {}
        """When something was acknowledged last, and the least that has waited since."""

    def full(self, key: Key, waiting_bytes: int, acknowledged_at: float, used_bytes: int) -> bool:
        """Whether no more of a partition is to come for now.

        Args:
            waiting_bytes: Of its batches.
            acknowledged_at: When some of it was written last, whichever clock says so.
            used_bytes: Of all buffers.
        """
        written_at, least = self._written.get(key, (acknowledged_at, 0))
        least = min(least, waiting_bytes) if written_at == acknowledged_at else waiting_bytes
        self._written[key] = acknowledged_at, least
        free = max(self._bytes_max - used_bytes, 0)
        come = waiting_bytes - least
        too_much = come >= max(self._partition_bytes_max, free // FREE_SHARE)
        return too_much or waiting_bytes >= self._bytes_max // WRITTEN_SHARE

    def forget(self, key: Key) -> None:
        """It is not read any more."""
        self._written.pop(key, None)
