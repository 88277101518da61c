"""The mirror on real brokers, from the command line, judged by an independent reader."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured
from tests.faults.flows import partitions as partitions_of
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.data import edge_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_every_codec, load_interleaved, load_transactions
from tests.harness.process import Finished, Twinsite, events, twinsite


def flags(source: KafkaCluster, target: KafkaCluster, topics: str, flow: str, *more: str) -> tuple[str, ...]:
    return (
        "mirror", *source.source_options, "--target", target.bootstrap,
        "--topics", topics, "--flow", flow, *more,
    )  # fmt: skip


async def copy_once(
    source: KafkaCluster, target: KafkaCluster, topic: str, work_dir: Path, *more: str
) -> Finished:
    """One run of ``--once`` over one topic, in a flow of its own."""
    return await twinsite(
        *flags(source, target, re.escape(topic), topic, "--once", "-o", "json", *more), work_dir=work_dir
    )


def partitions(document: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(p["topic"], p["partition"]): p for p in document["partitions"]}


async def test_every_codec_and_every_odd_record_arrives_as_it_was(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Null and empty keys and values, headers, all codecs: the copy is the same, with the same offsets.
    """
    name = await topic(source, partitions=2)
    load_every_codec(source.bootstrap, name, [*edge_rows(), *json_rows(500, 300)])

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_aborted_and_interleaved_transactions_leave_their_offsets_empty(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Aborted records and markers become offsets that no consumer sees; what was committed keeps its own.
    """
    name = await topic(source, partitions=2)
    load_interleaved(source.bootstrap, name, json_rows(600, 100))

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert sum(p["gap_offsets"] for p in done.document["partitions"]) > 0
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_append_times_are_kept(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A topic with LogAppendTime is copied with the times its consumers saw.
    """
    name = await topic(source, message_timestamp_type="LogAppendTime")
    load(source.bootstrap, name, json_rows(300, 200), "lz4")

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_a_log_that_starts_late_starts_there_at_the_target(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, policy: str
) -> None:
    """
    The target partition is made to begin at the source's first offset, whatever the cleanup policy.
    """
    name = await topic(source, cleanup_policy="delete")
    load(source.bootstrap, name, json_rows(400, 100, keys=50))
    source.delete_records(name, {0: 250})
    await source.alter_topic(name, {"cleanup.policy": policy})

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert watermarks(target.bootstrap, name)[0] == (250, 400)
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_record_larger_than_a_fetch_arrives(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A batch above the fetch limit is asked for again with more room; the target's limit is raised with it.
    """
    name = await topic(source, max_message_bytes=12_000_000)
    load(source.bootstrap, name, json_rows(3, 5_000_000), "none", message_max_bytes=11_000_000)

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_mapped_offsets_translate_exactly_both_ways(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With mapped offsets the copy is dense, and every record's offset is found from either side; so is where a
    group goes on that has committed the offset of a marker, or the end.
    """
    name = await topic(source)
    load_interleaved(source.bootstrap, name, json_rows(60, 50))
    arguments = flags(source, target, re.escape(name), name, "--offsets", "mapped")

    with Twinsite.run(*arguments, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: _complete(mirror, source, [name]), "the copy is complete")
        ours = _offsets(target, name)
        theirs = _offsets(source, name)
        url = f"http://127.0.0.1:{mirror.port}"
        for at_source, at_target in list(zip(theirs, ours, strict=True))[::7]:
            answer = await _ask(url, name, at_source, tmp_path)
            back = await _ask(url, name, at_target, tmp_path, "--reverse")
            assert (answer.code, back.code) == (0, 0), answer.stderr + back.stderr
            assert str(at_target) in answer.stdout
            assert str(at_source) in back.stdout
        gap = next(o for o in range(theirs[-1]) if o not in theirs)
        refused = await _ask(url, name, gap, tmp_path)
        ends = [watermarks(side.bootstrap, name)[0][1] for side in (source, target)]
        groups = [await _ask(url, name, offset, tmp_path, "--committed") for offset in (gap, ends[0])]
        returned = await _ask(url, name, ends[1], tmp_path, "--committed", "--reverse")

    behind_gap = next(ours[n] for n, offset in enumerate(theirs) if offset > gap)
    assert refused.code == 4
    assert [group.stdout for group in groups] == [f"{behind_gap}\n", f"{ends[1]}\n"]
    assert returned.stdout == f"{ends[0]}\n"
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


async def test_a_target_with_records_of_its_own_is_left_alone(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A partition that is not empty is refused with the reason; exit code 3; the target is untouched, its
    settings too: those of the source would let its records expire.
    """
    name = await topic(source, retention_ms=3_600_000)
    await target.create_topic(name, 1, config={"retention.ms": -1, "cleanup.policy": "compact"})
    load(source.bootstrap, name, json_rows(10, 50))
    load(target.bootstrap, name, json_rows(3, 50))

    done = await copy_once(source, target, name, tmp_path)

    assert done.code == 3
    partition = partitions(done.document)[name, 0]
    assert (partition["state"], partition["reason"]) == ("BLOCKED", "target_not_empty")
    assert watermarks(target.bootstrap, name)[0] == (0, 3)
    kept = target.topic_config(name)
    assert (kept["retention.ms"], kept["cleanup.policy"]) == ("-1", "compact")


async def test_auto_maps_what_cannot_keep_its_offsets(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A target that is not empty, and a gap above the limit: both partitions go on mapped, and say so. The log
    does when they turn, with the reason; status and metrics as long as it is so.
    """
    filled, gapped = await topic(source), await topic(source)
    await target.create_topic(filled, 1)
    load(target.bootstrap, filled, json_rows(7, 50, seed=5))
    load(source.bootstrap, filled, json_rows(30, 50))
    load_transactions(source.bootstrap, gapped, json_rows(100, 50), per_transaction=20, aborted_every=2)
    topics, offsets = {"include": [filled, gapped]}, {"mode": "auto", "gap_limit": 5}
    command = configured(tmp_path, source, target, filled, topics=topics, offsets=offsets)

    done = await twinsite(*command, "--once", "-o", "json", work_dir=tmp_path)

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: _complete(mirror, source, [filled, gapped]), "it goes on")
        url = f"http://127.0.0.1:{mirror.port}"
        asked = await twinsite("status", "--url", url, work_dir=tmp_path)
        metrics = mirror.get("/metrics").decode().splitlines()

    turned = {one["topic"]: one["reason"] for one in map(json.loads, events(done.stderr, "offsets_mapped"))}
    assert done.code == 0, done.stderr
    assert {p["offset_mode"] for p in done.document["partitions"]} == {"mapped"}
    assert turned == {filled: "target_not_empty", gapped: "gap_too_large"}
    assert len(events(done.stderr, "offsets_mapped")) == 2
    assert events(mirror.stderr, "offsets_mapped") == []
    assert "  offsets: 2 mapped" in asked.stdout.splitlines()
    assert f'twinsite_partitions_mapped{{flow="{filled}"}} 2.0' in metrics
    assert watermarks(target.bootstrap, filled)[0] == (0, 37)
    assert_exact(source.bootstrap, target.bootstrap, [gapped], offsets="mapped")


async def test_a_group_committed_at_the_source_goes_on_at_the_target(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With the same offsets a committed offset points at the same record on both sides.
    """
    name = await topic(source)
    load_interleaved(source.bootstrap, name, json_rows(100, 50))
    assert (await copy_once(source, target, name, tmp_path)).code == 0
    committed = _offsets(source, name)[40]

    at_source, at_target = (_value_at(cluster, name, committed) for cluster in (source, target))

    assert at_source == at_target


async def test_new_topics_and_partitions_are_picked_up_while_it_runs(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A running mirror follows the source: topics made later, partitions added later.
    """
    first = await topic(source, prefix="follow")
    topics = {"topics": {"include": [f"{first}.*"], "refresh_seconds": 1}}

    with Twinsite.run(*configured(tmp_path, source, target, first, **topics), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: _complete(mirror, source, [first]), "the first topic is copied")
        second = await topic(source, prefix=first)
        source.admin.create_partitions([NewPartitions(first, 3)])[first].result()
        load(source.bootstrap, second, json_rows(50, 50))
        await mirror.wait_for(lambda: len(mirror.status().get("partitions", [])) == 4, "four partitions")
        load(source.bootstrap, first, json_rows(90, 50))
        await mirror.wait_for(lambda: _complete(mirror, source, [first, second]), "all is copied")
        mirror.terminate()
        ended = await mirror.finished()

    assert ended.code == 0
    assert_exact(source.bootstrap, target.bootstrap, [first, second])


async def test_a_topic_made_again_under_its_name_is_not_mixed_with_the_old_one(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    After delete and re-create at the source nothing of the new topic reaches the old copy.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await copy_once(source, target, name, tmp_path)).code == 0
    await source.delete_topic(name)
    await source.create_topic(name, 1)
    load(source.bootstrap, name, json_rows(40, 50, seed=2))

    again = await copy_once(source, target, name, tmp_path)

    assert again.code == 3
    assert partitions(again.document)[name, 0]["state"] == "TOPIC_RECREATED"
    assert watermarks(target.bootstrap, name)[0] == (0, 20)


async def test_a_loss_at_the_source_stops_the_partition_until_it_is_accepted(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What was deleted before it was copied is named, from where to where; going on takes a command. What was
    given up can be read ever after, from another process too.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await copy_once(source, target, name, tmp_path)).code == 0
    load(source.bootstrap, name, json_rows(30, 50, seed=2))
    source.delete_records(name, {0: 35})

    with Twinsite.run(*flags(source, target, re.escape(name), name), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: _state(mirror) == "DATA_LOSS", "the loss is seen")
        lost = mirror.status()["partitions"][0]
        url = f"http://127.0.0.1:{mirror.port}"
        accepted = await twinsite("accept-loss", name, "--yes", "--url", url, work_dir=tmp_path)
        await mirror.wait_for(lambda: _complete(mirror, source, [name]), "it goes on")
    later = await copy_once(source, target, name, tmp_path)

    assert (lost["lost_from"], lost["lost_to"], lost["lost_ranges"]) == (20, 35, [])
    assert accepted.code == 0, accepted.stderr
    assert _offsets(target, name) == [*range(20), *range(35, 50)]
    ledger = partitions(later.document)[name, 0]
    assert (ledger["lost_offsets"], ledger["lost_ranges"]) == (0, [[20, 35]])


async def test_a_foreign_write_on_the_target_is_seen_and_nothing_is_added(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Somebody else's record at the end of the copy makes the partition DIVERGED.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await copy_once(source, target, name, tmp_path)).code == 0
    load(target.bootstrap, name, json_rows(1, 50, seed=9))
    load(source.bootstrap, name, json_rows(5, 50, seed=3))

    again = await copy_once(source, target, name, tmp_path)

    assert again.code == 3
    assert partitions(again.document)[name, 0]["state"] == "DIVERGED"
    assert watermarks(target.bootstrap, name)[0] == (0, 21)


async def test_prefixed_names_find_their_topics(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With a prefix the copy has the prefix and the name.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))

    done = await copy_once(source, target, name, tmp_path, "--names", "prefix", "--prefix", "east.")

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name], rename=lambda topic: f"east.{topic}")


async def test_a_sigterm_lets_everything_arrive(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A mirror told to stop ends within seconds with 0, and the next one goes on without a seam.
    """
    name = await topic(source, partitions=4)
    load(source.bootstrap, name, json_rows(60_000, 500), "lz4")
    with Twinsite.run(*flags(source, target, re.escape(name), name), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: _copied(mirror) > 0, "something is copied")
        mirror.terminate()
        ended = await mirror.finished(15)

    done = await copy_once(source, target, name, tmp_path)

    assert ended.code == 0, ended.stderr
    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


# -- what the tests ask ------------------------------------------------------------------------


def _complete(mirror: Twinsite, source: KafkaCluster, topics: Sequence[str]) -> bool:
    """Whether the mirror has copied all that the source has by now, which it may not know of yet."""
    return complete(mirror, source, topics) and {p["state"] for p in partitions_of(mirror)} == {"ACTIVE"}


def _state(mirror: Twinsite) -> str:
    found = mirror.status().get("partitions", [])
    return str(found[0]["state"]) if found else "UNKNOWN"


def _copied(mirror: Twinsite) -> int:
    return sum(p["records"] for p in mirror.status().get("partitions", []))


async def _ask(url: str, name: str, offset: int, work_dir: Path, *more: str) -> Finished:
    return await twinsite(
        "offsets", "translate", "--topic", name, "--partition", "0", "--offset", str(offset), "--url", url,
        *more, work_dir=work_dir,
    )  # fmt: skip


def _offsets(cluster: KafkaCluster, name: str) -> list[int]:
    return [record.offset for record in read_partition(cluster.bootstrap, name, 0)]


def _value_at(cluster: KafkaCluster, name: str, offset: int) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": name, "auto.offset.reset": "error"}
    )
    try:
        consumer.commit(offsets=[TopicPartition(name, 0, offset)], asynchronous=False)
        consumer.assign([TopicPartition(name, 0, consumer.committed([TopicPartition(name, 0)])[0].offset)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        value: bytes | None = message.value()
        return value
    finally:
        consumer.close()
