"""Read the last batch of a copy, at either side, from a replica that has it intact.

A broker checks the CRC of what it appends. So a batch with a wrong CRC was damaged later, on the disk of one
replica, and says nothing of what was written. No CRC covers where a batch says that it belongs, nor its
format: damaged there, it goes beyond the end of the log, or the broker passes over it and gives nothing
(:mod:`mirror.flow.misplaced`). Consumers may read from in-sync followers (KIP-392).

If no replica that can be asked has the batch intact, nothing is concluded from it. A copy whose last batch is
damaged on all replicas of the target is not exact. But stopping does not mend that, and would lose what comes
after it as well, while the log end still says where to go on. So the copy goes on, and a line is logged.
Consumers and ``twinsite reconcile`` get an error there. Nor does a replica that cannot be asked stop the
copy: it stays in sync while its leader reaches it, however long we do not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import structlog

from mirror.broker_codes import CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE
from mirror.errors import (
    BatchError,
    ConnectionFailedError,
    CorruptBatchError,
    EarlyBatchError,
    NotInMetadataError,
    ThrottledError,
    TwinsiteError,
)
from mirror.flow.misplaced import Asked, check_answer
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Fetched, FetchLimits, Want
from mirror.kafka.peek import AT_ONCE, peek_all_at
from mirror.model import TopicPartition

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Question(NamedTuple):
    """Whom to ask for what."""

    cluster: Cluster
    node: int
    tp: TopicPartition
    want: Want


def others_in_sync(cluster: Cluster, tp: TopicPartition, node: int) -> Sequence[int]:
    """The in-sync replicas of a partition without the one that ``node`` has."""
    info = cluster.info.partition(tp)
    return [other for other in info.in_sync_replicas if other != node] if info else []


@dataclass(frozen=True, slots=True)
class Round:
    """One round of reading last batches.

    Attributes:
        failed: Brokers that could not be asked, as (cluster, node). They are not asked again in this round:
            one partition after the other would wait for them.
    """

    limits: FetchLimits = AT_ONCE
    failed: set[tuple[str, int]] = field(default_factory=set)

    async def ask(self, question: Question) -> Fetched | None:
        """What a broker has there, or says of a partition in which nothing is there; None for neither.

        Raises:
            TwinsiteError: It cannot be asked, or could not be before.
        """
        cluster, node, tp, want = question
        if (cluster.name, node) in self.failed:
            raise ConnectionFailedError(f"{cluster.name}: broker {node} could not be asked just before")
        try:
            return (await peek_all_at(cluster, node, {tp: want}, self.limits)).get(tp)
        except (NotInMetadataError, ThrottledError):
            raise
        except TwinsiteError:
            self.failed.add((cluster.name, node))
            raise


async def intact(
    question: Question, fetched: Fetched, read: Callable[[Fetched], Awaitable[T | None]], asking: Round
) -> T | None:
    """What ``read`` makes of the leader's answer; of another replica's where the leader's batch is damaged.

    Args:
        question: What the leader was asked.
        fetched: Its answer.
        read: Raises :class:`BatchError` where the batch is damaged, or cannot be decoded. Returns None where
            there is none.

    Returns:
        None where the leader does not have the batch, or it is damaged there and no replica that can be asked
        has one that can be read.

    Raises:
        TwinsiteError: The leader refuses.
    """
    try:
        return await _read(question, fetched, read, asking)
    except BatchError as error:
        bad = error
    cluster, leader, tp, want = question
    for node in others_in_sync(cluster, tp, leader):
        about = {"cluster": cluster.name, "partition": str(tp), "node": node}
        other = Question(cluster, node, tp, want._replace(leader_epoch=-1))
        try:
            answer = await asking.ask(other)
            if answer is None or answer.diverging is not None:
                continue
            found = await _read(other, answer, read, asking)
        except TwinsiteError as error:
            log.warning("replica_not_readable", **about, error=str(error))
            continue
        if found is not None:
            log.warning("read_from_another_replica", **about, bad=str(bad))
            return found
    log.warning("last_batch_not_readable", cluster=cluster.name, partition=str(tp), bad=str(bad))
    return None


async def _read(
    question: Question, fetched: Fetched, read: Callable[[Fetched], Awaitable[T | None]], asking: Round
) -> T | None:
    """What ``read`` makes of a broker's answer. A batch beyond the end of the log is looked at once more: the
    log may have grown.
    """
    try:
        return await read(_checked(question, fetched, asking))
    except EarlyBatchError:
        again = await asking.ask(question)
        if again is None:
            raise
    if again.diverging is not None or again.error_code == OFFSET_OUT_OF_RANGE:
        raise ConnectionFailedError(f"{question.cluster.name}: {question.tp} was cut short while it was read")
    return await read(_checked(question, again, asking))


def _checked(question: Question, fetched: Fetched, asking: Round) -> Fetched:
    """The answer, if the broker could read what is there, and it may stand there."""
    cluster, _, tp, want = question
    if fetched.error_code:
        error = broker_error(fetched.error_code, f"{cluster.name}: Fetch of the last batch of {tp}")
        raise CorruptBatchError(want.offset, str(error)) if fetched.error_code == CORRUPT_MESSAGE else error
    asked = Asked(want.offset, end=fetched.readable_end(asking.limits.isolation))
    check_answer(fetched.records, asked, fetched.high_watermark)
    return fetched
