"""Read wanted partitions of one source broker, over and over.

One fetch session a lane, and a few lanes to a broker; the next request leaves before this
answer's batches are sent on, so that the broker works while we do. An answer is received into
one pooled buffer, the batches in it are views.

Sources: KIP-227 (sessions), KIP-392 (reading from a follower), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from mirror.errors import BatchError, CorruptBatchError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.intake import Intake, take
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import fetch_refusal, pause_seconds
from mirror.kafka.buffers import Buffer
from mirror.kafka.cluster import STALE_METADATA_CODES, broker_error
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    FetchAnswer,
    Fetched,
    FetchSession,
    Key,
    Want,
    decode_answer,
)
from mirror.kafka.peek import peek
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State

log = structlog.get_logger(__name__)

CROWDED_WAIT_MS = 5
"""How long the broker may wait while a partition with data is left out for want of room."""
ROOM_WAIT_SECONDS = 5.0
"""So long without an answer from the target while the buffers are full, and they are taken back."""
BATCH_BYTES_DEFAULT = 1 << 20
SHARE_BYTES_MIN = 256 << 10
"""The least a partition may bring when many are behind: reading a little of each costs both sides more."""
FETCH_BYTES_CEILING = 128 << 20
"""A fetch limit is not raised beyond this, whatever the size of a batch."""


class FetchLane:
    """The way from one source broker, over one connection, of some partitions that are read there."""

    def __init__(self, flow: Flow, node: int, slot: int = 0) -> None:
        """
        Args:
            node: The broker's id.
            slot: Which of the lanes from that broker this is, counted from 0.
        """
        self.answered_at: float | None = None
        self._flow = flow
        self._node = node
        self._purpose = f"fetch-{slot}"
        self._session = FetchSession()
        self._members: dict[Key, PartitionCopy] = {}
        self._crowded: set[Key] = set()
        self._bytes_max: dict[Key, int] = {}
        self._bad_at: dict[Key, int] = {}
        self._share = flow.limits.partition_fetch_bytes_max
        self._spare = 0
        self._work = asyncio.Event()
        self._repeats = Repeats()

    # -- who takes part --------------------------------------------------------------------------

    def update(self, partition: PartitionCopy) -> None:
        """Read this partition from where it now wants to be read, or leave it alone."""
        key = Key(partition.topic_id, partition.tp.partition)
        if not partition.copying:
            self.leave(key)
            return
        self._members[key] = partition
        full = partition.queue.bytes >= self._flow.limits.partition_buffer_bytes_max
        if full or (partition.pending and self._bad_at.get(key) == partition.fetch_offset):
            self._crowded.add(key)
            self._session.forget(key)
            return
        self._crowded.discard(key)
        want = self._want(key, partition)
        if self._session.wanted.get(key) != want:
            self._session.want(key, want)
            self._work.set()
            self._flow.room.set()  # the lane may be waiting for that, on behalf of another partition

    def leave(self, key: Key) -> None:
        """Read this partition no more."""
        if self._members.pop(key, None) is not None:
            self._crowded.discard(key)
            self._bad_at.pop(key, None)
            self._session.forget(key)

    def _want(self, key: Key, partition: PartitionCopy) -> Want:
        info = self._flow.source.info.partition(partition.tp)
        bytes_max = max(self._share, self._bytes_max.get(key, 0))
        return Want(
            partition.fetch_offset,
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
            await self._wait_for_room()
            self._look_after_crowded()
            try:
                await self._round()
                if attempts:
                    log.info("broker_read_again", broker=self._node, attempts=attempts)
                    self._repeats.forget("fetch")
                attempts = 0
            except TwinsiteError as error:
                attempts += 1
                self._lost(error)
                await asyncio.sleep(pause_seconds(attempts))

    async def _wait_for_work(self) -> None:
        if self._crowded:
            await self._room()
            self._look_after_crowded()
        else:
            await self._work.wait()

    def _look_after_crowded(self) -> None:
        """Read those again whose queue has room by now."""
        for key in list(self._crowded):
            self.update(self._members[key])

    async def _wait_for_room(self) -> None:
        pool, limits = self._flow.pool, self._flow.limits
        while pool.used_bytes and pool.used_bytes + limits.fetch.bytes_max > limits.buffer_bytes_max:
            try:
                async with asyncio.timeout(ROOM_WAIT_SECONDS):
                    await self._more_room()
            except TimeoutError:
                self._take_back_room()

    async def _more_room(self) -> None:
        """Return when some buffer was given back; that the bell rang says nothing yet."""
        used, before = self._flow.pool.used_bytes, 0
        while used >= before:
            await self._room()
            used, before = self._flow.pool.used_bytes, used

    async def _room(self) -> None:
        self._flow.room.clear()
        await self._flow.room.wait()

    def _take_back_room(self) -> None:
        """Nothing was answered for so long: what waits for the target is dropped, or it would hold up others.

        A small batch that waits for a dead broker keeps the whole buffer in which it came.
        """
        now = time.monotonic()
        for partition in [p for p in self._members.values() if p.pending]:
            partition.doubt(now)
            self._flow.hooks.changed(partition)

    async def _round(self) -> None:
        limits = self._flow.limits.fetch
        if self._crowded:
            limits = replace(limits, wait_ms_max=min(CROWDED_WAIT_MS, limits.wait_ms_max))
        connection = await self._flow.source.connection(self._node, self._purpose)
        connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
        held: list[Buffer] = []
        asked_at = time.monotonic()

        def allocate(size: int) -> memoryview:
            held.append(self._flow.pool.take(size))
            return held[0].memory[:size]

        try:
            body = await connection.send(
                FETCH, FETCH_VERSION, [self._session.request(limits)], allocate=allocate
            )
            reach("fetched")
            self._flow.instruments.observe_request("fetch", time.monotonic() - asked_at)
            answer = decode_answer(body)
            self._flow.instruments.count_throttled("fetch", answer.throttle_ms / 1000)
            self._take(answer, held[0])
        finally:
            for buffer in held:
                buffer.release()

    def _lost(self, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self._node, error=str(error))
        self._session.reset()
        now = time.monotonic()
        for partition in list(self._members.values()):
            if not error.retriable:
                partition.stop(State.BLOCKED, Reason.SOURCE_UNAVAILABLE, str(error), now + 5)
                self._flow.hooks.changed(partition)
            elif self.answered_at is None or now - self.answered_at > 5:
                partition.detail = str(error)
        self._flow.hooks.stale(self._flow.source)

    # -- an answer -------------------------------------------------------------------------------

    def _take(self, answer: FetchAnswer, buffer: Buffer) -> None:
        if not self._session.answered(answer):
            raise broker_error(answer.error_code, f"source: Fetch from broker {self._node}")
        before, self.answered_at = self.answered_at, time.monotonic()
        self._flow.source.last_answer_at = self.answered_at
        came = sum(len(fetched.records) for fetched in answer.partitions)
        self._spare = self._flow.limits.fetch.bytes_max - came
        self._share = self._fair_share(came)
        for fetched in answer.partitions:
            partition = self._members.get(fetched.key)
            want = self._session.told.get(fetched.key)
            if partition is not None and want is not None and partition.fetch_offset == want.offset:
                try:
                    self._take_partition(partition, fetched, want, buffer, before)
                except Exception as error:  # a mistake of ours must not hold up the other partitions
                    self._mistaken(partition, error)
                self._flow.hooks.changed(partition)

    @staticmethod
    def _mistaken(partition: PartitionCopy, error: Exception) -> None:
        log.error("partition_not_taken", partition=str(partition.tp), exc_info=error)
        partition.attempts += 1
        words = f"what was read at {partition.fetch_offset} was not understood: {error!r}"
        look_at = time.monotonic() + pause_seconds(partition.attempts)
        partition.stop(State.BLOCKED, Reason.INTERNAL_ERROR, words, look_at)

    def _fair_share(self, came: int) -> int:
        """What a partition may bring in one answer: as many as are behind should fit, so that requests to the
        target hold batches of all of them. One alone may bring as much as it likes, and while answers are
        small nobody needs to be counted.
        """
        limits = self._flow.limits
        if came < limits.fetch.bytes_max // 4:
            return limits.partition_fetch_bytes_max
        isolation = limits.fetch.isolation
        behind = sum(p.fetch_offset < p.readable_end(isolation) for p in self._members.values())
        fair = max(limits.fetch.bytes_max // max(behind, 1), SHARE_BYTES_MIN)
        return min(fair, limits.partition_fetch_bytes_max)

    def _take_partition(
        self, partition: PartitionCopy, fetched: Fetched, want: Want, buffer: Buffer, before: float | None
    ) -> None:
        if fetched.error_code or fetched.diverging is not None:
            self._refused(partition, fetched)
            return
        partition.heard(fetched.log_start_offset, fetched.high_watermark, fetched.last_stable_offset, before)
        if not len(fetched.records):
            self._nothing_came(partition, fetched, want)
            return
        intake = take(
            fetched.records,
            fetch_offset=want.offset,
            aborted=fetched.aborted,
            batch_bytes_max=self._flow.batch_bytes_max.get(partition.tp.topic, BATCH_BYTES_DEFAULT),
        )
        self._push(partition, fetched, want, intake, buffer)

    def _push(
        self, partition: PartitionCopy, fetched: Fetched, want: Want, intake: Intake, buffer: Buffer
    ) -> None:
        partition.counters.batches_reencoded += intake.reencoded
        partition.queue.push(intake.items, intake.leader_epochs, buffer)
        if intake.error is not None and not intake.items:
            self._bad_batch(partition, fetched.key, intake.error)
        elif not intake.items:
            self._grow(partition, fetched.key, want)

    def _nothing_came(self, partition: PartitionCopy, fetched: Fetched, want: Want) -> None:
        """No batch came although there is one, and the answer had room: it is larger than what was asked for.

        Where the answer was full, the broker begins with this partition another time (KIP-227).
        """
        missing = partition.readable_end(self._flow.limits.fetch.isolation) > want.offset
        if not missing and not partition.pending:
            partition.attempts = 0  # all is well; nothing will be appended that could show it
        if missing and want.bytes_max <= self._spare:
            self._grow(partition, fetched.key, want)

    def _grow(self, partition: PartitionCopy, key: Key, want: Want) -> None:
        if want.bytes_max < FETCH_BYTES_CEILING:
            self._bytes_max[key] = min(want.bytes_max * 2, FETCH_BYTES_CEILING)
            return
        words = f"the batch is not whole within {FETCH_BYTES_CEILING} bytes: its length cannot be true"
        self._bad_batch(partition, key, CorruptBatchError(want.offset, words))

    def _bad_batch(self, partition: PartitionCopy, key: Key, error: BatchError) -> None:
        """What stands before the batch is written first; then the partition is blocked."""
        if partition.pending:
            self._bad_at[key] = partition.fetch_offset
            return
        now = time.monotonic()
        if isinstance(error, CorruptBatchError):
            self._flow.instruments.count_crc_failure("source")
            if not partition.rereading:
                partition.rereading = True
                self._flow.hooks.reread(partition, str(error))
        partition.attempts += 1
        partition.stop(State.BLOCKED, error.reason, str(error), now + pause_seconds(partition.attempts))

    def _refused(self, partition: PartitionCopy, fetched: Fetched) -> None:
        now = time.monotonic()
        if fetched.diverging is not None:
            epoch, end = fetched.diverging
            partition.stop(
                State.DIVERGED,
                Reason.SOURCE_TRUNCATED,
                f"copied up to {partition.next_offset}, but the source's leader epoch {epoch} ends at {end}: "
                f"offsets from {end} on were replaced after an unclean leader election",
                None,
            )
            return
        if fetched.error_code in STALE_METADATA_CODES:
            self._flow.hooks.stale(self._flow.source)
        error = broker_error(fetched.error_code, f"source: Fetch of {partition.tp}")
        partition.refused(fetch_refusal(fetched.error_code), str(error), now)


async def reread(flow: Flow, partition: PartitionCopy, why: str) -> None:
    """Read on from another replica: a batch is corrupt on the one it came from.

    Consumers may read from followers that are in sync (KIP-392). What comes is checked like anything else;
    when no replica has a good copy the partition stays blocked and is tried again later.
    """
    generation, offset = partition.generation, partition.send_offset
    info = flow.source.info.partition(partition.tp)
    for node in info.in_sync_replicas if info else ():
        if info is None or node == info.leader:
            continue
        try:
            intake = await _read_once(flow, partition, node, offset)
        except TwinsiteError as error:
            log.warning("replica_not_readable", partition=str(partition.tp), node=node, error=str(error))
            continue
        unmoved = partition.generation == generation and partition.fetch_offset == offset
        if intake.items and unmoved and not partition.in_flight:
            log.warning("read_from_another_replica", partition=str(partition.tp), node=node, corrupt=why)
            partition.resume_with(intake.items, intake.leader_epochs)
            break
    partition.rereading = False
    flow.hooks.changed(partition)


async def _read_once(flow: Flow, partition: PartitionCopy, node: int, offset: int) -> Intake:
    connection = await flow.source.connection(node, "reread")
    key = Key(partition.topic_id, partition.tp.partition)
    want = Want(offset, -1, -1, flow.limits.partition_fetch_bytes_max)
    fetched = next(iter(await peek(connection, {key: want}, flow.limits.fetch)), None)
    if fetched is None:
        return Intake(offset)
    if fetched.error_code:
        raise broker_error(fetched.error_code, f"source: Fetch of {partition.tp} from broker {node}")
    return take(
        fetched.records,
        fetch_offset=offset,
        aborted=fetched.aborted,
        batch_bytes_max=flow.batch_bytes_max.get(partition.tp.topic, BATCH_BYTES_DEFAULT),
    )
