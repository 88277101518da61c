"""A batch whose bytes rotted on a source broker's disk never reaches the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mirror.kafka.record_batch import MAGIC_AT
from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.segments import StoredBatch, damage, mend, stored_batches
from tests.integration.test_formats import first_blocked
from tests.integration.test_mirror import copy_once, flags

pytestmark = pytest.mark.timeout(120)

PAYLOAD, MAGIC, LENGTH = (-1, 0), (MAGIC_AT, 0), (8, 7)
"""Byte and bit. The CRC covers the first one only; with the last one, a sign, the broker itself refuses."""
PRODUCER_AT = 43
NOT_ITS_CRC = "offset 20: its CRC-32C is not"
BASE_OFFSET_AT = 7
"""The last byte of where a batch says that it belongs."""


@pytest.mark.parametrize(
    ("place", "reason"),
    [(PAYLOAD, "corrupt_batch"), (MAGIC, "unreadable_batch"), (LENGTH, "corrupt_batch")],
)
async def test_a_rotten_batch_blocks_its_partition_until_it_is_sound_again(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    place: tuple[int, int],
    reason: str,
) -> None:
    """
    What stands before it is copied, and so are other partitions; state, reason, offset and metric tell.
    """
    name = await topic(source, partitions=2)
    rows = [Row(key=b"%d" % i, value=b"v" * 200, partition=i // 30) for i in range(60)]
    load(source.bootstrap, name, rows, "lz4", batch_num_messages=10)
    rotten = list(stored_batches(source, name))[1]
    damage(rotten, *place)

    with Twinsite.run(*flags(source, target, name, name), work_dir=tmp_path) as mirror:
        blocked = await first_blocked(mirror)
        around = {0: (0, 10), 1: (0, 30)}
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name) == around, "the rest is copied")
        failures = _crc_failures(mirror)
        mend(rotten)
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name)[0] == (0, 30), "it goes on")

    assert (blocked["partition"], blocked["reason"]) == (0, reason)
    assert "offset 10" in blocked["detail"]
    assert failures >= (1 if reason == "corrupt_batch" else 0)
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 60


@pytest.mark.parametrize(
    ("number", "bit", "seen"),
    [
        pytest.param(1, 2, "offsets 20 to 29", id="into the next one: 10 to 14"),
        pytest.param(1, 3, "offsets 2 to 11", id="into the one before: 10 to 2"),
        pytest.param(2, 4, "offsets 4 to 13", id="further down, where a broker passes over it: 20 to 4"),
        pytest.param(1, 12, "end at 4116, but the log ends at 30", id="beyond the end: 10 to 4106"),
        pytest.param(2, 1, "end at 32, but the log ends at 30", id="the last one, a little: 20 to 22"),
    ],
)
async def test_a_batch_that_says_it_stands_elsewhere_blocks_its_partition_until_it_is_sound_again(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    number: int,
    bit: int,
    seen: str,
) -> None:
    """
    Its CRC is right. It is not taken for what compaction has left, nor is it when it is tried again.
    """
    name = await topic(source)
    rows = [Row(key=b"%d" % i, value=b"v" * 200) for i in range(30)]
    load(source.bootstrap, name, rows, "lz4", batch_num_messages=10)
    rotten = list(stored_batches(source, name))[number]
    damage(rotten, BASE_OFFSET_AT - bit // 8, bit % 8)

    with Twinsite.run(*flags(source, target, name, name), work_dir=tmp_path) as mirror:
        blocked = await first_blocked(mirror)
        await mirror.wait_for(lambda: _crc_failures(mirror) > 2, "it is tried again")
        copied = watermarks(target.bootstrap, name)
        mend(rotten)
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name)[0] == (0, 30), "it goes on")

    assert (blocked["reason"], copied) == ("corrupt_batch", {0: (0, number * 10)})
    assert f"batch at offset {number * 10}: it " in blocked["detail"]
    assert seen in blocked["detail"]
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 30


@pytest.mark.parametrize("place", [PAYLOAD, MAGIC, LENGTH, (BASE_OFFSET_AT, 5)])
async def test_a_batch_that_is_corrupt_at_the_leader_only_is_read_from_another_replica(
    breakable: KafkaCluster, target: KafkaCluster, tmp_path: Path, place: tuple[int, int]
) -> None:
    """
    The copy is complete without anybody's help, nobody is told that it is blocked, and the log says where the
    batches came from.
    """
    name = f"rotten-at-the-leader-{uuid4().hex[:8]}"
    await breakable.create_topic(name, replication=2)
    await target.create_topic(name)
    load(breakable.bootstrap, name, json_rows(90, 4000), batch_num_messages=10)
    leader = await breakable.leader(name)
    rotten = list(stored_batches(breakable, name, node=leader))[::4]
    for batch in rotten:
        damage(batch, *place)

    settings = tmp_path / "flow.yaml"
    settings.write_text("read: {partition_fetch_bytes_max: 64 KiB}")

    done = await copy_once(breakable, target, name, tmp_path, "--config", str(settings))

    for batch in rotten:
        mend(batch)
    assert done.code == 0, done.stderr
    assert len(events(done.stderr, "read_from_another_replica")) >= len(rotten) == 3
    assert not [line for line in events(done.stderr, "partition_state_changed") if "BLOCKED" in line]
    assert assert_exact(breakable.bootstrap, target.bootstrap, [name]) == 90


@pytest.mark.parametrize(
    ("side", "place", "copied", "seen"),
    [
        pytest.param("source", PAYLOAD, 30, NOT_ITS_CRC, id="at the source"),
        pytest.param("target", PAYLOAD, 30, NOT_ITS_CRC, id="at the target"),
        pytest.param("target", (PRODUCER_AT, 0), 30, NOT_ITS_CRC, id="who wrote it at the target"),
        pytest.param("target", MAGIC, 21, "unknown message format", id="format of one record at the target"),
        pytest.param(
            "target",
            (BASE_OFFSET_AT, 3),
            30,
            "offset 29: it claims to end at 38",
            id="too far up at the target",
        ),
        pytest.param(
            "target", (BASE_OFFSET_AT, 4), 30, "offset 29: nothing is read", id="too far down at the target"
        ),
    ],
)
async def test_a_last_batch_that_rots_after_it_was_copied_does_not_stop_the_copy(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    side: str,
    place: tuple[int, int],
    copied: int,
    seen: str,
) -> None:
    """
    It is not what was written. No other replica can be asked: the log end says where to go on.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(copied, 200), batch_num_messages=10)
    first = await copy_once(source, target, name, tmp_path)
    cluster = source if side == "source" else target
    *_, rotten = stored_batches(cluster, name, node=await cluster.leader(name))
    damage(rotten, *place)
    load(source.bootstrap, name, json_rows(30, 200), batch_num_messages=10)

    again = await copy_once(source, target, name, tmp_path)
    mend(rotten)

    assert (first.code, again.code) == (0, 0), again.stderr
    said = events(again.stderr, "last_batch_not_readable")[0]
    assert seen in said
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == copied + 30


@pytest.mark.parametrize(
    "value_bytes",
    [
        pytest.param(200, id="the next batch is in the same answer, and begins before it ends"),
        pytest.param(20_000, id="it comes alone"),
    ],
)
async def test_what_was_copied_is_not_copied_again_from_a_batch_that_says_it_stands_further_up(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, value_bytes: int
) -> None:
    """
    It was read before it rotted, by a mirror that has ended.
    """
    name = await topic(source)
    settings = tmp_path / "flow.yaml"
    settings.write_text("read: {partition_fetch_bytes_max: 64 KiB}")
    load(source.bootstrap, name, json_rows(30, value_bytes), batch_num_messages=10)
    first = await copy_once(source, target, name, tmp_path, "--config", str(settings))
    *_, rotten = stored_batches(source, name)
    load(source.bootstrap, name, json_rows(30, value_bytes), batch_num_messages=10)
    damage(rotten, BASE_OFFSET_AT, 3)

    options = (*flags(source, target, name, name), "--config", str(settings))
    blocked, copied = await blocked_until_mended(target, name, rotten, tmp_path, *options)

    assert first.code == 0, first.stderr
    assert (blocked["reason"], copied) == ("corrupt_batch", {0: (0, 30)})
    assert "batch at offset 30: it claims to hold offsets 28 to 37" in blocked["detail"]
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 60


async def test_a_batch_that_says_it_stands_further_down_is_not_passed_over_by_a_mirror_that_starts(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Asked for where the copy goes on, the broker would skip it; the look sees it behind the batch that was
    copied last.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(30, 200), batch_num_messages=10)
    first = await copy_once(source, target, name, tmp_path)
    load(source.bootstrap, name, json_rows(30, 200), batch_num_messages=10)
    rotten = list(stored_batches(source, name))[3]
    damage(rotten, BASE_OFFSET_AT, 4)

    options = flags(source, target, name, name)
    blocked, copied = await blocked_until_mended(target, name, rotten, tmp_path, *options)

    assert first.code == 0, first.stderr
    assert (blocked["reason"], copied) == ("corrupt_batch", {0: (0, 30)})
    assert "batch at offset 30: it claims to hold offsets 14 to 23" in blocked["detail"]
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 60


async def test_the_last_batch_copied_is_compared_from_another_replica_where_the_leader_has_it_rotten(
    breakable: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    name = f"rotten-and-copied-{uuid4().hex[:8]}"
    await breakable.create_topic(name, replication=2)
    await target.create_topic(name)
    load(breakable.bootstrap, name, json_rows(30, 200), batch_num_messages=10)
    first = await copy_once(breakable, target, name, tmp_path)
    *_, rotten = stored_batches(breakable, name, node=await breakable.leader(name))
    damage(rotten)

    again = await copy_once(breakable, target, name, tmp_path)
    mend(rotten)

    assert (first.code, again.code) == (0, 0), again.stderr
    said = events(again.stderr, "read_from_another_replica")[0]
    assert f"batch at offset {rotten.offset}: its CRC-32C is not" in said


async def blocked_until_mended(
    target: KafkaCluster, name: str, rotten: StoredBatch, work_dir: Path, *options: str
) -> tuple[dict[str, Any], dict[int, tuple[int, int]]]:
    """Run a mirror that goes on once a batch is mended; how it said before that it was blocked, and how much
    was copied by then.
    """
    with Twinsite.run(*options, work_dir=work_dir) as mirror:
        blocked = await first_blocked(mirror)
        copied = watermarks(target.bootstrap, name)
        mend(rotten)
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name)[0] == (0, 60), "it goes on")
    return blocked, copied


def _crc_failures(mirror: Twinsite) -> float:
    lines = mirror.get("/metrics").decode().splitlines()
    counted = [line for line in lines if line.startswith("twinsite_crc_failures_total") and 'source"' in line]
    return float(counted[0].rsplit(" ", 1)[1])
