"""The mirror's end of a stream whose relay says what it should not: refused, and nothing is kept of it."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import struct
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from mirror.errors import AnswerError, ConnectionFailedError, TwinsiteError
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link import messages, protocol
from mirror.link import stream as link_stream
from mirror.link.frames import BODY_BYTES_MAX, HEADER_BYTES, Compression, Opener, Sealer
from mirror.link.greeting import Hello
from mirror.link.protocol import CHANNELS_MAX, Channel, Down, Up
from mirror.link.stream import LinkStream
from tests.harness.daemon import until
from tests.unit.fake_relay import KEY, SWITCHING, fake_relay, welcome

HELLO = Hello("flow", 1, 0, 1, (1 << 20, 1 << 20), 1 << 20, 0, recode=True)
TOPIC = Key(bytes(16), 0)
CHOICE = {"level": 3, "recode": True, "why": "as configured"}

relay = partial(fake_relay, lambda _: SWITCHING)
"""It lets everybody in, says these things and then nothing."""


async def run_with(*said: bytes, hello: Hello = HELLO) -> TwinsiteError:
    """What a stream ends with."""
    async with relay(*said) as options:
        stream = None
        try:
            async with asyncio.timeout(20):
                stream = await LinkStream.open(options, hello, BufferPool(0), connections=1)
                await stream.run()
        except TwinsiteError as error:
            return error
        finally:
            if stream is not None:
                stream.close()
    raise AssertionError("the stream goes on")


async def test_a_stream_that_is_torn_goes_at_once() -> None:
    """
    Though others know how its frames are opened: what zstd has for that goes, and a frame that has come and
    was not taken is given back. No circle holds any of it until Python looks for such.
    """
    sealer, pool = Sealer(Compression(2, 20)), BufferPool(1 << 20)
    wire = b"".join(sealer.seal(1, 0, [random.Random(5).randbytes(100_000)]))
    said = welcome(keys=[sealer.key.hex()] * 2), messages.slice_of(Channel.BULK, 0, wire)

    async def torn() -> tuple[list[weakref.ref[Any]], Opener]:
        async with relay(*said) as options:
            stream = await LinkStream.open(options, HELLO, pool, connections=1)
            running = asyncio.create_task(stream.run())
            frames = stream.channels._came[Channel.BULK]
            await until(lambda: not frames.empty(), "a frame has come")
        await asyncio.wait([running])  # what it ended with is not raised here: that would know this on
        assert isinstance(running.exception(), ConnectionFailedError)
        opener = stream.channels.opener(Channel.BULK)
        stream.close()
        return [weakref.ref(stream), weakref.ref(stream.channels)], opener

    gc.collect()
    gc.disable()
    try:
        refs, opener = await torn()
        left = [ref() for ref in refs]
    finally:
        gc.enable()

    assert left == [None, None]
    assert opener._zstd is None
    assert [buffer.size >= len(wire) - HEADER_BYTES for buffer in pool._idle] == [True]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([protocol.pong(1, 2, 3)], "instead of WELCOME"),
        ([welcome(keys=["00", "00"])], "its WELCOME is invalid"),
        ([welcome(keys=[KEY.hex()])], "its WELCOME is invalid"),
        ([welcome(steady_us="soon")], "its WELCOME is invalid"),
        ([welcome(steady_us=float("inf"))], "its WELCOME is invalid"),
        ([welcome(steady_us=10**400)], "its WELCOME is invalid"),
        ([welcome(steady_us=-1)], "its WELCOME is invalid"),
        ([welcome(relay="x" * 100_000)], "bytes of JSON; the limit is 65536"),
        ([welcome(), welcome()], "unknown message kind 1"),
        ([welcome(), messages.slice_of(7, 0, b"x")], "unknown channel 7"),
        ([welcome(), messages.slice_of(Channel.LIVE, 0, b"no frame" * 20)], "instead of a frame"),
        ([welcome(), b"\0\0\0\2\2\0"], "a slice of 1 bytes"),
        ([welcome(), protocol.ended(2)[:-1] + b"x"], "a message of kind 9 and 10 bytes was corrupted"),
        ([welcome(), protocol.shared(2, KEY), protocol.shared(2, KEY)], "channel 2 cannot begin"),
        ([welcome(), protocol.shared(1, KEY)], "channel 1 is not shared"),
        ([welcome(), protocol.shared(2, KEY[1:])], "channel 2 cannot begin"),
        ([welcome(), *(protocol.shared(n, KEY) for n in range(2, CHANNELS_MAX + 1))], "cannot begin"),
        ([welcome(), protocol.shared(CHANNELS_MAX, KEY)], "channel 32 cannot begin"),
        ([welcome(), protocol.ended(2)], "unknown channel 2"),
        ([welcome(), protocol.ended(Channel.BULK)], "channel 1 is not shared"),
        ([welcome(), protocol.moved(2, [(TOPIC, 1)])], "unknown channel 2"),
        ([welcome(), protocol.moved(Channel.BULK, [(TOPIC, 1)])], "nothing moves to channel 1"),
        ([welcome(), messages.message(Down.MOVED, b"")], "a message without a channel"),
        ([welcome(), protocol.shared(2, KEY), messages.message(Down.MOVED, b"\2xyz")], "3 bytes in entries"),
        (
            [welcome(), protocol.shared(2, KEY), protocol.ended(2), messages.slice_of(2, 0, b"x")],
            "unknown channel 2",
        ),
        ([welcome(), messages.message(Down.TROUBLE, b'{"node": "1"}')], "a TROUBLE without a node"),
        ([welcome(), messages.message(Down.CHOICE, b'{"level": []}')], "its CHOICE is invalid"),
        ([welcome(), messages.say(Down.CHOICE, CHOICE | {"level": 10**300})], "its CHOICE is invalid"),
        ([welcome(), messages.say(Down.CHOICE, CHOICE | {"level": -1})], "its CHOICE is invalid"),
    ],
)
async def test_what_makes_no_sense_ends_the_stream(said: list[bytes], words: str) -> None:
    """
    With the relay's address and the reason.
    """
    error = await run_with(*said)

    assert isinstance(error, AnswerError)
    assert re.search(rf"relay 127\.0\.0\.1:\d+: .*{re.escape(words)}", str(error))


async def test_more_than_was_allowed_ends_the_stream() -> None:
    """
    What is kept for a relay that does not wait is bounded, on a channel that is shared too.
    """
    frame = b"".join(Sealer(Compression(0)).seal(1, 0, [bytes(3 << 20)]))
    enough = (BODY_BYTES_MAX >> 20) // 3 + 8
    for channel in (Channel.BULK, 2):
        slices = [messages.slice_of(channel, at * len(frame), frame) for at in range(enough)]
        slices = [messages.slice_of(channel, 0, b"x"), *slices] if channel == Channel.BULK else slices
        error = await run_with(welcome(), protocol.shared(2, KEY), *slices)
        assert isinstance(error, AnswerError)


async def test_more_than_one_frame_of_the_largest_is_not_kept() -> None:
    """
    However many channels there are: what a frame claims is memory before it is there.
    """
    header = struct.pack(">4sQiQII", b"tsf0", 0, 1, 0, BODY_BYTES_MAX, BODY_BYTES_MAX) + bytes(32)
    numbers = (Channel.LIVE, 2, 3)
    begun = [messages.slice_of(number, 0, header) for number in numbers]

    error = await run_with(welcome(), *(protocol.shared(n, KEY) for n in numbers[1:]), *begun)

    assert isinstance(error, AnswerError)
    assert "over all channels" in str(error)


async def test_frames_of_nothing_are_counted_as_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nobody takes them here, as where there is no room.
    """
    monkeypatch.setattr("mirror.link.channels.FRAME_BYTES_MAX", 1 << 20)
    sealer = Sealer(Compression(0))
    frames = b"".join(b"".join(sealer.seal(1, 0, [])) for _ in range(16_000))
    assert len(frames) < HELLO.windows[0]

    error = await run_with(welcome(), messages.slice_of(Channel.LIVE, 0, frames))

    assert "over all channels" in str(error)


async def test_what_the_relay_says_to_people_is_cut() -> None:
    """
    It becomes a line of the log, and stands in the status of each partition.
    """
    bye = messages.say(Down.BYE, {"code": "going_away", "detail": "x" * 60_000})

    error = await run_with(welcome(), bye)

    assert isinstance(error, ConnectionFailedError)
    assert len(str(error)) < 1_100


@pytest.mark.parametrize(("channel", "kept"), [(2, {TOPIC: 5}), (Channel.LIVE, {})], ids=["shared", "LIVE"])
async def test_of_what_moves_only_that_is_kept_which_is_wanted_so(channel: int, kept: dict[Key, int]) -> None:
    """
    Others would be kept for ever, and a relay can name as many as it likes. What comes by LIVE again has its
    number in its parts.
    """
    others = [(Key(bytes(16), number), 5) for number in range(1, 9)]
    said = [(TOPIC, 5), (TOPIC, 6), *others]
    asked: list[tuple[int, Sequence[tuple[Key, int]]]] = []

    def wanted(channel: int, moved: Sequence[tuple[Key, int]]) -> list[tuple[Key, int]]:
        asked.append((channel, moved))
        return [(TOPIC, 5)]

    async with relay(welcome(), protocol.shared(2, KEY)) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        stream.channels.on_moved = wanted
        stream._heard(Down.MOVED, memoryview(protocol.moved(channel, said)[5:-4]))
        found = {key: one for state in stream.channels._states.values() for key, one in state.moved.items()}
        stream.close()

    assert asked == [(channel, said)]
    assert found == kept


async def test_very_many_partitions_are_named_in_several_messages() -> None:
    """
    Whatever is said of them: a relay refuses a message that is longer than any needs to be.
    """
    keys = [Key(bytes(16), number) for number in range(250_000)]

    async with relay(welcome()) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        stream.want(protocol.Position(key, 1, 0, -1, True, 0) for key in keys)
        stream.rank((key, 7) for key in keys)
        stream.forget(keys)
        said = list(messages.Messages().received(bytes(stream._outgoing)))
        stream.close()

    wanted = [one for kind, payload in said if kind == Up.WANT for one in protocol.read_want(payload)]
    ranked = [one for kind, payload in said if kind == Up.RANK for one in protocol.read_rank(payload)]
    forgotten = [one for kind, payload in said if kind == Up.FORGET for one in protocol.read_forget(payload)]
    assert [position.key for position in wanted] == forgotten == keys
    assert ranked == [(key, 7) for key in keys]


async def test_a_link_is_measured_though_its_answers_come_after_the_next_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is long, or full. Each answer counts for its own question, and what is never answered is not kept.
    """
    monkeypatch.setattr(link_stream, "PING_SECONDS", 0.01)

    async with relay(welcome()) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        running = asyncio.ensure_future(stream.run())
        await until(lambda: next_ping(stream) > 50, "it has asked many times", 10)
        before, at = time.monotonic(), next_ping(stream)
        await until(lambda: next_ping(stream) > at, "it has asked", 10)
        after = time.monotonic()
        await until(lambda: next_ping(stream) >= at + 10, "it has asked again and again since", 10)
        came = time.monotonic()
        for number in (1, at):
            stream._heard(Down.PONG, memoryview(protocol.pong(number, 1, 2)[5:-4]))
        measured = stream.round_trip_seconds
        kept = len(stream._asked)
        running.cancel()
        stream.close()

    assert measured is not None
    assert came - after <= measured <= time.monotonic() - before
    assert kept <= 20


def next_ping(stream: LinkStream) -> int:
    return max(stream._asked, default=0) + 1


async def test_a_window_and_a_frame_of_each_channel_are_kept() -> None:
    """
    Of what the mirror has said it has room for, and on all of them at once.
    """
    frame = b"".join(Sealer(Compression(0)).seal(1, 0, [bytes(HELLO.frame_bytes - 100)]))
    shared = range(2, CHANNELS_MAX)
    slices = [
        messages.slice_of(number, at, piece)
        for number in (*Channel, *shared)
        for at, piece in ((0, frame), (len(frame), frame[:-1]))
    ]

    async with relay(welcome(), *(protocol.shared(n, KEY) for n in shared), *slices) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        running = asyncio.ensure_future(stream.run())
        try:
            async with asyncio.timeout(20):
                for _ in shared:
                    await stream.channels.next_frame(Channel.LIVE)
            ended = running.done()
        finally:
            running.cancel()
            stream.close()

    assert not ended


@pytest.mark.parametrize("seed", range(20))
async def test_any_bytes_are_refused_or_wait(seed: int) -> None:
    """
    Whatever stands where messages are due, whole and broken: the stream ends by an error of its own kind.
    """
    dice = random.Random(seed)
    good = [
        welcome(),
        protocol.shared(2, KEY),
        protocol.moved(2, [(TOPIC, 1)]),
        protocol.pong(1, 2, 3),
        messages.slice_of(2, 0, dice.randbytes(50)),
    ]
    said = bytearray(b"".join(good))
    for _ in range(3):
        said[dice.randrange(len(said))] ^= 1 << dice.randrange(8)
    said += b"\xff\xff\xff\xff\x02"

    assert isinstance(await run_with(bytes(said)), TwinsiteError)


async def test_slices_of_several_connections_come_in_their_order() -> None:
    """
    Here over one, in the wrong order: the frames are whole, and read when the relay says, not when they came.
    """
    sealer = Sealer(Compression(3, 20))
    sealer.key = KEY
    frames = [b"".join(sealer.seal(1, 5_000_000, [bytes([n]) * 1000])) for n in range(3)]
    stream_of = b"".join(frames)
    cut = len(frames[0]) + 10
    late = messages.slice_of(Channel.BULK, 0, stream_of[:cut])
    early = messages.slice_of(Channel.BULK, cut, stream_of[cut:])

    async with relay(welcome(), early, late) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        running = asyncio.ensure_future(stream.run())
        try:
            async with asyncio.timeout(20):
                came = [await stream.channels.next_frame(Channel.BULK) for _ in range(3)]
            now = asyncio.get_running_loop().time()
        finally:
            running.cancel()
            stream.close()

    assert [frame.arrived.header.sequence for frame in came] == [0, 1, 2]
    assert all(frame.read_at <= now for frame in came)


async def test_what_is_urgent_may_come_twice() -> None:
    """
    Cut elsewhere, the second time earlier than the first: each frame is there once, and as it was.
    """
    sealer = Sealer(Compression(3, 20))
    sealer.key = KEY
    frames = [b"".join(sealer.seal(1, 5_000_000, [bytes([n]) * 1000])) for n in range(3)]
    stream_of = b"".join(frames)
    cuts = [(0, 30), (0, 10), (10, 90), (70, 110), (110, len(stream_of)), (30, 200), (90, len(stream_of))]
    slices = [messages.slice_of(Channel.LIVE, at, stream_of[at:end]) for at, end in cuts]

    async with relay(welcome(), *slices) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=1)
        running = asyncio.ensure_future(stream.run())
        try:
            async with asyncio.timeout(20):
                came = [await stream.channels.next_frame(Channel.LIVE) for _ in range(3)]
            held = [bytes(frame.arrived.wire) for frame in came]
        finally:
            running.cancel()
            stream.close()

    assert [frame.arrived.header.sequence for frame in came] == [0, 1, 2]
    assert held == [frame[HEADER_BYTES:] for frame in frames]


async def test_what_is_behind_does_not_come_twice() -> None:
    """
    It is sent once, so that was not the relay.
    """
    piece = messages.slice_of(Channel.BULK, 0, b"tsf1....")

    assert "expected 8" in str(await run_with(welcome(), piece, piece))
