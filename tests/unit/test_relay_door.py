"""Who stands at a relay's port and says nothing: so many are kept, and not for long."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from mirror.relay.audit import Audit
from mirror.relay.door import Door
from tests.harness.daemon import until

GUESTS_MAX = 3
WAYS = pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS"])


@asynccontextmanager
async def guests(
    count: int, *, secured: bool, greeting_seconds: float = 3600.0, says: bytes = b""
) -> AsyncIterator[tuple[list[asyncio.StreamReader], Audit]]:
    """So many have come, one after the other."""
    audit = Audit()
    door = Door(asyncio.Protocol, audit, greeting_seconds=greeting_seconds, guests_max=GUESTS_MAX)
    port = await door.take("127.0.0.1", 0, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if secured else None)
    await door.open()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in opened:
        writer.write(says)
    try:
        yield [reader for reader, _ in opened], audit
    finally:
        await door.close()
        for reader, writer in opened:
            assert await ends(reader)
            writer.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


@WAYS
async def test_of_those_that_say_nothing_the_newest_are_kept(secured: bool) -> None:
    """
    Whether they would have to agree on TLS first or not.
    """
    async with guests(GUESTS_MAX + 5, secured=secured) as (readers, audit):
        gone = [await ends(reader) for reader in readers[:5]]

        assert all(gone)
        assert not any(reader.at_eof() for reader in readers[5:])
        assert audit.refused["too_slow"] == 5


@WAYS
async def test_who_says_nothing_in_time_goes(secured: bool) -> None:
    """
    And is counted.
    """
    async with guests(1, secured=secured, greeting_seconds=0.05) as (readers, audit):
        assert await ends(readers[0])
        assert audit.refused["too_slow"] == 1


async def test_what_tls_refuses_is_counted_and_named_once() -> None:
    """
    By the address it comes from: what looks at a port every second is one line, and not thousands.
    """
    with capture_logs() as events:
        async with guests(GUESTS_MAX, secured=True, says=b"GET / HTTP/1.1\r\n\r\n") as (readers, audit):
            gone = [await ends(reader) for reader in readers]
            await until(lambda: audit.refused["tls_refused"] == GUESTS_MAX, "all are counted", 10)

    assert all(gone)
    [event] = [event for event in events if event["event"] == "tls_refused"]
    assert event["peer"].startswith("127.0.0.1:")
    assert event["reason"] == "HTTP_REQUEST"
