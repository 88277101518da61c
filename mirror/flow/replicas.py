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
from typing import TypeVar

import structlog

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.errors import BatchError, CorruptBatchError, TwinsiteError
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


async def intact(
    cluster: Cluster,
    tp: TopicPartition,
    want: Want,
    fetched: Fetched,
    read: Callable[[Fetched], Awaitable[T]],
    limits: FetchLimits = AT_ONCE,
) -> T | None:
    """What ``read`` makes of the leader's answer; of another replica's where the leader's batch is damaged.

    Args:
        want: What the leader was asked for.
        read: Raises :class:`BatchError` where the batch is damaged, or cannot be decoded.

    Returns:
        None where no replica has a batch that can be read.

    Raises:
        TwinsiteError: The leader refuses.
    """
    try:
        return await read(_read_by(cluster, tp, fetched, want.offset))
    except BatchError as error:
        bad = error
    wanted = {tp: want._replace(leader_epoch=-1)}
    for node in others_in_sync(cluster, tp):
        about = {"cluster": cluster.name, "partition": str(tp), "node": node}
        try:
            answer = (await peek_at(cluster, node, wanted, limits)).get(tp)
            if answer is None or answer.diverging is not None:
                continue
            found = await read(_read_by(cluster, tp, answer, want.offset))
        except TwinsiteError as error:
            log.warning("replica_not_readable", **about, error=str(error))
        else:
            log.warning("read_from_another_replica", **about, bad=str(bad))
            return found
    log.warning("last_batch_not_readable", cluster=cluster.name, partition=str(tp), bad=str(bad))
    return None


def _read_by(cluster: Cluster, tp: TopicPartition, fetched: Fetched, offset: int) -> Fetched:
    """The answer, if the broker could read what is there."""
    if not fetched.error_code:
        return fetched
    error = broker_error(fetched.error_code, f"{cluster.name}: Fetch of the last batch of {tp}")
    raise CorruptBatchError(offset, str(error)) if fetched.error_code == CORRUPT_MESSAGE else error
