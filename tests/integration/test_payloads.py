"""What producers wrote lies on the target's disk byte for byte; only fields of batch headers are ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import once
from tests.harness.checker import assert_exact
from tests.harness.data import edge_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import CODECS, load, load_every_codec, load_transactions
from tests.harness.process import twinsite
from tests.harness.segments import StoredBatch, stored_batches
from tests.integration.test_mirror import copy_once, partitions

pytestmark = pytest.mark.timeout(120)

TRANSACTIONAL, CONTROL = 0x10, 0x20
REWRITTEN_BITS = 0x08 | 0x10 | 0x40
"""LogAppendTime, transactional, delete horizon: a broker sets them, or needs a transaction for them."""


async def test_batches_lie_on_both_disks_with_the_same_bytes(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Every codec, odd records, committed transactions: the same batches, nothing taken apart on the way.
    """
    name = await topic(source)
    load_every_codec(source.bootstrap, name, [*edge_rows(), *json_rows(300, 500)])
    load_transactions(source.bootstrap, name, json_rows(200, 200), 50, transactional_id=name, codec="lz4")

    done = await copy_once(source, target, name, tmp_path)

    copies = _data_batches(target, name)
    by_offset = {batch.offset: batch for batch in _data_batches(source, name)}
    assert done.code == 0, done.stderr
    assert partitions(done.document)[name, 0]["batches_reencoded"] == 0
    assert {batch.attributes & 7 for batch in copies} == set(range(len(CODECS)))
    assert any(by_offset[copy.offset].attributes & TRANSACTIONAL for copy in copies)
    assert not any(copy.attributes & REWRITTEN_BITS for copy in copies)
    for copy in copies:
        assert _kept(copy) == _kept(by_offset[copy.offset])
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_batch_that_must_be_cut_is_the_only_one_taken_apart(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The log starts inside its first batch; those behind it keep their bytes.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(200, 100), "zstd", batch_num_messages=20)
    source.delete_records(name, {0: 7})

    done = await copy_once(source, target, name, tmp_path)

    cut, *whole = (batch for batch in _data_batches(target, name) if batch.next_offset > 7)
    assert done.code == 0, done.stderr
    assert partitions(done.document)[name, 0]["batches_reencoded"] == 1
    assert (cut.offset, cut.next_offset) == (7, 20)
    assert [_kept(batch) for batch in whole] == [_kept(batch) for batch in _data_batches(source, name)[1:]]


async def test_all_that_a_flow_writes_carries_its_one_producer_id(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Records of many producers, and of those without an id, above all; what was cut, the markers in gaps, and
    what another run has added. A batch without an id would be appended wherever the log ends.
    """
    name, late = await topic(source), await topic(source, partitions=2)
    load(source.bootstrap, name, json_rows(100, 100))
    load_transactions(source.bootstrap, name, json_rows(100, 100), 20, transactional_id=name, aborted_every=2)
    load(source.bootstrap, late, json_rows(200, 100), "lz4", batch_num_messages=20)
    source.delete_records(late, {0: 7})
    both = once(source, target, f"{name}|{late}", name)

    first = await twinsite(*both, work_dir=tmp_path)
    load(source.bootstrap, late, json_rows(50, 100), enable_idempotence=False)
    second = await twinsite(*both, work_dir=tmp_path)

    logs = (name, 0), (late, 0), (late, 1)
    theirs, ours = ([b for log in logs for b in stored_batches(side, *log)] for side in (source, target))
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert len({batch.producer_id for batch in theirs}) > 1
    assert -1 in {batch.producer_id for batch in theirs}
    assert any(batch.attributes & CONTROL for batch in ours)
    [producer_id] = {batch.producer_id for batch in ours}
    assert producer_id >= 0
    assert_exact(source.bootstrap, target.bootstrap, [name, late])


def _data_batches(cluster: KafkaCluster, name: str) -> list[StoredBatch]:
    return [batch for batch in stored_batches(cluster, name) if not batch.attributes & CONTROL]


def _kept(batch: StoredBatch) -> tuple[int, bytes]:
    """What a copy may not change: all but leader epoch, CRC, producer, sequence, and three bits."""
    data = batch.data
    before_epoch, magic, from_offset_delta, from_count = data[:12], data[16:17], data[23:43], data[57:]
    return batch.attributes & ~REWRITTEN_BITS, before_epoch + magic + from_offset_delta + from_count
