"""What a broker's cleaner leaves of a log arrives with its offsets: gaps, empty batches, delete horizons."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, read_partition
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.old_logs import RECORDS
from tests.harness.segments import (
    Files,
    StoredBatch,
    is_clean,
    old_message_set,
    rolled,
    serve_logs,
    stored_batches,
)
from tests.integration.test_formats import OLD_CODECS
from tests.integration.test_mirror import copy_once

pytestmark = pytest.mark.timeout(240)

OLD_MS = 1_400_000_000_000
SEGMENT_MS = 60_000
CONTROL, DELETE_HORIZON = 0x20, 0x40
KEYS = [b"%04d" % number for number in range(200)]


@pytest.mark.parametrize(
    ("delete_retention_ms", "expected"),
    [(86_400_000, {"gap", "empty", "horizon", "horizon without gap"}), (0, {"gap", "empty", "horizon"})],
)
async def test_a_log_that_the_cleaner_went_over_is_copied_with_its_offsets(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    delete_retention_ms: int,
    expected: set[str],
) -> None:
    """
    With the same offsets and with mapped ones, while tombstones wait for their end and when that is at once.
    """
    name = await topic(
        source,
        cleanup_policy="compact",
        segment_ms=SEGMENT_MS,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=delete_retention_ms,
    )
    await _fill(source, name)
    before = list(stored_batches(source, name))
    await source.alter_topic(name, {"min.cleanable.dirty.ratio": 1})

    same = await copy_once(source, target, name, tmp_path)
    mapped = await copy_once(
        source, target, name, tmp_path,
        "--offsets", "mapped", "--names", "prefix", "--prefix", "mapped.", "--flow", f"{name}-mapped",
    )  # fmt: skip

    assert (same.code, mapped.code) == (0, 0), same.stderr + mapped.stderr
    assert _peculiarities(before) >= expected
    assert list(stored_batches(source, name)) == before
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) > len(KEYS) / 2
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped", rename=lambda x: f"mapped.{x}")


async def test_old_formats_that_the_cleaner_went_over_are_copied_with_their_offsets(
    breakable: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    old_logs: Mapping[str, Files],
) -> None:
    """
    The cleaner takes records out of compressed message sets and leaves their format.

    One log is the harness's own. Brokers of that time wrote the others, and their cleaners went over some.
    """
    rows = [replace(row, timestamp_ms=OLD_MS + number) for number, row in enumerate(json_rows(40, 100))]
    v0 = {40 * n: old_message_set(0, 40 * n, rows[n::8], codec) for n, codec in enumerate(OLD_CODECS)}
    v1 = {40 * n: old_message_set(1, 40 * n, rows[n::8], codec) for n, codec in enumerate(OLD_CODECS, 4)}
    old = {name: log for name, log in old_logs.items() if name != "cleaned-across"}
    logs = [v0 | v1, *map(rolled, old.values())]
    name = await topic(
        breakable,
        assignment=[[2]] * len(logs),
        cleanup_policy="compact",
        segment_ms=SEGMENT_MS,
        min_cleanable_dirty_ratio=0.0,
    )
    await serve_logs(breakable, name, dict(enumerate(logs)), node=2)
    numbers = range(len(logs))
    for segment, some in (1, rows[20:30]), (2, rows[:1]):
        everywhere = (replace(row, partition=number) for row in _rows(segment, some) for number in numbers)
        load(breakable.bootstrap, name, everywhere)
    await until(
        lambda: all(is_clean(breakable, name, node=2, partition=number) for number in numbers),
        f"{name} is compacted",
    )
    await breakable.alter_topic(name, {"min.cleanable.dirty.ratio": 1})

    done = await copy_once(breakable, target, name, tmp_path)

    cleaned = {batch.magic for number in numbers[1:] for batch in stored_batches(breakable, name, number, 2)}
    assert done.code == 0, done.stderr
    assert {batch.magic for batch in stored_batches(breakable, name, node=2)} == cleaned == {0, 1, 2}
    assert len(list(read_partition(target.bootstrap, name, 0))) == 41
    compared = assert_exact(breakable.bootstrap, target.bootstrap, [name])
    assert 41 + 11 * len(old) < compared < sum(RECORDS[name] for name in old)


async def _fill(cluster: KafkaCluster, name: str) -> None:
    """Write keys again and again, with tombstones and transactions, and have the cleaner go over it twice."""
    rows = list(json_rows(len(KEYS), 100))
    load(cluster.bootstrap, name, _rows(0, rows), "lz4", batch_num_messages=20)
    load(cluster.bootstrap, name, _rows(1, rows[::3]), batch_num_messages=10)
    load_transactions(
        cluster.bootstrap, name, _rows(2, rows[50:150:2]), 10, aborted_every=2, transactional_id=name
    )
    load(cluster.bootstrap, name, _rows(3, rows[190:]), "gzip")
    gone = [replace(row, value=None) for row in rows[:190:7]]
    load(cluster.bootstrap, name, _rows(4, [*gone, *rows[1:40], *rows[190:]]), "zstd", batch_num_messages=15)
    for number in (5, 6):
        load(cluster.bootstrap, name, _rows(number, rows[:1]))
        await until(lambda: is_clean(cluster, name), f"{name} is compacted")


def _rows(segment: int, rows: Iterable[Row]) -> Iterator[Row]:
    """The same records, so much later that they begin a segment, also after markers, which have the time."""
    first_ms = int(time.time() * 1000) + segment * 10 * SEGMENT_MS
    for number, row in enumerate(rows):
        yield replace(row, timestamp_ms=first_ms + number)


def _peculiarities(batches: Iterable[StoredBatch]) -> set[str]:
    return {peculiarity for batch in batches for peculiarity in _peculiar(batch)}


def _peculiar(batch: StoredBatch) -> Iterator[str]:
    dense = batch.records == batch.next_offset - batch.offset
    if batch.records == 0:
        yield "empty"
    elif not dense:
        yield "gap"
    if batch.attributes & DELETE_HORIZON and not batch.attributes & CONTROL:
        yield "horizon without gap" if dense else "horizon"
