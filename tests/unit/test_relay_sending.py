"""Over which connections a mirror's frames go: what is urgent over its own, and some of it over a second."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.fetch import Fetched, Key
from mirror.link import protocol
from mirror.link.messages import Messages
from mirror.link.parts import Part, encode_parts
from mirror.link.protocol import Channel
from mirror.relay import lane
from mirror.relay.lane import FRAMES_READY_MAX, Frame
from mirror.relay.news import News
from mirror.relay.pacing import Turnstile
from mirror.relay.sending import AGAIN_BYTES_MAX, Sender
from mirror.relay.stream import Stream
from mirror.relay.tuning import IDLE_SECONDS, Spent, Tuner, ladder

MB = 1 << 20
SLICE_HEAD_BYTES = 14


@dataclass(eq=False)
class Wire:
    """A connection that takes everything, until it is said to be full."""

    slice_bytes: int = 64 << 10
    full: bool = False
    unsent: bool = False
    on_way_bytes: int = 0
    written: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.written))


def sending(window_bytes: int = 64 * MB) -> tuple[Sender, Wire, Wire, Wire]:
    """A sender, its first connection, one for what is behind, and the second one for what is urgent."""
    first, behind, again = Wire(), Wire(), Wire()
    steps = {channel: ladder(3, recode=True) for channel in Channel}
    sender = Sender(first, dict.fromkeys(Channel, window_bytes), steps, lambda _: None, Turnstile())
    sender.add(behind, Channel.BULK)
    sender.add(again, Channel.LIVE)
    return sender, first, behind, again


def put(sender: Sender, channel: Channel, size: int, times: int = 1) -> None:
    """Frames of so many bytes go out."""
    for _ in range(times):
        sender.put(channel, Frame([bytes(size)], nothing, nothing), Spent())


def nothing() -> None:
    return


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 200))
def test_a_frame_in_pieces_leaves_as_one(pieces: list[bytes], slice_bytes: int) -> None:
    """
    Every byte once, in slices as long as may be; when the last one has gone out the pieces are not needed.
    """
    sender, _, behind, _ = sending()
    behind.slice_bytes = slice_bytes
    gone_after: list[int] = []
    pieces = [b"x", *pieces]

    sender.put(Channel.BULK, Frame(pieces, nothing, lambda: gone_after.append(len(behind.written))), Spent())

    bodies = [data[SLICE_HEAD_BYTES:] for data in behind.written]
    assert b"".join(bodies) == b"".join(pieces)
    assert [len(body) for body in bodies[:-1]] == [slice_bytes] * (len(bodies) - 1)
    assert gone_after == [len(bodies)]


def test_what_is_urgent_goes_twice_while_it_is_little() -> None:
    """
    The same bytes over both of its connections; and what is behind over neither.
    """
    sender, first, behind, again = sending()

    put(sender, Channel.LIVE, 300, times=10)
    put(sender, Channel.BULK, 100_000)

    assert first.written == again.written
    assert len(first.written) == 10
    assert behind.bytes > 100_000
    assert sender.totals[Channel.LIVE].sent_bytes == 3_000 + again.bytes


def test_a_mirror_is_told_how_what_is_behind_is_sent_and_no_more() -> None:
    """
    What is up to date has a limit as well, and is always sent alike: it is not taken for that.
    """
    sender, *_ = sending()
    said: list[bytes] = []
    stream = SimpleNamespace(sender=sender, write=said.append, _widening=SimpleNamespace(connections=1))

    for channel in Channel:
        Stream._chosen(cast(Any, stream), channel)

    [choice] = said
    assert b'"level":3' in choice.replace(b" ", b"")


async def test_a_limit_is_said_as_long_as_something_waits() -> None:
    """
    Or a frame is being made, however long that takes; not for long after, and the mirror is told so once.
    """
    sender, _, behind, _ = sending()
    maker, told = sender.makers[Channel.BULK], list[str]()
    sender._chosen = lambda _: told.append(maker.tuner.why)
    now = time.monotonic() + 1
    maker.tuner.watched(Spent(waited=1, records_bytes=100 * MB, wire_bytes=30 * MB), now)
    assert maker.tuner.why == "as configured; the link is full"

    behind.full = True
    put(sender, Channel.BULK, 70)
    sender.look_whether_idle(now + 60)
    behind.full = False
    sender.go_on()
    async with maker.press.turn():
        sender.look_whether_idle(now + 60)
    sender.look_whether_idle(now + IDLE_SECONDS / 2)
    assert told == []

    for _ in range(2):
        sender.look_whether_idle(now + IDLE_SECONDS)
    assert told == ["as configured"]


def test_why_a_level_was_chosen_is_said_on_when_nothing_is_behind() -> None:
    """
    It is what the next catch-up begins with.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    tuner.watched(Spent(waited=1, records_bytes=100 * MB, wire_bytes=30 * MB), 1.0)
    before = tuner.why

    assert not tuner.idle(1_000.0)
    assert tuner.why == before


def test_whether_a_limit_holds_is_seen_when_the_mirror_asks_how_late_it_is() -> None:
    """
    It does so every two seconds, also where nothing goes to it.
    """
    looked: list[float] = []
    sender = SimpleNamespace(look_whether_idle=looked.append)
    stream = SimpleNamespace(reader=SimpleNamespace(), sender=sender, write=lambda _: None)
    [(kind, payload)] = Messages(100).received(protocol.ping(7))

    Stream._heard(cast(Any, stream), kind, payload)

    assert len(looked) == 1


def test_much_that_is_urgent_goes_once() -> None:
    """
    Of all that goes over the link the second time takes a thirty-second, as the bytes are paid for.
    """
    sender, first, _, again = sending()

    put(sender, Channel.LIVE, 10_000, times=1_000)

    assert first.bytes > 10_000_000
    assert again.bytes <= AGAIN_BYTES_MAX + first.bytes / 32


def test_it_goes_twice_again_when_much_else_goes() -> None:
    """
    Beside a catch-up a hundred records a second are little.
    """
    sender, first, _, again = sending()
    put(sender, Channel.LIVE, 10_000, times=100)
    before = len(again.written)

    put(sender, Channel.BULK, MB, times=4)
    put(sender, Channel.LIVE, 300, times=100)

    assert again.written[before:] == first.written[-100:]


def test_the_second_time_is_not_waited_for() -> None:
    """
    A connection that is held up by a packet that was lost takes no more: the other one goes on.
    """
    sender, first, _, again = sending()
    again.full = True

    put(sender, Channel.LIVE, 300, times=10)

    assert (len(first.written), again.written) == (10, [])


@pytest.mark.parametrize("between", [0, 1, 2, 3], ids="{} urgent ones between".format)
def test_connections_take_turns(between: int) -> None:
    """
    Whatever is sent between over another one; one that is full is left out, and the others take turns.
    """
    sender, _, one, _ = sending()
    others = [Wire(), Wire(), Wire()]
    others[0].full = True
    for other in others:
        sender.add(other, Channel.BULK)

    for _ in range(9):
        put(sender, Channel.LIVE, 300, times=between)
        put(sender, Channel.BULK, 300)
    while_full = [len(wire.written) for wire in (one, *others)]
    others[0].full = False
    put(sender, Channel.BULK, 300)

    assert while_full == [3, 0, 3, 3]
    assert len(others[0].written) == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_who_is_waited_for_is_known(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The mirror, where what it has not taken has arrived; the link, where that is on its way.
    """
    now = [1_000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("mirror.relay.sending.time", clock)
    monkeypatch.setattr("mirror.relay.pacing.time", clock)
    sender, _, behind, _ = sending(window_bytes=1)
    await asyncio.gather(*(send(sender) for _ in range(FRAMES_READY_MAX + 1)))  # the first one has left
    behind.on_way_bytes = 0 if is_there else behind.bytes

    waiting = asyncio.create_task(send(sender))
    await asyncio.sleep(0)
    assert not waiting.done()
    before = sender.totals[Channel.BULK].spent
    now[0] += 3
    assert sender.taken(Channel.BULK, behind.bytes - SLICE_HEAD_BYTES)
    await waiting

    spent = sender.totals[Channel.BULK].spent
    assert (spent.held - before.held, spent.waited - before.waited) == ((3, 0) if is_there else (0, 3))


@pytest.mark.parametrize("held_up_by", ["limit of the relay", "limit of the mirror", "link"])
async def test_a_limit_is_not_taken_for_the_link(held_up_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Where the connection would take more; a link that is slower than its limit is the link.
    """
    now = [1_000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("mirror.relay.sending.time", clock)
    monkeypatch.setattr("mirror.relay.pacing.time", clock)
    sender, _, behind, _ = sending()
    if held_up_by == "limit of the relay":
        sender._turnstile.change(1_000.0)
    else:
        sender.limit(1_000.0)
    behind.full = held_up_by == "link"
    await asyncio.gather(*(send(sender) for _ in range(FRAMES_READY_MAX + (not behind.full))))
    waiting = asyncio.create_task(send(sender))
    await asyncio.sleep(0)
    before = sender.totals[Channel.BULK].spent

    now[0] += 3
    behind.full = False
    sender.go_on()
    await waiting

    spent = sender.totals[Channel.BULK].spent
    assert spent.waited - before.waited >= 3
    assert (spent.paced > before.paced) == (held_up_by != "link")


def test_what_was_taken_may_be_said_again_and_is_never_less() -> None:
    """
    Nor is it more than was sent.
    """
    sender, *_ = sending()
    put(sender, Channel.LIVE, 70, times=2)

    said = [sender.taken(Channel.LIVE, wire_bytes) for wire_bytes in (0, 70, 70, 69, 140, 141)]

    assert said == [True, True, True, False, True, False]


async def send(sender: Sender, records: bytes = b"records") -> None:
    """A frame of what is behind, and small."""
    fetched = Fetched(Key(bytes(16), 0), 0, 1, 1, 0, None, [], memoryview(records))
    news = News(1, 0, [Part(1, 0, 1, fetched)])
    await sender.send(Channel.BULK, news, {fetched.key}, nothing, nothing)


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What is in a circle stays, as it may for long in a process in which little else is made."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
async def test_what_zstd_has_goes_with_the_stream() -> None:
    """
    At once, also where others know the sender on: it is tens of megabytes.
    """
    sender, *_ = sending()
    await send(sender, bytes(MB))
    windows = [weakref.ref(maker.sealer._window) for maker in sender.makers.values()]
    before = [window() is None for window in windows]

    sender.close()

    assert before == [False] * len(Channel)
    assert [window() for window in windows] == [None] * len(Channel)


@pytest.mark.usefixtures("no_gc")
async def test_a_frame_that_is_being_made_when_its_stream_ends_is_made_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    In another thread, with what zstd has; that goes then. So it does where the frame is given up, and what
    waits behind it does not go wrong.
    """
    begun, goes_on = threading.Event(), threading.Event()

    def slow(parts: Sequence[Part], recode: Container[Key]) -> list[bytes | memoryview]:
        begun.set()
        assert goes_on.wait(10)
        return encode_parts(parts, recode)

    monkeypatch.setattr(lane, "encode_parts", slow)
    for given_up in (False, True):
        begun.clear()
        goes_on.clear()
        sender, *_ = sending()
        window = weakref.ref(sender.makers[Channel.BULK].sealer._window)
        making, behind = [asyncio.create_task(send(sender, bytes(MB))) for _ in range(2)]
        assert await asyncio.to_thread(begun.wait, 10)

        sender.close()
        if given_up:
            making.cancel()
        kept = window() is not None
        goes_on.set()
        await asyncio.wait([making, behind])

        assert kept
        assert window() is None
        assert making.cancelled() == given_up
        assert behind.exception() is None


def test_what_is_kept_of_frames_that_nobody_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    However small they are, and however large the window: another one goes with each that is taken.
    """
    monkeypatch.setattr(lane, "FRAMES_UNTAKEN_MAX", 100)
    sender, first, _, _ = sending()

    def sent() -> int:
        return len(first.written)

    put(sender, Channel.LIVE, 70, times=150)
    not_taken = sent()
    sender.taken(Channel.LIVE, 70 * 30)

    assert (not_taken, sent()) == (100, 130)
