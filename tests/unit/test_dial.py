"""A name with several addresses: one that is of no use does not stand in the way of the others."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mirror.errors import ConnectionFailedError, TlsRefusedError
from mirror.kafka import dial as dial_module
from mirror.kafka.dial import Address, ConnectionOptions, Relays, dial, dial_one_relay, dial_relay
from mirror.kafka.security import Security, SecurityProtocol, TlsOptions
from tests.harness.security import Authority

PORT = 9093
Listen = Callable[..., Awaitable[list[int]]]


@pytest.fixture
async def listen(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listen]:
    """Opens a port that one more address of ``localhost`` leads to, and gives what is asked of it."""
    ports: list[int] = []

    async def resolve(_: str, __: int) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    async def silent(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def hung_up(_: StreamReader, writer: StreamWriter) -> None:
        writer.close()

    async with AsyncExitStack() as stack:

        async def listen(context: ssl.SSLContext | None = None, *, hangs_up: bool = False) -> list[int]:
            asked: list[int] = []
            answer = hung_up if hangs_up else silent

            async def accept(reader: StreamReader, writer: StreamWriter) -> None:
                asked.append(len(asked))
                await answer(reader, writer)

            server = await stack.enter_async_context(
                await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
            )
            ports.append(server.sockets[0].getsockname()[1])
            return asked

        monkeypatch.setattr("mirror.kafka.dial.resolve", resolve)
        yield listen


def shown_by(authority: Authority) -> ssl.SSLContext:
    """What a broker shows whose certificate this authority has signed."""
    identity = authority.issue("broker", ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def options(authority: Authority) -> ConnectionOptions:
    security = Security(SecurityProtocol.SSL, TlsOptions(authority.certificate))
    return ConnectionOptions(security, connect_timeout_seconds=1)


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_the_next_address_is_tried(
    listen: Listen, authority: Authority, options: ConnectionOptions, hangs_up: bool
) -> None:
    """
    Where the first is silent, or ends the connection: a balancer without backends, a broker that goes down.
    """
    await listen(hangs_up=hangs_up)
    await listen(shown_by(authority))

    sock = await asyncio.wait_for(dial(Address("localhost", PORT), options), options.connect_timeout_seconds)

    assert isinstance(sock, ssl.SSLSocket)
    sock.close()


async def test_the_next_address_of_a_relay_is_tried_too(
    listen: Listen, authority: Authority, options: ConnectionOptions
) -> None:
    """
    Within the relay's share of the time; what it says then is another matter.
    """
    relay = Address("localhost", PORT)
    through = ConnectionOptions(options.security, connect_timeout_seconds=1, relays=Relays([relay]))
    await listen()
    asked = await listen(shown_by(authority))

    with pytest.raises(ConnectionFailedError, match="no answer in time"):
        await dial(relay, through)

    assert asked


async def test_where_nobody_answers_the_last_failure_is_told(
    listen: Listen, options: ConnectionOptions
) -> None:
    """
    It names the broker.
    """
    await listen()
    await listen(hangs_up=True)

    with pytest.raises(ConnectionFailedError, match=f"^localhost:{PORT}: .*(handshake|reset)"):
        await asyncio.wait_for(dial(Address("localhost", PORT), options), options.connect_timeout_seconds)


async def test_a_certificate_that_is_not_trusted_is_told_at_once(
    listen: Listen, authority: Authority, options: ConnectionOptions, tmp_path: Path
) -> None:
    """
    Another address that shows a better one would only hide it.
    """
    await listen(shown_by(Authority(tmp_path, "stranger")))
    asked = await listen(shown_by(authority))

    with pytest.raises(TlsRefusedError, match="not signed by any authority"):
        await dial(Address("localhost", PORT), options)

    assert not asked


async def test_a_relay_whose_certificate_is_not_trusted_is_told_with_the_settings_of_the_link(
    listen: Listen, options: ConnectionOptions, tmp_path: Path
) -> None:
    """
    What the hint says of brokers would lead nowhere.
    """
    relay = Address("localhost", PORT)
    through = ConnectionOptions(options.security, connect_timeout_seconds=1, relays=Relays([relay]))
    await listen(shown_by(Authority(tmp_path, "stranger")))

    with pytest.raises(TlsRefusedError, match=f"^relay localhost:{PORT}: .*not signed by any") as refused:
        await dial(relay, through)

    assert "link.security.ca_file" in refused.value.hint


@pytest.mark.parametrize(
    ("expired", "words"),
    [
        (
            True,
            r"rejects the mirror's certificate, .*mirror\.crt: CN=mirror, signed by CN=authority, expired on",
        ),
        (False, "may require a client certificate, and none is configured"),
    ],
)
async def test_a_relay_that_ends_a_connection_unanswered_is_told_with_what_we_have_shown(
    listen: Listen, authority: Authority, expired: bool, words: str
) -> None:
    """
    Its own log says why, but at the other site: an expired certificate is to be seen here.
    """
    relay, mine = Address("localhost", PORT), authority.issue("mirror", valid_for=-timedelta(hours=1))
    shown = (mine.certificate, mine.key) if expired else ()
    security = Security(SecurityProtocol.SSL, TlsOptions(authority.certificate, *shown))
    await listen(shown_by(authority), hangs_up=True)

    with pytest.raises(ConnectionFailedError, match=words) as ended:
        await dial(relay, ConnectionOptions(security, connect_timeout_seconds=1, relays=Relays([relay])))

    assert "see tls_refused in its log" in str(ended.value)
    assert "link.security.certificate_file" in ended.value.hint


@pytest.mark.parametrize("step", ["send_all", "receive"])
@pytest.mark.parametrize("lost", [ConnectionResetError("reset"), ssl.SSLError("certificate required")])
async def test_a_relay_that_resets_a_connection_unanswered_is_told_with_what_we_have_shown(
    listen: Listen, authority: Authority, monkeypatch: pytest.MonkeyPatch, step: str, lost: OSError
) -> None:
    """
    Our request was on its way when it rejected our certificate; what that looks like depends on the version
    of Python.
    """

    async def fails(*_: object) -> bytes:
        raise lost

    relay, mine = Address("localhost", PORT), authority.issue("mirror")
    security = Security(SecurityProtocol.SSL, TlsOptions(authority.certificate, mine.certificate, mine.key))
    await listen(shown_by(authority))
    monkeypatch.setattr(f"mirror.kafka.relayed.{step}", fails)

    with pytest.raises(
        ConnectionFailedError, match=r"rejects the mirror's certificate, .*mirror\.crt"
    ) as ended:
        await dial(relay, ConnectionOptions(security, connect_timeout_seconds=1, relays=Relays([relay])))

    assert str(lost) in str(ended.value)
    assert "link.security.certificate_file" in ended.value.hint


async def test_addresses_that_are_slow_are_given_time_however_many_they_are(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Over a long way each needs more than its share; all of them would be given up, again and again.
    """
    for _ in range(8):
        await listen()
    connect = dial_module._connect

    async def slow(*args: Any) -> socket.socket:
        await asyncio.sleep(0.8)
        return await connect(*args)

    monkeypatch.setattr(dial_module, "_connect", slow)
    options = ConnectionOptions(connect_timeout_seconds=4)

    sock = await asyncio.wait_for(dial(Address("localhost", PORT), options), options.connect_timeout_seconds)

    sock.close()


@pytest.mark.parametrize("joins", [False, True])
async def test_a_relay_over_a_long_way_has_time_however_many_there_are(joins: bool) -> None:
    """
    TCP, TLS and a request are three round trips; a share of each would be too short for all of them. Where
    there is no other to ask it has all the time.
    """

    async def slow(_: socket.socket, __: str) -> None:
        await asyncio.sleep(1.2 if joins else 0.7)

    gone = asyncio.Event()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        relay = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        many = [relay, *(Address("127.0.0.1", port) for port in range(1, 30))]
        options = ConnectionOptions(connect_timeout_seconds=2, relays=Relays(many))

        sock = await dial_one_relay(relay, slow, options) if joins else (await dial_relay(slow, options))[0]
        sock.close()
        await gone.wait()
