"""Take what a relay reads for us: one lane for all partitions, over one stream.

The relay goes on by itself from where it was told to begin, so nothing here waits for a round trip. Where the
stream is not where the copy of a partition is, the relay is told again.

Sources: docs/protocol.md, docs/design.md.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

import structlog

from mirror.errors import (
    AnswerError,
    MisplacedBatchError,
    OtherClusterError,
    OthersTooOldError,
    RelayTooOldError,
    TwinsiteError,
    UnsupportedVersionError,
)
from mirror.failpoints import reach
from mirror.flow.context import Flow, LinkLimits
from mirror.flow.crowding import Crowding
from mirror.flow.partition import PartitionCopy
from mirror.flow.receiving import Answers, Outcome, Receiver, Room, not_read
from mirror.flow.states import fetch_refusal, pause_seconds
from mirror.flow.ways import Way, Ways
from mirror.kafka.buffers import Buffer
from mirror.kafka.failures import AUTHORIZATION_CODES
from mirror.kafka.fetch import Key
from mirror.kafka.refused import LONGEST_PAUSE_SECONDS
from mirror.link.channels import Came
from mirror.link.frames import Header, Opener
from mirror.link.greeting import Hello
from mirror.link.loops import Pause, first_to_end, in_thread
from mirror.link.parts import ASTRAY, Part, decode_parts, ends_here, goes_on, restored
from mirror.link.protocol import RELAY_ITSELF, Channel, Position
from mirror.link.recodable import Recodable
from mirror.link.stream import LinkStream
from mirror.logs import Repeats, warn_repeated
from mirror.timetable import TIMETABLE_SECONDS, rate_at

log = structlog.get_logger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
INLINE_BYTES_MAX = 64 << 10
"""A frame up to this size is opened at once, a larger one in another thread."""
FRAMES_IN_BUFFER = 8
PART_BYTES_MAX = 1 << 20
"""A relay sends at most this much of a partition in one frame, or one batch; a partition has room for two."""
LIVE_SHARE = 8
"""One eighth of the buffers, and of the window, is for partitions that are caught up."""
LOOK_AGAIN_SECONDS = 60.0
"""How often a stream is tried where relays were too old for one: they may have been updated."""
TRIES_MAX = 5
"""How often relays that do not answer are retried where all others are too old for a stream."""


class LinkLane:
    """The one lane for all partitions, from the source through a relay."""

    def __init__(self, flow: Flow, limits: LinkLimits) -> None:
        self._flow = flow
        self._limits = limits
        self._recodable = Recodable()
        self._as_is: set[Key] = set()
        part_bytes = min(flow.limits.buffer_bytes_max // FRAMES_IN_BUFFER, PART_BYTES_MAX)
        each = max(flow.limits.partition_buffer_bytes_max, 2 * part_bytes)
        self._crowding = Crowding(flow.limits.buffer_bytes_max, each)
        self._receiver = Receiver(flow, self._full)
        self._members, self._crowded = self._receiver.members, self._receiver.crowded
        self._room = Room(flow, self._members)
        self._coming: dict[Key, tuple[int, int | None]] = {}
        """The number each was wanted under, and which offset comes next; None: it is to be wanted again."""
        self._numbers = itertools.count(1)
        self._wanted: dict[Key, Position] = {}
        self._ways = Ways(flow.limits.fetch.isolation)
        self._heard_at: float | None = None
        self._work = asyncio.Event()
        self._pause = Pause()
        self._repeats = Repeats()

    # -- who takes part --------------------------------------------------------------------------

    def update(self, partition: PartitionCopy) -> None:
        """Read this partition from where it now wants to be read, or stop reading it."""
        key = partition.key
        if partition.copying and key in self._receiver.sorting:
            return  # only when that is done is it known where it goes on
        if not self._receiver.admit(partition):
            self._forget(key, partition)
            return
        self._work.set()
        _, coming = self._coming.get(key, (0, None))
        if coming != partition.ask_offset or self._recodes_again(partition):
            self._want(key, partition)

    def leave(self, key: Key) -> None:
        """Stop reading this partition."""
        partition = self._members.get(key)
        self._receiver.leave(key)
        self._crowding.forget(key)
        self._forget(key, partition)

    def drop(self, key: Key) -> None:
        """Forget everything about a partition that will not come back."""
        self._as_is.discard(key)
        self._recodable.forget(key)

    def try_now(self) -> None:
        """Wait no longer for the next try of a stream: a relay may answer again."""
        self._pause.end()

    def _full(self, partition: PartitionCopy) -> bool:
        waiting, used = partition.queue.bytes, self._flow.pool.used_bytes
        return self._crowding.full(partition.key, waiting, partition.acknowledged_at, used)

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """As :meth:`Ways.answered_at`."""
        return self._ways.answered_at(partition)

    def arriving_at(self, partition: PartitionCopy) -> float | None:
        """As :meth:`Ways.arriving_at`; None while there is no stream."""
        stream = self._flow.stream
        return None if stream is None else self._ways.arriving_at(partition, stream.channels)

    def _want(self, key: Key, partition: PartitionCopy) -> None:
        number = next(self._numbers) % (1 << 32)
        recode = self._recodable.allows(key, partition.fetch_offset, time.monotonic())
        (self._as_is.discard if recode else self._as_is.add)(key)
        self._coming[key] = number, partition.ask_offset
        self._ways.forget(key, partition)
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._tell)
        self._wanted[key] = Position(
            key,
            number,
            partition.ask_offset,
            partition.queue.fetched_epoch,
            recode,
            partition.rank,
        )

    def _recodes_again(self, partition: PartitionCopy) -> bool:
        """Whether the batch that had to come as it is has come, so that recoding may resume."""
        key = partition.key
        return key in self._as_is and self._recodable.allows(key, partition.fetch_offset, time.monotonic())

    def _tell(self) -> None:
        wanted, self._wanted = list(self._wanted.values()), {}
        if self._flow.stream is not None and wanted:
            self._flow.stream.want(wanted)

    def _forget(self, key: Key, partition: PartitionCopy | None) -> None:
        self._wanted.pop(key, None)
        self._ways.forget(key, partition)
        if self._coming.pop(key, None) is not None and self._flow.stream is not None:
            self._flow.stream.forget([key])

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take what comes, until cancelled. Errors of the stream are waited out.

        The first stream is opened before any partition wants it: that takes three round trips.

        While all relays that answer are too old for a stream, brokers are asked through them.
        """
        attempts = 0
        while True:
            begun_at = time.monotonic()
            self._pause.forget()
            try:
                await self._follow()
            except TwinsiteError as error:
                attempts = 0 if (self._heard_at or 0.0) > begun_at else attempts + 1
                await self._pause.take(self._given_up(error, attempts))
            while not self._members and self._flow.link is not None:
                self._work.clear()
                await self._work.wait()

    async def _follow(self) -> None:
        flow = self._flow
        isolation = flow.limits.fetch.isolation
        limits = self._limits
        windows = (max(limits.window_bytes // LIVE_SHARE, 1), limits.window_bytes)
        who = (flow.name, flow.producer_id, flow.producer_epoch)
        frame_bytes = max(flow.limits.buffer_bytes_max // FRAMES_IN_BUFFER, 1)
        hello = Hello(*who, isolation, windows, frame_bytes, limits.level, limits.recode)
        stream = await LinkStream.open(flow.source.options, hello, flow.pool, limits.connections)
        log.info("stream_begun", relay=str(stream.relay), congestion=stream.welcome.congestion)
        self._repeats = Repeats()
        flow.stream = stream
        stream.channels.on_moved = self._moved
        if flow.link is None:
            flow.link = limits
            flow.hooks.stale(flow.source)  # then all partitions come back
        try:
            self._see_whose(stream)
            for key, partition in self._members.items():
                if key not in self._crowded:
                    self._want(key, partition)
            await first_to_end(
                stream.run(),
                self._take_frames(stream, Channel.LIVE),
                self._take_frames(stream, Channel.BULK),
                self._take_troubles(stream),
                self._look_after_crowded(),
                self._look_at_timetable(stream),
            )
        except TwinsiteError:
            if flow.source.options.relays is not None:
                flow.source.options.relays.failed(stream.relay)
            raise
        finally:
            flow.stream = None
            stream.close()
            flow.source.connections.count(stream.bytes_received, stream.bytes_sent)
            self._coming.clear()
            self._wanted.clear()
            self._ways.clear(self._members)

    def _see_whose(self, stream: LinkStream) -> None:
        """
        Raises:
            OtherClusterError: The relay reads another cluster than the source.
        """
        its, ours = stream.welcome.source_cluster_id, self._flow.source.info.cluster_id
        if its and ours and its != ours:
            raise OtherClusterError(f"relay {stream.relay}: it reads cluster {its}, not {ours} as before")

    def _moved(self, channel: int, moved: Sequence[tuple[Key, int]]) -> list[tuple[Key, int]]:
        """Partitions have moved to another channel: nothing is known of them until they come by that.

        Args:
            moved: Each with the number that it was wanted under.

        Returns:
            Those whose number still counts.
        """
        still = [(key, number) for key, number in moved if self._coming.get(key, (None, 0))[0] == number]
        for key, _ in still:
            self._ways.moved(key, self._members.get(key), channel)
        return still

    def _given_up(self, error: TwinsiteError, attempts: int) -> float:
        """There is no stream; returns after how many seconds to open another one."""
        too_old = isinstance(error, UnsupportedVersionError)
        waited = isinstance(error, OthersTooOldError) and attempts >= TRIES_MAX
        if (too_old or waited) and all(period.rate is None for period in self._limits.rates):
            self._do_without(error)
            return LOOK_AGAIN_SECONDS
        if too_old:
            error = RelayTooOldError(f"{error}; without a stream the rates of link.limits cannot be kept")
        self._lost(error)
        relays = self._flow.source.options.relays
        left_alone_seconds = relays.left_alone_seconds if relays is not None else 0.0
        return left_alone_seconds or min(pause_seconds(attempts), LONGEST_PAUSE_SECONDS)

    def _lost(self, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, str(error), "stream_lost", error=str(error))
        not_read(self._flow, self._members.values(), error)

    def _do_without(self, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, "without", "relay_without_streams", error=str(error))
        self._flow.link = None
        for partition in list(self._members.values()):
            self._flow.hooks.changed(partition)

    async def _look_after_crowded(self) -> None:
        """Resume reading partitions whose queue has room again."""
        while True:
            for key in list(self._crowded):
                self.update(self._members[key])
            await self._room.bell()

    async def _look_at_timetable(self, stream: LinkStream) -> None:
        """Tell the relay how fast it may send."""
        while True:
            rate = rate_at(self._limits.rates, datetime.now(UTC))
            if rate != stream.rate_limit:
                log.info("rate_limited", bytes_per_second=rate)
                stream.limit(rate)
            await asyncio.sleep(TIMETABLE_SECONDS)

    async def _take_troubles(self, stream: LinkStream) -> None:
        while True:
            trouble = await stream.next_trouble()
            words, now = f"relay {stream.relay}: {trouble.detail}", time.monotonic()
            self._ways.trouble(trouble, self._members)
            for partition in self._members.values():
                if trouble.concerns(self._flow.source.info.leader(partition.tp)):
                    partition.not_heard(words, now)
            self._flow.hooks.stale(self._flow.source)

    # -- frames ----------------------------------------------------------------------------------

    async def _take_frames(self, stream: LinkStream, channel: Channel) -> None:
        """Partitions that are caught up come first. Their share of the buffers may always be in use: no
        frame, however large, waits for that to be free.
        """
        limit, live = self._flow.limits.buffer_bytes_max, channel is Channel.LIVE
        share = limit // LIVE_SHARE
        limit -= 0 if live else share
        while True:
            came = await stream.channels.next_frame(channel)
            size = min(came.arrived.header.body_bytes, limit - share)
            await self._room.enough(size, limit, first=live)
            try:
                await self._take_frame(stream, came)
            except AnswerError as error:
                raise AnswerError(f"relay {stream.relay}: {error}") from error
            stream.took(came)

    async def _take_frame(self, stream: LinkStream, came: Came) -> None:
        (header, buffer), opener = came.arrived, stream.channels.opener(came.channel)
        pool, large = self._flow.pool, header.body_bytes > INLINE_BYTES_MAX and not header.stored
        pool.count(buffer)
        held = [buffer]
        try:
            if not header.stored:
                held.append(pool.take(header.body_bytes))
            opened = held[-1]
            room = opened.memory[: header.body_bytes]
            parts = await _run(large, _parts_of, opener, header, came.arrived.wire, room)
            buffers, others = [opened] * len(parts), dict[Key, int]()
            size = sum(part.recoded_bytes for part in parts)
            if size:
                held.append(pool.take(size))
                buffers = [held[-1] if part.recoded_bytes else opened for part in parts]
                parts, others = await _run(large, restored, parts, held[-1].memory[:size])
            numbers = [stream.channels.number_of(came.channel, part) for part in parts]
            await self._take_parts((came.channel, header.node), came.read_at, parts, numbers, buffers, others)
        finally:
            for buffer in held:
                buffer.release()
            self._flow.room.set()

    async def _take_parts(
        self,
        way: Way,
        read_at: float,
        parts: Sequence[Part],
        numbers: Sequence[int | None],
        buffers: Sequence[Buffer],
        others: Mapping[Key, int],
    ) -> None:
        """
        Args:
            read_at: When the relay read it, or before, in monotonic seconds.
            numbers: The number that each part was wanted under; None where it was not wanted.
            buffers: The buffer that holds each part's records.
            others: Partitions with a batch that recoding did not restore, with the offset after it: up to
                there they are asked for as they are.
        """
        reach("fetched")
        before = self._ways.heard_at.get(way)
        self._ways.heard_at[way] = read_at
        self._heard_at = max(self._heard_at or read_at, read_at)
        self._flow.source.last_answer_at = max(self._flow.source.last_answer_at or read_at, read_at)
        for part, number, buffer in zip(parts, numbers, buffers, strict=True):
            key = part.fetched.key
            partition = self._members.get(key)
            if partition is None or number is None or number != self._coming.get(key, (None, 0))[0]:
                continue  # it was sent before the relay knew what is wanted now
            at = partition.fetch_offset
            if part.offset > at:
                self._ways.lose(key, partition, (way, before))
                self._want(key, partition)  # what precedes it went another way, and comes later or never
                continue
            astray = part.offset == part.next_offset == partition.ask_offset
            if part.offset < at and part.next_offset <= at and not astray:
                if ends_here(part):
                    self._ways.lose(key, partition, (way, before))
                    self._want(key, partition)  # it is about another place, and nothing more comes
                continue  # it came the other way, or is only what precedes a batch in doubt
            here = self._ways.comes_by(key, way[0])
            if part.fetched.error_code == ASTRAY:
                if here:
                    self._ways.lose(key, partition, (way, before))
                continue
            if key in others:
                self._recodable.met(key, others[key], time.monotonic())
            told = way[0] != Channel.BULK and self._ways.of.get(key) == way
            answers = Answers(read_at, before if told else None)
            in_order = goes_on(part, cut=key in others)
            if not in_order or ends_here(part):
                self._ways.lose(key, partition, (way, before))  # it does not say how the source is now
            elif here:
                self._ways.of[key] = self._ways.after(part, way, read_at)
            self._coming[key] = number, part.next_offset
            if not in_order:
                words = f"{self._relay}: its batches do not run from {part.offset} to {part.next_offset}"
                self._receiver.bad_batch(partition, key, MisplacedBatchError(at, words))
            elif way[1] == RELAY_ITSELF and part.fetched.error_code in AUTHORIZATION_CODES:
                refusal = fetch_refusal(part.fetched.error_code)
                partition.refused(refusal, self._not_in_role(partition), time.monotonic())
            else:
                outcome = await self._receiver.take(partition, part.fetched, part.offset, buffer, answers)
                if outcome is Outcome.EARLY:
                    self._coming[key] = number, None  # it is wanted again
            self._flow.hooks.changed(partition)

    def _not_in_role(self, partition: PartitionCopy) -> str:
        return (
            f"{self._relay}: the role of this mirror's certificate there (listen.roles) lacks topic "
            f"{partition.tp.topic}"
        )

    @property
    def _relay(self) -> str:
        return f"relay {self._flow.stream.relay}" if self._flow.stream else "the relay"


def _parts_of(opener: Opener, header: Header, wire: memoryview, room: memoryview) -> list[Part]:
    return decode_parts(opener.open(header, wire, room))


async def _run(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do ``work``, in another thread if it is ``large`` and would take long."""
    return await in_thread(work, *args, **kwargs) if large else work(*args, **kwargs)
