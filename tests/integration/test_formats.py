"""Every kind of batch a source broker hands out arrives as its consumers see it there.

What the tests read is a copy made by ``twinsite mirror --once`` between real brokers, judged by the
independent checker: record by record, with the source's offsets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.data import Row, edge_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import CODECS, load, load_every_codec, load_transactions
from tests.harness.old_logs import RECORDS, written_across
from tests.harness.process import Finished, Twinsite, twinsite
from tests.harness.segments import Files, OldCodec, old_message_set, serve_logs, stored_batches
from tests.integration.test_mirror import copy_once, flags, partitions

pytestmark = pytest.mark.timeout(240)

START_MS = 1_400_000_000_000
OLD_ROWS = [
    replace(row, timestamp_ms=START_MS + number, key=None if number % 4 == 0 else row.key)
    for number, row in enumerate(json_rows(12, 120))
]
LZ4_START, GZIP_START = 77, 234
"""In a set of v0, and in one of v1."""

CONTROL = 0x20
OLD_CODECS: tuple[OldCodec, ...] = ("none", "gzip", "snappy", "lz4")
ONE_BATCH: dict[str, Any] = {"linger_ms": 10_000, "batch_size": 900_000}
"""Settings of a producer that puts what it is given into one batch."""


async def test_message_sets_of_both_old_formats_arrive_with_the_batches_behind_them(
    breakable: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    old_logs: Mapping[str, Files],
) -> None:
    """
    Formats v0 and v1 as a 3.9 broker still has them, every codec, append times, then v2 in the same log.

    One log is the harness's own. Brokers of that time wrote the others, of which two begin inside a set.
    A mirror that comes again knows the last records of all of them.
    """
    logs = [encoded_log(), *old_logs.values()]
    known = {logs.index(old_logs["cleaned-across"]): written_across()}
    name = await topic(breakable, assignment=[[2]] * len(logs))
    await serve_logs(breakable, name, dict(enumerate(logs)), node=2)
    for log, start in ("broker-lz4", LZ4_START), ("broker-gzip", GZIP_START):
        breakable.delete_records(name, {logs.index(old_logs[log]): start})
    load(breakable.bootstrap, name, [replace(row, partition=0) for row in edge_rows()], "lz4", **ONE_BATCH)

    done = await copy_once(breakable, target, name, tmp_path)
    again = await copy_once(breakable, target, name, tmp_path)

    numbers = range(len(logs))
    served = [[batch.magic for batch in stored_batches(breakable, name, n, node=2)] for n in numbers]
    assert (done.code, again.code) == (0, 0), done.stderr + again.stderr
    assert served[0] == [0] * 15 + [1] * 16 + [2]
    assert {magic for magics in served[1:] for magic in magics} == {0, 1}
    assert {batch.magic for n in numbers for batch in stored_batches(target, name, n)} == {2}
    assert partitions(done.document)[name, 0]["batches"] == 10
    assert {partition["batches"] for partition in again.document["partitions"]} == {0}
    records = 108 + len(edge_rows()) + sum(RECORDS.values()) - LZ4_START - GZIP_START
    assert assert_exact(breakable.bootstrap, target.bootstrap, [name], known=known) == records


def encoded_log() -> Files:
    """Every codec in both formats, and an append time, in files as the harness writes them."""
    return {
        100: b"".join(
            old_message_set(0, 100 + 12 * i, OLD_ROWS, codec) for i, codec in enumerate(OLD_CODECS)
        ),
        148: b"".join(
            old_message_set(1, 148 + 12 * i, OLD_ROWS, codec) for i, codec in enumerate(OLD_CODECS)
        ),
        196: old_message_set(1, 196, OLD_ROWS, "gzip", log_append_ms=START_MS + 99),
    }


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
async def test_every_codec_carries_every_odd_record_with_either_kind_of_time(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, times: str
) -> None:
    """
    Tombstones, null and empty keys and values, headers: with their own times, or those the broker gave them.
    """
    name = await topic(source, message_timestamp_type=times)
    load_every_codec(source.bootstrap, name, [*edge_rows(), *json_rows(100, 300)])

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert {batch.data[22] & 7 for batch in stored_batches(target, name)} == {0, 1, 2, 3, 4}
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 5 * (len(edge_rows()) + 100)


async def test_a_log_that_starts_inside_a_batch_is_copied_from_its_first_record_on(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The broker hands out the whole batch; what was deleted of it does not come back. Both kinds of time.
    """
    kinds = ("CreateTime", "LogAppendTime")
    names = [await topic(source, len(CODECS), "cut", message_timestamp_type=kind) for kind in kinds]
    for name, (partition, codec) in itertools.product(names, enumerate(CODECS)):
        rows = [replace(row, partition=partition) for row in [*edge_rows(), *json_rows(52, 2000)]]
        load(source.bootstrap, name, rows, codec, **ONE_BATCH)
        source.delete_records(name, {partition: 37})
        assert [batch.offset for batch in stored_batches(source, name, partition)] == [0]

    done = await copy_once(source, target, "cut", tmp_path, "--topics", "cut-.*")

    assert done.code == 0, done.stderr
    assert watermarks(target.bootstrap, names[0]) == dict.fromkeys(range(len(CODECS)), (37, 100))
    assert assert_exact(source.bootstrap, target.bootstrap, names) == 2 * 63 * len(CODECS)


async def test_batches_that_the_source_broker_compressed_are_cut_as_well(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Java writes its codecs in other frames than the C library does, and in many blocks.
    """
    names = [await topic(source, prefix="java", compression_type=codec) for codec in CODECS[1:]]
    for name in names:
        load(source.bootstrap, name, json_rows(300, 1000), **ONE_BATCH)
        source.delete_records(name, {0: 137})

    done = await copy_once(source, target, "java", tmp_path, "--topics", "java-.*")

    assert done.code == 0, done.stderr
    assert {batch.attributes & 7 for name in names for batch in stored_batches(source, name)} == {1, 2, 3, 4}
    assert assert_exact(source.bootstrap, target.bootstrap, names) == 163 * len(names)


async def test_a_log_that_starts_inside_a_transaction_is_copied_from_there(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Inside one that was committed, inside one that was aborted, and at the marker that ends it.
    """
    starts = {await topic(source, prefix="begun"): start for start in (7, 25, 41)}
    for name, start in starts.items():
        load_transactions(source.bootstrap, name, json_rows(60, 100), 20, 2, transactional_id=name)
        source.delete_records(name, {0: start})

    done = await copy_once(source, target, "begun", tmp_path, "--topics", "begun-.*")

    assert done.code == 0, done.stderr
    assert [batch.offset for batch in stored_batches(source, name)] == [0, 20, 21, 41, 42, 62, 63, 83]
    assert {name: watermarks(target.bootstrap, name)[0][0] for name in starts} == starts
    assert assert_exact(source.bootstrap, target.bootstrap, starts) == 53 + 40 + 40


async def test_on_request_aborted_records_are_copied_like_others(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With read_uncommitted only the markers are left out, and they keep their offsets.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(40, 100), 10, aborted_every=2, transactional_id=name)

    done = await _copy_with("read: {isolation: read_uncommitted}\n", source, target, name, tmp_path)

    written = [batch for batch in stored_batches(source, name) if not batch.attributes & CONTROL]
    copied = [record.offset for record in read_partition(target.bootstrap, name, 0)]
    assert done.code == 0, done.stderr
    assert copied == [offset for batch in written for offset in range(batch.offset, batch.next_offset)]
    assert len(copied) == 60


async def test_batches_larger_than_any_fetch_limit_arrive(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A broker leaves out what does not fit; it is asked again with more room until it does.
    """
    name = await topic(source, partitions=4)
    rows = [Row(key=b"%d" % i, value=b"%d" % i * 300_000, partition=i % 4) for i in range(9)]
    load(source.bootstrap, name, rows)
    limits = "read: {partition_fetch_bytes_max: 16 KiB, fetch_bytes_max: 64 KiB}\n"

    done = await _copy_with(limits, source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 9


@pytest.mark.parametrize("unchanged", ["sync_configs: false", r"config_exclude: ['max\.message\.bytes']"])
async def test_batches_above_the_limit_of_a_target_topic_that_may_not_be_changed_are_split(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, unchanged: str
) -> None:
    """
    Every codec, in pieces the target takes, with the same offsets.
    """
    name = await topic(source)
    await target.create_topic(name, config={"max.message.bytes": 20_000})
    for codec in CODECS:
        load(source.bootstrap, name, json_rows(300, 1000), codec, **ONE_BATCH)

    done = await _copy_with(f"topics: {{{unchanged}}}\n", source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert max(len(batch.data) for batch in stored_batches(source, name)) > 100_000
    assert max(len(batch.data) for batch in stored_batches(target, name)) <= 20_000
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 1500


async def test_a_mirror_that_dies_between_the_pieces_of_a_split_batch_goes_on_inside_it(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The target ends where no batch of the source begins; every record comes once.
    """
    name = await topic(source)
    await target.create_topic(name, config={"max.message.bytes": 20_000})
    load(source.bootstrap, name, json_rows(300, 1000), "lz4", **ONE_BATCH)
    settings = _settings("topics: {sync_configs: false}\n", tmp_path)
    arguments = flags(source, target, name, name, "--once", *settings)

    killed = await twinsite(*arguments, work_dir=tmp_path, failpoints="produce_answered:3")
    copied = watermarks(target.bootstrap, name)[0][1]
    done = await twinsite(*arguments, work_dir=tmp_path)

    assert (killed.code, done.code) == (-9, 0), done.stderr
    assert 0 < copied < 300
    assert len(list(stored_batches(source, name))) == 1
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 300


async def test_a_record_above_the_limit_of_the_target_topic_blocks_its_partition_until_the_limit_is_raised(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The state names the offset; the other partition goes on; and so does this one, once the record may pass.
    """
    name = await topic(source, partitions=2)
    await target.create_topic(name, 2, config={"max.message.bytes": 20_000})
    large = [Row(key=b"%d" % i, value=b"v" * (50_000 if i == 5 else 10), partition=0) for i in range(10)]
    load(source.bootstrap, name, [*large, *(replace(row, partition=1) for row in json_rows(50, 100))])
    settings = _settings("topics: {sync_configs: false, refresh_seconds: 1}\n", tmp_path)

    with Twinsite.run(*flags(source, target, name, name, *settings), work_dir=tmp_path) as mirror:
        blocked = await first_blocked(mirror)
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name)[1] == (0, 50), "the other is copied")
        await target.alter_topic(name, {"max.message.bytes": 100_000})
        await mirror.wait_for(lambda: watermarks(target.bootstrap, name)[0] == (0, 10), "it goes on")

    assert (blocked["partition"], blocked["reason"]) == (0, "record_too_large")
    assert "offset 5" in blocked["detail"]
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 60


async def first_blocked(mirror: Twinsite) -> dict[str, Any]:
    """The first partition seen as blocked; it is tried again now and then."""
    seen: list[dict[str, Any]] = []

    def found() -> bool:
        seen.extend(p for p in mirror.status().get("partitions", []) if p["state"] == "BLOCKED")
        return bool(seen)

    await mirror.wait_for(found, "a partition is blocked")
    return seen[0]


async def _copy_with(
    settings: str, source: KafkaCluster, target: KafkaCluster, name: str, work_dir: Path
) -> Finished:
    """One run of ``--once`` over one topic, with some settings of a file."""
    return await copy_once(source, target, name, work_dir, *_settings(settings, work_dir))


def _settings(text: str, work_dir: Path) -> tuple[str, str]:
    file = work_dir / "flow.yaml"
    file.write_text(text)
    return "--config", str(file)
