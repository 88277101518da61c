"""Read wanted partitions of one source broker, over and over.

Each lane has one fetch session, and each broker a few lanes. The next request leaves before this
answer's batches are sent on, so that the broker works while we do. An answer is received into
one pooled buffer; its batches are views of that. What did not arrive in time is asked for in
smaller portions.

Sources: KIP-227 (sessions), KIP-392 (reading from a follower), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog

from mirror.errors import BatchError, CorruptBatchError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.intake import Intake, take
from mirror.flow.partition import PartitionCopy
from mirror.flow.portion import SHARE_BYTES_MIN, Nearness, Portion, share
from mirror.flow.receiving import (
    BATCH_BYTES_DEFAULT,
    Answers,
    Outcome,
    Receiver,
    Room,
    asked_of,
    block,
    not_read,
    queue,
    truncated,
)
from mirror.flow.replicas import others_in_sync
from mirror.flow.states import pause_seconds
from mirror.kafka.answers import Allocate
from mirror.kafka.buffers import Buffer
from mirror.kafka.connection import Connection
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    FetchAnswer,
    FetchLimits,
    FetchSession,
    Key,
    Want,
    decode_answer,
)
from mirror.kafka.peek import peek
from mirror.link.loops import Pause, in_thread
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

CROWDED_WAIT_MS = 5
"""How long the broker may wait while a partition with data is left out for lack of room."""
FETCH_BYTES_CEILING = 128 << 20
"""A fetch limit is not raised beyond this, whatever the size of a batch."""


class FetchLane:
    """One connection from a source broker, for some of the partitions that are read there."""

    def __init__(self, flow: Flow, node: int, slot: int = 0) -> None:
        """
        Args:
            node: The broker's id.
            slot: Which of the lanes from that broker this is, counted from 0.
        """
        self._answered_at: float | None = None
        self._connection: Connection | None = None
        self._flow = flow
        self._node = node
        self._purpose = f"fetch-{slot}"
        self._session = FetchSession()
        self._bytes_max: dict[Key, int] = {}
        self._receiver = Receiver(flow, self._full, node)
        self._members, self._crowded = self._receiver.members, self._receiver.crowded
        self._room = Room(flow, self._members)
        self._share = flow.limits.partition_fetch_bytes_max
        self._nearness = Nearness()
        self._portion = Portion(flow.limits.fetch.bytes_max, flow.source.options.request_timeout_seconds)
        self._spare = 0
        self._work = asyncio.Event()
        self._pause = Pause()
        self._repeats = Repeats()

    # -- who takes part --------------------------------------------------------------------------

    def update(self, partition: PartitionCopy) -> None:
        """Read this partition from where it now wants to be read, or stop reading it."""
        key = partition.key
        if not self._receiver.admit(partition):
            self._forget(key, partition)
            return
        want = self._want(key, partition)
        if self._session.wanted.get(key) != want:
            self._session.want(key, want, anew=self._missed(key, partition))
            self._work.set()
            self._flow.room.set()  # the lane may be waiting for that, on behalf of another partition

    def leave(self, key: Key) -> None:
        """Stop reading this partition."""
        partition = self._members.get(key)
        self._receiver.leave(key)
        self._forget(key, partition)

    def drop(self, key: Key) -> None:
        """Forget everything about a partition that will not come back."""
        self._bytes_max.pop(key, None)

    def try_now(self) -> None:
        """Wait no longer if the broker could not be read: it may answer again."""
        self._pause.end()

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """When the broker last reported news of a partition, or that there are none; None before it did."""
        return self._answered_at if partition.key in self._session.heard else None

    def arriving_at(self, partition: PartitionCopy) -> float | None:  # noqa: ARG002 - as LinkLane has it
        """When the last piece arrived of an answer that is in transit."""
        return self._connection.arriving_at if self._connection is not None else None

    def _forget(self, key: Key, partition: PartitionCopy | None) -> None:
        self._note(key, partition)
        self._session.forget(key)

    def _note(self, key: Key, partition: PartitionCopy | None) -> None:
        """Note that a partition was as last reported until the broker's last answer; now that is not sure."""
        if partition is not None and self._answered_at is not None and key in self._session.heard:
            partition.still_so(self._answered_at)

    def _missed(self, key: Key, partition: PartitionCopy) -> bool:
        """Whether a report may have been missed: the broker does not repeat what has not changed."""
        if partition.source_last_stable_offset is None:
            return True
        return key not in self._session.heard and not self._more(partition)

    def _more(self, partition: PartitionCopy) -> bool:
        """Whether the source has reported more of the partition than was read."""
        return partition.readable_end(self._flow.limits.fetch.isolation) > partition.fetch_offset

    def _full(self, partition: PartitionCopy) -> bool:
        return partition.queue.bytes >= self._flow.limits.partition_buffer_bytes_max

    def _want(self, key: Key, partition: PartitionCopy) -> Want:
        info = self._flow.source.info.partition(partition.tp)
        bytes_max = max(self._share, self._bytes_max.get(key, 0))
        return Want(
            partition.ask_offset,
            info.leader_epoch if info else -1,
            partition.queue.fetched_epoch,
            bytes_max,
        )

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until cancelled. Errors of the connection are waited out."""
        attempts = 0
        while True:
            if not self._session.wanted:
                self._work.clear()
                await self._wait_for_work()
                continue
            limits = self._flow.limits
            await self._room.enough(limits.fetch.bytes_max, limits.buffer_bytes_max)
            self._look_after_crowded()
            self._pause.forget()
            try:
                await self._round()
                if attempts:
                    log.info("broker_read_again", broker=self._node, attempts=attempts)
                    self._repeats.forget("fetch")
                attempts = 0
            except TwinsiteError as error:
                attempts += 1
                self._lost(error)
                left_alone_seconds = self._flow.source.left_alone_seconds_of(self._node)
                if await self._pause.take(left_alone_seconds or pause_seconds(attempts)):
                    attempts = 1

    async def _wait_for_work(self) -> None:
        self._look_after_crowded()  # room may have been made while we waited for the broker
        if self._session.wanted:
            return
        if self._crowded:
            await self._room.bell()
        else:
            await self._work.wait()

    def _look_after_crowded(self) -> None:
        """Resume reading partitions whose queue has room again."""
        for key in list(self._crowded):
            self.update(self._members[key])

    async def _round(self) -> None:
        limits = replace(self._flow.limits.fetch, bytes_max=self._portion.bytes)
        if self._crowded:
            limits = replace(limits, wait_ms_max=min(CROWDED_WAIT_MS, limits.wait_ms_max))
        connection = self._connection = await self._flow.source.connection(self._node, self._purpose)
        connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
        held: list[Buffer] = []

        def allocate(size: int) -> memoryview:
            held.append(self._flow.pool.take(size))
            return held[0].memory[:size]

        try:
            answer = decode_answer(await self._ask(connection, limits, allocate))
            self._flow.instruments.count_throttled("fetch", answer.throttle_ms / 1000)
            await self._take(answer, limits.bytes_max, held[0])
        finally:
            for buffer in held:
                buffer.release()

    async def _ask(self, connection: Connection, limits: FetchLimits, allocate: Allocate) -> memoryview:
        """The next answer. The time it takes, or was waited for in vain, decides how much to ask for next."""
        asked_at = time.monotonic()
        try:
            body = await connection.send(
                FETCH, FETCH_VERSION, [self._session.request(limits)], allocate=allocate
            )
        except TwinsiteError:
            self._portion.lost(time.monotonic() - asked_at)
            raise
        reach("fetched")
        seconds = time.monotonic() - asked_at
        self._nearness.came(len(body), seconds)
        self._portion.came(seconds)
        self._flow.instruments.observe_request("fetch", seconds)
        return body

    def _lost(self, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self._node, error=str(error))
        self._session.reset()
        not_read(self._flow, self._members.values(), error)

    # -- an answer -------------------------------------------------------------------------------

    async def _take(self, answer: FetchAnswer, bytes_max: int, buffer: Buffer) -> None:
        """
        Args:
            bytes_max: How much was asked for at most.
        """
        if not self._session.answered(answer):
            raise broker_error(answer.error_code, f"source: Fetch from broker {self._node}")
        answers = Answers(time.monotonic(), None)
        self._flow.source.last_answer_at = answers.at
        if answer.says_nothing:
            return
        for fetched in answer.partitions:
            self._note(fetched.key, self._members.get(fetched.key))
            self._session.heard.discard(fetched.key)
        self._answered_at = answers.at
        came = sum(len(fetched.records) for fetched in answer.partitions)
        self._spare = bytes_max - came
        self._share = self._fair_share(came, bytes_max)
        for fetched in answer.partitions:
            partition = self._members.get(fetched.key)
            want = self._session.told.get(fetched.key)
            if partition is None or want is None:
                continue
            if partition.ask_offset != want.offset:
                self._session.forget(fetched.key)
                self.update(partition)
                continue
            outcome = await self._receiver.take(partition, fetched, want.offset, buffer, answers)
            if self._was_too_little(partition, want, outcome):
                self._grow(partition, fetched.key, want)
            if partition.told_at == answers.at:
                self._session.heard.add(fetched.key)
            self._flow.hooks.changed(partition)

    def _fair_share(self, came: int, bytes_max: int) -> int:
        """How many bytes a partition may bring in one answer.

        All partitions that are behind should fit, so that requests to the target hold batches of all of them.
        A single one may bring as much as the limits allow, and while answers are small no partitions are
        counted. A nearby broker is asked for less at a time.
        """
        limits = self._flow.limits
        if came < SHARE_BYTES_MIN:
            return limits.partition_fetch_bytes_max
        enough = bytes_max // SHARE_BYTES_MIN + 1  # counting more would not make the share smaller
        behind = sum(1 for _ in islice(filter(self._more, self._members.values()), enough))
        return min(share(bytes_max, behind, near=self._nearness.near), limits.partition_fetch_bytes_max)

    def _was_too_little(self, partition: PartitionCopy, want: Want, outcome: Outcome) -> bool:
        """Whether the batch is larger than what was asked for: only a part of it came, or none did although
        there is one and the answer had room. Where the answer was full, the broker begins with this partition
        another time (KIP-227).
        """
        if outcome is Outcome.EMPTY:
            return want.bytes_max <= self._spare and self._more(partition)
        return outcome is Outcome.TORN

    def _grow(self, partition: PartitionCopy, key: Key, want: Want) -> None:
        if want.bytes_max < FETCH_BYTES_CEILING:
            self._bytes_max[key] = min(want.bytes_max * 2, FETCH_BYTES_CEILING)
            return
        words = f"the batch does not fit into {FETCH_BYTES_CEILING} bytes: its length cannot be right"
        self._receiver.bad_batch(partition, key, CorruptBatchError(want.offset, words))


async def reread(flow: Flow, partition: PartitionCopy, bad: BatchError, bad_node: int | None = None) -> None:
    """Read on from another replica: a batch cannot be read from the one it came from.

    Consumers may read from in-sync followers (KIP-392). What they send is checked like any answer. Only when
    no replica has a good copy is the partition blocked, for what was wrong with the first one, and retried
    later.

    Args:
        bad_node: The broker it came from, which may no longer be the leader; None for the leader.
    """
    generation = partition.generation
    try:
        found = await _elsewhere(flow, partition, bad, bad_node)
    finally:
        partition.rereading = False
    if partition.generation == generation:
        match found:
            case Intake():
                queue(partition, found, None)
            case Replaced(epoch, end):
                truncated(partition, epoch, end)
            case None:
                block(partition, bad)
    flow.hooks.changed(partition)


class Replaced(NamedTuple):
    """A replica has other records than were copied: ``leader_epoch`` ends at ``end`` there."""

    leader_epoch: int
    end: int


async def _elsewhere(
    flow: Flow, partition: PartitionCopy, bad: BatchError, bad_node: int | None
) -> Intake | Replaced | None:
    """What the first replica with a good copy has from there on; None where no replica has one."""
    if bad_node is None:
        bad_node = flow.source.info.leader(partition.tp)
    for node in others_in_sync(flow.source, partition.tp, bad_node):
        about = {"cluster": flow.source.name, "partition": str(partition.tp), "node": node}
        try:
            found = await _read_once(flow, partition, node)
        except TwinsiteError as error:
            log.warning("replica_not_readable", **about, error=str(error))
        except Exception as error:  # a bug of ours must not keep the others from being asked
            log.exception("replica_not_readable", **about, error=repr(error))
        else:
            if isinstance(found, Replaced):
                if found.end < partition.fetch_offset:
                    return found
                log.warning("replica_not_readable", **about, error="it does not know the last leader epoch")
            elif found.items:
                log.warning("read_from_another_replica", **about, bad=str(bad))
                return found
    return None


async def _read_once(flow: Flow, partition: PartitionCopy, node: int) -> Intake | Replaced:
    """What one replica has from there on. Where the batch before is asked for too, both have to fit."""
    asks_more = partition.ask_offset < partition.fetch_offset
    bytes_max = flow.limits.partition_fetch_bytes_max
    while True:
        found = await _read_at_most(flow, partition, node, bytes_max)
        if isinstance(found, Replaced) or not asks_more or bytes_max >= FETCH_BYTES_CEILING:
            return found
        if found.items or found.error:
            return found
        bytes_max *= 2


async def _read_at_most(flow: Flow, partition: PartitionCopy, node: int, bytes_max: int) -> Intake | Replaced:
    offset, fetch_offset, limits = partition.ask_offset, partition.fetch_offset, flow.limits.fetch
    connection = await flow.source.connection(node, "reread")
    wants = {partition.key: Want(offset, -1, partition.queue.fetched_epoch, bytes_max)}
    limits = replace(limits, bytes_max=max(limits.bytes_max, bytes_max))
    fetched = next(iter(await peek(connection, wants, limits)), None)
    if fetched is None:
        return Intake(fetch_offset)
    if fetched.error_code:
        raise broker_error(fetched.error_code, f"source: Fetch of {partition.tp} from broker {node}")
    if fetched.diverging is not None:
        return Replaced(*fetched.diverging)
    look = partial(
        take,
        fetched.records,
        fetch_offset=fetch_offset,
        aborted=fetched.aborted,
        batch_bytes_max=flow.batch_bytes_max.get(partition.tp.topic, BATCH_BYTES_DEFAULT),
        asked=asked_of(partition, fetched, offset, limits.isolation),
    )
    async with flow.closer_look:  # it may be as large, or take as long, as what the leader sent
        return await in_thread(look)
