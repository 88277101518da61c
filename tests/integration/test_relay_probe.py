"""``twinsite link test`` against relays as they run, and what a relay does with whoever probes by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror.link import messages
from mirror.link.messages import Messages
from mirror.link.probe import Down, Up
from tests.conftest import TopicFactory
from tests.faults.flows import writing
from tests.harness.daemon import free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Finished, events, twinsite
from tests.harness.proxy import proxy
from tests.harness.relay import Relay, running_relay
from tests.harness.security import Authority
from tests.integration.test_relay_security import as_client, secured_relay

LOAD: dict[str, Any] = {"seconds": 20, "settle_seconds": 1, "bytes_max": 1 << 32, "rate_max": 100_000}
LITTLE = ("--seconds", "2", "-o", "json")


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running


async def link_test(*arguments: str, work_dir: Path) -> Finished:
    return await twinsite("link", "test", *arguments, work_dir=work_dir)


def ask(relay: Relay, upgrade: str = "twinsite-probe/1") -> tuple[socket.socket, bytes]:
    """The connection, and what was answered."""
    host, _, port = relay.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.sendall(
        f"GET /v1/probe HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer and (more := sock.recv(65536)):
        answer += more
    return sock, answer


def last_of(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """What was said last before the end."""
    whole, said = Messages(), [(0, b"{}")]
    while data := sock.recv(65536):
        said += [(kind, bytes(payload)) for kind, payload in whole.received(data)]
    return said[-1][0], json.loads(said[-1][1])


async def test_a_link_is_measured_with_what_is_produced(
    source: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    On this machine: round trips of which the shortest takes a few milliseconds, clocks that agree, and a link
    that carries many times what is written meanwhile.
    """
    name = await topic(source, partitions=3, prefix="produced")
    async with writing(source, name):
        done = await link_test("--relay", relay.address, "--topics", name, *LITTLE, work_dir=tmp_path)
    document = json.loads(done.stdout)
    [link], made = document["relays"], document["production"]

    assert done.code == 0, done.stderr
    assert link["relay"] == relay.address
    assert link["error"] is None
    assert 0 < link["idle"]["min_seconds"] < 0.1
    assert link["idle"]["min_seconds"] <= link["idle"]["median_seconds"] <= link["idle"]["max_seconds"]
    assert link["loaded"]["count"] > 3
    assert link["rate"]["bytes_per_second"] > 10e6
    assert link["loss"] is not None
    assert abs(link["clock"]["offset_seconds"]) < 0.1
    assert link["clock"]["uncertainty_seconds"] == pytest.approx(0.001, abs=0.05)
    assert link["tls"] is None
    assert link["receive_window_bytes"] > 0
    assert (made["topics"], made["partitions"], made["partitions_unknown"]) == (1, 3, 0)
    assert made["records_per_second"] > 0
    assert 100 < made["bytes_per_second"] / made["records_per_second"] < 600
    assert 0 < made["wire_share"] < 1
    assert link["expected"]["times_production"] > 1
    assert link["expected"]["missing_bytes_per_second"] == 0
    assert link["expected"]["unknown"] == {}


async def test_a_link_that_carries_less_than_is_produced_is_not_called_so_while_it_is_held_back(
    source: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With ``--rate-max`` nobody knows how much more it would carry.
    """
    name = await topic(source, prefix="held-back")
    async with writing(source, name):
        done = await link_test(
            "--relay", relay.address, "--topics", name, "--rate-max", "20000", *LITTLE, work_dir=tmp_path
        )
    document = json.loads(done.stdout)
    [link], made = document["relays"], document["production"]

    assert done.code == 0, done.stderr
    assert made["bytes_per_second"] * made["wire_share"] > link["rate"]["bytes_per_second"]
    assert link["limit"] == "rate_max"
    assert link["expected"]["times_production"] is None
    assert "--rate-max" in link["expected"]["unknown"]["times_production"]


async def test_a_topic_that_is_quiet_produces_nothing(
    source: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Which is zero, and no reason to end with anything else.
    """
    name = await topic(source, prefix="quiet")

    done = await link_test(
        "--relay", relay.address, "--topics", name, "--rate-max", "1000000", *LITTLE, work_dir=tmp_path
    )
    document = json.loads(done.stdout)

    assert done.code == 0, done.stderr
    assert document["production"]["bytes_per_second"] == 0
    assert document["production"]["wire_share"] is None
    assert document["relays"][0]["expected"]["missing_bytes_per_second"] == 0
    assert 0 < document["relays"][0]["rate"]["bytes_per_second"] < 1.15e6


async def test_topics_nobody_has_are_named(relay: Relay, tmp_path: Path) -> None:
    """
    Before the link is filled: somebody has mistyped them.
    """
    done = await link_test("--relay", relay.address, "--topics", "nobodys", work_dir=tmp_path)

    assert done.code == 2
    assert "matches nobodys" in done.stderr
    assert "measuring" not in done.stderr


async def test_every_relay_is_measured_and_one_that_does_not_answer_is_said(
    relay: Relay, tmp_path: Path
) -> None:
    """
    What is known of the other is there all the same.
    """
    nobody = f"127.0.0.1:{free_ports(1)[0]}"

    done = await link_test("--relay", f"{nobody},{relay.address}", *LITTLE, work_dir=tmp_path)
    silent, link = json.loads(done.stdout)["relays"]

    assert done.code == 1
    assert silent["relay"] == nobody
    assert "cannot connect" in silent["error"]
    assert "hint: check the address" in done.stderr
    assert link["rate"]["bytes_per_second"] > 0


async def test_a_relay_of_an_older_version_is_named_so(relay: Relay, tmp_path: Path) -> None:
    """
    One that has nothing at the path of probes.
    """

    def older(_: int, before: int, data: bytes) -> bytes:
        return data if before else data.replace(b"GET /v1/probe", b"GET /v1/nobod", 1)

    with proxy(relay.address, spoil_there=older) as between:
        done = await link_test("--relay", between.address, *LITTLE, work_dir=tmp_path)

    assert done.code == 1
    assert "does not know this request: it is of an older version" in done.stderr
    assert "update the relay" in done.stderr
    assert "older version" in json.loads(done.stdout)["relays"][0]["error"]


def test_settings_bring_certificates(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The mirror's own file is all that is needed, also for the topics; TLS is told with its cipher.
    """
    name = asyncio.run(topic(source, prefix="settings"))
    authority = Authority(tmp_path)
    with secured_relay(source, authority, tmp_path) as secured:
        link = {"relays": [secured.address], "security": as_client(authority, authority.issue("mirror"))}
        file = tmp_path / "flow.yaml"
        document = {"link": link, "target": {"bootstrap_servers": target.bootstrap}}
        file.write_text(yaml.safe_dump(document | {"topics": {"include": [name]}}))

        done = asyncio.run(link_test("--config", str(file), *LITTLE, work_dir=tmp_path))
        refused = asyncio.run(link_test("--relay", secured.address, *LITTLE, work_dir=tmp_path))

    document = json.loads(done.stdout)
    assert done.code == 0, done.stderr
    assert document["relays"][0]["tls"]["version"] == "TLSv1.3"
    assert document["relays"][0]["rate"]["bytes_per_second"] > 0
    assert document["relays"][0]["loss"] is not None
    assert document["production"]["topics"] == 1
    assert refused.code == 1
    assert "if it requires TLS, set link.security" in refused.stderr


async def test_the_page_for_people_has_it_all(relay: Relay, tmp_path: Path) -> None:
    """
    Also where no topic was named; nothing of it goes to standard error.
    """
    done = await link_test("--relay", relay.address, "--seconds", "2", work_dir=tmp_path)

    assert done.code == 0
    for words in (
        "round trip",
        "rate",
        "loss",
        "held back by",
        "congestion control",
        "keeps up",
        "no topics",
    ):
        assert words in done.stdout
    assert done.stderr.strip() == f"measuring the link to {relay.address}, which is full for 2 s"


def test_one_probes_at_a_time(relay: Relay, tmp_path: Path) -> None:
    """
    Two would measure each other. When the first one is gone, whatever it was doing, the next one comes in.
    """
    first, head = ask(relay)
    with first:
        assert head.startswith(b"HTTP/1.1 101 ")
        first.sendall(messages.say(Up.LOAD, LOAD))
        second, answer = ask(relay)
        second.close()
        done = asyncio.run(link_test("--relay", relay.address, *LITTLE, work_dir=tmp_path))
    begun = len(events(relay.process.stderr, "probe_begun"))
    asyncio.run(relay.process.wait_for(lambda: let_in(relay), "the next one comes in"))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["code"] == "probe_running"
    assert done.code == 1
    assert "another test of the link is running" in done.stderr
    assert begun > 0


def let_in(relay: Relay) -> bool:
    sock, head = ask(relay)
    sock.close()
    return head.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            messages.say(Up.LOAD, LOAD | {"seconds": 3600}),
            "load: seconds: Input should be less than or equal to 60",
        ),
        (messages.say(Up.LOAD, LOAD) * 2, "a probe has one LOAD"),
        (messages.message(Up.LOAD, b"{" * 1000), "not JSON"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 8, "a message of 369295618 bytes"),
    ],
    ids=["too long", "two loads", "not JSON", "tls"],
)
def test_what_makes_no_sense_ends_the_probe(said: bytes, words: str, relay: Relay) -> None:
    """
    With the reason, there and in the relay's log; the next one comes in.
    """
    sock, _ = ask(relay)
    with sock:
        sock.sendall(said)
        kind, bye = last_of(sock)

    assert kind == Down.BYE
    assert words in bye["detail"]
    asyncio.run(
        relay.process.wait_for(
            lambda: any(words in line for line in events(relay.process.stderr, "probe_refused")),
            "the refusal is logged",
        )
    )
    asyncio.run(relay.process.wait_for(lambda: let_in(relay), "the next one comes in"))


def test_another_version_is_asked_for(relay: Relay) -> None:
    """
    The relay says what it speaks.
    """
    sock, answer = ask(relay, "twinsite-probe/2")
    sock.close()

    assert answer.startswith(b"HTTP/1.1 426 ")
    assert b"this relay speaks twinsite-probe/1 there" in answer
