"""Offset maps on real brokers: they get shorter as the target deletes records, and stay exact."""

from __future__ import annotations

import asyncio

import pytest

from checkpoint.errors import UntranslatableError
from checkpoint.map_chunk import CHUNK_RUNS, decode_chunk
from mirror.config import Settings
from mirror.flow import forgetting
from mirror.model import State, TopicPartition
from mirror.offline import translate
from tests.conftest import TopicFactory
from tests.harness import daemon
from tests.harness.checker import read_partition
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load_transactions
from tests.harness.mirror import flow_of, mirror_once, running

pytestmark = pytest.mark.timeout(180)

FIRST_RUNS, MORE_RUNS = 1300, 600


def write(source: KafkaCluster, topic: str, count: int, seed: int) -> None:
    """Records with a gap behind each: one a transaction, of which every fifth aborts at first."""
    rows = json_rows(count, 80, seed=seed)
    load_transactions(source.bootstrap, topic, rows, 1, aborted_every=5, transactional_id=f"{topic}-{seed}")


def offsets_of(kafka: KafkaCluster, topic: str) -> list[int]:
    """The offsets of the records of partition 0, as a consumer sees them."""
    return [record.offset for record in read_partition(kafka.bootstrap, topic, 0)]


def stored_chunks(target: KafkaCluster, flow: str) -> dict[int, int]:
    """How many runs there are in each chunk of the map, by its number."""
    found = read_partition(target.bootstrap, f"__twinsite_state.{flow}", 0)
    values = {record.key.decode(): record.value for record in found if record.key}
    prefix = f"map/{flow}/0/"
    return {
        int(key.removeprefix(prefix)): len(decode_chunk(value))
        for key, value in values.items()
        if key.startswith(prefix) and value is not None
    }


async def assert_translated(settings: Settings, source: KafkaCluster, target: KafkaCluster) -> None:
    """What the target still holds has the offsets of the source's last records, in both directions."""
    tp = TopicPartition(settings.flow, 0)
    here, there = offsets_of(target, tp.topic), offsets_of(source, tp.topic)
    pairs = list(zip(there[-len(here) :], here, strict=True))
    for at_source, at_target in [*pairs[:3], *pairs[::97], pairs[-1]]:
        assert await translate(settings, tp, at_source, reverse=False) == at_target
        assert await translate(settings, tp, at_target, reverse=True) == at_source


async def test_a_map_forgets_what_was_deleted_at_the_target_and_stays_exact(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By a mirror that runs, and by one with --once; the next one goes on where the copy ends.
    """
    monkeypatch.setattr(forgetting, "PAUSE_SECONDS", 0.2)
    name = await topic(source)
    settings, tp = flow_of(source, target, name, offsets="mapped"), TopicPartition(name, 0)
    write(source, name, FIRST_RUNS, seed=1)
    there = offsets_of(source, name)

    async with running(settings) as until:
        await until(lambda seen: (seen[0].next_offset or 0) > there[-1])
        whole = stored_chunks(target, name)
        target.delete_records(name, {0: 2 * CHUNK_RUNS + 100})
        await daemon.until(lambda: len(stored_chunks(target, name)) < len(whole), "the map is shortened", 20)
        shortened = stored_chunks(target, name)
        await asyncio.to_thread(write, source, name, MORE_RUNS, seed=2)
        await until(lambda seen: (seen[0].next_offset or 0) > offsets_of(source, name)[-1])
        await assert_translated(settings, source, target)

    assert (list(whole), list(shortened)) == ([0, 1, 2], [2])
    for offset, reverse in ((there[0], False), (there[CHUNK_RUNS], False), (CHUNK_RUNS, True)):
        with pytest.raises(UntranslatableError, match=f"the offset map begins at .* {2 * CHUNK_RUNS}$"):
            await translate(settings, tp, offset, reverse=reverse)
    write(source, name, 10, seed=3)
    target.delete_records(name, {0: 3 * CHUNK_RUNS + 5})
    again = await mirror_once(settings)
    assert [(p.state, p.lag_records) for p in again.partitions] == [(State.ACTIVE, 0)]
    assert list(stored_chunks(target, name)) == [3]
    assert len(offsets_of(target, name)) == FIRST_RUNS + MORE_RUNS + 10 - (3 * CHUNK_RUNS + 5)
    await assert_translated(settings, source, target)
    write(source, name, 10, seed=4)
    last = await mirror_once(settings)
    assert [(p.state, p.records) for p in last.partitions] == [(State.ACTIVE, 10)]
    await assert_translated(settings, source, target)
