"""``make bench-wan``: MirrorMaker 2 and twinsite over the same emulated link, in the same run.

The source's broker is at the far end of the link, the target's at the near end with whatever copies; twinsite
also has a relay next to the source. The far kernel sends by CUBIC unless a program asks for something else,
as most kernels do; with ``--no-bbr`` always. What is copied within a minute counts, complete or not: there
are links on which MirrorMaker 2 is not done in a day. Needs root, for the link.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import goals
from bench.copying import rotated
from bench.goals import Goal, ratio
from bench.measuring import LogEnds, cpu_seconds, peak_megabytes
from tests.harness.daemon import Site, free_ports
from tests.harness.data import json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mm2 import DEFAULT, TUNED, mirror_maker
from tests.harness.process import Twinsite
from tests.harness.relay import listens
from tests.harness.wan import Wan, wan, why_not

TOPIC, PARTITIONS = "bench", 4
FULL_SPEED = {"rate": 1.25e9, "delay_seconds": 0.0, "loss": 0.0, "queue_bytes": 16 << 20}
SECONDS_MAX, FIRST_SECONDS_MAX = 60.0, 120.0
POLL_SECONDS = 0.1
RESULTS = Path(__file__).parent / "results" / "over-the-link.json"
BROKER = {"socket.send.buffer.bytes": -1, "socket.receive.buffer.bytes": -1}
"""With the broker's default of 100 KiB the tuned MirrorMaker 2 uses half of a link; its users find that out
last. MirrorMaker 2 with its defaults has 64 KiB at its own end, which is less.
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A link.

    Attributes:
        mtu_bytes: Of a packet; more than 1500 where the emulation would take too much CPU.
    """

    mbit: float
    rtt_ms: float
    loss: float = 0.0
    mtu_bytes: int = 1500

    def __str__(self) -> str:
        packets = "" if self.mtu_bytes == 1500 else f", packets of {self.mtu_bytes} B"
        return f"{self.mbit:g} Mbit/s, {self.rtt_ms:g} ms, {self.loss:.0%} loss{packets}"

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.mbit * 1e6 / 8

    def of(self, link: Wan) -> None:
        """Make the link like this; its queue holds what it carries in a round trip, and at least 64 KiB."""
        rtt = self.rtt_ms / 1000
        queue = max(self.rate * rtt, 65_536)
        link.packets_of(self.mtu_bytes)
        link.both(rate=self.rate, delay_seconds=rtt / 2, loss=self.loss, queue_bytes=queue)


PROFILES = (
    Profile(100, 100),
    Profile(20, 300),
    Profile(20, 300, 0.01),
    Profile(400, 50, mtu_bytes=9000),
    Profile(400, 300, mtu_bytes=9000),
)


@dataclass(frozen=True, slots=True)
class Crossed:
    """What a contestant got over a link.

    Attributes:
        megabytes_per_second: Of values, before compression.
        wire_share: Bytes on the link for each byte of values.
        link_used: Share of what the link could carry.
        cpu_seconds_per_gigabyte: Of all its processes, at both ends.
        peak_megabytes: Of the largest of them.
    """

    megabytes_per_second: float
    wire_share: float
    link_used: float
    cpu_seconds_per_gigabyte: float
    peak_megabytes: float


@dataclass(frozen=True, slots=True)
class Race:
    """What is to be copied, and over which link."""

    link: Wan
    profile: Profile
    source: KafkaCluster
    target: KafkaCluster
    ends: LogEnds
    records: int
    size: int
    folder: Path


Contestant = Callable[[Race], AbstractContextManager[Sequence[int]]]
"""Starts its processes; yields their ids, and ends them."""


def ours(**link: object) -> Contestant:
    """A relay at the far end and a mirror here, with these settings of its link over the defaults."""

    @contextmanager
    def started(race: Race) -> Iterator[Sequence[int]]:
        address = f"{race.link.far}:{free_ports(1)[0]}"
        relay = ("relay", "--cluster", race.source.bootstrap, "--listen", address)
        flow = race.folder / "flow.yaml"
        settings = {
            "flow": f"bench-{time.time_ns()}",
            "link": {"relays": [address], **link},
            "target": {"bootstrap_servers": [race.target.bootstrap]},
            "topics": {"include": [TOPIC]},
        }
        flow.write_text(json.dumps(settings))
        with Twinsite.run(*relay, work_dir=race.folder, listen=False, inside=race.link.inside) as far:
            asyncio.run(listens(far))
            with Twinsite.run("mirror", "--config", str(flow), work_dir=race.folder) as near:
                yield far.process.pid, near.process.pid

    return started


def theirs(settings: Mapping[str, object]) -> Contestant:
    """MirrorMaker 2 next to the target, as its own guide recommends."""

    @contextmanager
    def started(race: Race) -> Iterator[Sequence[int]]:
        with mirror_maker(race.source, race.target, TOPIC, work_dir=race.folder, settings=settings) as maker:
            yield (maker.pid,)

    return started


LONG = {**TUNED, "source.consumer.receive.buffer.bytes": -1}
LOSSY = {key: value for key, value in LONG.items() if "fetch" not in key} | {"tasks.max": 4}
"""Where packets are lost, large fetches take longer than it waits for them, and start over for ever."""
OURS, ONE_CONNECTION = "twinsite", "twinsite over one connection"
AS_IT_COMES, BEST, SURVIVES = "MirrorMaker 2", "MirrorMaker 2 tuned", "MirrorMaker 2 tuned for loss"
CONTESTANTS: Mapping[str, Contestant] = {
    OURS: ours(),
    AS_IT_COMES: theirs(DEFAULT),
    BEST: theirs(LONG),
    SURVIVES: theirs(LOSSY),
}
WITHOUT_BBR: Mapping[str, Contestant] = {OURS: ours(), ONE_CONNECTION: ours(connections=1)}


def cross(race: Race, contestant: Contestant) -> Crossed:
    """Measure a copy for a minute from its first records on, or after two minutes if there are none."""
    with contestant(race) as pids:
        already, began = _first(race.ends), time.monotonic()
        wire, used = race.link.counted()[0].bytes, sum(map(cpu_seconds, pids))
        copied = already
        while copied < race.records and time.monotonic() - began < SECONDS_MAX:
            time.sleep(POLL_SECONDS)
            copied = race.ends.records()
        seconds = time.monotonic() - began
        megabytes = (copied - already) * race.size / 1e6
        wire, used = race.link.counted()[0].bytes - wire, sum(map(cpu_seconds, pids)) - used
        return Crossed(
            megabytes_per_second=megabytes / seconds,
            wire_share=wire / 1e6 / megabytes if megabytes else math.nan,
            link_used=wire / seconds / race.profile.rate,
            cpu_seconds_per_gigabyte=used / megabytes * 1000 if megabytes else math.nan,
            peak_megabytes=max(map(peak_megabytes, pids)),
        )


def _first(ends: LogEnds) -> int:
    give_up = time.monotonic() + FIRST_SECONDS_MAX
    while time.monotonic() < give_up:
        found = ends.records()
        if found:
            return found
        time.sleep(POLL_SECONDS)
    return 0


def judged(profile: Profile, codec: str, found: Mapping[str, Crossed]) -> list[Goal]:
    """The goals for this data over this link, with what was found.

    On a link that loses packets, the best MirrorMaker 2 is the one that gets more over.
    """
    best = found[OURS]
    if ONE_CONNECTION in found:
        one = found[ONE_CONNECTION]
        times = ratio(best.megabytes_per_second, one.megabytes_per_second)
        return [Goal("MB/s, times those of one connection", 10.0, times)]
    rival = found[BEST]
    wanted = (3.2, 0.35) if codec == "none" else (1.7, 0.6)
    if profile.loss:
        rival = max((found[BEST], found[SURVIVES]), key=lambda one: one.megabytes_per_second)
        wanted = 10.0, wanted[1]
    speed, cpu = best.megabytes_per_second, best.cpu_seconds_per_gigabyte
    default = found[AS_IT_COMES]
    return [
        Goal("MB/s, times the best MirrorMaker 2", wanted[0], ratio(speed, rival.megabytes_per_second)),
        Goal("MB/s, times MirrorMaker 2 by default", 10.0, ratio(speed, default.megabytes_per_second)),
        Goal("link used", 0.9 if profile.loss else 0.93, best.link_used),
        Goal(
            "bytes on the wire, times those of the best",
            wanted[1],
            ratio(best.wire_share, rival.wire_share),
            at_most=True,
        ),
        Goal("CPU of the best, times ours", 10.0, ratio(rival.cpu_seconds_per_gigabyte, cpu)),
        Goal("CPU of the default, times ours", 10.0, ratio(default.cpu_seconds_per_gigabyte, cpu)),
        Goal("memory per side", 256.0, best.peak_megabytes, at_most=True, unit=" MB"),
    ]


@dataclass(frozen=True, slots=True)
class Races:
    """What is run: each kind of data, over each link, by each contestant, in each round.

    Attributes:
        bbr: The far kernel may send by BBR.
        out: Where all figures of all rounds go, as JSON.
    """

    profiles: Sequence[Profile]
    codecs: Sequence[str]
    sizes: Sequence[int]
    megabytes: int
    rounds: int
    bbr: bool
    out: Path


async def compete(races: Races, folder: Path) -> list[Goal]:
    """Run them all; prints tables and saves all figures after each profile. Returns all goals.

    Another contestant begins over each link and in each round: whoever comes first is slower.
    """
    contestants = CONTESTANTS if races.bbr else WITHOUT_BBR
    wanted: list[Goal] = []
    saved = json.loads(races.out.read_text()) if races.out.exists() else {}
    races.out.parent.mkdir(parents=True, exist_ok=True)
    with wan() as link:
        link.without_bbr(at_all=not races.bbr)
        far = Site(link.far, link.inside)
        async with (
            KafkaCluster.start(
                name="source", work_dir=folder, jvm=BENCHMARK_JVM, site=far, properties=BROKER
            ) as source,
            KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
        ):
            for size, codec in itertools.product(races.sizes, races.codecs):
                link.both(**FULL_SPEED)
                await source.create_topic(TOPIC, PARTITIONS)
                rows = json_rows(races.megabytes * 1_000_000 // size, size)
                records = await asyncio.to_thread(load, source.bootstrap, TOPIC, rows, codec, linger_ms=50)
                for first, profile in enumerate(races.profiles):
                    found: dict[str, list[Crossed]] = {name: [] for name in contestants}
                    for turn in range(races.rounds):
                        for name in rotated(list(contestants), first + turn):
                            ends = await _begin(link, source, target)
                            profile.of(link)
                            race = Race(link, profile, source, target, ends, records, size, folder)
                            found[name].append(await asyncio.to_thread(cross, race, contestants[name]))
                    title = f"{profile}; records of {size} B, {codec}{'' if races.bbr else ', no BBR'}"
                    medians = {name: median(of) for name, of in found.items()}
                    Console(width=120).print(table(title, medians))
                    judgement = judged(profile, codec, medians)
                    Console(width=120).print(goals.table("Goals", judgement))
                    wanted += judgement
                    saved[title] = {name: [asdict(one) for one in of] for name, of in found.items()}
                    races.out.write_text(json.dumps(saved, indent=1) + "\n")
                link.both(**FULL_SPEED)
                await source.delete_topic(TOPIC)
    return wanted


async def _begin(link: Wan, source: KafkaCluster, target: KafkaCluster) -> LogEnds:
    """Make an empty topic to copy into, with the link at full speed."""
    link.both(**FULL_SPEED)
    await _forget(source, target)
    await target.create_topic(TOPIC, PARTITIONS)
    ends = LogEnds(target.bootstrap, TOPIC, PARTITIONS)
    await asyncio.to_thread(ends.records)
    return ends


async def _forget(source: KafkaCluster, target: KafkaCluster) -> None:
    """Delete the copy, and what MirrorMaker 2 would resume from."""
    for cluster, kept in (source, {TOPIC}), (target, set[str]()):
        found = await asyncio.to_thread(cluster.admin.list_topics, timeout=10)
        for name in found.topics:
            if name not in kept and not name.startswith("__"):
                await cluster.delete_topic(name)


def median(of: Sequence[Crossed]) -> Crossed:
    """The median of each figure by itself."""
    return Crossed(*(statistics.median(getattr(one, name) for one in of) for name in asdict(of[0])))


def table(title: str, found: Mapping[str, Crossed]) -> Table:
    """The figures of each, and how many times as fast we are."""
    shown = Table(title=title)
    columns = ("", "MB/s", "times", "link used", "on the wire", "CPU-s/GB", "peak MB")
    for column in columns:
        shown.add_column(column, justify="left" if not column else "right")
    best = found[OURS]
    for name, one in found.items():
        shown.add_row(
            name,
            f"{one.megabytes_per_second:.2f}",
            f"{best.megabytes_per_second / one.megabytes_per_second:.1f}"
            if one.megabytes_per_second
            else "-",
            f"{one.link_used:.0%}",
            f"{one.wire_share:.3f}",
            f"{one.cpu_seconds_per_gigabyte:.1f}",
            f"{one.peak_megabytes:.0f}",
        )
    return shown


@click.command(context_settings={"show_default": True})
@click.option("--profile", "which", type=click.IntRange(1, len(PROFILES)), multiple=True, help="Only these.")
@click.option(
    "--codec",
    "codecs",
    type=click.Choice(["none", "lz4", "gzip", "snappy"]),
    multiple=True,
    default=("none", "lz4"),
)
@click.option("--size", "sizes", type=int, multiple=True, default=(1024, 100), help="Bytes per record.")
@click.option("--megabytes", default=1500, help="MB of values at the source.")
@click.option("--rounds", default=1, help="How many, for medians.")
@click.option("--bbr/--no-bbr", default=True, help="Whether the far kernel has BBR.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, show_default="bench/results")
def main(
    which: tuple[int, ...],
    codecs: tuple[str, ...],
    sizes: tuple[int, ...],
    megabytes: int,
    rounds: int,
    bbr: bool,
    out: Path,
) -> None:
    """Compare with MirrorMaker 2 over links that are long, narrow and lossy; exit 1 if a goal is missed."""
    if why_not():
        raise click.ClickException(f"no link can be emulated here: {why_not()}")
    profiles = [PROFILES[number - 1] for number in which] or list(PROFILES)
    with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
        races = Races(profiles, codecs, sizes, megabytes, rounds, bbr, out)
        wanted = asyncio.run(compete(races, Path(folder)))
    goals.end(wanted)


if __name__ == "__main__":
    main()
