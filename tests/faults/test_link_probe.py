"""``twinsite link test`` over links that are known: it has to say what they are."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.flows import writing
from tests.harness.daemon import Site, free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import listens
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

MBIT = 1e6 / 8
SMALL_BUFFER_BYTES = 262_144
"""At 100 ms it lets through a fifth of what a link of 100 Mbit/s could carry, or less."""


@dataclass(frozen=True, slots=True)
class Far:
    """A source with a relay at the other end of a link."""

    link: Wan
    source: KafkaCluster
    relay: str

    def run(self, *command: str) -> None:
        """Run a command at the far site."""
        subprocess.run((*self.link.inside, *command), check=True, stdout=subprocess.DEVNULL)

    def write(self, setting: str, value: str) -> None:
        """Change a setting of the far site's kernel; this machine's own stays."""
        self.run("sh", "-c", f'echo "{value}" > /proc/sys/net/ipv4/{setting}')

    def read(self, setting: str) -> str:
        """A setting of the far site's kernel."""
        command = (*self.link.inside, "cat", f"/proc/sys/net/ipv4/{setting}")
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder = tmp_path_factory.mktemp("far")
    with wan(seed=11) as link:
        source = KafkaCluster.prepare("3.9", 1, "far", {}, folder, site=Site(link.home))
        try:
            asyncio.run(source.launch())
            address = f"{link.far}:{free_ports(1)[0]}"
            command = ("relay", "--cluster", source.bootstrap, "--listen", address)
            with Twinsite.run(*command, work_dir=folder, listen=False, inside=link.inside) as relay:
                asyncio.run(listens(relay))
                yield Far(link, source, address)
        finally:
            source.close()


def as_told(link: Wan, mbit: float, rtt_seconds: float, loss: float = 0.0) -> None:
    """Make a link of so many Mbit/s and seconds, with a queue of a round trip."""
    queue_bytes = max(mbit * MBIT * rtt_seconds, 64 << 10)
    link.both(rate=mbit * MBIT, delay_seconds=rtt_seconds / 2, queue_bytes=queue_bytes, loss=loss)


async def link_test(far: Far, work_dir: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the document."""
    done = await twinsite("link", "test", "--relay", far.relay, "-o", "json", *more, work_dir=work_dir)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.code, document


async def test_a_long_link_that_loses_is_told_as_it_is(far: Far, tmp_path: Path) -> None:
    """
    20 Mbit/s, 100 ms, one packet of a hundred lost: nearly all of the rate, with BBR, and how many are lost.
    It is what the link itself has counted, headers and what was sent again aside.
    """
    as_told(far.link, 20, 0.1, loss=0.01)
    before, _ = far.link.counted()
    carried = before.bytes

    code, document = await link_test(far, tmp_path, "--seconds", "20")
    [link] = document["relays"]
    carried = far.link.counted()[0].bytes - carried

    assert code == 0
    assert link["rate"]["bytes_per_second"] == pytest.approx(20 * MBIT, rel=0.15)
    assert 1 < carried / link["bytes"] < 1.1
    assert 0.1 <= link["idle"]["min_seconds"] < 0.11
    assert link["loaded"]["median_seconds"] > link["loaded_wire_seconds"] > 0.1
    assert 0.003 < link["loss"] < 0.03
    assert link["limit"] == "link"
    assert link["congestion"] == "bbr"
    assert abs(link["clock"]["offset_seconds"]) < link["clock"]["uncertainty_seconds"] < 0.06
    assert link["bandwidth_delay_bytes"] == pytest.approx(250_000, rel=0.2)
    assert link["expected"]["lag_seconds"] == pytest.approx(0.05, abs=0.01)
    assert link["advice"] == []


async def test_a_kernel_without_bbr_is_told_with_the_way_out(far: Far, tmp_path: Path) -> None:
    """
    A route makes it CUBIC, whatever a program asks for: on a link that loses it does not get far.
    """
    as_told(far.link, 20, 0.1, loss=0.01)
    route = (f"{far.link.near}/32", "dev", "wan0")
    far.run("ip", "route", "replace", *route, "congctl", "lock", "cubic")
    try:
        code, document = await link_test(far, tmp_path, "--seconds", "6")
    finally:
        far.run("ip", "route", "replace", *route)
    [link] = document["relays"]

    assert code == 0
    assert link["congestion"] == "cubic"
    assert link["rate"]["bytes_per_second"] < 10 * MBIT
    [advice] = [one for one in link["advice"] if one["about"] == "congestion"]
    assert "mistakes each lost packet for a full link" in advice["words"]
    assert advice["where"] == "on the relay's machine"
    assert "sysctl -w net.ipv4.tcp_congestion_control=bbr" in advice["commands"]


async def test_a_send_buffer_that_is_too_small_is_told(far: Far, tmp_path: Path) -> None:
    """
    It is what holds the link back, and how large it should be.
    """
    as_told(far.link, 100, 0.1)
    before = far.read("tcp_wmem")
    far.write("tcp_wmem", f"4096 16384 {SMALL_BUFFER_BYTES}")
    try:
        _, document = await link_test(far, tmp_path, "--seconds", "6")
    finally:
        far.write("tcp_wmem", before)
    [link] = document["relays"]

    assert link["send_buffer_bytes_max"] == SMALL_BUFFER_BYTES
    assert link["limit"] == "send_buffer"
    assert link["rate"]["bytes_per_second"] < 50 * MBIT
    [advice] = [one for one in link["advice"] if one["about"] == "send buffer"]
    assert advice["where"] == "on the relay's machine"
    assert advice["commands"][0].startswith('sysctl -w net.ipv4.tcp_wmem="4096 16384 ')


async def test_a_receive_buffer_that_is_too_small_is_told(far: Far, tmp_path: Path) -> None:
    """
    The other way round: the mirror is at the far site, where the kernel gives little.
    """
    as_told(far.link, 100, 0.1)
    before = far.read("tcp_rmem")
    far.write("tcp_rmem", f"4096 131072 {SMALL_BUFFER_BYTES}")
    relay = f"{far.link.near}:{free_ports(1)[0]}"
    command = ("relay", "--cluster", far.source.bootstrap, "--listen", relay)
    try:
        with Twinsite.run(*command, work_dir=tmp_path, listen=False) as process:
            await listens(process)
            asking = ("link", "test", "--relay", relay, "-o", "json", "--seconds", "6")
            with Twinsite.run(*asking, work_dir=tmp_path, listen=False, inside=far.link.inside) as mirror:
                done = await mirror.finished()
    finally:
        far.write("tcp_rmem", before)
    [link] = json.loads(done.stdout)["relays"]

    assert link["receive_buffer_bytes_max"] == SMALL_BUFFER_BYTES
    assert link["limit"] == "receive_buffer"
    assert link["receive_window_allows"] < 50 * MBIT
    [advice] = [one for one in link["advice"] if one["about"] == "receive buffer"]
    assert advice["where"] == "here"
    assert advice["commands"][0].startswith('sysctl -w net.ipv4.tcp_rmem="4096 131072 ')


async def test_a_link_that_is_too_slow_for_what_is_produced_ends_with_3(far: Far, tmp_path: Path) -> None:
    """
    And says what is missing, and how fast a copy would fall behind.
    """
    topic = "too-much"
    await far.source.create_topic(topic, 1)
    as_told(far.link, 0.5, 0.02)

    async with writing(far.source, topic, records=3_000, value_bytes=1_000):
        code, document = await link_test(far, tmp_path, "--topics", topic, "--seconds", "6")
    [link], made = document["relays"], document["production"]

    assert code == 3
    assert made["bytes_per_second"] * made["wire_share"] > link["rate"]["bytes_per_second"]
    assert link["rate"]["bytes_per_second"] == pytest.approx(0.5 * MBIT, rel=0.15)
    assert link["expected"]["times_production"] < 1
    missing = made["bytes_per_second"] * made["wire_share"] - link["rate"]["bytes_per_second"]
    assert link["expected"]["missing_bytes_per_second"] == pytest.approx(missing)
    assert 0 < link["expected"]["lag_growth_seconds_per_hour"] < 3600
