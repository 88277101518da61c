"""Answers come in pieces that the network cuts: each reaches whoever asked, whole and in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.kafka import connection_pool
from mirror.kafka.answers import READ_AHEAD_BYTES, WAKE_BYTES_MAX, WHOLE_WITHIN, Answers, Due
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import SILENT_SECONDS, speaks
from mirror.kafka.dial import Address, ConnectionOptions
from tests.harness.daemon import until

KEY, VERSION = 0, 12
EDGES = [0, 1, READ_AHEAD_BYTES - 10, READ_AHEAD_BYTES - 9, READ_AHEAD_BYTES - 8, 3 * READ_AHEAD_BYTES]
"""Bodies that end just before, at and behind what is received ahead; nine bytes stand before each."""


@asynccontextmanager
async def connected(timeout_seconds: float = 30.0) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection past its greeting, and the broker's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    connection = Connection(
        ours, Address("broker", 9092), ConnectionOptions(request_timeout_seconds=timeout_seconds)
    )
    connection._start()
    try:
        yield connection, theirs
    finally:
        connection.close()
        theirs.close()


def framed(number: int, body: bytes) -> bytes:
    return struct.pack(">iib", len(body) + 5, number, 0) + body


async def received(connection: Connection, count: int) -> None:
    """Wait until so many bytes have come."""
    await until(lambda: connection.bytes_received >= count, f"{count} bytes have come", 10)


async def turns() -> None:
    """Let the event loop deal with what has come."""
    for _ in range(3):
        await asyncio.sleep(0)


@given(
    sizes=st.lists(st.sampled_from(EDGES) | st.integers(0, 3000), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 2500), max_size=12),
)
def test_answers_are_whole_wherever_the_network_cuts_them(sizes: list[int], cuts: list[int]) -> None:
    """
    Short ones come many at a time, long ones in pieces; a piece may end within a length.
    """
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    stream = b"".join(framed(number, body) for number, body in enumerate(bodies, 1))

    async def run() -> list[bytes]:
        heard: list[bytes] = []

        def hear(answer: memoryview | TwinsiteError) -> None:
            assert isinstance(answer, memoryview)
            heard.append(bytes(answer))

        async with connected() as (connection, theirs):
            for _ in bodies:
                connection.submit(KEY, VERSION, [b"?"], hear)
            at = 0
            for cut in [*cuts, len(stream)]:
                theirs.sendall(stream[at : at + cut])
                at += cut
                await turns()
            while len(heard) < len(bodies):
                await turns()
            return heard

    assert asyncio.run(run()) == bodies


@pytest.mark.parametrize("rest", [1, 1000, 200_000])
async def test_long_answer_is_received_a_good_deal_at_a_time(rest: int) -> None:
    """
    Each packet alone is not worth a turn of the event loop; the last bytes are, however few.
    """
    heard: list[memoryview | TwinsiteError] = []
    body = bytes(range(256)) * ((3 * WAKE_BYTES_MAX) // 256)
    stream = framed(1, body)
    async with connected() as (connection, theirs):
        connection.submit(KEY, VERSION, [b"?"], heard.append)
        theirs.sendall(stream[:READ_AHEAD_BYTES])
        while connection.bytes_received < READ_AHEAD_BYTES:
            await turns()
        theirs.sendall(stream[READ_AHEAD_BYTES:][: WAKE_BYTES_MAX // 2])
        for _ in range(50):
            await turns()
        assert connection.bytes_received == READ_AHEAD_BYTES

        await asyncio.to_thread(theirs.sendall, stream[READ_AHEAD_BYTES + WAKE_BYTES_MAX // 2 : -rest])
        while connection.bytes_received < len(stream) - rest - WAKE_BYTES_MAX:
            await turns()
        await asyncio.to_thread(theirs.sendall, stream[-rest:])
        while not heard:
            await turns()

    assert heard == [memoryview(body)]


async def test_who_is_called_back_is_never_called_from_within_the_call() -> None:
    """
    Also not when the connection is lost while sending, or was closed before.
    """
    answers: list[memoryview | TwinsiteError] = []
    async with connected() as (connection, theirs):
        theirs.close()
        connection.submit(KEY, VERSION, [bytes(1 << 20)], answers.append)
        assert connection.closed
        connection.submit(KEY, VERSION, [b"?"], answers.append)
        assert not answers

        await turns()

    assert [type(answer) for answer in answers] == [ConnectionFailedError] * 2


async def test_an_answer_may_be_followed_by_a_question_at_once() -> None:
    """
    Whoever is called back sends from there: what was received behind the answer is not lost over it.
    """
    heard: list[bytes] = []
    async with connected() as (connection, theirs):

        def ask(answer: memoryview | TwinsiteError | None = None) -> None:
            if isinstance(answer, memoryview):
                heard.append(bytes(answer))
            if len(heard) < 3:
                connection.submit(KEY, VERSION, [b"?"], ask)

        ask()
        ask()
        theirs.sendall(framed(1, b"one") + framed(2, b"two") + framed(3, b"three"))
        async with asyncio.timeout(5):
            while len(heard) < 3:
                await turns()

    assert heard == [b"one", b"two", b"three"]


@pytest.mark.parametrize("strange", [b"HTTP/1.1 400 Bad Request\r\n", bytes(8), b"\x7f\xff\xff\xff1234"])
async def test_what_is_no_answer_ends_the_connection(strange: bytes) -> None:
    """
    Everybody who waits is told, and what the port may be.
    """
    answers: list[memoryview | TwinsiteError] = []
    async with connected() as (connection, theirs):
        connection.submit(KEY, VERSION, [b"?"], answers.append)
        theirs.sendall(strange)
        while not answers:
            await turns()

        assert connection.closed
    assert isinstance(answers[0], ConnectionFailedError)
    assert "is not the start of a Kafka answer" in str(answers[0])


async def test_nothing_is_received_while_a_connection_rests() -> None:
    """
    Nor is it given up meanwhile, however long that is; what waits in the kernel comes afterwards.
    """
    answers: list[memoryview | TwinsiteError] = []
    async with connected(timeout_seconds=0.1) as (connection, theirs):
        connection.submit(KEY, VERSION, [b"?"], answers.append)
        connection.pause(True)
        theirs.sendall(framed(1, b"one"))
        await asyncio.sleep(0.4)
        meanwhile = list(answers)
        connection.pause(False)
        async with asyncio.timeout(5):
            while not answers:
                await turns()

    assert meanwhile == []
    assert answers == [memoryview(b"one")]


NOW, PATIENCE = 1_000.0, 30.0


def due_at(*moments: float) -> Answers:
    """Requests sent at these moments, none of them answered, on a connection that was heard long before."""
    answers = Answers("broker")
    answers.answered_at = answers.received_at = NOW - 500
    for number, moment in enumerate(moments):
        answers.due.append(Due(number, lambda _: None, moment, lambda size: memoryview(bytearray(size)), 5))
    return answers


def test_an_answer_of_which_nothing_comes_is_given_up() -> None:
    """
    From when it was asked for, not from when something came last before that.
    """
    answers = due_at(NOW)

    assert answers.overdue(NOW + PATIENCE - 1, PATIENCE) is None
    assert answers.overdue(NOW + PATIENCE, PATIENCE) == "no answer for 30 s"
    assert due_at().overdue(NOW, PATIENCE) is None


def test_an_answer_that_comes_slowly_is_waited_for_but_not_for_ever() -> None:
    """
    Each byte that comes shows that there is a broker; whether it ever comes to an end it does not show.
    """
    answers, late = due_at(NOW), NOW + WHOLE_WITHIN * PATIENCE

    answers.received_at = late - 1

    assert answers.overdue(late - 1, PATIENCE) is None
    assert answers.overdue(late, PATIENCE) == "an answer is still incomplete after 300 s"


def test_each_answer_has_its_time_from_when_the_one_before_it_came() -> None:
    """
    Five requests on their way, each of which a slow broker works on for twenty seconds.
    """
    answers = due_at(NOW, NOW)
    answers.due.popleft()

    answers.answered_at = answers.received_at = NOW + 20

    assert answers.overdue(NOW + 40, PATIENCE) is None
    assert answers.overdue(NOW + 20 + PATIENCE, PATIENCE) is not None


async def test_an_answer_is_given_up_when_its_time_is_up_whatever_was_asked_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Whoever asks all the time is looked after at other moments than one who asks once.
    """
    loop, looks = asyncio.get_running_loop(), list[float]()
    later = loop.call_later

    def call_later(seconds: float, *what: Any) -> asyncio.TimerHandle:
        looks.append(time.monotonic() + seconds)
        return later(seconds, *what)

    async with connected(timeout_seconds=1.0) as (connection, theirs):
        first, second = (loop.create_future() for _ in range(2))
        connection.submit(KEY, VERSION, [b"?"], first.set_result)
        theirs.sendall(framed(1, b"yes"))
        async with asyncio.timeout(30):
            await first
            await asyncio.sleep(0.1)
        monkeypatch.setattr(loop, "call_later", call_later)
        before = time.monotonic()
        connection.submit(KEY, VERSION, [b"?"], second.set_result)
        asked_at = time.monotonic()
        async with asyncio.timeout(30):
            lost = await second
        waited = time.monotonic() - before

    assert isinstance(lost, TwinsiteError)
    assert waited >= 1.0
    assert max(looks, default=0.0) < asked_at + 1.05


def test_an_answer_is_arriving_from_its_first_piece_to_its_last() -> None:
    """
    Whoever waits for it is not told meanwhile that the broker is silent.
    """
    answers, stream, seen = due_at(NOW), framed(0, bytes(2000)), []

    for piece in (stream[:1000], stream[1000:1500], stream[1500:]):
        answers.room[: len(piece)] = piece
        seen.append(answers.arriving_at)
        answers.received(len(piece))
    seen.append(answers.arriving_at)

    assert [at is not None for at in seen] == [False, True, True, False]


async def test_bytes_too_few_to_wake_up_for_show_that_an_answer_comes() -> None:
    """
    Of a long answer a quarter of a megabyte is waited for; over a slow link that takes longer than a broker
    may be silent. A second of silence is the end.
    """
    heard: asyncio.Queue[memoryview | TwinsiteError] = asyncio.Queue()
    body = bytes(WAKE_BYTES_MAX)
    stream = framed(1, body)
    async with connected(timeout_seconds=1.0) as (connection, theirs):
        connection.submit(KEY, VERSION, [b"?"], heard.put_nowait)
        connection.submit(KEY, VERSION, [b"?"], heard.put_nowait)
        for at in range(0, len(stream), len(stream) // 6):
            theirs.sendall(stream[at : at + len(stream) // 6])
            await asyncio.sleep(0.3)
        async with asyncio.timeout(5):
            first, second = await heard.get(), await heard.get()

    assert first == memoryview(body)
    assert "no answer for 1 s" in str(second)


async def test_who_has_begun_to_answer_speaks_until_nothing_has_come_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Who has been asked and says nothing does not; nor who has stopped in the middle of an answer.
    """
    now = [0.0]
    monkeypatch.setattr(connection_pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen: list[bool] = []
    async with connected() as (connection, theirs):
        connection.submit(KEY, VERSION, [b"?"], lambda _: None)
        seen.append(speaks(connection))
        stream = framed(0, bytes(4 * WAKE_BYTES_MAX))
        for piece in (stream[:1000], stream[1000 : 1000 + WAKE_BYTES_MAX]):
            theirs.sendall(piece)
            await received(connection, connection.bytes_received + len(piece))
            came_at = connection.arriving_at
            assert came_at is not None
            for since in (0.0, SILENT_SECONDS - 0.001, SILENT_SECONDS):
                now[0] = came_at + since
                seen.append(speaks(connection))

    assert seen == [False, True, True, False, True, True, False]


async def test_half_a_request_that_must_not_be_sent_any_more_ends_the_connection() -> None:
    """
    The broker has a part of it and never gets the rest; whoever asked is told.
    """
    allowed = True
    async with connected() as (connection, theirs):
        connection.send_while(lambda: allowed, "not our turn", "wait")
        answer = connection.send(KEY, VERSION, [bytes(16 << 20)])
        await turns()
        sent, allowed = connection.bytes_sent, False
        come = await asyncio.to_thread(read_to_the_end, theirs)

        with pytest.raises(ConnectionFailedError, match=r"broker:9092: not our turn"):
            await answer
        assert len(come) <= sent < 16 << 20
        assert connection.bytes_sent == sent


@pytest.mark.parametrize("end", [Connection.withdraw, Connection.close])
async def test_what_the_kernel_has_not_delivered_goes_with_a_guarded_connection(
    end: Callable[[Connection], None],
) -> None:
    """
    Though it has taken all of it: a broker that cannot be reached must not get it later.
    """
    async with connected() as (connection, theirs):
        connection.send_while(lambda: True, "not our turn", "wait")
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(KEY, VERSION, [bytes(1 << 20)]).add_done_callback(asyncio.Future.exception)
        await turns()
        sent = connection.bytes_sent
        assert sent > 1 << 20

        end(connection)
        come = await asyncio.to_thread(read_to_the_end, theirs)

        assert connection.closed
        assert len(come) < sent


async def test_a_connection_on_which_all_has_arrived_has_nothing_to_withdraw() -> None:
    """
    Its answer still comes.
    """
    async with connected() as (connection, theirs):
        answer = connection.send(KEY, VERSION, [b"short"])
        await turns()
        await asyncio.to_thread(theirs.recv, 1 << 16)

        connection.withdraw()
        theirs.sendall(framed(1, b"well"))

        assert bytes(await answer) == b"well"


def read_to_the_end(sock: socket.socket) -> bytes:
    """What comes until the other side closes, or takes back what has not come."""
    come = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 20):
            come += part
    return bytes(come)
