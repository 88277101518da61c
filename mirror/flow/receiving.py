"""Turn what was read of a partition into what is to be copied, or into the reason why it is not.

The same for both ways: straight from a broker, or through a relay that has read it there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

import structlog

from mirror.errors import (
    BatchError,
    CorruptBatchError,
    EarlyBatchError,
    MisplacedBatchError,
    RecordTooLargeError,
    TwinsiteError,
)
from mirror.flow.context import Flow
from mirror.flow.intake import Intake, is_little, newer_before, take_plain, take_rest
from mirror.flow.misplaced import Asked
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import replaced
from mirror.flow.states import Refusal, fetch_refusal, way_refusal
from mirror.kafka.buffers import Buffer
from mirror.kafka.failures import STALE_METADATA_CODES, broker_error
from mirror.kafka.fetch import Fetched, Isolation, Key
from mirror.link.loops import in_thread
from mirror.model import Reason, State

log = structlog.get_logger(__name__)

BATCH_BYTES_DEFAULT = 1 << 20
INLINE_BYTES_MAX = 64 << 10
"""Up to this size, inflated included, a closer look is taken at once; above it in another thread, because
re-encoding batches takes long.
"""
LOOK_AFTER_SECONDS = 5.0
"""After an error that does not pass by itself, a partition is looked at again this much later."""
ROOM_WAIT_SECONDS = 5.0
"""After this long without a buffer given back, those are taken back that wait for a broker silent as long."""


class Outcome(Enum):
    """What became of an answer for one partition."""

    TAKEN = "taken"
    EMPTY = "empty"
    TORN = "torn"
    """It holds no whole batch."""
    EARLY = "early"
    """A batch reaches beyond the log end that the answer gives; the next answer tells whether it is there."""
    REFUSED = "refused"
    OVERTAKEN = "overtaken"
    """Something else was decided for the partition while the answer was being examined; it was dropped."""


class Answers(NamedTuple):
    """When answers came, in monotonic seconds.

    Attributes:
        at: When this answer came, or a moment before that.
        before: When the previous answer came that would have had news of the partition; None for the first.
    """

    at: float
    before: float | None


class Receiver:
    """The partitions of one lane: which are read there, and what becomes of what was read.

    Attributes:
        members: All of them.
        crowded: Those not read for now: they have no room, or what is queued must be written first.
        sorting: Those of which an answer is being examined in another thread.

    Args:
        full: Whether so much of a partition waits that no more of it should come for now.
        node: The broker they are read from; None where each is read from its leader.
    """

    def __init__(self, flow: Flow, full: Callable[[PartitionCopy], bool], node: int | None = None) -> None:
        self.members: dict[Key, PartitionCopy] = {}
        self.crowded: set[Key] = set()
        self.sorting: set[Key] = set()
        self._flow = flow
        self._full = full
        self._node = node
        self._bad_at: dict[Key, int] = {}
        self._early_at: dict[Key, int] = {}

    def admit(self, partition: PartitionCopy) -> bool:
        """Note the state of a partition; True if more of it is to be read now."""
        key = partition.key
        if not partition.copying:
            self.leave(key)
            return False
        self.members[key] = partition
        full = self._full(partition)
        waits = self._bad_at.get(key) == partition.fetch_offset and partition.pending
        (self.crowded.add if full or waits else self.crowded.discard)(key)
        return not (full or waits)

    def leave(self, key: Key) -> None:
        """Stop reading this partition here."""
        self.members.pop(key, None)
        self.crowded.discard(key)
        self._bad_at.pop(key, None)
        self._early_at.pop(key, None)

    async def take(
        self,
        partition: PartitionCopy,
        fetched: Fetched,
        offset: int,
        buffer: Buffer,
        answers: Answers,
    ) -> Outcome:
        """Take what came for a partition, read from ``offset``: its fetch offset, or an earlier one.

        Re-encoding batches takes time; other lanes go on meanwhile. What is decided for the partition in that
        time holds, and what came is dropped.

        Args:
            buffer: Where the records are; the caller holds it until this returns.
            answers: When this answer and the one before it came.
        """
        try:
            return await self._take(partition, fetched, offset, buffer, answers)
        except Exception as error:  # a mistake of ours must not hold up the other partitions
            log.exception("partition_not_taken", partition=str(partition.tp))
            words = f"what was read at {partition.fetch_offset} could not be processed: {error!r}"
            partition.refused(Refusal(State.BLOCKED, Reason.INTERNAL_ERROR), words, time.monotonic())
            return Outcome.REFUSED

    async def _take(
        self, partition: PartitionCopy, fetched: Fetched, offset: int, buffer: Buffer, answers: Answers
    ) -> Outcome:
        if fetched.error_code or fetched.diverging is not None:
            self._refused(partition, fetched)
            return Outcome.REFUSED
        isolation = self._flow.limits.fetch.isolation
        partition.heard(
            fetched.log_start_offset,
            fetched.high_watermark,
            fetched.readable_end(isolation),
            at=answers.at,
            answered_before=answers.before,
        )
        if not len(fetched.records):
            missing = partition.readable_end(isolation) > partition.fetch_offset
            if not missing and not partition.pending:
                partition.attempts = 0  # all is well, and no append will come that would reset this
            return Outcome.EMPTY
        if offset < partition.ask_offset and self._replaced(partition, fetched, offset):
            return Outcome.REFUSED
        bytes_max = self._flow.batch_bytes_max.get(partition.tp.topic, BATCH_BYTES_DEFAULT)
        intake, rest = take_plain(
            fetched.records, fetch_offset=partition.fetch_offset, batch_bytes_max=bytes_max
        )
        if len(rest):
            asked = asked_of(partition, fetched, offset, isolation)
            if not await self._look_closer(partition, fetched, intake, rest, asked, bytes_max):
                return Outcome.OVERTAKEN
        return self._push(partition, fetched.key, intake, buffer)

    async def _look_closer(
        self,
        partition: PartitionCopy,
        fetched: Fetched,
        intake: Intake,
        rest: memoryview,
        asked: Asked,
        batch_bytes_max: int,
    ) -> bool:
        """Take the batches that do not pass as they are; False if the partition has changed meanwhile."""
        closer = partial(
            take_rest, intake, rest, asked=asked, aborted=fetched.aborted, batch_bytes_max=batch_bytes_max
        )
        if not is_little(
            rest,
            next_offset=intake.next_offset,
            batch_bytes_max=batch_bytes_max,
            bytes_max=INLINE_BYTES_MAX,
        ):
            return await self._beside(partition, fetched.key, closer)
        closer()
        return True

    async def _beside(self, partition: PartitionCopy, key: Key, work: Callable[[], None]) -> bool:
        """Do the work in another thread, one at a time in the flow; False if the partition has changed
        meanwhile.
        """
        before = partition.generation, partition.fetch_offset
        self.sorting.add(key)
        try:
            async with self._flow.closer_look:
                await in_thread(work)
        except asyncio.CancelledError:
            self.sorting.discard(key)
            self._flow.hooks.changed(partition)  # changes of it were left alone meanwhile
            raise
        finally:
            self.sorting.discard(key)
        return before == (partition.generation, partition.fetch_offset)

    def _push(self, partition: PartitionCopy, key: Key, intake: Intake, buffer: Buffer) -> Outcome:
        partition.counters.batches_reencoded += intake.reencoded
        queue(partition, intake, buffer)
        if intake.items:
            return Outcome.TAKEN
        if intake.error is None:
            return Outcome.TORN
        if isinstance(intake.error, EarlyBatchError) and self._early_at.get(key) != partition.fetch_offset:
            self._early_at[key] = partition.fetch_offset
            return Outcome.EARLY
        self.bad_batch(partition, key, intake.error)
        return Outcome.REFUSED

    def bad_batch(self, partition: PartitionCopy, key: Key, error: BatchError) -> None:
        """Handle a batch that cannot be taken. What precedes it is written first. Then other replicas are
        asked, and the partition is blocked if none has a good copy. For a record too large for the target no
        replica is asked: it is as large on all of them.
        """
        if isinstance(error, MisplacedBatchError):
            partition.doubtful_at = partition.fetch_offset
        if partition.pending:
            self._bad_at[key] = partition.fetch_offset
            return
        if isinstance(error, RecordTooLargeError):
            block(partition, error)
            return
        if isinstance(error, CorruptBatchError):
            self._flow.instruments.count_crc_failure("source")
        partition.rereading = True
        self._flow.hooks.reread(partition, error, self._node)

    def _replaced(self, partition: PartitionCopy, fetched: Fetched, offset: int) -> bool:
        """Whether what was read from a lower offset, for another mirror too, is not what was copied there."""
        epoch = partition.queue.fetched_epoch
        begins = newer_before(
            fetched.records, asked_from=offset, fetch_offset=partition.fetch_offset, epoch=epoch
        )
        if begins is not None:
            truncated(partition, epoch, begins)
        return begins is not None

    def _refused(self, partition: PartitionCopy, fetched: Fetched) -> None:
        now = time.monotonic()
        if fetched.diverging is not None:
            truncated(partition, *fetched.diverging)
            return
        if fetched.error_code in STALE_METADATA_CODES:
            self._flow.hooks.stale(self._flow.source)
        error = broker_error(fetched.error_code, f"source: Fetch of {partition.tp}")
        refusal = fetch_refusal(fetched.error_code)
        if refusal.reason is Reason.CORRUPT_BATCH:
            bad = CorruptBatchError(partition.fetch_offset, str(error))
            self.bad_batch(partition, fetched.key, bad)
        else:
            partition.refused(refusal, str(error), now)


def asked_of(partition: PartitionCopy, fetched: Fetched, offset: int, isolation: Isolation) -> Asked:
    """What an answer for a partition is checked against; it was asked for at ``offset``."""
    wanted_from = partition.fetch_offset
    batch_end = wanted_from if partition.batch_end == wanted_from else -1
    return Asked(offset, batch_end=batch_end, end=fetched.readable_end(isolation))


def queue(partition: PartitionCopy, intake: Intake, buffer: Buffer | None) -> None:
    """Append what was taken to the queue, and remember where a batch was out of place."""
    partition.queue.push(intake.items, intake.leader_epochs, buffer)
    if intake.items:
        partition.batch_end = intake.next_offset
    if isinstance(intake.error, MisplacedBatchError):
        partition.doubtful_at = intake.next_offset


def truncated(partition: PartitionCopy, epoch: int, epoch_end: int) -> None:
    """The source has replaced records; arguments as for :func:`mirror.flow.position.replaced`.

    If it replaced only what was read and not yet acknowledged, the partition is looked at once nothing of it
    is in flight. Otherwise it becomes DIVERGED.
    """
    copied_to = partition.next_offset or 0
    if partition.pending and copied_to <= epoch_end:
        partition.doubt(time.monotonic())
        return
    partition.found(replaced(copied_to, epoch, epoch_end), time.monotonic())


def block(partition: PartitionCopy, error: BatchError) -> None:
    """Block a partition because no replica has a good copy of a batch; try again, later each time."""
    partition.refused(Refusal(State.BLOCKED, error.reason), str(error), time.monotonic())


def not_read(flow: Flow, partitions: Collection[PartitionCopy], error: TwinsiteError) -> None:
    """These partitions cannot be read just now, because the connection they are read over failed."""
    now = time.monotonic()
    for partition in list(partitions):
        if error.retriable:
            partition.not_heard(str(error), now)
        else:
            partition.refused(way_refusal(error), str(error), now, again_seconds=LOOK_AFTER_SECONDS)
            flow.hooks.changed(partition)
    flow.hooks.stale(flow.source)


class Room:
    """Waits for memory, on behalf of the partitions of one lane.

    Args:
        members: Those partitions. When no buffer is given back, some of theirs may be taken back.
    """

    def __init__(self, flow: Flow, members: Mapping[Key, PartitionCopy]) -> None:
        self._flow = flow
        self._members = members
        self._first = asyncio.Lock()

    async def enough(self, size: int, bytes_max: int, *, first: bool = False) -> None:
        """Return when ``size`` more bytes fit into ``bytes_max``, or when no bytes are in use at all.

        Args:
            first: Everyone else waits meanwhile, however little they want, so that they do not take what is
                given back.
        """
        if first:
            async with self._first:
                while self._lacks(size, bytes_max):
                    await self._some_more()
            return
        while self._first.locked() or self._lacks(size, bytes_max):
            if self._first.locked():
                async with self._first:
                    continue
            await self._some_more()

    def _lacks(self, size: int, bytes_max: int) -> bool:
        used = self._flow.pool.used_bytes
        return bool(used) and used + size > bytes_max

    async def _some_more(self) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT_SECONDS):
                await self._more()
        except TimeoutError:
            self._take_back()

    async def _more(self) -> None:
        """Return when the pool uses less than before; the bell alone does not say so."""
        used, before = self._flow.pool.used_bytes, 0
        while used >= before:
            await self.bell()
            used, before = self._flow.pool.used_bytes, used

    async def bell(self) -> None:
        """Return when there may be more room than there was."""
        self._flow.room.clear()
        await self._flow.room.wait()

    def _take_back(self) -> None:
        """Drop what waits for a silent broker, because it would hold up others.

        A small batch that waits for a dead broker keeps the whole buffer in which it came. A slow broker that
        answers makes room in the end, so what waits for it stays: it would be read again for nothing.
        """
        now, silence = time.monotonic(), self._flow.silence
        pending = [p for p in self._members.values() if p.pending]
        for partition in [p for p in pending if silence.of(p, now) >= ROOM_WAIT_SECONDS]:
            partition.doubt(now)
            self._flow.hooks.changed(partition)
