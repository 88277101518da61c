"""How a relay's connections end: once, in time, and without a word of asyncio's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mirror.relay import line
from mirror.relay.line import Asked
from tests.harness.daemon import until
from tests.harness.security import Authority

MUCH = bytes(32 << 20)
"""More than the kernels of both sides take."""


class Ending(Asked):
    """It only ends, as often as it is told.

    Attributes:
        given_up: How often the mirror was said to ask and not to read.
    """

    given_up = 0

    def unread(self) -> None:
        """It is counted."""
        self.given_up += 1

    def has_room(self) -> None:
        """Nothing more comes."""

    def close(self) -> None:
        """As any does."""
        self.end()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport


@pytest.fixture(params=["plain", "TLS"])
def contexts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Of the server and the client."""
    if request.param == "plain":
        return None, None
    authority = Authority(tmp_path)
    issued = authority.issue("relay", hosts=["127.0.0.1"])
    there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    there.load_cert_chain(issued.certificate, issued.key)
    return there, ssl.create_default_context(cafile=str(authority.certificate))


@asynccontextmanager
async def connected(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None],
) -> AsyncIterator[tuple[Ending, asyncio.StreamReader, list[dict[str, Any]]]]:
    """A connection, its other end, and what asyncio complains of."""
    made: list[Ending] = []
    complaints: list[dict[str, Any]] = []

    def one() -> Ending:
        made.append(Ending(64 << 10))
        return made[-1]

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
    server = await loop.create_server(one, "127.0.0.1", 0, ssl=contexts[0])
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=contexts[1], limit=1024
    )
    try:
        await until(lambda: bool(made) and made[0].transport is not None, "it is there")
        yield made[0], reader, complaints
    finally:
        writer.transport.abort()
        server.close()


async def test_one_that_is_ended_twice_is_given_up_when_nobody_reads(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What is left has its time; then it is gone, over TLS as well, which cannot be closed twice.
    """
    monkeypatch.setattr(line, "CLOSE_SECONDS_MAX", 0.5)
    async with connected(contexts) as (ends, _, complaints):
        assert ends.transport is not None
        ends.transport.write(MUCH)
        for _ in range(3):
            ends.close()
        assert ends.ended.done()
        assert ends.transport is not None, "what is left has its time"
        await until(lambda: ends.transport is None, "it is given up", 5)

    assert (ends.sock, ends.unsent, ends.on_way_bytes, ends.full) == (None, False, 0, True)
    assert complaints == []


async def test_what_is_read_in_time_is_all_there_and_nothing_is_left_to_give_up(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It ends when the last of it has left, and is not held for the time it would have had.
    """
    async with connected(contexts) as (ends, reader, complaints):
        assert ends.transport is not None
        ends.transport.write(MUCH)
        ends.close()
        came = await asyncio.wait_for(reader.readexactly(len(MUCH)), 20)
        await until(lambda: ends.transport is None, "it has ended", 5)
        waits = ends._giving_up

    assert came == MUCH
    assert waits is not None
    assert waits.cancelled()
    assert complaints == []


async def test_a_mirror_that_asks_and_does_not_read_is_ended(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None],
) -> None:
    """
    Answers are not kept for it without end, and nobody waits for it.
    """
    async with connected(contexts) as (ends, _, complaints):
        ends.write(b"an answer")
        before = ends.given_up, ends.ended.done()
        ends.write(MUCH)
        ends.write(MUCH)
        await until(lambda: ends.transport is None, "it is ended", 5)
        ends.write(MUCH)

    assert before == (0, False)
    assert (ends.given_up, ends.ended.done()) == (1, True)
    assert complaints == []


async def test_who_is_let_go_is_told_nothing_more(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None],
) -> None:
    """
    What is left for it still goes out; nothing comes behind that.
    """
    async with connected(contexts) as (ends, _, complaints):
        assert ends.transport is not None
        ends.transport.write(MUCH)
        ends.close()
        left = ends.transport.get_write_buffer_size()
        ends.write(b"an answer")
        still_left = ends.transport.get_write_buffer_size()

    assert (still_left, ends.given_up) == (left, 0)
    assert left > 0
    assert complaints == []
