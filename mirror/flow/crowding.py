"""How much of one partition may wait, where all partitions arrive in turn over one stream.

Leaving a partition out costs whatever is in flight of it. So a partition that is being written may hold half
of all buffers. Without a new acknowledgement it may grow only by its own allowance, or by a quarter of what
is free if that is more: what waits for a target broker that does not answer leaves room for the others.

Pure.
"""

from __future__ import annotations

from mirror.kafka.fetch import Key

WRITTEN_SHARE = 2
FREE_SHARE = 4
"""A partition gets a quarter of what is free: several that take theirs in turn leave some."""


class Crowding:
    """Says which partitions have enough.

    Args:
        bytes_max: Size of all buffers.
        partition_bytes_max: By how much a partition may grow, however little is free.
    """

    def __init__(self, bytes_max: int, partition_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._written: dict[Key, tuple[float, int]] = {}
        """When something was last acknowledged, and the least that has waited since, in bytes."""

    def full(self, key: Key, waiting_bytes: int, acknowledged_at: float, used_bytes: int) -> bool:
        """Whether no more of a partition is wanted for now.

        Args:
            waiting_bytes: Size of its queued batches.
            acknowledged_at: When some of it was last acknowledged, by any clock.
            used_bytes: How much of all buffers is in use.
        """
        written_at, least = self._written.get(key, (acknowledged_at, 0))
        least = min(least, waiting_bytes) if written_at == acknowledged_at else waiting_bytes
        self._written[key] = acknowledged_at, least
        free = max(self._bytes_max - used_bytes, 0)
        come = waiting_bytes - least
        too_much = come >= max(self._partition_bytes_max, free // FREE_SHARE)
        return too_much or waiting_bytes >= self._bytes_max // WRITTEN_SHARE

    def forget(self, key: Key) -> None:
        """The partition is no longer read."""
        self._written.pop(key, None)
