"""Relays: what they pass on, what they refuse, and what becomes of a mirror when one is gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kafka.protocol.metadata import MetadataRequest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, copied, mirror_of, state
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.relay import Relay, running_relay, through

PRODUCE = 0


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running


def ask(relay: Relay, path: str, upgrade: str = "twinsite-kafka/1") -> tuple[socket.socket, bytes]:
    """The connection, and what was answered."""
    host, _, port = relay.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer and (more := sock.recv(65536)):
        answer += more
    return sock, answer


def metadata(correlation_id: int) -> bytes:
    request = MetadataRequest(topics=[])
    request.API_VERSION = 9
    request.with_header(correlation_id=correlation_id, client_id="test")
    encoded: bytes = request.encode(framed=True, header=True)
    return encoded


def all_active(mirror: Twinsite, topic: str, partitions: int) -> bool:
    """Whether the mirror says of each partition that all is well."""
    return all(state(mirror, topic, number) == "ACTIVE" for number in range(partitions))


def test_a_mirror_goes_on_with_another_relay(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Killed in the middle of the copy; the other one has known nothing of it until then.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="two-relays"))
    load(source.bootstrap, name, json_rows(30_000, 1_000))
    with running_relay(source, tmp_path) as second:
        command = mirror_of(through(source, second.address, relay.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) > 1_000, "some is copied"))
            second.process.kill()
            load(source.bootstrap, name, json_rows(5_000, 1_000, seed=2))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
            asyncio.run(mirror.wait_for(lambda: all_active(mirror, name, 3), "all is well"))

    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_a_mirror_waits_for_a_relay_that_is_gone(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nothing of what it has copied is forgotten meanwhile, and what is behind is never said to be there.
    """
    name = asyncio.run(topic(source, prefix="one-relay"))
    port = free_ports(1)[0]
    with running_relay(source, tmp_path, port) as first:
        topics = {"topics": {"include": [name]}, "lagging_after_seconds": 2}
        command = configured(tmp_path, through(source, first.address), target, name, **topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            load(source.bootstrap, name, json_rows(100, 100))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied"))
            first.process.kill()
            load(source.bootstrap, name, json_rows(100, 100, seed=2))
            asyncio.run(
                mirror.wait_for(lambda: state(mirror, name) != "ACTIVE", "it says that it is behind", 60)
            )
            with running_relay(source, tmp_path, port):
                asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))

    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_what_is_asked_and_answered_is_passed_on_as_it_is(source: KafkaCluster, relay: Relay) -> None:
    """
    Several requests at once, cut anywhere; answers come in their order.
    """
    sock, head = ask(relay, f"/v1/kafka?broker={source.broker(1).address}")
    with sock:
        assert head.startswith(b"HTTP/1.1 101 ")
        requests = b"".join(metadata(number) for number in (7, -9, 7))
        for at in range(0, len(requests), 11):
            sock.sendall(requests[at : at + 11])
        answers = sock.makefile("rb")
        for number in (7, -9, 7):
            size = int.from_bytes(answers.read(4))
            assert int.from_bytes(answers.read(size)[:4], signed=True) == number


@pytest.mark.parametrize(
    ("path", "upgrade", "status", "code"),
    [
        ("/v1/kafka", "websocket", 426, "other_protocol"),
        ("/v1/kafka", "twinsite-kafka/9", 426, "other_protocol"),
        ("/v1/kafka?broker=169.254.169.254:80", "twinsite-kafka/1", 404, "unknown_broker"),
        ("/v1/kafka?broker=nonsense", "twinsite-kafka/1", 400, "bad_request"),
        ("/v2/kafka", "twinsite-kafka/1", 404, "not_found"),
    ],
)
def test_what_is_no_broker_is_not_connected_to(
    path: str, upgrade: str, status: int, code: str, relay: Relay
) -> None:
    """
    A relay is no way to anything else in its network.
    """
    sock, answer = ask(relay, path, upgrade)
    sock.close()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["code"] == code


@pytest.mark.parametrize(
    "request_bytes",
    [
        (10).to_bytes(4) + PRODUCE.to_bytes(2) + (9).to_bytes(2) + bytes(6),
        (1 << 30).to_bytes(4) + bytes(64),
        (-5).to_bytes(4, signed=True),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 8,
    ],
    ids=["produce", "huge", "negative", "tls"],
)
def test_what_does_not_only_read_ends_the_connection(request_bytes: bytes, relay: Relay) -> None:
    """
    Whatever else it would do at the broker, it gets there not at all; others are served.
    """
    before = len(events(relay.process.stderr, "request_refused"))
    sock, _ = ask(relay, "/v1/kafka")
    with sock:
        sock.sendall(request_bytes)
        ended = sock.recv(100)

    assert ended == b""
    asyncio.run(
        relay.process.wait_for(
            lambda: len(events(relay.process.stderr, "request_refused")) > before, "the refusal is logged"
        )
    )
    sock, head = ask(relay, "/v1/kafka")
    sock.close()
    assert head.startswith(b"HTTP/1.1 101 ")


async def test_an_address_where_no_relay_listens_is_named(
    source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    A web server, as behind a load balancer that knows nothing of the path, or whose relay is being started.
    """
    server = TestServer(web.Application())
    await server.start_server()
    address = f"127.0.0.1:{server.port}"

    command = mirror_of(through(source, address), target, ".*", "no-relay")
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: bool(events(mirror.stderr, "cluster_not_reached")), "it says so")
        said = "".join(events(mirror.stderr, "cluster_not_reached"))
    await server.close()

    assert f"{address} is not a relay, or something else answers there at the moment: HTTP status 404" in said
