"""BBR that does not end its beginning is held to less than what arrives, until it does; nothing else is."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mirror.relay import calming
from mirror.relay.calming import HELD_SECONDS_MAX, TCP_CC_INFO, Bbr, Calmed, Calming, read_bbr

RATE = 12_000_000
BEGINNING, LATER = Bbr(RATE, 2.887, 0.1), Bbr(RATE, 1.25, 0.1)
LOOK_SECONDS = 0.25


def looks(calmed: Calmed, bbr: Bbr, *, count: int, resent: int, began: int = 0) -> Iterator[int | None]:
    """To what it is held, look by look; a thousand segments are sent between two, so many of them again."""
    for look in range(began, began + count):
        calmed.look(bbr, look * 1000, look * resent, 100 + look * LOOK_SECONDS)
        yield calmed.rate


def test_what_the_kernel_says() -> None:
    """
    Bandwidth in two halves, microseconds, gains in 256ths, as linux/inet_diag.h has them.
    """
    assert read_bbr(struct.pack("=5I", 7, 2, 100_000, 739, 739)) == Bbr((2 << 32) + 7, 739 / 256, 0.1)


@pytest.mark.parametrize("info", [b"", bytes(19)])
def test_a_kernel_that_does_not_say(info: bytes) -> None:
    """
    Another congestion control, or none that says anything.
    """
    assert read_bbr(info) is None


def test_it_is_held_when_no_more_arrives_and_much_is_lost() -> None:
    """
    A second after the last time more arrived; and let go when its beginning has ended.
    """
    calmed = Calmed()

    held = list(looks(calmed, BEGINNING, count=8, resent=100))
    later = list(looks(calmed, LATER, count=20, resent=100, began=8))

    assert held == [None] * 4 + [RATE * 9 // 10] * 4
    assert later == [None] * 20


def test_over_a_long_way_it_takes_longer() -> None:
    """
    Eight round trips of 300 ms.
    """
    held = list(looks(Calmed(), BEGINNING._replace(round_trip_seconds=0.3), count=12, resent=100))

    assert held == [None] * 10 + [RATE * 9 // 10] * 2


def test_what_still_grows_is_left_alone() -> None:
    """
    Over a lossy link it takes a while, and each time it is stopped it would be slower for long.
    """
    calmed = Calmed()
    for look in range(40):
        growing = BEGINNING._replace(rate=int(100_000 * 1.1**look))
        calmed.look(growing, look * 1000, look * 50, 100 + look * LOOK_SECONDS)
        assert calmed.rate is None


@pytest.mark.parametrize("resent", [0, 10, 20])
def test_who_loses_little_is_left_alone(resent: int) -> None:
    """
    It has little to send, or the link loses a packet of a hundred.
    """
    assert set(looks(Calmed(), BEGINNING, count=100, resent=resent)) == {None}


def test_what_was_lost_before_more_arrived_is_no_sign_of_an_end() -> None:
    """
    Others had filled the link, and have gone.
    """
    calmed = Calmed()
    calmed.look(BEGINNING._replace(rate=RATE // 2), 10_000, 4_000, 100.0)
    calmed.look(BEGINNING, 20_000, 5_000, 101.0)

    for look in range(20):
        calmed.look(BEGINNING, 20_000 + look * 1000, 5_000, 101 + look * LOOK_SECONDS)
        assert calmed.rate is None


def test_it_is_not_held_for_ever() -> None:
    """
    Where that does not help it is let go, and held again when it goes on to lose.
    """
    held = list(looks(Calmed(), BEGINNING, count=60, resent=100))

    first = held.index(RATE * 9 // 10)
    released = held.index(None, first)
    assert (released - first) * LOOK_SECONDS == HELD_SECONDS_MAX
    assert held[released:][:5] == [None] * 4 + [RATE * 9 // 10]


# -- one connection --------------------------------------------------------------------------------------


class Kernel:
    """A socket whose kernel says what a test wants it to; much of what is sent is sent again.

    Attributes:
        gain: As BBR has it, in 256ths.
        silent: It says nothing of BBR.
        info_bytes: So long is what it says of TCP; an older one says less.
        error: What it answers to every question.
        looks: How often it was asked.
        held: To what it was held, in bytes a second, time after time.
    """

    def __init__(self) -> None:
        self.gain, self.silent, self.info_bytes = 739, False, 240
        self.error: OSError | None = None
        self.looks = 0
        self.held: asyncio.Queue[int] = asyncio.Queue()
        self._looked = asyncio.Event()

    def getsockopt(self, _: int, option: int, __: int) -> bytes:
        if self.error is not None:
            raise self.error
        if option == TCP_CC_INFO:
            self.looks += 1
            self._looked.set()
            return b"" if self.silent else struct.pack("=5I", RATE, 0, 0, self.gain, self.gain)
        info = bytearray(240)
        struct.pack_into("=I", info, 156, self.looks * 1000)
        struct.pack_into("=I", info, 100, self.looks * 100)
        return bytes(info[: self.info_bytes])

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.SOL_SOCKET, calming.SO_MAX_PACING_RATE)
        self.held.put_nowait(struct.unpack("=Q", value)[0])

    def watched(self) -> Calming:
        return Calming(cast(Any, self))

    async def looked_at(self, more: int) -> None:
        """Wait for so many more looks."""
        wanted = self.looks + more
        async with asyncio.timeout(10):
            while self.looks < wanted:
                self._looked.clear()
                await self._looked.wait()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is looked at all the time, and two looks are enough."""
    monkeypatch.setattr(calming, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(calming, "STALLS_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_connection_is_held_by_its_kernel_and_let_go_when_its_beginning_has_ended() -> None:
    """
    Then by nothing at all: what it carries later is not what it carried in its first second.
    """
    kernel = Kernel()
    with capture_logs() as logged:
        watched = kernel.watched()
        async with asyncio.timeout(10):
            held = await kernel.held.get()
            kernel.gain = 320
            let_go = await kernel.held.get()
        await kernel.looked_at(3)
    watched.close()

    assert (held, let_go) == (RATE * 9 // 10, 2**64 - 1)
    assert kernel.held.empty()
    assert [(line["event"], line["bytes_per_second"]) for line in logged] == [
        ("bbr_held", RATE * 9 // 10),
        ("bbr_held", None),
    ]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"silent": True}, "the kernel does not report its state"),
        ({"info_bytes": 156}, "the kernel does not report its state"),
        ({"info_bytes": 100}, "the kernel does not report its state"),
        ({"error": OSError(errno.EBADF, "it is closed")}, "it is closed"),
    ],
)
async def test_a_connection_whose_kernel_does_not_say_is_not_asked_again(
    changes: dict[str, Any], why: str
) -> None:
    """
    It is said once, and the others are looked at as before.
    """
    kernel, other = Kernel(), Kernel()
    other.gain = 320
    for name, value in changes.items():
        setattr(kernel, name, value)
    with capture_logs() as logged:
        watched = [kernel.watched(), other.watched()]
        await other.looked_at(5)
    for one in watched:
        one.close()

    [line] = logged
    assert line["event"] == "bbr_not_watched"
    assert why in line["error"]


@pytest.mark.usefixtures("at_once")
async def test_a_connection_that_has_ended_is_not_looked_at() -> None:
    """
    Its number may be another one's by then.
    """
    kernel, other = Kernel(), Kernel()
    watched = [kernel.watched(), other.watched()]
    await kernel.looked_at(2)

    watched[0].close()
    looks = kernel.looks
    await other.looked_at(3)

    watched[1].close()
    assert kernel.looks == looks
