"""A link that is slow, long and lossy, with real TCP on it: what it does, and what becomes of a copy."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirror.link import lifeline
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, partitions
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.datagrams import Datagram, sent_over
from tests.harness.jvm import REPOSITORY
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import COMMAND, Twinsite, events
from tests.harness.relay import listens, through
from tests.harness.wan import TO_FAR, TO_NEAR, Wan, wan, why_not
from tests.harness.wan_router import Counted

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

MBIT = 1e6 / 8
LOST_ANSWERS = 20
FASTEST_ROUND_TRIP_SECONDS = 0.05
"""Over a link of 100 ms, where a ping and its answer both overtake what was sent before them."""
IMPATIENT = {"request_timeout_seconds": 8, "connect_timeout_seconds": 3}
CUT_SECONDS, LOOK_SECONDS = 60.0, 0.2
FRESH_SECONDS = 2.5
"""That nothing was missing when a source spoke last is told for so long. A relay is given up much later."""
ROUNDED_SECONDS = 0.002
"""By so much two numbers may differ that were written down."""
FEW, MANY, DATAGRAM_BYTES = 40, 500, 500
"""Datagrams: of few none waits for another one, of many a share can be told."""
TRIES_MAX = 10
SEND = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
sock, _ = listener.accept()
sock.sendall(bytes(int(sys.argv[3])))
"""

SILENT = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
sock, _ = listener.accept()
sys.stdin.read()
"""


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=7) as one:
        yield one


def fetch(link: Wan, size: int) -> float:
    """Bring so many bytes over; answers the seconds to connect."""
    port = free_ports(1)[0]
    command = (*link.inside, sys.executable, "-c", SEND, link.far, str(port), str(size))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline()
        began = time.monotonic()
        with socket.create_connection((link.far, port)) as sock:
            connected = time.monotonic() - began
            while size:
                size -= len(sock.recv(1 << 20))
    return connected


def carried(came: Sequence[Datagram]) -> float:
    """Bytes a second of datagrams that came."""
    return sum(one.bytes for one in came[1:]) / (came[-1].came_at - came[0].came_at)


def best_of(tries: Sequence[Sequence[Datagram]]) -> float:
    """Bytes a second in the best quarter of any of them."""
    return max(carried(part) for came in tries for part in quarters(came))


def quarters(came: Sequence[Datagram]) -> list[Sequence[Datagram]]:
    """In the order in which they came."""
    size = len(came) // 4
    return [came[at : at + size] for at in range(0, 4 * size, size)]


@pytest.mark.parametrize(
    ("mbit", "rtt_seconds", "mtu", "share_min", "overflows"),
    [(20, 0.1, 1500, 0.95, True), (50, 0.04, 1500, 0.95, True), (400, 0.05, 9000, 0.75, False)],
)
def test_the_link_is_as_long_and_as_narrow_as_it_is_told(
    link: Wan, mbit: int, rtt_seconds: float, mtu: int, share_min: float, overflows: bool
) -> None:
    """
    Either way: a datagram takes as long as the way is, and of half as many again as it carries the rate comes
    through, no more, and in the best quarter of the time no less: it is tried again where others want the
    same processors, and of 400 Mbit/s a little less is enough, and nothing need be left over. A handshake
    takes a round trip, and it is likewise tried again.
    """
    rate, there, back = mbit * MBIT, 0.3 * rtt_seconds, 0.7 * rtt_seconds
    link.packets_of(mtu)
    link.to_far(rate=rate, delay_seconds=there, queue_bytes=rate * rtt_seconds)
    link.to_near(rate=rate, delay_seconds=back, queue_bytes=rate * rtt_seconds)

    connected = [fetch(link, 500_000)]
    while min(connected) >= rtt_seconds + 0.05 and len(connected) < TRIES_MAX:
        connected.append(fetch(link, 500_000))
    to_near, _ = link.counted()

    assert rtt_seconds <= min(connected) < rtt_seconds + 0.05
    assert to_near.bytes / to_near.packets > 0.9 * mtu
    send = partial(sent_over, packet_bytes=mtu)
    for way, seconds in (
        (partial(send, link.far, taker=link.inside), there),
        (partial(send, link.near, sender=link.inside), back),
    ):
        took = [one.came_at - one.sent_at for one in way(rate=200 * mtu, count=FEW)]
        tries = [way(rate=1.5 * rate, count=int(rate / mtu))]
        while best_of(tries) <= share_min * rate and len(tries) < TRIES_MAX:
            tries.append(way(rate=1.5 * rate, count=int(rate / mtu)))

        assert len(took) == FEW
        assert 0 <= median(took) - seconds - mtu / rate < 0.01
        assert max(map(carried, tries)) < 1.05 * rate
        assert best_of(tries) > share_min * rate
    assert not overflows or min(one.dropped for one in link.counted()) > 0
    assert max(one.lost for one in link.counted()) == 0


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of a link, as the router numbers it."""

    number: int

    def __str__(self) -> str:
        return "to_far" if self.number == TO_FAR else "to_near"

    @property
    def back(self) -> Way:
        return Way(TO_NEAR + TO_FAR - self.number)

    def change(self, link: Wan, **how: float | bool) -> None:
        (link.to_far if self.number == TO_FAR else link.to_near)(**how)

    def counted(self, link: Wan) -> Counted:
        return link.counted()[self.number]

    def send(self, link: Wan, *, each_seconds: float, count: int) -> list[Datagram]:
        """Datagrams that set out so long one after the other, in the order in which they come."""
        rate = DATAGRAM_BYTES / each_seconds
        if self.number == TO_FAR:
            return sent_over(link.far, packet_bytes=DATAGRAM_BYTES, rate=rate, count=count, taker=link.inside)
        return sent_over(link.near, packet_bytes=DATAGRAM_BYTES, rate=rate, count=count, sender=link.inside)


@pytest.fixture(params=[Way(TO_NEAR), Way(TO_FAR)], ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


def test_jitter_makes_a_packet_later_and_keeps_the_order(link: Wan, way: Way) -> None:
    """
    Anew for each of them, by up to what it is told. Without it half of them take the same time.
    """
    way.change(link, delay_seconds=0.02)
    even = [one.came_at - one.sent_at for one in way.send(link, each_seconds=0.02, count=FEW)]
    way.change(link, jitter_seconds=0.04)
    came = way.send(link, each_seconds=0.02, count=FEW)
    uneven = [one.came_at - one.sent_at for one in came]

    assert spread(even) < 0.005
    assert spread(uneven) > 0.01
    assert min(uneven) >= 0.02
    assert quantiles(uneven, n=10)[-1] < 0.06 + 0.01
    assert [one.number for one in came] == list(range(FEW))


def spread(seconds: list[float]) -> float:
    """Between which the middle half of them is: some are late where others want the processors."""
    lower, _, upper = quantiles(seconds, n=4)
    return upper - lower


def test_reordering_lets_packets_overtake_others_and_loses_none(link: Wan, way: Way) -> None:
    """
    As many as it is told, and none that go the other way.
    """
    way.change(link, delay_seconds=0.04, reorder=0.2)

    came = [one.number for one in way.send(link, each_seconds=0.001, count=MANY)]
    overtook = [number for at, number in enumerate(came) if min(came[at:]) < number]

    assert sorted(came) == list(range(MANY))
    assert 0.1 * MANY < len(overtook) < 0.3 * MANY
    assert way.counted(link).overtook == len(overtook)
    assert way.back.counted(link).overtook == 0


def test_packets_are_lost_as_often_as_it_is_told(link: Wan, way: Way) -> None:
    """
    Those that go that way, and each that does not come is counted.
    """
    way.change(link, delay_seconds=0.001, loss=0.1)

    came = way.send(link, each_seconds=0.0002, count=MANY)

    assert 0.05 * MANY < MANY - len(came) < 0.15 * MANY
    assert way.counted(link).lost == MANY - len(came)
    assert way.back.counted(link).lost == 0


def test_the_same_seed_loses_the_same_packets_either_way() -> None:
    """
    So that what a run has found can be had again. Another seed loses others, and each way has its own.
    """
    came = []
    for seed in (3, 3, 4):
        with wan(seed) as link:
            link.both(loss=0.1)
            ways = [one.send(link, each_seconds=0.0002, count=MANY) for one in (Way(TO_NEAR), Way(TO_FAR))]
        came.append([[one.number for one in datagrams] for datagrams in ways])
    first, again, other = came

    assert first == again
    assert all(one != another for one, another in zip(first, other, strict=True))
    assert first[TO_NEAR] != first[TO_FAR]


def test_nothing_crosses_a_link_that_is_cut(link: Wan, way: Way) -> None:
    """
    One way is enough for TCP. What goes the other way arrives, and so does everything when it is over.
    """
    way.change(link, is_cut=True)
    before = way.counted(link)

    with pytest.raises(TimeoutError):
        socket.create_connection((link.far, 9), timeout=0.5)
    came_back = way.back.send(link, each_seconds=0.001, count=FEW)
    meanwhile, back = way.counted(link), way.back.counted(link)
    way.change(link, is_cut=False)
    afterwards = way.send(link, each_seconds=0.001, count=FEW)

    assert meanwhile.cut > before.cut
    assert meanwhile.packets == before.packets
    assert back.cut == 0
    assert (len(came_back), len(afterwards)) == (FEW, FEW)


@pytest.mark.parametrize("sends", [False, True])
def test_a_connection_whose_other_end_is_gone_ends(
    sends: bool, link: Wan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whether anything is sent on it or not. While the way is whole it lives, however long it is silent.
    """
    for name, seconds in {"IDLE_SECONDS": 1, "BETWEEN_SECONDS": 1, "DEAD_SECONDS": 3}.items():
        monkeypatch.setattr(lifeline, name, seconds)
    port = free_ports(1)[0]
    command = (*link.inside, sys.executable, "-c", SILENT, link.far, str(port))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as far:
        assert far.stdout is not None
        assert far.stdout.readline()
        with socket.create_connection((link.far, port)) as sock:
            lifeline.end_when_dead(sock)
            sock.settimeout(5)
            with pytest.raises(TimeoutError, match="timed out"):
                sock.recv(1)
            link.both(is_cut=True)
            sock.settimeout(30)
            if sends:
                sock.sendall(b"nobody")
            with pytest.raises(TimeoutError) as ended:
                sock.recv(1)
        link.both(is_cut=False)
        far.kill()

    assert ended.value.errno == errno.ETIMEDOUT


async def test_copies_go_through_everything_that_happens_to_a_link(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One is cut both ways for a minute. Another one meanwhile is cut one way for longer than anybody waits, so
    that answers are lost, and then loses a twentieth of its packets and puts others out of order. What is
    copied over either is exact in the end, and was never said to be up to date while something was missing.
    """
    folders = [tmp_path / name for name in ("silent", "deaf")]
    for folder in folders:
        folder.mkdir()
    silent, deaf = [await topic(source, partitions=3, prefix="over-the-sea") for _ in folders]

    with wan(seed=8) as other:
        async with asyncio.TaskGroup() as both:
            both.create_task(cut_both_ways(other, source, target, silent, folders[0]))
            both.create_task(answers_lost_then_packets(link, source, target, deaf, folders[1]))

    assert_exact(source.bootstrap, target.bootstrap, [silent, deaf])


async def cut_both_ways(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path
) -> None:
    """For a minute, while records are missing that nobody has heard of."""
    async with copying(link, source, target, topic, folder) as (_, mirror):
        before = looks_at(mirror)
        link.both(is_cut=True)
        looking = asyncio.create_task(asyncio.to_thread(looked_at, mirror, time.monotonic(), CUT_SECONDS))
        await asyncio.to_thread(load, source.bootstrap, topic, json_rows(1_000, 1_000, seed=2), "lz4")
        looks = await looking
        told = [(seconds, one) for seconds, every in [(0.0, before), *looks] for one in every]
        assert [one for since, one in told if one.seconds < max(since - ROUNDED_SECONDS, 0.001)] == []
        assert [one for _, one in told if one.records == 0 and one.seconds > FRESH_SECONDS] == []
        assert len(looks) > CUT_SECONDS
        assert all_behind(mirror)
        assert losses(mirror) > 0
        link.both(is_cut=False)

        await mirror.wait_for(lambda: complete(mirror, source, [topic]), "all is copied", 60)


async def answers_lost_then_packets(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path
) -> None:
    """First all that comes from the far site, then one packet of twenty, either way."""
    async with copying(link, source, target, topic, folder) as (relay, mirror):
        lost, (cut, _) = losses(mirror), link.counted()
        link.to_near(is_cut=True)
        await asyncio.to_thread(load, source.bootstrap, topic, json_rows(40_000, 1_000, seed=2), "lz4")
        await mirror.wait_for(lambda: losses(mirror) > lost, "the mirror gives up", 60)
        await relay.wait_for(lambda: not streams(link, relay), "so does the relay", 60)
        assert link.counted()[0].cut - cut.cut > LOST_ANSWERS
        assert not complete(mirror, source, [topic])
        link.to_near(is_cut=False)

        link.both(loss=0.05, reorder=0.02, jitter_seconds=0.01)
        then, _ = link.counted()
        await mirror.wait_for(lambda: complete(mirror, source, [topic]), "all is copied", 120)
        now, _ = link.counted()
        shown: dict[str, Any] = mirror.status()["link"]
    assert shown["round_trip_seconds"] > FASTEST_ROUND_TRIP_SECONDS
    assert 0.03 < (now.lost - then.lost) / (now.packets - then.packets) < 0.08
    assert 0.01 < (now.overtook - then.overtook) / (now.packets - then.packets) < 0.03


@asynccontextmanager
async def copying(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path
) -> AsyncIterator[tuple[Twinsite, Twinsite]]:
    """A relay at the far end and a mirror here that is up to date, on a link of 20 Mbit/s and 100 ms."""
    await asyncio.to_thread(load, source.bootstrap, topic, json_rows(3_000, 1_000), "lz4")
    link.both(rate=20 * MBIT, delay_seconds=0.05, queue_bytes=250_000)
    address = f"{link.far}:{free_ports(1)[0]}"
    command = ("relay", "--cluster", source.bootstrap, "--listen", address)
    settings = {"topics": {"include": [topic]}, "lagging_after_seconds": 2}
    settings["link"] = {"relays": [address], **IMPATIENT}
    to_copy = configured(folder, through(source, address), target, topic, **settings)
    with Twinsite.run(*command, work_dir=folder, inside=link.inside) as relay:
        await listens(relay)
        with Twinsite.run(*to_copy, work_dir=folder) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [topic]), "it is up to date", 60)
            assert mirror.status()["link"]["relay"] == address
            yield relay, mirror


class Lag(NamedTuple):
    """What is said of a partition: since when something may be missing, and how much was then."""

    seconds: float
    records: float | None


def looked_at(mirror: Twinsite, began: float, seconds: float) -> list[tuple[float, list[Lag]]]:
    """Look again and again for so long: what is said, and at least how long after the beginning."""
    looks = []
    while (since := time.monotonic() - began) < seconds:
        looks.append((since, looks_at(mirror)))
        time.sleep(LOOK_SECONDS)
    return looks


def looks_at(mirror: Twinsite) -> list[Lag]:
    """What is said of each partition, by the status and by the metrics."""
    shown = [Lag(p["lag_seconds"], p["lag_records"]) for p in partitions(mirror)]
    families = text_string_to_metric_families(mirror.get("/metrics").decode())
    values = {
        (family.name, sample.labels["partition"]): sample.value
        for family in families
        for sample in family.samples
        if family.name in {"twinsite_lag_seconds", "twinsite_lag_records"}
    }
    scraped = [
        Lag(seconds, values.get(("twinsite_lag_records", partition)))
        for (name, partition), seconds in values.items()
        if name == "twinsite_lag_seconds"
    ]
    assert len(shown) == len(scraped)
    return shown + scraped


def losses(mirror: Twinsite) -> int:
    """How often it has said that a stream is lost, or cannot be begun."""
    return len(events(mirror.stderr, "stream_lost"))


def streams(link: Wan, relay: Twinsite) -> list[dict[str, Any]]:
    """Those a relay at the far site has, as it says there."""
    command = (*link.inside, *COMMAND, "status", "-o", "json", "--url", f"http://127.0.0.1:{relay.port}")
    said = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    found: list[dict[str, Any]] = json.loads(said.stdout)["streams"]
    return found


def all_behind(mirror: Twinsite) -> bool:
    """True when no partition is said to be up to date."""
    found = partitions(mirror)
    return bool(found) and all(one["state"] != "ACTIVE" for one in found)
