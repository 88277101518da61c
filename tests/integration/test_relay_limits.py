"""Connections to a relay that say nothing, half of something, or too much: real processes, bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from mirror.kafka.fetch import FETCH, FETCH_VERSION, FetchLimits, Key, Want, encode_request
from tests.conftest import TopicFactory
from tests.harness.daemon import free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, events
from tests.harness.relay import Relay, configured_relay, listens
from tests.harness.security import Authority
from tests.integration.test_relay_stream import hello

pytestmark = pytest.mark.timeout(120)

SECONDS, SLACK_SECONDS = 1.0, 5.0
FRAMES = b"GET /v1/frames HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: twinsite-frames/1\r\n\r\n"
KAFKA = b"GET /v1/kafka HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: twinsite-kafka/1\r\n\r\n"
HALF_HELLO = hello()[:40]
HALF_REQUEST = (100).to_bytes(4) + bytes(20)


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """One that waits for a second."""
    listen = {"greeting_timeout_seconds": SECONDS}
    with configured_relay(source, tmp_path_factory.mktemp("impatient"), listen) as running:
        yield running


def connected(relay: Relay) -> socket.socket:
    host, _, port = relay.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def upgraded(relay: Relay, asked: bytes) -> socket.socket:
    """A connection that has become something else, up to the end of the answer's head."""
    sock = connected(relay)
    sock.sendall(asked)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += sock.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 ")
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """What comes until the other side ends the connection, in whatever way."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(65536):
            came += more
    return came


def too_slow(relay: Relay) -> tuple[int, set[str]]:
    """How often the relay says it has ended a connection for that, and what it had waited for."""
    lines = [json.loads(line) for line in events(relay.process.stderr, "too_slow")]
    return relay.process.status()["refused"]["too_slow"], {line["waited_for"] for line in lines}


@pytest.mark.parametrize(
    ("asked", "said", "waited_for"),
    [
        (b"", b"", "HTTP request"),
        (b"", FRAMES[:30], "HTTP request"),
        (b"", FRAMES[:-2], "HTTP request"),
        (FRAMES, b"", "HELLO"),
        (FRAMES, HALF_HELLO, "HELLO"),
        (KAFKA, b"", "a request"),
        (KAFKA, HALF_REQUEST, "a request"),
    ],
    ids=["nothing", "half a line", "no end", "no HELLO", "half a HELLO", "no request", "half a request"],
)
def test_who_says_nothing_in_time_is_ended(relay: Relay, asked: bytes, said: bytes, waited_for: str) -> None:
    """
    Whether he says nothing or half of it; the log says what was waited for, and it is counted.
    """
    before, _ = too_slow(relay)
    began = time.monotonic()
    with upgraded(relay, asked) if asked else connected(relay) as sock:
        sock.sendall(said)
        came = rest_of(sock)
        took = time.monotonic() - began

    after, waited = too_slow(relay)
    assert came == b""
    assert SECONDS * 0.9 < took < SECONDS + SLACK_SECONDS
    assert after == before + 1
    assert waited_for in waited


def test_trickling_does_not_help(relay: Relay) -> None:
    """
    A byte each so often keeps nothing open: the whole has to be there in time.
    """
    ended = False
    with connected(relay) as sock:
        sock.settimeout(0.1)
        began = time.monotonic()
        for at in range(len(FRAMES) - 1):
            try:
                sock.sendall(FRAMES[at : at + 1])
                ended = sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        took = time.monotonic() - began

    assert ended
    assert took < SECONDS + SLACK_SECONDS


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a greeting"])
def test_a_tls_handshake_has_its_time_too(source: KafkaCluster, tmp_path: Path, said: bytes) -> None:
    """
    It is over before anything of ours is asked.
    """
    authority = Authority(tmp_path)
    shown = authority.issue("relay", ["127.0.0.1"])
    listen = {
        "certificate_file": str(shown.certificate),
        "key_file": str(shown.key),
        "client_ca_file": str(authority.certificate),
        "greeting_timeout_seconds": SECONDS,
    }
    with configured_relay(source, tmp_path, listen) as secured:
        began = time.monotonic()
        with connected(secured) as sock:
            sock.sendall(said)
            came = rest_of(sock)
            took = time.monotonic() - began

    assert came == b""
    assert SECONDS * 0.9 < took < SECONDS + SLACK_SECONDS


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/frames HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /v1/frames?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/frames HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    ],
    ids=["a long header", "a long path", "many headers"],
)
def test_a_head_that_is_too_large_is_refused(relay: Relay, head: bytes) -> None:
    """
    And the connection ends.
    """
    with connected(relay) as sock:
        sock.sendall(head)
        answer = rest_of(sock)

    assert answer.split(b" ")[1] == b"400"


def test_there_is_one_request_to_a_connection(relay: Relay) -> None:
    """
    Nobody holds one open by asking for the probes.
    """
    with connected(relay) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        answer = rest_of(sock)

    assert answer.count(b"HTTP/1.1 200 ") == 1


def test_of_those_that_ask_for_nothing_the_oldest_goes(source: KafkaCluster, tmp_path: Path) -> None:
    """
    Somebody who opens connections and says nothing keeps nobody else out.
    """
    listen = {"greeting_timeout_seconds": 60, "connections_max": 20}
    with configured_relay(source, tmp_path, listen) as relay, contextlib.ExitStack() as held:
        silent = [held.enter_context(connected(relay)) for _ in range(30)]
        for sock in silent[:10]:
            assert rest_of(sock) == b""
        with connected(relay) as sock:
            sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert rest_of(sock).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("hard", "warned"), [(2_000, 0), (500, 1)])
def test_as_many_files_may_be_open_as_there_may_be_connections(
    source: KafkaCluster, tmp_path: Path, hard: int, warned: int
) -> None:
    """
    Shells and supervisors begin with few, and allow more; where they do not the log says so.
    """
    file = tmp_path / "relay.yaml"
    listen: dict[str, Any] = {"address": f"127.0.0.1:{free_ports(1)[0]}", "connections_max": 400}
    file.write_text(json.dumps({"cluster": {"bootstrap_servers": source.bootstrap}, "listen": listen}))
    few = ("prlimit", f"--nofile=128:{hard}")
    with Twinsite.run("relay", "--config", str(file), work_dir=tmp_path, inside=few) as process:
        asyncio.run(listens(process))
        with contextlib.ExitStack() as held:
            running = Relay(process, listen["address"])
            for _ in range(200):
                held.enter_context(connected(running))
            with connected(running) as sock:
                sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert rest_of(sock).startswith(b"HTTP/1.1 200 ")

    assert len(events(process.stderr, "few_open_files")) == warned


def question(number: int, names: list[str]) -> bytes:
    """About these topics, with this correlation id."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    request.API_VERSION = 12
    request.with_header(correlation_id=number, client_id="test")
    encoded: bytes = request.encode(framed=True, header=True)
    return encoded


def held_back(key: Key) -> bytes:
    """A Fetch that the broker answers after five seconds, as nothing comes; its correlation id is 0."""
    limits = FetchLimits(wait_ms_max=5_000, bytes_min=1 << 20)
    body = encode_request(limits, session=(0, -1), changed={key: Want(0, -1, -1, 1)}, forgotten=())
    request = FETCH.to_bytes(2) + FETCH_VERSION.to_bytes(2) + bytes(4) + b"\xff\xff\0" + body
    return len(request).to_bytes(4) + request


def sent_until_it_stands(sock: socket.socket, data: bytes, seconds: float) -> int:
    """Send as much as goes, until nothing has gone for so long; answers how much that was."""
    sock.settimeout(seconds)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += sock.send(data[sent : sent + 65536])
    return sent


def test_more_requests_than_a_broker_answers_wait_at_the_mirror(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    Behind a Fetch that the broker holds back, forty megabytes of questions: the relay takes some of them, and
    in the end all are answered in their order.
    """
    name = asyncio.run(topic(source, prefix="held"))
    names = [f"nobody-{number:06}-{'x' * 200}" for number in range(1_000)]
    asked = b"".join(question(number, names) for number in range(1, 201))
    with upgraded(relay, KAFKA) as sock:
        sock.sendall(held_back(Key(asyncio.run(source.topic_id(name)).bytes, 0)))
        sent = sent_until_it_stands(sock, asked, seconds=1)
        stood_at = sent
        sock.settimeout(30)
        answers, numbers = sock.makefile("rb"), []
        for _ in range(201):
            size = int.from_bytes(answers.read(4))
            numbers.append(int.from_bytes(answers.read(size)[:4]))
            while sent < len(asked) and sent < stood_at + len(numbers) * 200_000:
                sent += sock.send(asked[sent : sent + 65536])

    assert len(asked) > 40_000_000
    assert 1_000_000 < stood_at < 30_000_000
    assert numbers == list(range(201))
