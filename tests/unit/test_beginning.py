"""A mirror that has not begun: it waits for its clusters, says so, and can be ended."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from tenacity import wait_fixed

from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord
from mirror import service
from mirror.api.schema import status_from_json
from mirror.config import Settings, parse
from mirror.errors import ConnectionFailedError, NotAuthorizedError, TwinsiteError, UsageError
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.kafka import failures
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.running import RunningMirror
from mirror.waiting import Waiting
from tests.harness.daemon import free_ports
from tests.harness.memory_store import MemoryStore

SOON_SECONDS = 10.0
"""Less than the minute after which a broker is given up on that keeps silent."""
CLOSED_PORT = 1


@asynccontextmanager
async def silent_broker() -> AsyncIterator[int]:
    """Something that takes connections and never says a word; the port it is at."""

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        closed.set()

    closed = asyncio.Event()
    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        await closed.wait()
    finally:
        server.close()


def settings_for(source: int, connect_timeout_seconds: float = 60.0, port: int | None = None) -> Settings:
    """A mirror of clusters that do not answer; ``port`` is its own."""
    return parse(
        {
            "source": {
                "bootstrap_servers": f"127.0.0.1:{source}",
                "connect_timeout_seconds": connect_timeout_seconds,
            },
            "target": {"bootstrap_servers": "127.0.0.1:2"},
            "topics": {"include": [".*"]},
            "api": {"port": port},
        }
    )


async def test_a_stop_is_heeded_while_a_cluster_keeps_silent() -> None:
    """
    Nothing is under way, so nothing is waited for.
    """
    stop = asyncio.Event()

    async with silent_broker() as port:
        running = asyncio.create_task(service.run(settings_for(port), stop=stop))
        asyncio.get_running_loop().call_later(0.2, stop.set)
        await stop.wait()
        told_at = time.monotonic()
        with pytest.raises(service.NotBegunError) as ended:
            await running

    assert time.monotonic() - told_at < SOON_SECONDS
    assert ended.value.stopped


async def test_a_stop_is_heeded_between_two_tries_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A broker that refuses is tried again after a pause, which is not sat out.
    """
    monkeypatch.setattr(failures, "wait_random_exponential", lambda **_: wait_fixed(60))
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    began_at = time.monotonic()

    with pytest.raises(service.NotBegunError, match="stopped"):
        await service.run(settings_for(CLOSED_PORT), stop=stop)

    assert time.monotonic() - began_at < 0.3 + SOON_SECONDS


async def test_time_that_is_up_ends_the_wait_for_a_cluster() -> None:
    """
    The limit of a copy counts from its start, not from the first answer.
    """
    began_at = time.monotonic()

    async with silent_broker() as port:
        with pytest.raises(service.NotBegunError, match="timed out") as ended:
            await service.run(settings_for(port), stop=asyncio.Event(), once=True, timeout_seconds=0.2)

    assert time.monotonic() - began_at < 0.2 + SOON_SECONDS
    assert (ended.value.stopped, ended.value.exit_code) == (False, 5)


async def test_what_is_wrong_with_a_cluster_is_said_when_nobody_told_it_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The race with a stop hides no error.
    """

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionFailedError("nobody there")

    monkeypatch.setattr("mirror.kafka.cluster.Cluster.start", refuse)

    with pytest.raises(ConnectionFailedError, match="nobody there"):
        await service.run(settings_for(CLOSED_PORT), stop=asyncio.Event())


async def test_time_that_is_up_names_the_step_of_the_start_that_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Both clusters have answered: whoever looks at the network looks in vain.
    """

    async def for_ever(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    recovering(monkeypatch, "mirror.taking_part.open_memory", ConnectionFailedError("never"))
    monkeypatch.setattr("mirror.taking_part.open_memory", for_ever)

    with pytest.raises(service.NotBegunError, match=r"waited for the flow's state at the target$") as ended:
        await service.run(settings_for(CLOSED_PORT), stop=asyncio.Event(), once=True, timeout_seconds=0.2)

    assert (ended.value.hint, ended.value.exit_code) == ("", 5)


async def probe(port: int, path: str) -> tuple[int, str]:
    """What the port says; waits until it is there."""
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.01)


async def probe_until(port: int, path: str, there: Callable[[str], bool]) -> tuple[int, str]:
    """What the port says when that is there."""
    async with asyncio.timeout(10):
        while not there((found := await probe(port, path))[1]):
            pass
    return found


async def test_a_mirror_that_waits_for_a_cluster_is_alive_and_not_ready() -> None:
    """
    Probes tell it from one that hangs, and people learn which cluster it is.
    """
    stop, [port] = asyncio.Event(), free_ports(1)
    running = asyncio.create_task(service.run(settings_for(CLOSED_PORT, port=port), stop=stop))

    alive = await probe(port, "/livez")
    ready = await probe_until(port, "/readyz", lambda text: text.count("cannot connect") == 2)
    _, metrics = await probe(port, "/metrics")
    _, status = await probe(port, "/status")
    stop.set()
    with pytest.raises(service.NotBegunError):
        await running

    waits_for = status_from_json(json.loads(status)).waits_for
    assert alive == (200, "ok\n")
    assert ready[0] == 503
    assert "[-] source: not reached since start" in ready[1]
    assert f"[-] flow: not running, waits for {waits_for}\n" in ready[1]
    assert "twinsite_build_info" in metrics
    assert status_from_json(json.loads(status)).partitions == ()
    assert waits_for.startswith("source and target to answer: source: 127.0.0.1:1: cannot connect: ")
    assert "; target: 127.0.0.1:2: cannot connect: " in waits_for
    assert waits_for.endswith("(check the address, the broker and the network)")


async def test_a_taken_port_is_said_before_any_cluster_is_asked() -> None:
    """
    A second mirror on the machine must not become the owner of a flow on its way to that error.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = settings_for(CLOSED_PORT, port=taken.getsockname()[1])

        with pytest.raises(UsageError, match="cannot listen"):
            await service.run(settings, stop=asyncio.Event())


async def test_a_copy_that_is_to_end_gives_up_and_a_mirror_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who waits for an end wants one; who runs for ever finds both clusters again after an outage.
    """
    monkeypatch.setattr(service, "START_SECONDS", 0.2)
    stop = asyncio.Event()
    mirror = asyncio.create_task(service.run(settings_for(CLOSED_PORT), stop=stop))

    with pytest.raises(ConnectionFailedError):
        await service.run(settings_for(CLOSED_PORT), stop=asyncio.Event(), once=True)
    _, still_running = await asyncio.wait({mirror}, timeout=1.0)
    stop.set()

    assert still_running == {mirror}
    with pytest.raises(service.NotBegunError, match="stopped"):
        await mirror


# -- clusters that answer and are not all there --------------------------------------------------


def a_cluster(name: str) -> Cluster:
    """A cluster that was reached, and has no connection."""
    cluster = Cluster(name, [Address("127.0.0.1", 1)], ConnectionOptions())
    cluster.info = ClusterInfo(f"{name}-id", -1, {}, {})
    return cluster


class Recovering:
    """Both clusters answer; one step of the start fails until it is mended.

    Attributes:
        failure: What the step fails with; None once it is mended.
        tries: How often the step was taken.
    """

    def __init__(self, failure: TwinsiteError) -> None:
        self.failure: TwinsiteError | None = failure
        self.tries = 0
        self.closed = 0
        self.claims = 0
        self.twice = asyncio.Event()

    @asynccontextmanager
    async def both_connected(self, *_: object, **options: Any) -> AsyncIterator[tuple[Cluster, Cluster]]:
        """Clusters that were reached."""
        source, target = (a_cluster(name) for name in ("source", "target"))
        for cluster in (source, target):
            options["reached"](cluster.name)
        try:
            yield source, target
        finally:
            self.closed += 1

    async def open_memory(self, *_: object) -> FlowMemory:
        """The memory of a flow that has run before."""
        state = FlowState(MemoryStore({"flow": FlowRecord(4000, 2, "source-id", "target-id", 0).to_bytes()}))
        await state.load()
        return FlowMemory(state)

    async def done(self, *_: object) -> None:
        """A step that needs nothing."""

    async def claim(self, _: Owner, **__: bool) -> None:
        """Become the owner."""
        self.claims += 1

    async def step(self, *_: object) -> None:
        """The step that fails."""
        self.tries += 1
        if self.tries > 1:
            self.twice.set()
        if self.failure is not None:
            raise self.failure


STEPS = {
    "mirror.taking_part.open_memory": "the flow's state at the target",
    "mirror.flow.owner.Owner.claim": "the transaction coordinator of the target",
    "mirror.taking_part.introduce": "the flow's record at the target",
    "mirror.sync.follow.Follower.follow": "the topics of both clusters",
}
"""The steps of a start, and what is said to be waited for."""


def recovering(monkeypatch: pytest.MonkeyPatch, step: str, failure: TwinsiteError) -> Recovering:
    """Clusters of which one step of the start finds something missing."""
    clusters = Recovering(failure)
    monkeypatch.setattr("mirror.service.both_connected", clusters.both_connected)
    monkeypatch.setattr("mirror.kafka.cluster.Cluster.refresh", clusters.done)
    monkeypatch.setattr("mirror.taking_part.open_memory", clusters.open_memory)
    monkeypatch.setattr("mirror.flow.owner.Owner.claim", lambda owner, **how: clusters.claim(owner, **how))
    monkeypatch.setattr("mirror.taking_part.introduce", clusters.done)
    monkeypatch.setattr(step, lambda *_, **__: clusters.step())
    return clusters


@pytest.mark.parametrize("step", STEPS)
async def test_a_mirror_waits_for_what_its_clusters_lack_and_says_for_what(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """
    After a power cut the first broker answers long before the last log is recovered.
    """
    clusters = recovering(monkeypatch, step, ConnectionFailedError("broker 2 recovers its logs"))
    stop, [port] = asyncio.Event(), free_ports(1)

    running = asyncio.create_task(service.run(settings_for(CLOSED_PORT, port=port), stop=stop))
    await asyncio.wait_for(clusters.twice.wait(), 10)
    alive, ready = await probe(port, "/livez"), await probe(port, "/readyz")
    _, status = await probe(port, "/status")
    stop.set()
    with pytest.raises(service.NotBegunError):
        await running

    waits_for = f"{STEPS[step]}: broker 2 recovers its logs"
    assert alive == (200, "ok\n")
    assert ready == (503, f"[-] flow: not running, waits for {waits_for}\nfailed\n")
    assert status_from_json(json.loads(status)).waits_for == waits_for
    assert clusters.closed == 1
    assert clusters.claims <= 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("once", "failure"),
    [(True, ConnectionFailedError("broker 2 recovers its logs")), (False, NotAuthorizedError("no WRITE"))],
)
async def test_what_no_wait_can_help_ends_the_start_at_once(
    monkeypatch: pytest.MonkeyPatch, step: str, once: bool, failure: TwinsiteError
) -> None:
    """
    And a copy that is to end has waited already: each step has a patience of its own.
    """
    clusters = recovering(monkeypatch, step, failure)

    with pytest.raises(type(failure)) as raised:
        await service.run(settings_for(CLOSED_PORT, port=-1), stop=asyncio.Event(), once=once)

    assert raised.value is failure
    assert clusters.tries == 1


async def test_what_waited_is_not_started_anew_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Status and metrics tell since when the mirror runs, not since when the clusters have answered.
    """
    settings, owner, memory = settings_for(CLOSED_PORT), Mock(), Mock(producer_id=-1)
    source, target = (Mock(connections=Mock(bytes_received=0, bytes_sent=0)) for _ in range(2))
    waiting = Waiting(settings)
    before = waiting.status()
    monkeypatch.setattr(time, "time", lambda: before.started_at_ms / 1000 + 3_600)

    begun = RunningMirror.of(settings, source, target, owner, memory, None, waiting).status()

    assert begun.started_at_ms == before.started_at_ms
    assert begun.uptime_seconds >= before.uptime_seconds


def test_nothing_is_said_of_topics_before_they_were_looked_at() -> None:
    """
    Neither how many are copied nor how many are not: there is no series that says 0.
    """
    collected = Waiting(settings_for(CLOSED_PORT)).backend().registry.collect()

    assert [one.samples for one in collected if one.name == "twinsite_topics_ignored"] == [[]]


def test_a_cluster_that_is_waited_for_is_not_up() -> None:
    """
    An alert that looks for 0 finds it; before the cluster was asked there is no series, as ever.
    """
    waiting = Waiting(settings_for(CLOSED_PORT))
    registry = waiting.backend().registry

    def up(cluster: str) -> float | None:
        return registry.get_sample_value("twinsite_peer_up", {"flow": "default", "cluster": cluster})

    before = up("source")
    waiting.not_reached("source", "connection refused")
    waiting.not_reached("target", "connection refused")
    waiting.reached.add("target")

    assert (before, up("source"), up("target")) == (None, 0.0, None)


def test_a_mirror_between_two_steps_of_its_start_still_waits() -> None:
    """
    Whoever asks for a topic then is not told that there is none.
    """
    waiting = Waiting(settings_for(CLOSED_PORT))
    waiting.reached |= {"source", "target"}

    waiting.tell("the topics of both clusters")
    during = waiting.status().waits_for
    waiting.tell("")

    assert during == "the topics of both clusters"
    assert waiting.status().waits_for == "the flow to begin"
