"""Which brokers of the target are silent: what waits for one of those must not hold up others.

A partition alone does not show it. Where many wait for one broker that is slow, each is served now and then,
and the broker answers all the time.

No I/O. Times are monotonic seconds.
"""

from __future__ import annotations

from mirror.flow.partition import PartitionCopy


class Silence:
    """Since when each broker of the target has owed us an answer to a write."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def begins(self, node: int, at: float) -> None:
        """A broker was asked while it owed nothing, or has answered; one that holds us back will be silent
        for as long as it said, and that does not count.
        """
        self._since[node] = max(at, self._since.get(node, 0.0))

    def of(self, partition: PartitionCopy, now: float) -> float:
        """For how many seconds nothing was heard of whoever is to answer what waits of a partition.

        What only the owner may write goes other ways than batches do: there it is how long the partition has
        stood still.
        """
        since = partition.acknowledged_at
        if partition.waits_for is not None and not (partition.owner_work or partition.markers_under_way):
            since = max(since, self._since.get(partition.waits_for, 0.0))
        return now - since
