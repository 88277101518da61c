"""Which brokers of the target are silent: what waits for one of those must not hold up others.

A single partition does not show it. Where many wait for a slow broker each is served only now and then,
although the broker answers all the time.

No I/O. Times are monotonic seconds.
"""

from __future__ import annotations

from mirror.flow.partition import PartitionCopy


class Silence:
    """Since when each broker of the target has owed us an answer to a write."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def begins(self, node: int, at: float) -> None:
        """Count a broker's silence from ``at``: it was sent a request while it owed nothing, or it answered.

        If it throttles us, ``at`` is the end of the throttle time: silence until then does not count.
        """
        self._since[node] = max(at, self._since.get(node, 0.0))

    def of(self, partition: PartitionCopy, now: float) -> float:
        """For how many seconds the broker that is to answer for a partition has been silent.

        What only the owner may write takes other ways than batches do: for that it is how long the partition
        has stood still.
        """
        since = partition.acknowledged_at
        if partition.waits_for is not None and not (partition.owner_work or partition.markers_under_way):
            since = max(since, self._since.get(partition.waits_for, 0.0))
        return now - since
