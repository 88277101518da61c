"""Frames of a link: what is sealed comes out as it was, and what is broken or hostile does not come out."""

from __future__ import annotations

import asyncio
import os
import struct
import threading

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.kafka.buffers import BufferPool
from mirror.link.frames import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    KEY_BYTES,
    Arrived,
    Compression,
    Frames,
    Header,
    Opener,
    Sealer,
)
from mirror.link.loops import in_thread

WINDOW_LOG_MAX = 27
Came = tuple[Header, memoryview]


def frames(body_bytes_max: int = BODY_BYTES_MAX) -> Frames:
    return Frames(BufferPool(0), body_bytes_max)


def seen(arrived: list[Arrived]) -> list[Came]:
    return [(one.header, one.wire) for one in arrived]


def sealed(*bodies: bytes, compression: Compression = Compression()) -> tuple[bytes, list[Came]]:  # noqa: B008
    """The channel's key, and its frames as they arrive."""
    sealer, arriving = Sealer(compression), frames()
    came = [frame for body in bodies for frame in arriving.received(b"".join(sealer.seal(1, 0, [body])))]
    return sealer.key, seen(came)


def opened(key: bytes, came: list[Came]) -> list[bytes]:
    opener, bodies = Opener(key, WINDOW_LOG_MAX), []
    for header, wire in came:
        room = memoryview(bytearray(header.body_bytes))
        bodies.append(bytes(opener.open(header, wire, room)))
    return bodies


def lied(key: bytes, header: Header, wire: memoryview) -> Came:
    """A frame of a relay that knows the key, as docs/protocol.md has it, and claims what its header says."""
    fields = struct.pack(">4sQiQII", header.magic, *header[:5])
    return header._replace(digest=blake3(fields + wire, key=key).digest()), wire


@settings(deadline=None)
@given(
    bodies=st.lists(st.lists(st.binary(max_size=3000), max_size=4), max_size=6),
    level=st.sampled_from([1, 3, 9]),
    cuts=st.integers(1, 5000),
)
def test_frames_come_out_as_they_went_in(bodies: list[list[bytes]], level: int, cuts: int) -> None:
    """
    Whatever pieces they are made of, and wherever the network cuts them.
    """
    sealer, arriving = Sealer(Compression(level, 20)), frames()
    stream = b"".join(piece for body in bodies for piece in sealer.seal(3, 0, body))

    came = [
        frame
        for at in range(0, len(stream), cuts)
        for frame in seen(arriving.received(stream[at : at + cuts]))
    ]

    assert opened(sealer.key, came) == [b"".join(body) for body in bodies]
    assert [(header.sequence, header.node) for header, _ in came] == [(n, 3) for n in range(len(bodies))]


def test_what_repeats_over_megabytes_is_sent_once() -> None:
    """
    The window is kept from frame to frame.
    """
    once, other = os.urandom(1 << 20), os.urandom(4 << 20)

    _, came = sealed(once, other, once)

    assert [len(wire) for _, wire in came[:2]] > [1 << 20, 4 << 20]
    assert len(came[2][1]) < len(once) / 100


@settings(deadline=None)
@given(at=st.integers(0, 400), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(at: int, bit: int) -> None:
    """
    Anywhere in a frame: no frame comes out, or none that can be opened.
    """
    sealer = Sealer(Compression())
    frame = bytearray(b"".join(sealer.seal(1, 0, [os.urandom(300), b"x" * 700])))
    frame[at % len(frame)] ^= 1 << bit

    with pytest.raises(AnswerError):
        # a frame that claims to be longer waits for the rest, which is the next one's
        opened(sealer.key, seen(frames().received(bytes(frame) + b"\0" * 5000))[:1] or refuse())


def refuse() -> list[Came]:
    raise AnswerError("nothing came out")


def test_frames_in_another_order_are_refused() -> None:
    """
    The first one left out; one that comes twice.
    """
    key, came = sealed(b"first", b"second")

    with pytest.raises(AnswerError, match="received frame 1, expected 0"):
        opened(key, came[1:])
    with pytest.raises(AnswerError, match="received frame 0, expected 1"):
        opened(key, [came[0], came[0]])


def test_a_frame_of_another_channel_is_refused() -> None:
    """
    What was recorded on an older stream has another key.
    """
    _, came = sealed(b"recorded")

    with pytest.raises(AnswerError, match="is not what was sent"):
        opened(os.urandom(KEY_BYTES), came)


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        (900, "continues after its end"),
        (1100, "is truncated"),
    ],
)
def test_a_frame_that_claims_another_length_is_refused(claimed: int, words: str) -> None:
    """
    Shorter or longer than what it decompresses to, whoever says so.
    """
    key, ((header, wire),) = sealed(os.urandom(1000))
    claiming = header._replace(body_bytes=claimed)

    with pytest.raises(AnswerError, match="is not what was sent"):
        opened(key, [(claiming, wire)])
    with pytest.raises(AnswerError, match=words):
        opened(key, [lied(key, claiming, wire)])


def test_what_was_changed_on_the_way_is_not_decompressed() -> None:
    """
    It is refused by its digest, and nothing has been written where its body would go.
    """
    key, ((header, wire),) = sealed(b"x" * 1000)
    wire[-1] ^= 1
    room = bytearray(header.body_bytes)

    with pytest.raises(AnswerError, match="is not what was sent"):
        Opener(key, WINDOW_LOG_MAX).open(header, wire, memoryview(room))
    assert room == bytes(1000)


def test_a_bomb_is_refused_before_it_is_lit() -> None:
    """
    A frame that claims more than any may hold, or more compressed bytes than that many can become.
    """
    sealer = Sealer(Compression())
    frame = b"".join(sealer.seal(1, 0, [b"\0" * (2 << 20)]))

    assert len(frame) < 1000
    with pytest.raises(AnswerError, match="is too large: 2097152 bytes"):
        frames(body_bytes_max=1 << 20).received(frame)
    with pytest.raises(AnswerError, match="is too large"):
        frames().received(frame[:28] + b"\x10\0\0\0" + frame[32:])


def test_a_frame_inflates_to_no_more_than_it_claims() -> None:
    """
    A gigabyte of zeros in 32 KB fills what was agreed on, and no byte behind it.
    """
    compressor = zstandard.ZstdCompressor().compressobj()
    wire = b"".join(compressor.compress(b"\0" * (1 << 20)) for _ in range(1024))
    wire += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    header, key = Header(0, 1, 0, 4096, len(wire), bytes(32)), bytes(KEY_BYTES)

    with pytest.raises(AnswerError, match=r"continues after its end"):
        opened(key, [lied(key, header, memoryview(wire))])


def test_a_window_that_is_too_large_is_refused() -> None:
    """
    The memory it needs is the mirror's.
    """
    key, came = sealed(os.urandom(3 << 20), compression=Compression(3, 25))
    opener = Opener(key, 20)

    with pytest.raises(AnswerError, match="cannot be decompressed"):
        opener.open(*came[0], memoryview(bytearray(came[0][0].body_bytes)))


def test_what_is_no_frame_is_refused() -> None:
    """
    Bytes of something else.
    """
    with pytest.raises(AnswerError, match="instead of a frame"):
        frames().received(b"HTTP" + bytes(HEADER_BYTES))


def test_the_compression_changes_between_frames() -> None:
    """
    Also where a frame without a body comes in between; the window begins anew.
    """
    once, changes = os.urandom(100_000), {1: Compression(9, 22), 3: Compression(0), 4: Compression(9, 22)}
    sealer, arriving = Sealer(Compression(1, 20)), frames()
    bodies: list[list[bytes]] = [[once], [], [once], [once], [once]]
    came: list[Came] = []
    for number, body in enumerate(bodies):
        if number in changes:
            sealer.change(changes[number])
        came += seen(arriving.received(b"".join(sealer.seal(1, 0, body))))

    assert opened(sealer.key, came) == [b"".join(body) for body in bodies]
    assert [len(wire) >= 100_000 for _, wire in came] == [True, False, True, True, True]


@pytest.mark.parametrize(("long", "found"), [(True, True), (False, False)], ids=["long", "not long"])
def test_a_window_moves_on_or_begins_anew_when_it_is_full(long: bool, found: bool) -> None:
    """
    What came 800 kB before, of a window of a megabyte, is known or not; either way all comes out again.
    """
    one, other = os.urandom(400_000), os.urandom(400_000)
    bodies = one, other, one, other, one

    key, came = sealed(*bodies, compression=Compression(1, 20, long))

    assert opened(key, came) == list(bodies)
    assert [len(wire) < 1_000 for _, wire in came] == [False, False, found, found, found]


@pytest.mark.parametrize("long", [True, False])
@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 3 << 10), max_size=30))
def test_frames_of_any_sizes_come_out_whatever_the_window_does(long: bool, sizes: list[int]) -> None:
    """
    Also those that are larger than the window, of a kilobyte.
    """
    bodies = [os.urandom(size) for size in sizes]

    key, came = sealed(*bodies, compression=Compression(1, 10, long))

    assert opened(key, came) == bodies


def test_what_is_not_compressed_keeps_its_length() -> None:
    """
    Claimed otherwise, it is refused.
    """
    key, ((header, wire),) = sealed(b"x" * 100, compression=Compression(0))

    assert header.stored
    assert bytes(wire) == b"x" * 100
    with pytest.raises(AnswerError, match="a stored frame of 99 bytes has 100"):
        opened(key, [lied(key, header._replace(body_bytes=99), wire)])


async def test_work_in_a_thread_is_over_before_its_caller_is() -> None:
    """
    However often it is told to stop: the memory it writes to is used again then.
    """
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        may_end.wait(10)
        ended.set()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.to_thread(began.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
