"""A mirror that is ended while it still waits for its clusters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mirror import service
from mirror.config import Settings, parse
from mirror.errors import ConnectionFailedError

SOON_SECONDS = 1.0
CLOSED_PORT = 1


@asynccontextmanager
async def silent_broker() -> AsyncIterator[int]:
    """Something that takes connections and never says a word; the port it is at."""

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        await closed.wait()
    finally:
        server.close()


def settings_for(port: int, connect_timeout_seconds: float = 60.0) -> Settings:
    return parse(
        {
            "source": {
                "bootstrap_servers": f"127.0.0.1:{port}",
                "connect_timeout_seconds": connect_timeout_seconds,
            },
            "target": {"bootstrap_servers": "127.0.0.1:2"},
            "topics": {"include": [".*"]},
            "api": {"port": None},
        }
    )


async def test_a_stop_is_heeded_while_a_cluster_keeps_silent() -> None:
    """
    Nothing is under way, so nothing is waited for.
    """
    stop = asyncio.Event()

    async with silent_broker() as port:
        running = asyncio.create_task(service.run(settings_for(port), stop=stop))
        asyncio.get_running_loop().call_later(0.2, stop.set)
        await stop.wait()
        told_at = time.monotonic()
        with pytest.raises(service.NotBegunError) as ended:
            await running

    assert time.monotonic() - told_at < SOON_SECONDS
    assert ended.value.stopped


async def test_a_stop_is_heeded_between_two_tries_to_connect() -> None:
    """
    A broker that refuses is tried again with growing pauses; none of them is sat out.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    began_at = time.monotonic()

    with pytest.raises(service.NotBegunError, match="stopped"):
        await service.run(settings_for(CLOSED_PORT), stop=stop)

    assert time.monotonic() - began_at < 0.3 + SOON_SECONDS


async def test_time_that_is_up_ends_the_wait_for_a_cluster() -> None:
    """
    The limit of a copy counts from its start, not from the first answer.
    """
    began_at = time.monotonic()

    async with silent_broker() as port:
        with pytest.raises(service.NotBegunError, match="time was up") as ended:
            await service.run(settings_for(port), stop=asyncio.Event(), once=True, timeout_seconds=0.2)

    assert time.monotonic() - began_at < 0.2 + SOON_SECONDS
    assert (ended.value.stopped, ended.value.exit_code) == (False, 5)


async def test_what_is_wrong_with_a_cluster_is_said_when_nobody_told_it_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The race with a stop hides no error.
    """

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionFailedError("nobody there")

    monkeypatch.setattr("mirror.kafka.cluster.Cluster.start", refuse)

    with pytest.raises(ConnectionFailedError, match="nobody there"):
        await service.run(settings_for(CLOSED_PORT), stop=asyncio.Event())
