"""Take what a relay reads for us: one lane for all partitions, over one stream.

The relay goes on by itself from where it was told to begin, so nothing here waits for a round trip. Where
the copy of a partition is not where the stream is, the relay is told again.

Sources: docs/protocol.md, docs/design.md.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from mirror.errors import AnswerError, TwinsiteError, UnsupportedVersionError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.receiving import Receiver, Room, not_read
from mirror.flow.states import pause_seconds
from mirror.kafka.buffers import Buffer
from mirror.kafka.fetch import Key
from mirror.link.frames import Header, Opener
from mirror.link.loops import first_to_end
from mirror.link.messages import Channel, Position
from mirror.link.parts import Part, decode_parts
from mirror.link.stream import Hello, LinkStream
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

LIVE_SHARE = 8
"""The eighth part of the buffers, and of the window, is for partitions that are up to date."""
ATTEMPTS_COUNTED = 4
"""A stream is tried again every second or two: a link that is back is not left unused."""
Way = tuple[Channel, int]
"""A channel and a broker, as the relay reads it: what an answer does not mention has not changed."""


class LinkLane:
    """The way from the source, through a relay, of all partitions."""

    def __init__(self, flow: Flow, window_bytes: int) -> None:
        """
        Args:
            window_bytes: So much may be on its way, compressed.
        """
        self._flow = flow
        self._windows = (max(window_bytes // LIVE_SHARE, 1), window_bytes)
        self._members: dict[Key, PartitionCopy] = {}
        self._crowded: set[Key] = set()
        self._receiver = Receiver(flow)
        self._room = Room(flow, self._members)
        self._stream: LinkStream | None = None
        self._coming: dict[Key, int] = {}
        self._wanted: dict[Key, Position] = {}
        self._ways: dict[Key, Way] = {}
        self._answered_at: dict[Way, float] = {}
        self._heard_at: float | None = None
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
        self._work.set()
        full = partition.queue.bytes >= self._flow.limits.buffer_bytes_max // 2
        if full or self._receiver.waits(key, partition):
            self._crowded.add(key)
            self._forget(key)
            return
        self._crowded.discard(key)
        if self._coming.get(key) != partition.fetch_offset:
            self._want(key, partition)

    def leave(self, key: Key) -> None:
        """Read this partition no more."""
        if self._members.pop(key, None) is not None:
            self._crowded.discard(key)
            self._receiver.forget(key)
            self._forget(key)

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """When the relay last told news of a partition, or the lack of them."""
        way = self._ways.get(Key(partition.topic_id, partition.tp.partition))
        return None if way is None else self._answered_at.get(way)

    def _want(self, key: Key, partition: PartitionCopy) -> None:
        self._coming[key] = partition.fetch_offset
        self._ways.pop(key, None)
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._tell)
        self._wanted[key] = Position(key, partition.fetch_offset, partition.queue.fetched_epoch)

    def _tell(self) -> None:
        wanted, self._wanted = list(self._wanted.values()), {}
        if self._stream is not None and wanted:
            self._stream.want(wanted)

    def _forget(self, key: Key) -> None:
        self._wanted.pop(key, None)
        self._ways.pop(key, None)
        if self._coming.pop(key, None) is not None and self._stream is not None:
            self._stream.forget([key])

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take what comes, until cancelled. Errors of the stream are waited out.

        It ends where the relays are too old for a stream: then brokers are asked through them.
        """
        attempts = 0
        while True:
            while not self._members:
                self._work.clear()
                await self._work.wait()
            begun_at = time.monotonic()
            try:
                await self._follow()
            except UnsupportedVersionError as error:
                self._do_without(error)
                return
            except TwinsiteError as error:
                attempts = 0 if (self._heard_at or 0.0) > begun_at else attempts + 1
                self._lost(error)
                await asyncio.sleep(pause_seconds(min(attempts, ATTEMPTS_COUNTED)))

    async def _follow(self) -> None:
        flow = self._flow
        isolation = flow.limits.fetch.isolation
        hello = Hello(flow.name, flow.producer_id, flow.producer_epoch, isolation, self._windows)
        stream = await LinkStream.open(flow.source.options, hello)
        log.info("stream_begun", relay=str(stream.relay), congestion=stream.welcome.congestion)
        self._repeats.forget("stream")
        self._stream = stream
        try:
            for key, partition in self._members.items():
                if key not in self._crowded:
                    self._want(key, partition)
            await first_to_end(
                stream.run(),
                self._take_frames(stream, Channel.LIVE),
                self._take_frames(stream, Channel.BULK),
                self._take_troubles(stream),
                self._look_after_crowded(),
            )
        finally:
            self._stream = None
            stream.close()
            flow.source.count(stream.bytes_received, stream.bytes_sent)
            self._coming.clear()
            self._wanted.clear()
            self._ways.clear()
            self._answered_at.clear()

    def _lost(self, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, "stream", "stream_lost", error=str(error))
        not_read(self._flow, self._members.values(), error, self._heard_at)

    def _do_without(self, error: UnsupportedVersionError) -> None:
        log.warning("relay_without_streams", error=str(error))
        self._flow.link_window_bytes = None
        for partition in list(self._members.values()):
            self._flow.hooks.changed(partition)

    async def _look_after_crowded(self) -> None:
        """Read those again whose queue has room by now."""
        while True:
            await self._room.bell()
            for key in list(self._crowded):
                self.update(self._members[key])

    async def _take_troubles(self, stream: LinkStream) -> None:
        while True:
            trouble = await stream.next_trouble()
            words = f"relay {stream.relay}: {trouble.detail}"
            for key, partition in self._members.items():
                info = self._flow.source.info.partition(partition.tp)
                if trouble.node < 0 or (info is not None and info.leader == trouble.node):
                    self._ways.pop(key, None)
                    partition.detail = words
            self._flow.hooks.stale(self._flow.source)

    # -- frames ----------------------------------------------------------------------------------

    async def _take_frames(self, stream: LinkStream, channel: Channel) -> None:
        opener = stream.opener(channel)
        limit = self._flow.limits.buffer_bytes_max
        if channel is Channel.BULK:
            limit -= limit // LIVE_SHARE
        while True:
            header, wire = await stream.next_frame(channel)
            await self._room.enough(header.body_bytes, limit)
            try:
                self._take_frame(opener, channel, header, wire)
            except AnswerError as error:
                raise AnswerError(f"relay {stream.relay}: {error}") from error
            stream.took(channel, header)

    def _take_frame(self, opener: Opener, channel: Channel, header: Header, wire: bytes) -> None:
        buffer = self._flow.pool.take(header.body_bytes)
        try:
            body = buffer.memory[: header.body_bytes]
            opener.open(header, wire, body)
            parts = decode_parts(body)
            reach("fetched")
            way, now = (channel, header.node), time.monotonic()
            before = self._answered_at.get(way)
            self._answered_at[way] = self._heard_at = self._flow.source.last_answer_at = now
            for part in parts:
                partition = self._members.get(part.fetched.key)
                if partition is not None:
                    on_it = self._ways.get(part.fetched.key) == way
                    self._ways[part.fetched.key] = way
                    self._take_part(partition, part, buffer, before if on_it else None)
        finally:
            buffer.release()

    def _take_part(self, partition: PartitionCopy, part: Part, buffer: Buffer, before: float | None) -> None:
        """What begins further on than the copy ends was sent before the relay was told where that is."""
        key, offset = part.fetched.key, partition.fetch_offset
        if not (part.offset <= offset < part.next_offset or part.offset == offset == part.next_offset):
            return
        self._coming[key] = part.next_offset
        self._receiver.take(partition, part.fetched, offset, buffer, before)
        self._flow.hooks.changed(partition)
