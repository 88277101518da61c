"""A relay that greets as a real one and then sends what it should not.

It stands in front of a sound relay: what that sends comes through, but for what a :class:`Lie` makes of it,
of each stream another one. Digests and CRCs are made right again, so nothing but what is said is wrong.

::

    async with lying(sound.address, LIES, lambda: mirror.stderr) as (liar, sound_after): ...
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from blake3 import blake3

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link import messages, protocol
from mirror.link.frames import HEADER_BYTES, Compression, Frames, Header, Opener, Sealer
from mirror.link.messages import Messages
from mirror.link.parts import Part, decode_parts, encode_parts
from mirror.link.protocol import CHANNELS_MAX, JOIN, PATH, Channel, Down, Up
from tests.faults.hostile_peers import STREAM
from tests.harness.daemon import NotReadyError, until
from tests.unit.fake_relay import SWITCHING, problem

FRAMES_BEFORE = 2
"""So many frames come as they should, before a lie."""
ANSWER_SECONDS = 15.0
"""So long a mirror has, after a lie, to say what it thinks of it; then it is the next one's turn."""
PART_BYTES = 90
CORRUPT = "corrupt_batch"
"""What a mirror says of a batch that is not as it should be."""
GONE = (OSError, asyncio.IncompleteReadError)


@dataclass
class Stream:
    """What a lie knows of the stream on which it is told.

    Attributes:
        sealers: Of each channel, with the keys that the mirror knows.
        sent, taken: Bytes of frames that went by each channel, and that the mirror has taken.
        theirs: Bytes of the sound relay's frames.
        wants: How often the mirror has wanted something.
        frames: How many came as they should.
        read_us: When the broker had answered, as the last of them said.
    """

    sealers: dict[int, Sealer] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=lambda: dict.fromkeys(map(int, Channel), 0))
    taken: dict[int, int] = field(default_factory=lambda: dict.fromkeys(map(int, Channel), 0))
    theirs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(map(int, Channel), 0))
    wants: int = 0
    frames: int = 0
    read_us: int = 0
    _arriving: dict[int, Frames] = field(
        default_factory=lambda: {int(c): Frames(BufferPool(0)) for c in Channel}
    )
    _openers: dict[int, Opener] = field(default_factory=dict)

    def greeted(self, welcome: dict[str, Any]) -> dict[str, Any]:
        """What the sound relay begins with; answers the same with other keys."""
        self._openers = {int(c): Opener(bytes.fromhex(welcome["keys"][c]), 27) for c in Channel}
        self.sealers = {int(c): Sealer(Compression(1, 20)) for c in Channel}
        return welcome | {"keys": [sealer.key.hex() for sealer in self.sealers.values()]}

    def opened(self, channel: int, piece: bytes) -> Iterator[tuple[Header, list[Part], bytes]]:
        """The frames that are whole now of what the sound relay sends."""
        for header, buffer in self._arriving[channel].received(piece):
            wire, room = buffer.memory[: header.wire_bytes], memoryview(bytearray(header.body_bytes))
            body = self._openers[channel].open(header, wire, room)
            self.theirs[channel] += HEADER_BYTES + header.wire_bytes
            self.read_us = header.read_us
            yield header, decode_parts(body), bytes(body)

    def slice(self, channel: int, data: bytes) -> bytes:
        """The next bytes of a channel."""
        at = self.sent[channel]
        self.sent[channel] += len(data)
        return messages.slice_of(channel, at, data)

    def sealed(self, channel: int, body: Sequence[bytes | memoryview], node: int = 1) -> bytearray:
        """The next frame of a channel."""
        return bytearray(b"".join(self.sealers[channel].seal(node, self.read_us, body)))


Tell = Callable[[Stream, int, list[Part]], Iterable[bytes]]
"""What is sent in the place of a frame: on which stream, by which channel, and what was in it."""


@dataclass(frozen=True)
class Lie:
    """What is said that is not so.

    Attributes:
        expected: A pattern of the mirror's log, after it has heard that; empty: it may take it for true, and
            as nothing.
        welcome: Changes of what the stream begins with.
    """

    name: str
    expected: str
    tell: Tell | None = None
    welcome: dict[str, object] = field(default_factory=dict)


class Liar:
    """Serves mirrors; made by :func:`lying`.

    Attributes:
        address: Where it listens.

    Args:
        log: What the mirror has logged so far.
    """

    def __init__(self, sound: str, lies: Sequence[Lie], log: Callable[[], str]) -> None:
        self.address = ""
        self._told_at: list[tuple[Lie, int]] = []
        self._asked_again: set[str] = set()
        self._log = log
        self._sound = sound
        self._left = list(lies)

    @property
    def done(self) -> bool:
        """All lies were told."""
        return not self._left

    @property
    def unheard(self) -> list[str]:
        """The lies of which the mirror has not said what was expected, before it was told the next one.

        Of a corrupt batch it says nothing while something that stands before it is to be written: it asks for
        it once more.
        """
        ends = [at for _, at in self._told_at[1:]] + [None]
        log = self._log()
        told = zip(self._told_at, ends, strict=True)
        unheard = [lie.name for (lie, at), end in told if not re.search(lie.expected, log[at:end])]
        return [name for name in unheard if name not in self._asked_again]

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody has come."""
        with contextlib.closing(writer), contextlib.suppress(*GONE):
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split()[1].decode()
            if not path.startswith(PATH):
                await self.pass_on(reader, writer, request)
            elif JOIN in path:
                writer.write(problem(404, "unknown_stream"))
            elif self.done:
                writer.write(problem(503, "source_unavailable"))
            else:
                writer.write(SWITCHING)
                await self._lie(reader, writer)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes) -> None:
        """What this one says the sound relay hears, and the other way round."""
        theirs, ours = await self._dial()
        with contextlib.closing(ours):
            ours.write(said)
            await _first(_copy(reader, ours), _copy(theirs, writer))

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._sound.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _lie(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await self._dial()
        with contextlib.closing(ours):
            ours.write(STREAM)
            await theirs.readuntil(b"\r\n\r\n")
            stream, lie = Stream(), self._left[0]
            await _first(_upwards(stream, reader, ours), self._downwards(stream, lie, theirs, ours, writer))

    async def _downwards(
        self,
        stream: Stream,
        lie: Lie,
        theirs: asyncio.StreamReader,
        ours: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        """What the sound relay says, until it is time for the lie."""
        slices: list[tuple[int, bytes]] = []
        came = Messages(on_slice=lambda channel, _, data: slices.append((channel, bytes(data))))
        while data := await theirs.read(1 << 16):
            for kind, payload in came.received(data):
                if kind == Down.WELCOME:
                    welcome = stream.greeted(messages.document(payload)) | lie.welcome
                    if lie.tell is None:
                        await self._told(lie, stream, [messages.say(Down.WELCOME, welcome)], writer)
                        return
                    writer.write(messages.say(Down.WELCOME, welcome))
                elif kind != Down.SLICE:
                    writer.write(messages.message(Down(kind), bytes(payload)))
            for channel, piece in slices:
                for header, parts, body in stream.opened(channel, piece):
                    ours.write(protocol.taken(channel, stream.theirs[channel]))
                    records = any(len(part.fetched.records) for part in parts)
                    if lie.tell is not None and stream.frames >= FRAMES_BEFORE and records:
                        await self._told(lie, stream, lie.tell(stream, channel, parts), writer)
                        return
                    stream.frames += records
                    writer.write(stream.slice(channel, bytes(stream.sealed(channel, [body], header.node))))
            slices.clear()
            await writer.drain()

    async def _told(
        self, lie: Lie, stream: Stream, said: Iterable[bytes], writer: asyncio.StreamWriter
    ) -> None:
        """Say it, until the mirror has said what it thinks of it; it may end the stream before that."""
        self._left.remove(lie)
        at = len(self._log())
        self._told_at.append((lie, at))
        for words in said:
            writer.write(words)
            await writer.drain()

        wants = stream.wants

        def heard() -> bool:
            if not lie.expected:
                return stream.taken == stream.sent
            if lie.expected == CORRUPT and stream.wants > wants:
                self._asked_again.add(lie.name)
                return True
            return bool(re.search(lie.expected, self._log()[at:]))

        with contextlib.suppress(NotReadyError):
            await until(heard, lie.name, ANSWER_SECONDS)


@asynccontextmanager
async def lying(sound: str, lies: Sequence[Lie], log: Callable[[], str]) -> AsyncIterator[tuple[Liar, str]]:
    """A relay that lies, and the address of one that is sound, and not reached before all lies are told."""
    liar = Liar(sound, lies, log)

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(*GONE):
            if liar.done:
                await liar.pass_on(reader, writer, b"")

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for serve in (liar.meet, later)]
    addresses = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    liar.address = addresses[0]
    try:
        yield liar, addresses[1]
    finally:
        for server in servers:
            server.close()


async def _first(*work: Coroutine[Any, Any, None]) -> None:
    """Until one of them has come to an end.

    Raises:
        Exception: What has ended it, but for a connection that is gone.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, GONE):
                raise ended


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def _upwards(stream: Stream, reader: asyncio.StreamReader, ours: asyncio.StreamWriter) -> None:
    """All that the mirror says but what it has taken: that is of other frames."""
    came = Messages()
    while data := await reader.read(1 << 16):
        for kind, payload in came.received(data):
            if kind == Up.TAKEN:
                channel, size = protocol.read_taken(payload)
                stream.taken[channel] = size
            else:
                stream.wants += kind == Up.WANT
                ours.write(messages.message(Up(kind), bytes(payload)))
        await ours.drain()


# -- lies ------------------------------------------------------------------------------------------


def _resealed(change: Callable[[Part], Part]) -> Tell:
    """Parts with records are others."""

    def tell(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
        changed = [change(part) if len(part.fetched.records) else part for part in parts]
        yield stream.slice(channel, bytes(stream.sealed(channel, encode_parts(changed))))

    return tell


def _changed(at: int, change: int, batch: int = 0) -> Tell:
    """One byte of one batch of each part is another."""

    def spoil(part: Part) -> Part:
        records = bytearray(part.fetched.records)
        begins = 0
        for _ in range(batch):
            begins += 12 + int.from_bytes(records[begins + 8 : begins + 12], "big")
        begins = begins if begins + at < len(records) else 0
        records[begins + at] ^= change
        return part._replace(fetched=part.fetched._replace(records=memoryview(records)))

    return _resealed(spoil)


def _header(**fields: int) -> Tell:
    """A frame whose header claims something else; its digest is right."""

    def tell(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
        sealer = stream.sealers[channel]
        frame = stream.sealed(channel, encode_parts(parts))
        names = ("sequence", "node", "read_us", "body_bytes", "wire_bytes")
        values = dict(zip(names, struct.unpack_from(">QiQII", frame, 4), strict=True))
        fixed = frame[:4] + struct.pack(">QiQII", *(values | fields).values())
        digest = _digest(sealer.key, bytes(fixed), bytes(frame[HEADER_BYTES:]))
        yield stream.slice(channel, bytes(fixed) + digest + bytes(frame[HEADER_BYTES:]))

    return tell


def _digest(key: bytes, fields: bytes, wire: bytes) -> bytes:
    return blake3(fields + wire, key=key).digest()


def _bomb(size: int, claim: int | None = None, window_log: int = 20) -> Tell:
    """So many zeros, of which the header says something else."""

    def tell(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
        sealer = stream.sealers[channel]
        sealer.change(Compression(1, window_log))
        frame = stream.sealed(channel, [bytes(1 << 20)] * (size >> 20))
        if claim is not None:
            frame[24:28] = claim.to_bytes(4, "big")
            frame[32:64] = _digest(sealer.key, bytes(frame[:32]), bytes(frame[64:]))
        yield stream.slice(channel, bytes(frame))

    return tell


LEADER_EPOCH = range(12, 16)
"""Of a batch. A relay is believed who has led a partition: by that a mirror knows a log that was cut."""
PLACE = (*range(24), *range(26, 42))
"""Of a part: whose it is, and its two offsets. Another error code is one of the broker's, to a mirror."""


def drawn(seed: int, count: int) -> list[Lie]:
    """Frames whose digest is right, and of which some bits are others: where things belong, or of records."""
    dice = random.Random(seed)
    return [Lie(f"drawn {number} of seed {seed}", "", _flipped(dice)) for number in range(count)]


def _flipped(dice: random.Random) -> Tell:
    def tell(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
        pieces = [bytearray(b"".join(encode_parts([part]))) for part in parts if len(part.fetched.records)]
        spoiled = dice.choice(pieces)
        begins = PART_BYTES + 16 * int.from_bytes(spoiled[PART_BYTES - 12 : PART_BYTES - 8], "big")
        header = [begins + at for at in range(61) if at not in LEADER_EPOCH]
        where = dice.choice((PLACE, header, range(begins + 61, len(spoiled))))
        for _ in range(dice.randint(1, 3)):
            spoiled[dice.choice(where)] ^= 1 << dice.randrange(8)
        yield stream.slice(channel, bytes(stream.sealed(channel, [bytes(piece) for piece in pieces])))

    return tell


def _says(*said: bytes) -> Tell:
    return lambda *_: said


def _early(stream: Stream, channel: int, _: list[Part]) -> Iterable[bytes]:
    """Bytes far behind those that are due, as many as are taken."""
    for at in range(0, 1 << 30, 1 << 16):
        yield messages.slice_of(channel, (1 << 40) + 2 * at, bytes(1 << 16))


def _tiny_frames(stream: Stream, channel: int, _: list[Part]) -> Iterable[bytes]:
    """News of nothing, very many of them; and then something that is not so."""
    for _n in range(10):
        yield stream.slice(channel, b"".join(bytes(stream.sealed(channel, [])) for _m in range(1_000)))
    yield protocol.ended(9)


def _moved_for_ever(*_: object) -> Iterable[bytes]:
    """Partitions that nobody wants come another way, very many of them."""
    yield protocol.shared(2, bytes(32))
    for n in range(4):
        keys = ((Key((n * 50_000 + m).to_bytes(16, "big"), 0), 1) for m in range(50_000))
        yield protocol.moved(2, keys)
    yield protocol.ended(9)


def _large_windows(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
    """Shared channels, each with a window that takes much memory."""
    for number in range(2, CHANNELS_MAX):
        sealer = Sealer(Compression(1, 27))
        yield protocol.shared(number, sealer.key)
        frame = b"".join(map(bytes, sealer.seal(1, 0, [bytes(1 << 20)])))
        yield messages.slice_of(number, 0, frame)


def _inflated(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
    """Records that are said to become as much as there may be, one part after the other."""
    empty = parts[0]._replace(fetched=parts[0].fetched._replace(records=memoryview(b""), aborted=[]))
    body = bytearray(b"".join(encode_parts([empty])))
    body[-8:-4] = (100 << 20).to_bytes(4, "big")
    yield stream.slice(channel, bytes(stream.sealed(channel, [bytes(body)] * 5)))


def _cut_off(stream: Stream, channel: int, parts: list[Part]) -> Iterable[bytes]:
    """A body that ends in the middle of a part."""
    body = b"".join(encode_parts(parts))
    yield stream.slice(channel, bytes(stream.sealed(channel, [body[:-5]])))


def _further(part: Part) -> Part:
    return part._replace(next_offset=part.next_offset + 5)


def _halved(part: Part) -> Part:
    records = part.fetched.records
    return part._replace(fetched=part.fetched._replace(records=records[: len(records) // 2]))


class Odd(IntEnum):
    """A kind of message that there is not."""

    KIND = 77


FAR_LEVEL = {"level": 10**300, "recode": True, "why": ""}
LONG_TROUBLE = {"node": -1, "detail": "x" * 1_000_000}
LIES: tuple[Lie, ...] = (
    Lie("a clock that nobody has", "its WELCOME is invalid", welcome={"steady_us": 10**400}),
    Lie("keys that are none", "its WELCOME is invalid", welcome={"keys": ["00", 7]}),
    Lie("a long welcome", "bytes of JSON; the limit is", welcome={"relay": "x" * 1_000_000}),
    Lie("another number", "received frame 77, expected", _header(sequence=77)),
    Lie("a body of gigabytes", "is too large", _header(body_bytes=2**32 - 1)),
    Lie("bytes of gigabytes", "is too large", _header(wire_bytes=2**32 - 1)),
    Lie("a body that is shorter", "is truncated", _header(body_bytes=2**24)),
    Lie("a bomb", "continues after its end", _bomb(130 << 20, claim=1_000)),
    Lie("as much as there may be of nothing", "more than 262144 parts", _bomb(136 << 20)),
    Lie("a window that is too large", "cannot be decompressed", _bomb(1 << 20, window_log=28)),
    Lie("bytes that nobody waits for", "more than its window", _early),
    Lie("a channel that there is not", "unknown channel 9", _says(messages.slice_of(9, 0, b"x"))),
    Lie("very many frames of nothing", "unknown channel 9", _tiny_frames),
    Lie("partitions that nobody wants", "unknown channel 9", _moved_for_ever),
    Lie("thirty large windows", "cannot be decompressed", _large_windows),
    Lie("records that become very many", "parts of", _inflated),
    Lie("the end of a channel", "is not shared", _says(protocol.ended(Channel.LIVE))),
    Lie("a second welcome", "unknown message kind 1", _says(messages.say(Down.WELCOME, {}))),
    Lie("a message that there is not", "unknown message kind 77", _says(messages.message(Odd.KIND, b""))),
    Lie("a level that there is not", "its CHOICE is invalid", _says(messages.say(Down.CHOICE, FAR_LEVEL))),
    Lie("much ado", "bytes of JSON; the limit is", _says(messages.say(Down.TROUBLE, LONG_TROUBLE))),
    Lie("a spoiled message", "was corrupted in transit", _says(protocol.pong(1, 2, 3)[:-1] + b"x")),
    Lie("a part that is cut off", "a part is truncated|a part ends", _cut_off),
    Lie("a batch that is further on", CORRUPT, _changed(7, 0x40)),
    Lie("a batch that is further back", CORRUPT, _changed(6, 0x01, batch=1)),
    Lie("records that are others", CORRUPT, _changed(80, 0x10)),
    Lie("an end that is further on", CORRUPT, _resealed(_further)),
    Lie("batches that are missing", CORRUPT, _resealed(_halved)),
)
