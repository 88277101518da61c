"""Every kind of batch a source broker hands out arrives as its consumers see it there.

What the tests read is a copy made by ``twinsite mirror --once`` between real brokers, judged by the
independent checker: record by record, with the source's offsets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import CODECS, Row, edge_rows, json_rows, load, load_every_codec, load_transactions
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Finished, Twinsite
from tests.harness.segments import OldCodec, old_message_set, serve_segments, stored_batches
from tests.integration.test_mirror import copy_once, flags

pytestmark = pytest.mark.timeout(120)

START_MS = 1_400_000_000_000
OLD_ROWS = [
    replace(row, timestamp_ms=START_MS + number, key=None if number % 4 == 0 else row.key)
    for number, row in enumerate(json_rows(12, 120))
]
OLD_CODECS: tuple[OldCodec, ...] = ("none", "gzip", "snappy", "lz4")
ONE_BATCH = {"linger_ms": 500, "batch_size": 900_000}
"""Settings of a producer that puts what it is given into one batch."""


async def test_message_sets_of_both_old_formats_arrive_with_the_batches_behind_them(
    breakable: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Formats v0 and v1 as a 3.9 broker still has them, every codec, append times, then v2 in the same log.
    """
    name = await topic(breakable)
    node = await breakable.leader(name)
    files = {
        100: b"".join(
            old_message_set(0, 100 + 12 * i, OLD_ROWS, codec) for i, codec in enumerate(OLD_CODECS)
        ),
        148: b"".join(
            old_message_set(1, 148 + 12 * i, OLD_ROWS, codec) for i, codec in enumerate(OLD_CODECS)
        ),
        196: old_message_set(1, 196, OLD_ROWS, "gzip", log_append_ms=START_MS + 99),
    }
    await serve_segments(breakable, name, files, node=node)
    load(breakable.bootstrap, name, edge_rows(), "lz4", **ONE_BATCH)

    done = await copy_once(breakable, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert [batch.magic for batch in stored_batches(breakable, name, node=node)] == [0] * 15 + [1] * 16 + [2]
    assert {batch.magic for batch in stored_batches(target, name)} == {2}
    assert assert_exact(breakable.bootstrap, target.bootstrap, [name]) == 108 + len(edge_rows())


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


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
async def test_a_log_that_starts_inside_a_batch_is_copied_from_its_first_record_on(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, times: str
) -> None:
    """
    The broker hands out the whole batch; what was deleted of it does not come back.
    """
    name = await topic(source, partitions=len(CODECS), message_timestamp_type=times)
    for partition, codec in enumerate(CODECS):
        rows = [replace(row, partition=partition) for row in json_rows(100, 200, seed=partition)]
        load(source.bootstrap, name, rows, codec, **ONE_BATCH)
        _delete_below(source, name, partition, 37)
        assert [batch.offset for batch in stored_batches(source, name, partition)] == [0]

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert watermarks(target.bootstrap, name) == dict.fromkeys(range(len(CODECS)), (37, 100))
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 63 * len(CODECS)


@pytest.mark.parametrize("start", [7, 25, 41])
async def test_a_log_that_starts_inside_a_transaction_is_copied_from_there(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, start: int
) -> None:
    """
    Inside one that was committed, inside one that was aborted, and at the marker that ends it.
    """
    name = await topic(source)
    load_transactions(
        source.bootstrap, name, json_rows(80, 100), per_transaction=20, aborted_every=2, transactional_id=name
    )
    _delete_below(source, name, 0, start)

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert watermarks(target.bootstrap, name) == watermarks(source.bootstrap, name)
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) > 0


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


def _delete_below(cluster: KafkaCluster, name: str, partition: int, offset: int) -> None:
    where = TopicPartition(name, partition, offset)
    cluster.admin.delete_records([where])[where].result()


async def _copy_with(
    settings: str, source: KafkaCluster, target: KafkaCluster, name: str, work_dir: Path
) -> Finished:
    """One run of ``--once`` over one topic, with some settings of a file."""
    return await copy_once(source, target, name, work_dir, *_settings(settings, work_dir))


def _settings(text: str, work_dir: Path) -> tuple[str, str]:
    file = work_dir / "flow.yaml"
    file.write_text(text)
    return "--config", str(file)
