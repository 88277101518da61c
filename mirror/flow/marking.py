"""Write control markers to one broker, a bounded number at a time, and find out whether they have landed.

A marker is not conditional: it lands wherever the log ends. So a request is small enough that a new owner
can rely on the broker having finished it, and after a request without an answer nobody reads a log end
until its markers can no longer land. An answer gives the outcome of a partition's last marker only, so
after several markers the log end is read before anything follows.

A broker refuses a marker whose coordinator epoch is lower than the last one it saw of the producer; an equal
one it takes. So what lands late is refused once a marker of a higher epoch is there. The upper 15 of the 31
bits are the owner's own epoch; the lower 16 count the requests to the partition that got no answer. After
65 536 of those the owner sends it no more markers: the next epoch is the next owner's.

Sources: KIP-98 (WriteTxnMarkers, coordinator epochs), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from mirror.errors import PartitionError, TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import UNANSWERED, pause_seconds
from mirror.kafka.answers import Ended
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.connection import Connection
from mirror.kafka.failures import says_gone
from mirror.kafka.offsets import DEBUGGER, LATEST, Answers, Marking, list_offsets, write_markers
from mirror.model import Gap, Reason, TopicPartition

MARKERS_AT_ONCE = 5_000
"""In one request, all partitions together: half a second for the broker, a fifth of a new owner's wait."""
LOST_AT_ONCE = 500
"""Of one lost range in one request: it may span millions of offsets, and others need markers too."""
LANDING_SECONDS = 2.0
"""Four times what a broker needs to append the markers of a request it has begun."""
LEADERS_SECONDS = 1.0
"""How often the metadata is read while a broker is silent: a broker may hang for as long as a request may.
So much later it has to be said again that a topic is gone: a broker that starts may not know it yet.
"""
EPOCHS = 1 << 31
"""Coordinator epochs are below this."""
OWNER_EPOCHS = 1 << 16
"""Coordinator epochs of one owner."""
LANE = "markers"
"""Markers have their own connection: a broker answers the requests of one connection in order."""


def marker_epoch(next_epoch: int, owner_epoch: int) -> int:
    """The coordinator epoch for markers: not below the partition's own, nor below this owner's range.

    The partition's own is raised by each request to it that got no answer (:func:`epoch_above`), whatever
    ended the connection. After an answer, be it a refusal, the same one is used again.

    Args:
        next_epoch: The partition's; EPOCHS if none is left.
        owner_epoch: The epoch that the coordinator gave us, 0 to 32 767. It begins at 0 again if the
            coordinator forgot the flow's id. Then the partition's counts: above the last one of another owner
            that a look has seen.
    """
    return max(next_epoch, owner_epoch * OWNER_EPOCHS)


def epoch_above(epoch: int) -> int:
    """The next epoch of the same owner; EPOCHS, which no marker can carry, if this was its last one."""
    return epoch + 1 if (epoch + 1) % OWNER_EPOCHS else EPOCHS


def spread(offsets: Mapping[PartitionCopy, int], at_once: int = MARKERS_AT_ONCE) -> dict[PartitionCopy, int]:
    """How many markers of one request each partition gets: an equal share, or less if it needs less.

    A partition for which no marker is left is not in the result.
    """
    shares: dict[PartitionCopy, int] = {}
    left, waiting = at_once, len(offsets)
    for partition, wanted in sorted(offsets.items(), key=lambda item: item[1]):
        if left:
            shares[partition] = min(wanted, max(1, left // waiting))
            left -= shares[partition]
        waiting -= 1
    return shares


async def mark(
    flow: Flow, connection: Connection, node: int, partitions: Sequence[PartitionCopy], owner_epoch: int
) -> Answers[int]:
    """Fill the gaps at the head of these partitions' queues, as far as one request goes; ``node`` leads all.

    None of the partitions is looked at until the broker has answered. After a request without an answer, or
    with one that cannot be read (``Ended``), their markers stay under way: call :func:`until_landed`.

    Args:
        connection: To that node; only markers are sent over it.
        owner_epoch: The epoch of the right under which they are sent.

    Returns:
        How many markers were appended to each target partition, or the error that leaves this unknown, or
        because of which none was sent. A partition is left out if it got no markers, for example as it is to
        be looked at first, or if its log does not end after them: then it is in doubt.
    """
    free = () if flow.draining else partitions
    gaps = {p: _wanted(gap) for p in free if (gap := p.gap_to_mark) is not None}
    epochs = {p: marker_epoch(p.coordinator_epoch, owner_epoch) for p in gaps}
    used_up = {p.target: _used_up(p) for p, epoch in epochs.items() if epoch == EPOCHS}
    markings: dict[PartitionCopy, Marking] = {}
    for partition, count in spread({p: n for p, n in gaps.items() if p.target not in used_up}).items():
        partition.coordinator_epoch = epoch_above(epochs[partition])
        partition.markers_under_way = True
        markings[partition] = Marking(count, epochs[partition])
    answers = await write_markers(
        connection,
        {p.target: marking for p, marking in markings.items()},
        producer_id=flow.producer_id,
        producer_epoch=flow.producer_epoch,
    )
    answered = {p: one for p, one in markings.items() if not isinstance(answers[p.target], Ended)}
    for partition, marking in answered.items():
        partition.coordinator_epoch = marking.coordinator_epoch
    several = {p: one.count for p, one in answered.items() if answers[p.target] is None and one.count > 1}
    doubtful = await _not_all_there(flow, node, several) if several else ()
    _land(flow, answered)
    for partition in doubtful:
        partition.doubt(time.monotonic())
        del answers[partition.target]
    counts = {p.target: marking.count for p, marking in markings.items()}
    return used_up | {tp: counts[tp] if answer is None else answer for tp, answer in answers.items()}


def _used_up(partition: PartitionCopy) -> PartitionError:
    return PartitionError(
        partition.target,
        "no coordinator epoch is left for control markers, as too many requests with markers got no answer: "
        "restart the mirror",
        reason=Reason.TARGET_UNAVAILABLE,
    )


async def _not_all_there(
    flow: Flow, node: int, counts: Mapping[PartitionCopy, int]
) -> Sequence[PartitionCopy]:
    """The partitions whose log does not end after their markers, or whose log end cannot be read.

    A broker may refuse the first markers of a request and accept the last one, for example when a replica
    comes back in between. A look finds out what is there.
    """
    ends = await list_offsets(
        flow.target, [p.target for p in counts], LATEST, replica_id=DEBUGGER, leader=node
    )
    return [p for p, count in counts.items() if ends[p.target] != (p.target_next_offset or 0) + count]


def _wanted(gap: Gap) -> int:
    return min(gap.offsets, LOST_AT_ONCE) if gap.lost else gap.offsets


async def until_landed(flow: Flow, node: int, partitions: Sequence[PartitionCopy]) -> None:
    """Return when the markers of a request without an answer can no longer land; then a look may read the
    log ends. A partition whose leader moves away from ``node`` does not wait for the others.

    The broker may have received the request and be frozen. Once it answers another one it has begun what it
    received before. What a broker appends to partitions that it no longer leads does not last.
    """
    left, attempts, missing = list(partitions), 0, dict[PartitionCopy, float]()
    while left:
        flow.hooks.stale(flow.target)
        try:
            free = await _free(flow, node, left, missing)
        except TwinsiteError as refused:
            attempts += 1
            _say(flow, left, refused)
            await asyncio.sleep(pause_seconds(attempts))
            continue
        await asyncio.sleep(LANDING_SECONDS)
        _land(flow, free)
        for partition in free:
            flow.hooks.changed(partition)
        left = [p for p in left if p.markers_under_way]


async def _free(
    flow: Flow, node: int, partitions: Sequence[PartitionCopy], missing: dict[PartitionCopy, float]
) -> Sequence[PartitionCopy]:
    """Return all partitions when the broker has answered, or those whose leader has moved once there are any.

    Args:
        missing: Since when the target says that it has these no more, in monotonic seconds; kept up to date.

    Raises:
        TwinsiteError: The broker cannot be asked, or did not answer.
    """
    hearing = asyncio.create_task(flow.target.hear_from(node))
    try:
        while not (moved := [p for p in partitions if _has_moved(flow.target.info, p, node, missing)]):
            await asyncio.wait({hearing}, timeout=LEADERS_SECONDS)
            if hearing.done():
                hearing.result()
                return partitions
            flow.hooks.stale(flow.target)
        return moved
    finally:
        hearing.cancel()


def _has_moved(
    info: ClusterInfo, partition: PartitionCopy, node: int, missing: dict[PartitionCopy, float]
) -> bool:
    """Whether another broker leads it, or it is gone according to two answers some time apart.

    While it has no leader, the one that it had may come back, as its only replica in sync, and lead again.
    """
    leader = info.leader(partition.target)
    if leader != -1 or not _is_gone(info, partition.target):
        missing.pop(partition, None)
        return leader not in {-1, node}
    return info.seen_at - missing.setdefault(partition, info.seen_at) >= LEADERS_SECONDS


def _is_gone(info: ClusterInfo, target: TopicPartition) -> bool:
    """Whether the target says so, of the topic or of a partition that it had. Hidden is not gone."""
    topic = info.topics.get(target.topic)
    if topic is None:
        return says_gone(info.errors.get(target.topic))
    return target.partition not in topic.partitions


def _land(flow: Flow, partitions: Iterable[PartitionCopy]) -> None:
    """No marker that was sent to these can land any more."""
    for partition in partitions:
        partition.markers_under_way = False
    flow.room.set()


def _say(flow: Flow, partitions: Iterable[PartitionCopy], error: TwinsiteError) -> None:
    """Put the partitions in doubt; they are looked at once nothing is in flight."""
    for partition in partitions:
        partition.refused(UNANSWERED, str(error), time.monotonic())
        flow.hooks.changed(partition)
    flow.hooks.stale(flow.target)
