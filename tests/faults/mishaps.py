"""Whatever can happen to processes, at random and to several of them at once; a seed gives the order again.

::

    victims = [ProcessVictim(...), ClusterVictim(target, topics, 8)]
    async with asyncio.TaskGroup() as group:
        for victim in victims:
            group.create_task(suffer(victim, 7, over, happened))

The seed settles what happens to whom and how long it lasts; what it meets there is up to the machine.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaException
from kafka.errors import KafkaError

from tests.harness.checker import watermarks
from tests.harness.daemon import NotReadyError, until
from tests.harness.kafka import KafkaCluster
from tests.harness.node import Broker
from tests.harness.process import Twinsite
from tests.harness.proxy import Last

Mishap = Callable[[random.Random], Awaitable[str]]
"""Does it and undoes it; says in words what it was."""


class Victim(Protocol):
    """Something that mishaps happen to, one after the other.

    Attributes:
        name: What the record of mishaps calls it.
        every_seconds: How long it is left alone between two, on average.
    """

    name: str
    every_seconds: float

    @property
    def mishaps(self) -> Sequence[Mishap]:
        """What may happen to it."""


class ProcessVictim:
    """A mirror or a relay: killed, told to end, or stopped where it is; and always started again.

    Args:
        start: Starts it, under a manager that ends it.
    """

    def __init__(
        self, name: str, start: Callable[[], AbstractContextManager[Twinsite]], every_seconds: float
    ) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self._start = start
        self._stack = ExitStack()
        self.process = self._stack.enter_context(start())
        self.logs: list[str] = []

    @property
    def mishaps(self) -> Sequence[Mishap]:
        return self._killed, self._ended, self._frozen, self._frozen

    def close(self) -> None:
        """End it, and keep what it has logged."""
        self._stack.close()
        self.logs.append(self.process.stderr)

    async def _killed(self, fate: random.Random) -> str:
        down = fate.uniform(0, 4)
        self.close()
        await asyncio.sleep(down)
        self._begin()
        return f"killed, and started {down:.1f} s later"

    async def _ended(self, fate: random.Random) -> str:
        self.process.terminate()
        await self.process.finished(30)
        self.close()
        self._begin()
        return "told to end, and started again"

    async def _frozen(self, fate: random.Random) -> str:
        still = fate.choice((fate.uniform(0.05, 1), fate.uniform(1, 4), fate.uniform(4, 12)))
        self.process.freeze()
        await asyncio.sleep(still)
        self.process.thaw()
        return f"stood still for {still:.1f} s"

    def _begin(self) -> None:
        self.process = self._stack.enter_context(self._start())


class ClusterVictim:
    """A cluster: to one of its nodes at a time something happens, or a leader moves, where there are more.

    Args:
        topics: Partitions of each topic whose leaders are moved about.
    """

    def __init__(self, cluster: KafkaCluster, topics: Mapping[str, int], every_seconds: float) -> None:
        self.name = cluster.name
        self.every_seconds = every_seconds
        self._cluster = cluster
        self._topics = topics

    @property
    def mishaps(self) -> Sequence[Mishap]:
        happens = self._killed, self._ended, self._frozen, self._frozen
        moves = len(self._cluster.brokers) > 1
        return (*happens, self._leader_moved, self._leader_moved) if moves else happens

    def _one(self, fate: random.Random) -> Broker:
        return fate.choice(self._cluster.brokers)

    async def _killed(self, fate: random.Random) -> str:
        broker, down = self._one(fate), fate.uniform(0, 6)
        await broker.kill()
        await asyncio.sleep(down)
        await broker.start()
        return f"{broker.name} killed, and started {down:.1f} s later"

    async def _ended(self, fate: random.Random) -> str:
        broker = self._one(fate)
        await broker.restart()
        return f"{broker.name} restarted"

    async def _frozen(self, fate: random.Random) -> str:
        broker = self._one(fate)
        still = fate.choice((fate.uniform(0.05, 1), fate.uniform(1, 4), fate.uniform(4, 12)))
        await broker.freeze()
        await asyncio.sleep(still)
        await broker.thaw()
        return f"{broker.name} stood still for {still:.1f} s"

    async def _leader_moved(self, fate: random.Random) -> str:
        topic = fate.choice(sorted(self._topics))
        partition, node = fate.randrange(self._topics[topic]), self._one(fate).node
        try:
            await self._cluster.move_leader(topic, partition, node)
        except (KafkaException, KafkaError, NotReadyError, KeyError) as refused:
            return f"leader of {topic}-{partition} not moved to {node}: {str(refused)[:80]}"
        return f"leader of {topic}-{partition} moved to {node}"


class TopicsVictim:
    """Topics of a cluster that get more partitions, one at a time.

    Args:
        topics: Partitions of each, at the beginning.
    """

    def __init__(
        self, name: str, cluster: KafkaCluster, topics: Mapping[str, int], every_seconds: float
    ) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self._cluster = cluster
        self._count = dict(topics)

    @property
    def mishaps(self) -> Sequence[Mishap]:
        return (self._grown,)

    async def _grown(self, fate: random.Random) -> str:
        topic = fate.choice(sorted(self._count))
        self._count[topic] += 1  # whether or not it can be told that it was done
        total = self._count[topic]
        try:
            await self._cluster.add_partitions(topic, total)
        except (KafkaException, KafkaError, NotReadyError) as refused:
            return f"{topic} may have {total} partitions: {str(refused)[:80]}"
        return f"{topic} has {total} partitions"


@dataclass
class Mishaps:
    """A victim of mishaps such as :func:`setting_changed`, which remember nothing of one another."""

    name: str
    every_seconds: float
    mishaps: Sequence[Mishap]


async def setting_changed(
    cluster: KafkaCluster, topics: Sequence[str], values: Mapping[str, Sequence[object]], fate: random.Random
) -> str:
    """One of these settings of one of these topics gets one of its values."""
    topic, setting = fate.choice(topics), fate.choice(sorted(values))
    value = fate.choice(values[setting])
    try:
        await cluster.alter_topic(topic, {setting: value})
    except (KafkaException, NotReadyError, TimeoutError) as refused:
        return f"{topic} may have {setting} {value}: {str(refused)[:80]}"
    return f"{topic} has {setting} {value}"


async def records_deleted(cluster: KafkaCluster, topic: str, fate: random.Random) -> str:
    """The older records of one partition are deleted, or all."""
    part = fate.choice((0.5, 0.9, 1.0))
    try:
        ranges = await asyncio.to_thread(watermarks, cluster.bootstrap, topic)
        partition = fate.choice(sorted(ranges))
        start, end = ranges[partition]
        before = start + int((end - start) * part)
        await asyncio.to_thread(cluster.delete_records, topic, {partition: before})
    except (KafkaException, NotReadyError, TimeoutError) as refused:
        return f"records of {topic} may be deleted: {str(refused)[:80]}"
    return f"{topic}-{partition}, which held {start} to {end}, begins at {before}"


RESUMED_SECONDS = 120.0
"""Within this time every mirror is there again."""


async def topic_paused(mirrors: Sequence[ProcessVictim], topics: Sequence[str], fate: random.Random) -> str:
    """One of the mirrors pauses a topic for a while; if it is started again, no longer."""
    mirror, topic, still = fate.choice(mirrors), fate.choice(topics), fate.uniform(0.5, 6)
    done = await asyncio.to_thread(mirror.process.control, topic, "pause")
    await asyncio.sleep(still)
    resumed = f"{mirror.name} resumes {topic}"
    await until(lambda: mirror.process.control(topic, "resume"), resumed, RESUMED_SECONDS)
    return f"{mirror.name} pauses {topic} for {still:.1f} s: {done}"


async def loss_accepted(mirrors: Sequence[ProcessVictim], topic: str, fate: random.Random) -> str:
    """At one of the mirrors an operator accepts what is lost of a topic, if anything is."""
    mirror = fate.choice(mirrors)
    done = await asyncio.to_thread(mirror.process.control, topic, "accept-loss")
    return f"{mirror.name} accepts what {topic} has lost: {done}"


NEXT_BYTES_SECONDS = 5.0
"""Within this time something comes over a connection that is used."""


class LinkVictim:
    """What lies between mirrors and a relay: it is cut, or lets nothing through for a while.

    A proxy does it, with :meth:`spoil`.
    """

    def __init__(self, name: str, every_seconds: float) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self._passes = threading.Event()
        self._passes.set()
        self._cut = 0
        self._cut_of: dict[int, int] = {}
        self._ended: set[int] = set()
        """Connections that were cut."""

    @property
    def mishaps(self) -> Sequence[Mishap]:
        return self._cut_off, self._held_up

    def spoil(self, connection: int, _before: int, data: bytes) -> bytes:
        """As :data:`tests.harness.proxy.Spoil` has it."""
        self._passes.wait()
        if self._cut_of.setdefault(connection, self._cut) != self._cut:
            self._ended.add(connection)
            return Last(data[: len(data) // 2])
        return data

    async def _cut_off(self, _: random.Random) -> str:
        self._cut += 1
        before = len(self._ended)
        with suppress(NotReadyError):  # nobody uses it just now
            await until(lambda: len(self._ended) > before, "a connection is cut", NEXT_BYTES_SECONDS)
        return f"{len(self._ended) - before} connections cut at once, others at their next bytes"

    async def _held_up(self, fate: random.Random) -> str:
        still = fate.uniform(0.1, 8)
        self._passes.clear()
        await asyncio.sleep(still)
        self._passes.set()
        return f"nothing came through for {still:.1f} s"


async def suffer(victim: Victim, seed: int, ends_at: float, happened: list[str]) -> None:
    """Mishaps of one victim, one after the other; returns, all being well again, after ``ends_at``.

    Each has at least one, and none a second time before all others.

    Args:
        ends_at: A reading of the monotonic clock.
        happened: Where it is written down, with the seconds since the beginning.
    """
    fate, began = random.Random(f"{seed} {victim.name}"), time.monotonic()
    left: list[Mishap] = []
    pause = fate.uniform(1, min(victim.every_seconds, (ends_at - began) / 2))
    while True:
        await asyncio.sleep(pause)
        at = time.monotonic() - began
        if not left:
            left = list(victim.mishaps)
            fate.shuffle(left)
        said = await left.pop()(fate)
        happened.append(f"{at:6.1f} s  {victim.name}: {said}")
        pause = min(fate.expovariate(1 / victim.every_seconds), 30)
        if time.monotonic() + pause > ends_at:
            return
