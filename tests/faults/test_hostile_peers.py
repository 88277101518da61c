"""A relay between a mirror that copies and peers that mean no good: real processes, bare sockets.

What is drawn is the same for the same seed; ten seconds of one seed are part of all tests. For longer::

    FUZZ_SEED=11 FUZZ_SECONDS=600 .venv/bin/python -m pytest -s tests/faults/test_hostile_peers.py
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mirror.kafka.fetch import Key
from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of
from tests.faults.hostile_peers import Aim, crowd, go_on, say_nothing
from tests.faults.resident import files_of, resident_bytes
from tests.harness.checker import assert_exact
from tests.harness.daemon import until
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import Relay, configured_relay, through

SEED = int(os.environ.get("FUZZ_SEED", "1"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "10"))
pytestmark = pytest.mark.timeout(SECONDS + 170)

CONNECTIONS_MAX = 200
GROWTH_BYTES_MAX = 500 << 20
"""Of the relay's memory: with a dozen hostile peers at a time, and then hundreds that hardly say anything."""
HELD_UP_SECONDS_MAX = 15.0
"""So long it takes at most, on a busy machine, until what was written is copied."""
WORDS_MAX = 1_200
"""No line of the log is as long as somebody else likes."""
REFUSED = {"bad_message", "bad_request", "old_epoch", "request_refused", "too_many_connections", "too_slow"}
"""Whatever the seed is."""
REASONS = ("why", "waited_for", "error", "message")


@pytest.fixture
def relay(source: KafkaCluster, tmp_path: Path) -> Iterator[Relay]:
    """One that does not wait for long, where files for that many connections may be open here as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    many = dict.fromkeys(("connections_max", "streams_max"), CONNECTIONS_MAX)
    listen = many | {"greeting_timeout_seconds": 2.5}
    with configured_relay(source, tmp_path, listen) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Watch:
    """What becomes of a relay and of a sound mirror meanwhile.

    Attributes:
        resident_bytes: The most that the relay had.
        held_up_seconds: The longest it took until what was written had been copied.
        rounds: How often something was.
    """

    def __init__(self, relay: Relay, mirror: Twinsite, source: KafkaCluster, topic: str) -> None:
        self.resident_bytes = resident_bytes(relay.process)
        self.held_up_seconds = 0.0
        self.rounds = 0
        self._relay, self._mirror, self._source, self._topic = relay, mirror, source, topic

    @asynccontextmanager
    async def watching(self) -> Any:
        """Write and look, again and again, as long as the block lasts."""
        over = asyncio.Event()
        task = asyncio.create_task(self._go_on(over))
        try:
            yield
        finally:
            over.set()
            await task

    async def _go_on(self, over: asyncio.Event) -> None:
        while not over.is_set():
            rows = json_rows(20, 200, seed=1_000 + self.rounds)
            await asyncio.to_thread(load, self._source.bootstrap, self._topic, rows)
            began = time.monotonic()
            await self._mirror.wait_for(self._copied, "what was written is copied", 60)
            self.held_up_seconds = max(self.held_up_seconds, time.monotonic() - began)
            self.rounds += 1

    def _copied(self) -> bool:
        self.resident_bytes = max(self.resident_bytes, resident_bytes(self._relay.process))
        return complete(self._mirror, self._source, [self._topic])


async def test_a_relay_lives_among_hostile_peers(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, relay: Relay, tmp_path: Path
) -> None:
    """
    Whatever they send, it is refused with a reason, memory and files come back, and a mirror that copies
    meanwhile is held up for seconds at most. No refusal is a mistake of the relay's own.
    """
    name = await topic(source, partitions=4, prefix="among-enemies")
    await asyncio.to_thread(load, source.bootstrap, name, json_rows(60_000, 1_000))
    topic_id = (await source.topic_id(name)).bytes
    aim = Aim(relay.address, [Key(topic_id, number) for number in range(4)])

    command = mirror_of(through(source, relay.address), target, name, name)
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "it is up to date", 60)
        files, before = files_of(relay.process), resident_bytes(relay.process)
        watch = Watch(relay, mirror, source, name)
        async with watch.watching():
            met = await go_on(aim, SEED, SECONDS)
            await say_nothing(aim)
            let_in, sent_away = await crowd(aim, CONNECTIONS_MAX + 200)
        await until(lambda: files_of(relay.process) <= files, "the files of hostile peers are closed", 40)
        lost = mirror.stderr.count("stream_lost")
        refused = relay.process.status()["refused"]

    lines = [json.loads(line) for line in relay.process.stderr.splitlines()]
    warnings = [line for line in lines if line["level"] != "info"]
    growth = watch.resident_bytes - before
    print(f"seed {SEED}: {sum(met.values())} peers, {let_in} connections, {sent_away} sent away, {refused}")
    print(f"growth {growth >> 20} MiB; held up {watch.held_up_seconds:.1f} s in {watch.rounds} rounds")
    assert relay.process.running
    mistakes = [line for line in lines if line["level"] == "error" or line["event"] == "library_message"]
    assert not mistakes, json.dumps(mistakes, indent=1)
    assert [line for line in warnings if not any(line.get(field) for field in REASONS)] == []
    assert max(len(str(value)) for line in lines for value in line.values()) < WORDS_MAX
    assert {code for code, count in refused.items() if count} >= REFUSED
    assert refused["internal_error"] == 0
    assert let_in > 0
    assert sent_away > 0
    assert growth < GROWTH_BYTES_MAX
    assert watch.held_up_seconds < HELD_UP_SECONDS_MAX
    assert lost == 0
    assert_exact(source.bootstrap, target.bootstrap, [name])
