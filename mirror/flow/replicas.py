"""Read the last batch of a copy, at either side, from a replica that has it intact.

A broker checks the CRC of what it appends. So a batch with a wrong CRC was damaged later, on the disk of one
replica, and says nothing of what was written. Consumers may read from in-sync followers (KIP-392).

If no replica has the batch intact, nothing is concluded from it. A copy whose last batch is damaged on all
replicas of the target is not exact. But stopping does not mend that, and would lose what comes after it as
well, while the log end still says where to go on. So the copy goes on, and a line is logged. Consumers and
``twinsite reconcile`` get an error there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from mirror.broker_codes import CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE
from mirror.errors import (
    BatchError,
    ConnectionFailedError,
    CorruptBatchError,
    EarlyBatchError,
    TwinsiteError,
)
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Fetched, FetchLimits, Want
from mirror.kafka.peek import AT_ONCE, peek_at
from mirror.model import TopicPartition

log = structlog.get_logger(__name__)

T = TypeVar("T")


def others_in_sync(cluster: Cluster, tp: TopicPartition) -> Sequence[int]:
    """The in-sync replicas of a partition without its leader."""
    info = cluster.info.partition(tp)
    return [node for node in info.in_sync_replicas if node != info.leader] if info else []


@dataclass(frozen=True, slots=True)
class Round:
    """One round of reading last batches.

    Attributes:
        failed: Brokers that could not be asked, as (cluster, node). They are not asked again in this round:
            one partition after the other would wait for them.
    """

    limits: FetchLimits = AT_ONCE
    failed: set[tuple[str, int]] = field(default_factory=set)

    async def ask(self, cluster: Cluster, node: int, tp: TopicPartition, want: Want) -> Fetched | None:
        """What a broker has there; None for nothing.

        Raises:
            TwinsiteError: It cannot be asked, or could not be before.
        """
        if (cluster.name, node) in self.failed:
            raise ConnectionFailedError(f"{cluster.name}: broker {node} could not be asked just before")
        try:
            return (await peek_at(cluster, node, {tp: want}, self.limits)).get(tp)
        except TwinsiteError:
            self.failed.add((cluster.name, node))
            raise


async def intact(
    cluster: Cluster,
    tp: TopicPartition,
    want: Want,
    fetched: Fetched,
    read: Callable[[Fetched], Awaitable[T | None]],
    asking: Round,
) -> T | None:
    """What ``read`` makes of the leader's answer; of another replica's where the leader's batch is damaged.

    Args:
        want: What the leader was asked for.
        read: Raises :class:`BatchError` where the batch is damaged, or cannot be decoded. Returns None where
            there is none.

    Returns:
        None where the leader does not have the batch, or it is damaged there and no replica has one that can
        be read.

    Raises:
        TwinsiteError: The leader refuses.
    """
    try:
        return await _read(cluster, cluster.info.leader(tp), tp, want, fetched, read, asking)
    except BatchError as error:
        bad = error
    want = want._replace(leader_epoch=-1)
    for node in others_in_sync(cluster, tp):
        about = {"cluster": cluster.name, "partition": str(tp), "node": node}
        try:
            answer = await asking.ask(cluster, node, tp, want)
            if answer is None or answer.diverging is not None:
                continue
            found = await _read(cluster, node, tp, want, answer, read, asking)
        except TwinsiteError as error:
            log.warning("replica_not_readable", **about, error=str(error))
            continue
        if found is not None:
            log.warning("read_from_another_replica", **about, bad=str(bad))
            return found
    log.warning("last_batch_not_readable", cluster=cluster.name, partition=str(tp), bad=str(bad))
    return None


async def _read(
    cluster: Cluster,
    node: int,
    tp: TopicPartition,
    want: Want,
    fetched: Fetched,
    read: Callable[[Fetched], Awaitable[T | None]],
    asking: Round,
) -> T | None:
    """What ``read`` makes of a broker's answer. A batch beyond the end of the log is looked at once more: the
    log may have grown.
    """
    try:
        return await read(_read_by(cluster, tp, fetched, want.offset))
    except EarlyBatchError:
        again = await asking.ask(cluster, node, tp, want)
        if again is None:
            raise
    if again.diverging is not None or again.error_code == OFFSET_OUT_OF_RANGE:
        raise ConnectionFailedError(f"{cluster.name}: {tp} was cut short while it was read")
    return await read(_read_by(cluster, tp, again, want.offset))


def _read_by(cluster: Cluster, tp: TopicPartition, fetched: Fetched, offset: int) -> Fetched:
    """The answer, if the broker could read what is there."""
    if not fetched.error_code:
        return fetched
    error = broker_error(fetched.error_code, f"{cluster.name}: Fetch of the last batch of {tp}")
    raise CorruptBatchError(offset, str(error)) if fetched.error_code == CORRUPT_MESSAGE else error
