"""What a relay tells people, probes and Prometheus, and how it ends: real processes, real data."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirror.link import messages
from mirror.link.protocol import Down
from monitoring import catalogue
from tests.conftest import TopicFactory
from tests.faults.flows import complete, copied, mirror_of, once
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.promtool import promtool
from tests.harness.relay import AS_IF_FAR, Relay, configured_relay, listens, running_relay, through
from tests.harness.security import Authority
from tests.integration.test_relay_stream import Client, hello

pytestmark = pytest.mark.timeout(180)


def values(relay: Relay) -> dict[tuple[str, ...], float]:
    """Every series of ours, by its name and the values of its labels."""
    text = relay.process.get("/metrics").decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_the_metrics_of_a_relay_at_work_are_clean_and_true(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    promtool is silent, everything of the catalogue is there, and the figures are those of what was copied.
    What has ended still counts.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="eyes"))
    load(source.bootstrap, name, json_rows(30_000, 1_000), "lz4")
    authority = Authority(tmp_path)
    shown = authority.issue("relay", ["127.0.0.1"])
    listen = {"certificate_file": str(shown.certificate), "key_file": str(shown.key)}
    link = {"security": {"protocol": "SSL", "ca_file": str(authority.certificate)}}
    with configured_relay(source, tmp_path, listen, limits=AS_IF_FAR) as relay:
        document = {
            "flow": name,
            "link": link | {"relays": [relay.address]},
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [name]},
        }
        (tmp_path / "mirror.yaml").write_text(json.dumps(document))
        with Twinsite.run("mirror", "--config", str(tmp_path / "mirror.yaml"), work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) == 30_000, "all is copied"))
            text = relay.process.get("/metrics")
            during = values(relay)
            received = mirror.status()["bytes_fetched"]
        asyncio.run(
            relay.process.wait_for(lambda: values(relay)[("twinsite_relay_streams",)] == 0, "the stream ends")
        )
        after = values(relay)

    assert promtool(["check", "metrics"], text) == ""
    found = {family.name for family in text_string_to_metric_families(text.decode()) if family.samples}
    assert {re.sub("_total$", "", metric.name) for metric in catalogue.RELAY_METRICS} <= found
    assert during["twinsite_relay_streams",] == 1
    assert during["twinsite_relay_partitions_wanted",] == 3
    records = sum(during["twinsite_relay_records_bytes_total", channel] for channel in ("live", "bulk"))
    sent = sum(during["twinsite_relay_sent_bytes_total", one] for one in ("live", "bulk", "tunnel"))
    assert records <= during["twinsite_relay_read_bytes_total",] < records * 2  # torn batches are read again
    assert 0.9 * received < sent <= 1.1 * received
    assert sent < records
    assert (
        time.time() < during["twinsite_relay_cert_expiry_timestamp_seconds", "listen"] < time.time() + 90_000
    )
    grown = {key for key, value in during.items() if key[0].endswith("_total") and after[key] < value}
    assert grown == set()
    assert sum(after["twinsite_relay_refused_total", code] for code in ("bad_message", "too_slow")) == 0


def test_the_status_tells_whose_streams_there_are(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    As JSON, and as a table for people; a command for mirrors says that this is none.
    """
    name = asyncio.run(topic(source, partitions=2, prefix="seen"))
    load(source.bootstrap, name, json_rows(5_000, 500))
    with configured_relay(source, tmp_path, {}) as relay:
        url = f"http://127.0.0.1:{relay.process.port}"
        empty = asyncio.run(twinsite("status", "--url", url, work_dir=tmp_path))
        command = mirror_of(through(source, relay.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) == 5_000, "all is copied"))
            status = relay.process.status()
            table = asyncio.run(twinsite("status", "--url", url, work_dir=tmp_path))
            document = asyncio.run(twinsite("status", "-o", "json", "--url", url, work_dir=tmp_path)).document
            other = asyncio.run(twinsite("accept-loss", name, "--url", url, work_dir=tmp_path))
        ready = relay.process.get("/readyz?verbose"), relay.process.get("/livez")

    (stream,) = status["streams"]
    assert (status["kind"], stream["flow"], stream["identity"], stream["role"]) == ("relay", name, None, None)
    assert stream["peer"].startswith("127.0.0.1:")
    assert stream["partitions_wanted"] == 2
    assert ("; batches inflated" if stream["recode"] else "; batches not inflated") in stream["why"]
    assert 0 < stream["round_trip_seconds"] < 10
    assert stream["congestion"]
    assert stream["live"]["bytes_sent"] + stream["bulk"]["bytes_sent"] > 0
    assert status["bulk"] == stream["bulk"]
    assert status["tunnels"] > 0
    assert document["streams"][0]["flow"] == name
    assert empty.code == table.code == 0
    assert "no mirror has a stream open" in empty.stdout
    assert name in table.stdout
    assert stream["peer"] in table.stdout
    assert other.code == 1
    assert "what answers there is a relay, not a mirror" in other.stderr
    assert ready == (b"[+] mirrors: admitted\n[+] source: answers\nok\n", b"ok\n")


async def test_a_port_that_is_taken_is_named(source: KafkaCluster, tmp_path: Path) -> None:
    """
    With the way out; nothing was started.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = "relay", "--cluster", source.bootstrap, "--listen", f"127.0.0.1:{free_ports(1)[0]}"
        file = tmp_path / "relay.yaml"
        file.write_text(json.dumps({"cluster": {"bootstrap_servers": source.bootstrap}}))
        done = await twinsite(*command, "--config", str(file), "--api-port", port, work_dir=tmp_path)

    assert done.code == 2
    assert f"api: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--api-port" in done.stderr


def test_a_relay_that_is_stopped_sends_its_mirrors_on_and_ends(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With 0, within seconds, in the middle of a copy: the mirror goes on with the other relay.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="drained"))
    load(source.bootstrap, name, json_rows(60_000, 1_000))
    (tmp_path / "second").mkdir()
    with (
        configured_relay(source, tmp_path, {}) as first,
        running_relay(source, tmp_path / "second") as second,
    ):
        command = mirror_of(through(source, first.address, second.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) > 1_000, "some is copied"))
            first.process.terminate()
            ended = asyncio.run(first.process.finished(20))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
            lost = [json.loads(line) for line in events(mirror.stderr, "stream_lost")]

    assert ended.code == 0
    assert [json.loads(line)["streams"] for line in events(ended.stderr, "relay_stopping")] == [1]
    assert any("this relay is being stopped: use another" in line["error"] for line in lost)
    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_a_stopped_relay_says_goodbye_and_ends_though_mirrors_do_not(
    source: KafkaCluster, tmp_path: Path
) -> None:
    """
    A stream is told why; connections on which nobody says or reads anything hold nothing up.
    """
    with configured_relay(source, tmp_path, {"greeting_timeout_seconds": 120}) as relay:
        host, _, port = relay.address.rpartition(":")
        with Client(relay, hello()) as client, socket.create_connection((host, int(port))) as silent:
            kind, _ = client.next() or (None, b"")
            assert kind == Down.WELCOME
            silent.sendall(b"GET /v1/kafka HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n")
            silent.sendall(b"Upgrade: twinsite-kafka/1\r\n\r\n")
            assert silent.recv(13) == b"HTTP/1.1 101 "
            relay.process.terminate()
            said = []
            while (message := client.next()) is not None:
                said.append(message)
            ended = asyncio.run(relay.process.finished(20))

    kind, payload = said[-1]
    assert (kind, messages.document(payload)["code"]) == (Down.BYE, "going_away")
    assert ended.code == 0


async def test_a_relay_that_waits_for_its_brokers_can_be_stopped(tmp_path: Path) -> None:
    """
    Nobody answers at the address of the source yet.
    """
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with Twinsite.run("relay", "--cluster", nobody, work_dir=tmp_path, listen=False) as process:
        await process.wait_for(lambda: bool(events(process.stderr, "cluster_not_reached")), "it waits")
        process.terminate()
        ended = await process.finished(20)

    assert ended.code == 0
    assert len(events(ended.stderr, "stopped")) == 1


async def test_a_relay_that_was_there_before_its_brokers_lets_mirrors_in_once_they_answer(
    tmp_path: Path,
) -> None:
    """
    As after a power cut. Until then its port for people says what it waits for, and the other is closed.
    """
    address = f"127.0.0.1:{free_ports(1)[0]}"
    cluster = KafkaCluster.prepare("3.9", 1, "late", {}, tmp_path)
    command = ("relay", "--cluster", cluster.bootstrap, "--listen", address)
    try:
        with Twinsite.run(*command, work_dir=tmp_path) as process:
            await process.wait_for(
                lambda: "cannot connect" in process.status().get("waits_for", ""), "it waits"
            )
            host, _, port = address.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
            alive = process.get("/livez")
            await cluster.launch()
            await listens(process)
            ready, waits_for = process.get("/readyz"), process.status()["waits_for"]
    finally:
        cluster.close()

    assert (alive, ready, waits_for) == (b"ok\n", b"ok\n", "")


def test_a_copy_through_a_relay_with_a_port_for_people_is_as_exact(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    While it is looked at again and again.
    """
    name = asyncio.run(topic(source, partitions=2, prefix="watched"))
    load(source.bootstrap, name, json_rows(20_000, 500), "zstd")
    with configured_relay(source, tmp_path, {}) as relay:
        command = once(through(source, relay.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path, listen=False) as mirror:
            looks = 0
            while mirror.running:
                assert relay.process.status()["kind"] == "relay"
                assert values(relay)["twinsite_relay_build_info", relay.process.status()["version"]] == 1
                looks += 1
            done = asyncio.run(mirror.finished())

    assert done.code == 0
    assert looks > 2
    assert_exact(source.bootstrap, target.bootstrap, [name])
