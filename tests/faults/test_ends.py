"""What the last record at the target, held against the source, says of a copy that is to go on."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mirror.flow import marking
from mirror.kafka.connection import Connection
from mirror.kafka.offsets import Answers, Marking, write_markers
from mirror.model import Reason, State, TopicPartition
from tests.conftest import TopicFactory
from tests.contract.connected import connected
from tests.faults.flows import once, partition
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.mirror import flow_of, mirror_once
from tests.harness.process import twinsite
from tests.harness.relay import WayIn
from tests.harness.segments import StoredBatch, is_clean, lose_ends, serve_segments, stored_batches
from tests.unit.batches import Entry, v2

pytestmark = pytest.mark.timeout(240)

SEGMENT_MS = 60_000
LEADER_EPOCH_AT, PRODUCER_AT = 12, 43


@pytest.mark.parametrize(
    ("failpoint", "more"),
    [
        pytest.param("markers_written", (), id="same"),
        pytest.param("map_written", ("--offsets", "mapped"), id="mapped"),
    ],
)
async def test_what_was_compacted_away_under_an_older_leader_is_not_taken_for_replaced(
    tmp_path: Path, way_in: WayIn, failpoint: str, more: tuple[str, ...]
) -> None:
    """
    Between two records stood all that one leader wrote. A mirror that dies behind that gap asks the source of
    the epoch that follows it: the one before the gap ends before it, as if records had been replaced.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await _compacted_under_a_leader_between(source)
        epochs = {_leader_epoch(batch) for batch in stored_batches(source, "t")}
        command = once(source, target, "t", "f", *more)

        killed = await twinsite(*command, work_dir=tmp_path, failpoints=failpoint)
        done = await twinsite(*command, work_dir=tmp_path)

        assert len(epochs) == 2
        assert killed.code == -9
        assert done.code == 0, done.stderr
        assert_exact(source.bootstrap, target.bootstrap, ["t"], offsets="mapped" if more else "same")


async def _compacted_under_a_leader_between(source: KafkaCluster) -> None:
    """Ten records under a first leader, then a gap of ten that a second one wrote, and more under a third."""
    config = {"cleanup.policy": "compact", "segment.ms": SEGMENT_MS, "min.cleanable.dirty.ratio": 0.0}
    await source.create_topic("t", config=config)
    for number, name in enumerate(("unique", "again", "again")):
        if number:
            await source.broker(1).restart()
        load(source.bootstrap, "t", _rows(name, 10, number), enable_idempotence=False)
    for number in (3, 4):
        load(source.bootstrap, "t", _rows("last", 1, number), enable_idempotence=False)
        await until(lambda: is_clean(source, "t"), "t is compacted")


def _rows(name: str, count: int, number: int) -> Iterator[Row]:
    """Of keys that are the same each time, in a segment of their own each time."""
    at_ms = int(time.time() * 1000) + number * 10 * SEGMENT_MS
    for key in range(count):
        yield Row(key=b"%s %d" % (name.encode(), key), value=b"%d" % number, timestamp_ms=at_ms)


def _leader_epoch(batch: StoredBatch) -> int:
    epoch: int = struct.unpack_from(">i", batch.data, LEADER_EPOCH_AT)[0]
    return epoch


async def test_a_copy_of_what_the_source_has_replaced_is_not_complete(tmp_path: Path, way_in: WayIn) -> None:
    """
    Its log ends where the copy does. A mirror that has nothing to read, and ends at once, says so too.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("t")
        load(source.bootstrap, "t", json_rows(100, 100), batch_num_messages=10)
        command = once(source, target, "t", "f")
        first = await twinsite(*command, work_dir=tmp_path)
        had = list(read_partition(target.bootstrap, "t", 0))
        kept = [batch.data for batch in stored_batches(source, "t") if batch.next_offset <= 90]
        other = v2([Entry(offset, value=b"other") for offset in range(90, 100)], leader_epoch=1)
        await serve_segments(source, "t", {0: b"".join(kept) + bytes(other)})

        again = await twinsite(*command, work_dir=tmp_path)

        assert (first.code, again.code) == (0, 3), again.stderr
        found = partition(again.document["partitions"], "t")
        assert (found["state"], found["reason"]) == ("DIVERGED", "source_truncated")
        assert "copied up to 100, but the source's leader epoch 0 ends at 90" in found["detail"]
        assert list(read_partition(target.bootstrap, "t", 0)) == had


async def test_a_copy_whose_map_has_lost_its_end_is_not_continued_among_aborted_records(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    A power cut took the last run of an offset map, and left the records it spoke of: the log end is taken for
    a place among the aborted records of the source, where the target can have none.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("t")
        load_transactions(source.bootstrap, "t", json_rows(40, 100), per_transaction=20, aborted_every=2)
        wanted = flow_of(source, target, "t", offsets={"mode": "mapped"})
        await mirror_once(wanted)
        had = list(read_partition(target.bootstrap, "t", 0))
        maps = [batch for batch in stored_batches(target, "__twinsite_state.t") if b"map/t/0" in batch.data]
        await lose_ends(target, {"__twinsite_state.t": maps[1].offset})

        [found] = (await mirror_once(wanted)).partitions

        assert (found.state, found.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
        assert "holds a record where the source has an aborted one" in found.detail
        assert list(read_partition(target.bootstrap, "t", 0)) == had


async def test_markers_that_a_broker_has_left_out_are_written_before_anything_follows(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It says that all is well, as of a request whose last marker it took, when a replica had come back.
    """
    asked: list[int] = []

    async def some(
        connection: Connection,
        markings: Mapping[TopicPartition, Marking],
        *,
        producer_id: int,
        producer_epoch: int,
    ) -> Answers[None]:
        asked.extend(one.count for one in markings.values())
        less = {tp: Marking((one.count + 1) // 2, one.coordinator_epoch) for tp, one in markings.items()}
        return await write_markers(connection, less, producer_id=producer_id, producer_epoch=producer_epoch)

    monkeypatch.setattr(marking, "write_markers", some)
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(200, 100), aborted_every=2)

    [done] = (await mirror_once(flow_of(source, target, name))).partitions

    assert max(asked) > 100
    assert (done.state, done.reason) == (State.ACTIVE, None)
    assert watermarks(target.bootstrap, name) == watermarks(source.bootstrap, name)
    assert_exact(source.bootstrap, target.bootstrap, [re.escape(name)])


async def test_a_marker_that_lands_behind_a_complete_copy_is_not_a_loss_of_the_source(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The source has the leader still from which all was copied: it has taken nothing back.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 100))
    wanted = flow_of(source, target, name)
    await mirror_once(wanted)
    async with connected(target) as cluster:
        tp = TopicPartition(name, 0)
        info = (await cluster.describe_topics([name])).partition(tp)
        assert info is not None
        [*_, last] = stored_batches(target, name, node=info.leader)
        producer_id, producer_epoch = struct.unpack_from(">qh", last.data, PRODUCER_AT)
        connection = await cluster.connection(info.leader)
        late = Marking(1, 0)
        await write_markers(connection, {tp: late}, producer_id=producer_id, producer_epoch=producer_epoch)

    [found] = (await mirror_once(wanted)).partitions

    assert (found.state, found.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert "copied up to 21, but the source ends at 20, under leader epoch 0" in found.detail
