"""A relay that has not begun: it waits for its source, says so, and can be ended."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from tenacity import stop_after_delay, wait_fixed

from mirror.api.relay_schema import relay_from_json
from mirror.config_relay import RelaySettings
from mirror.errors import AuthenticationError, ConnectionFailedError, UsageError
from mirror.kafka import failures
from mirror.kafka.cluster import Cluster
from mirror.relay import run as relay
from tests.harness.daemon import free_ports, until
from tests.unit.test_beginning import CLOSED_PORT, probe, probe_until

SOON_SECONDS = 10.0


def settings_for(port: int, listen_port: int | None = None) -> RelaySettings:
    """A relay of a cluster that does not answer; ``port`` is for people, the other for mirrors, or any."""
    listen_port = listen_port or free_ports(1)[0]
    return RelaySettings.model_validate(
        {
            "cluster": {"bootstrap_servers": f"127.0.0.1:{CLOSED_PORT}"},
            "listen": {"address": f"127.0.0.1:{listen_port}"},
            "api": {"port": port},
        }
    )


async def test_a_relay_that_waits_for_its_source_is_alive_and_not_ready() -> None:
    """
    Probes tell it from one that hangs, and people learn what it waits for.
    """
    stop, [port] = asyncio.Event(), free_ports(1)
    running = asyncio.create_task(relay._run(settings_for(port), stop))

    async with asyncio.timeout(SOON_SECONDS):
        alive = await probe(port, "/livez")
        ready = await probe_until(port, "/readyz", lambda text: "cannot connect" in text)
        _, metrics = await probe(port, "/metrics")
        _, status = await probe(port, "/status")
        stop.set()
        await running

    waits_for = relay_from_json(json.loads(status)).waits_for
    assert alive == (200, "ok\n")
    assert ready[0] == 503
    assert f"[-] mirrors: not admitted yet: the relay waits for {waits_for}\n" in ready[1]
    assert "[-] source: not reached since start" in ready[1]
    assert waits_for.startswith("source to answer: source: 127.0.0.1:1: cannot connect: ")
    assert "twinsite_relay_build_info" in metrics


async def test_a_relay_waits_for_its_source_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of whatever bound there may be on its patience a thousandth is over long before it is stopped.
    """
    tries = []

    async def away(*_: object, **__: object) -> None:
        tries.append("no")
        raise ConnectionFailedError("nobody there")

    monkeypatch.setattr(failures, "stop_after_delay", lambda seconds: stop_after_delay(seconds / 1000))
    monkeypatch.setattr(failures, "wait_random_exponential", lambda **_: wait_fixed(0.01))
    monkeypatch.setattr(Cluster, "refresh", away)
    stop = asyncio.Event()
    running = asyncio.create_task(relay._run(settings_for(-1), stop))

    await until(lambda: running.done() or len(tries) > 50, "it has tried again and again", SOON_SECONDS)
    waits = not running.done()
    stop.set()
    await asyncio.wait({running}, timeout=SOON_SECONDS)

    assert waits
    assert running.exception() is None


async def test_a_relay_whose_credentials_are_refused_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Waiting would not help.
    """

    async def refuse(*_: object, **__: object) -> None:
        raise AuthenticationError("wrong password")

    monkeypatch.setattr(Cluster, "refresh", refuse)

    with pytest.raises(AuthenticationError, match="wrong password"):
        async with asyncio.timeout(SOON_SECONDS):
            await relay._run(settings_for(-1), asyncio.Event())


async def test_an_address_that_somebody_else_has_is_said_before_the_source_answers() -> None:
    """
    It may be hours until that does, and then the relay is needed.
    """
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: "):
            async with asyncio.timeout(SOON_SECONDS):
                await relay._run(settings_for(-1, port), asyncio.Event())


async def test_nobody_is_let_in_before_the_source_has_answered() -> None:
    """
    A mirror that is refused goes to another relay; one that is let in would wait.
    """
    stop, [port, listen_port] = asyncio.Event(), free_ports(2)
    running = asyncio.create_task(relay._run(settings_for(port, listen_port), stop))

    async with asyncio.timeout(SOON_SECONDS):
        await probe_until(port, "/readyz", lambda text: "cannot connect" in text)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listen_port)
        stop.set()
        await running
