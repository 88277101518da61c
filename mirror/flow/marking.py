"""Write control markers to one broker: not many at a time, and not without knowing when they have landed.

A marker is not conditional, it lands wherever the log ends. So a request stays small
enough that the next owner may count on its end, and where no answer came nobody may
read a log end before the markers can land no more. An answer tells the outcome of a
partition's last marker only: of several the log end is asked, before anything follows.

Sources: KIP-98 (WriteTxnMarkers), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import append_refusal, pause_seconds
from mirror.kafka.connection import Connection
from mirror.kafka.offsets import DEBUGGER, LATEST, Answers, Marking, list_offsets, write_markers
from mirror.model import Gap

MARKERS_AT_ONCE = 5_000
"""In one request, to all its partitions: half a second for the broker, a fifth of what a new owner waits."""
LOST_AT_ONCE = 500
"""Of what was lost, so many: it may be millions, and whoever else needs markers is not to wait for that."""
LANDING_SECONDS = 2.0
"""Four times what a broker needs for the markers of a request it has begun with."""
OWNER_EPOCH_SHIFT = 16
"""An owner has so many bits for its own epochs; all of them fit into 31."""
LANE = "markers"
"""A connection of their own: a broker answers one request of a connection after the other."""


def marker_epoch(next_epoch: int, owner_epoch: int) -> int:
    """The coordinator epoch of markers: above those that have landed, and those of an owner before.

    A broker refuses one that is lower than the last, not one that is the same.

    Args:
        next_epoch: One above the last that has landed, or was sent here.
        owner_epoch: What the coordinator gave us, 0 to 32 767.
    """
    return max(next_epoch, owner_epoch << OWNER_EPOCH_SHIFT)


def spread(offsets: Mapping[PartitionCopy, int], at_once: int = MARKERS_AT_ONCE) -> dict[PartitionCopy, int]:
    """How many markers each partition gets of those that fit a request: the same for all who need so many."""
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
    """Begin with the gaps at the head of these partitions' queues; ``node`` leads them all.

    Args:
        connection: One that only markers are sent over, to that node.
        owner_epoch: Of the right under which they are sent.

    Nobody is looked at meanwhile. That lasts until the broker has answered, or until it is certain that what
    it did not answer has landed or never will.

    Returns:
        How many markers were appended to each target partition, or why it is not known that any were. One
        that does not end behind them is in doubt, and left out.
    """
    gaps = {p: _wanted(gap) for p in partitions if (gap := p.queue.gap) is not None and not p.unanswered}
    markings: dict[PartitionCopy, Marking] = {}
    for partition, count in spread(gaps).items():
        partition.coordinator_epoch = marker_epoch(partition.coordinator_epoch, owner_epoch)
        partition.markers_under_way = True
        markings[partition] = Marking(count, partition.coordinator_epoch)
    try:
        answers = await write_markers(
            connection,
            {p.target: marking for p, marking in markings.items()},
            producer_id=flow.producer_id,
            producer_epoch=flow.producer_epoch,
        )
        lost = next((a for a in answers.values() if isinstance(a, ConnectionFailedError)), None)
        if lost is not None:
            await _landed(flow, node, list(markings), lost)
        several = {p: one.count for p, one in markings.items() if answers[p.target] is None and one.count > 1}
        doubtful = await _not_all_there(flow, node, several) if several else ()
    finally:
        for partition in markings:
            partition.markers_under_way = False
        flow.room.set()
    for partition in doubtful:
        partition.doubt(time.monotonic())
        del answers[partition.target]
    counts = {p.target: marking.count for p, marking in markings.items()}
    return {tp: counts[tp] if answer is None else answer for tp, answer in answers.items()}


async def _not_all_there(
    flow: Flow, node: int, counts: Mapping[PartitionCopy, int]
) -> Sequence[PartitionCopy]:
    """The partitions whose log does not end where so many markers make it end, or does not tell.

    A broker may refuse the first markers of a request and take the last one, as where a replica comes back
    meanwhile. What is there then a look sees.
    """
    ends = await list_offsets(
        flow.target, [p.target for p in counts], LATEST, replica_id=DEBUGGER, leader=node
    )
    return [p for p, count in counts.items() if ends[p.target] != (p.target_next_offset or 0) + count]


def _wanted(gap: Gap) -> int:
    return min(gap.offsets, LOST_AT_ONCE) if gap.lost else gap.offsets


async def _landed(
    flow: Flow, node: int, partitions: Sequence[PartitionCopy], lost: ConnectionFailedError
) -> None:
    """Return when markers that were not answered can land no more.

    The connection they were sent on is closed, but the broker may have them, and be frozen. Once it answers
    on another connection it has begun with what it had received before: it takes requests in their order. A
    broker that leads the partitions no more appends nothing that lasts.
    """
    error: TwinsiteError = lost
    attempts = 0
    while any(flow.target.info.leader(p.target) == node for p in partitions):
        _say(flow, partitions, error)
        try:
            await flow.target.connection(node, LANE)
            break
        except TwinsiteError as refused:
            error, attempts = refused, attempts + 1
            await asyncio.sleep(pause_seconds(attempts))
    await asyncio.sleep(LANDING_SECONDS)


def _say(flow: Flow, partitions: Sequence[PartitionCopy], error: TwinsiteError) -> None:
    """They are in doubt; to be looked at when nothing is on its way any more."""
    for partition in partitions:
        partition.refused(append_refusal(-1), str(error), time.monotonic())
        flow.hooks.changed(partition)
    flow.hooks.stale(flow.target)
