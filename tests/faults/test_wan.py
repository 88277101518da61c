"""A link that is slow, long and lossy, with real TCP on it: what it does, and what becomes of a copy."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.flows import complete, configured, copied, partitions
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.node import Site, free_ports
from tests.harness.process import Twinsite, events
from tests.harness.relay import listens, through
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

MBIT = 1e6 / 8
LOST_ANSWERS = 20
SEND = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
sock, _ = listener.accept()
sock.sendall(bytes(int(sys.argv[3])))
"""


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=7) as one:
        yield one


def fetch(link: Wan, size: int) -> tuple[float, float]:
    """Bring so many bytes over; answers the seconds to connect, and those from the first byte to the last."""
    port = free_ports(1)[0]
    command = (*link.inside, sys.executable, "-c", SEND, link.far, str(port), str(size))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline()
        began = time.monotonic()
        with socket.create_connection((link.far, port)) as sock:
            connected = time.monotonic() - began
            left = size - len(sock.recv(1))
            began = time.monotonic()
            while left:
                left -= len(sock.recv(1 << 20))
            return connected, time.monotonic() - began


@pytest.mark.parametrize(
    ("mbit", "rtt_seconds", "mtu"), [(20, 0.1, 1500), (50, 0.04, 1500), (400, 0.05, 9000)]
)
def test_the_link_is_as_long_and_as_narrow_as_it_is_told(
    link: Wan, mbit: int, rtt_seconds: float, mtu: int
) -> None:
    """
    A handshake takes a round trip, and no more gets through than the rate.
    """
    link.packets_of(mtu)
    link.both(rate=mbit * MBIT, delay_seconds=rtt_seconds / 2, queue_bytes=mbit * MBIT * rtt_seconds)

    size = int(3 * mbit * MBIT)
    connected, seconds = fetch(link, size)
    to_near, _ = link.counted()

    assert rtt_seconds <= connected < rtt_seconds + 0.05
    assert 0.5 < size / seconds / (mbit * MBIT) <= 1.02
    assert to_near.bytes >= size
    assert to_near.bytes / to_near.packets > 0.9 * mtu
    assert to_near.lost == 0


def test_packets_are_lost_as_often_as_it_is_told(link: Wan) -> None:
    """
    Counted where they are lost: what a sender sees of few of them is off.
    """
    link.both(delay_seconds=0.001, loss=0.02)

    fetch(link, 3_000_000)
    to_near, to_far = link.counted()

    assert 0.01 < to_near.lost / to_near.packets < 0.03
    assert to_far.packets > 0


def test_nothing_crosses_a_link_that_is_cut(link: Wan) -> None:
    """
    One way is enough for TCP.
    """
    link.to_far(is_cut=True)

    with pytest.raises(TimeoutError):
        socket.create_connection((link.far, 9), timeout=0.5)
    assert link.counted()[1].cut > 0


async def test_a_copy_goes_through_everything_that_happens_to_a_link(
    link: Wan, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Cut both ways for longer than anybody waits, cut one way so that answers are lost, a twentieth of the
    packets lost and others out of order: exact in the end, and never said to be up to date meanwhile.
    """
    async with KafkaCluster.start(name="far", work_dir=tmp_path, site=Site(link.home)) as source:
        topic = "over-the-sea"
        await source.create_topic(topic, 3)
        await asyncio.to_thread(load, source.bootstrap, topic, json_rows(40_000, 1_000), "lz4")
        link.both(rate=20 * MBIT, delay_seconds=0.05, queue_bytes=250_000)
        port = free_ports(1)[0]
        command = ("relay", "--cluster", source.bootstrap, "--listen", f"{link.far}:{port}")
        settings = {"topics": {"include": [topic]}, "lagging_after_seconds": 2}
        relayed = through(source, f"{link.far}:{port}")
        with Twinsite.run(*command, work_dir=tmp_path, listen=False, inside=link.inside) as relay:
            await listens(relay)
            to_copy = configured(tmp_path, relayed, target, topic, **settings)
            with Twinsite.run(*to_copy, work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: copied(mirror) > 2_000, "something is copied", 60)

                link.both(is_cut=True)
                await asyncio.to_thread(load, source.bootstrap, topic, json_rows(1_000, 1_000, seed=2))
                await mirror.wait_for(lambda: all_behind(mirror), "it says that it is behind", 60)
                await mirror.wait_for(lambda: bool(events(mirror.stderr, "stream_lost")), "it gives up", 60)
                assert [p["lag_seconds"] for p in partitions(mirror) if p["lag_seconds"] == 0] == []
                link.both(is_cut=False)

                before = copied(mirror)
                await mirror.wait_for(lambda: copied(mirror) > before, "it goes on", 60)
                link.to_near(is_cut=True)
                lost = link.counted()[0].cut + LOST_ANSWERS
                await mirror.wait_for(lambda: link.counted()[0].cut > lost, "answers are lost", 60)
                link.to_near(is_cut=False)
                link.both(loss=0.05, reorder=0.02, jitter_seconds=0.01)
                await mirror.wait_for(lambda: complete(mirror, source, [topic]), "all is copied", 120)
                shown: dict[str, Any] = mirror.status()["link"]

        assert_exact(source.bootstrap, target.bootstrap, [topic])
    assert shown["relay"] == f"{link.far}:{port}"
    assert shown["round_trip_seconds"] > 0.1


def all_behind(mirror: Twinsite) -> bool:
    """True when no partition is said to be up to date."""
    found = partitions(mirror)
    return bool(found) and all(one["state"] != "ACTIVE" for one in found)
