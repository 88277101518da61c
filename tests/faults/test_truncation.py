"""Logs that no longer tell the same story: a source that took records back, a target others write to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mirror.config import parse
from mirror.model import TopicPartition
from mirror.offline import translate
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, mirror_of, once, partition, partitions, reached, says
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.data import Row, json_rows
from tests.harness.judging import Record
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.relay import WayIn
from tests.harness.segments import lose_ends

pytestmark = pytest.mark.timeout(240)

SHORTER, LONGER, SAFE = "shorter", "longer", "safe"
FLOWS = ("watching", "absent", "mapped")
ONCE = ("--once", "-o", "json")
UNCLEAN = {"unclean.leader.election.enable": "true"}


async def test_what_an_unclean_election_replaced_is_neither_overwritten_nor_mixed(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    The new leader never had the last 50 records that were copied. Whether its log is shorter now or
    has grown beyond the copy, whether the mirror was watching or not: it says so, and the copy stays.
    """
    async with (
        KafkaCluster.start(version="3.9", nodes=3, name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await two_replicas_each(source)
        absent, mapped = flow(tmp_path, source, target, "absent"), flow(tmp_path, source, target, "mapped")
        with Twinsite.run(*flow(tmp_path, source, target, "watching"), work_dir=tmp_path) as watching:
            await copied_beyond_the_other_replica(source, watching)
            before = [await twinsite(*command, *ONCE, work_dir=tmp_path) for command in (absent, mapped)]
            had = copies(target)

            await elect_the_replica_that_is_behind(source)
            load(source.bootstrap, LONGER, json_rows(100, 100, seed=3))
            load(source.bootstrap, SAFE, json_rows(100, 100, seed=3))
            for name in (LONGER, SHORTER):
                await says(watching, name, "DIVERGED", "source_truncated")
            await watching.wait_for(lambda: reached(watching, SAFE) == 250, "the other partition goes on")
            seen = partitions(watching)

        after = [await twinsite(*command, *ONCE, work_dir=tmp_path) for command in (absent, mapped)]

        assert [run.code for run in before] == [0, 0], before
        assert [run.code for run in after] == [3, 3], after
        for status in (seen, *(run.document["partitions"] for run in after)):
            names_what_was_replaced(status)
        assert copies(target) == had
        for name in FLOWS:
            assert_exact(source.bootstrap, target.bootstrap, [SAFE], rename=f"{name}.{{}}".format)


def flow(work_dir: Path, source: KafkaCluster, target: KafkaCluster, name: str) -> tuple[str, ...]:
    """A mirror of everything, to topics under the flow's own name."""
    topics = {"include": [".*"], "names": "prefix", "prefix": f"{name}.", "replication_factor": 1}
    offsets = "mapped" if name == "mapped" else "same"
    return configured(work_dir, source, target, name, topics=topics, offsets=offsets)


async def two_replicas_each(source: KafkaCluster) -> None:
    """Two topics whose second replica will be behind, and one beside them on the third node too."""
    for name in (SHORTER, LONGER):
        await source.create_topic(name, assignment=[[2, 3]], config=UNCLEAN)
    await source.create_topic(SAFE, assignment=[[1, 2]])


async def copied_beyond_the_other_replica(source: KafkaCluster, mirror: Twinsite) -> None:
    """100 records on both replicas, 50 more on one only; the mirror has them all."""
    for name in (SHORTER, LONGER, SAFE):
        load(source.bootstrap, name, json_rows(100, 100))
    await source.broker(3).kill()
    for name in (SHORTER, LONGER, SAFE):
        load(source.bootstrap, name, json_rows(50, 100, seed=2))
    await mirror.wait_for(
        lambda: [reached(mirror, name) for name in (SHORTER, LONGER, SAFE)] == [150] * 3, "all is copied"
    )


async def elect_the_replica_that_is_behind(source: KafkaCluster) -> None:
    """The only one that has everything dies, and the other one comes back alone."""
    await source.broker(2).kill()
    await source.broker(3).start()


def copies(target: KafkaCluster) -> Mapping[str, list[Record]]:
    """Everything the target has of the topics that were truncated."""
    names = [f"{flow}.{name}" for flow in FLOWS for name in (SHORTER, LONGER)]
    return {name: list(read_partition(target.bootstrap, name, 0)) for name in names}


def names_what_was_replaced(status: list[dict[str, Any]]) -> None:
    """State, reason and the offsets concerned, for both topics."""
    for name in (SHORTER, LONGER):
        found = partition(status, name)
        assert (found["state"], found["reason"]) == ("DIVERGED", "source_truncated"), found
        assert "150" in found["detail"]
        assert "100" in found["detail"]
        assert found["hint"]


async def test_a_target_that_lost_its_end_is_named_and_made_whole_on_request(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    An unclean election at the target takes back 50 records it had acknowledged. The running mirror says so
    and appends nothing behind the hole; told to resume, it copies them again.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", nodes=3, name="target", work_dir=tmp_path) as target,
    ):
        for name, nodes, settings in ((SHORTER, [2, 3], UNCLEAN), (SAFE, [1, 2], {})):
            await source.create_topic(name)
            await target.create_topic(name, assignment=[nodes], config=settings)
        with Twinsite.run(*mirror_of(source, target, "shorter,safe", "f"), work_dir=tmp_path) as mirror:
            load(source.bootstrap, SHORTER, json_rows(100, 100))
            await mirror.wait_for(lambda: reached(mirror, SHORTER) == 100, "both replicas have it")
            await target.broker(3).kill()
            load(source.bootstrap, SHORTER, json_rows(50, 100, seed=2))
            await mirror.wait_for(lambda: reached(mirror, SHORTER) == 150, "one replica has it")
            await target.broker(2).kill()
            await target.broker(3).start()
            for name in (SHORTER, SAFE):
                load(source.bootstrap, name, json_rows(20, 100, seed=3))

            found = await says(mirror, SHORTER, "DIVERGED", "target_truncated")
            await mirror.wait_for(lambda: reached(mirror, SAFE) == 20, "the other topic goes on")
            left = watermarks(target.bootstrap, SHORTER)
            url = ("--url", f"http://127.0.0.1:{mirror.port}")
            resumed = await twinsite("resume", SHORTER, *url, work_dir=tmp_path)
            await mirror.wait_for(lambda: reached(mirror, SHORTER) == 170, "what was lost is there again")

        assert "150" in found["detail"]
        assert "100" in found["detail"]
        assert left == {0: (0, 100)}
        assert resumed.code == 0, resumed.stderr
        assert_exact(source.bootstrap, target.bootstrap, [SHORTER, SAFE])


async def test_an_offset_map_stays_whole_when_the_flows_state_loses_its_end(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    As after a power cut, while the mirror runs. Of two partitions the one notices as it notes its next gap.
    """
    name = await topic(source, partitions=2)
    async with KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target:
        settings = parse(
            {
                "flow": name,
                **source.source_settings,
                "target": {"bootstrap_servers": target.bootstrap},
                "topics": {"include": [name]},
                "offsets": "mapped",
            }
        )
        state = f"__twinsite_state.{name}"
        with Twinsite.run(
            *mirror_of(source, target, name, name, "--offsets", "mapped"), work_dir=tmp_path
        ) as one:
            load_gap_and_record(source, name, 0, 1)
            await one.wait_for(partial(complete, one, source, [name]), "the first gaps are copied")
            end = watermarks(target.bootstrap, state)[0][1]
            load_gap_and_record(source, name, 0, 1)
            await one.wait_for(partial(complete, one, source, [name]), "the second gaps are copied")
            await lose_ends(target, {state: end})
            load_gap_and_record(source, name, 0)
            await one.wait_for(partial(complete, one, source, [name]), "the one goes on")
            load_gap_and_record(source, name, 1)
            await one.wait_for(partial(complete, one, source, [name]), "so does the other")

        assert events(one.stderr, "state_lost_its_end")
        assert assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped") == 6
        for number in (0, 1):
            records = read_partition(source.bootstrap, name, number)
            where = [
                await translate(settings, TopicPartition(name, number), record.offset, reverse=False)
                for record in records
            ]
            assert where == [0, 1, 2]


def load_gap_and_record(source: KafkaCluster, name: str, *numbers: int) -> None:
    """An aborted transaction and a record behind it, in each of these partitions."""
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": f"{name}-gaps"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(name, b"aborted", partition=number)
    producer.flush(20)
    producer.abort_transaction(20)
    load(source.bootstrap, name, [Row(key=b"k", value=b"v", partition=number) for number in numbers])


async def test_a_foreign_write_under_a_running_mirror_is_found_and_never_forgotten(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The broker put the mirror's next batch behind somebody else's record. DIVERGED, also for the next mirror
    when the source has grown past the shift and the log ends look sound again; the other partition goes on.
    """
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, [*rows_of(0, 20), *rows_of(1, 20)])
    with Twinsite.run(*mirror_of(source, target, name, name), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: reached(mirror, name) + reached(mirror, name, 1) == 40, "all is copied")
        load(target.bootstrap, name, rows_of(0, 1, seed=9))
        load(source.bootstrap, name, [*rows_of(0, 5, seed=2), *rows_of(1, 5, seed=2)])
        found = await says(mirror, name, "DIVERGED", "offsets_differ")
        await mirror.wait_for(lambda: reached(mirror, name, 1) == 25, "the other partition goes on")
    load(source.bootstrap, name, [*rows_of(0, 50, seed=3), *rows_of(1, 50, seed=3)])

    again = await twinsite(*once(source, target, name, name), work_dir=tmp_path)

    assert "landed at target offset 21 instead of 20" in found["detail"]
    assert again.code == 3, again.stderr
    assert partition(again.document["partitions"], name)["state"] == "DIVERGED"
    assert watermarks(target.bootstrap, name) == {0: (0, 26), 1: (0, 75)}


async def test_a_copy_whose_beginning_the_flow_has_forgotten_is_not_copied_again_behind_itself(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The flow's state topic was deleted, the copy was kept. Once that is deleted too, the flow begins anew.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 100))
    command = (*once(source, target, name, name), "--offsets", "mapped")
    first = await twinsite(*command, work_dir=tmp_path)
    await target.delete_topic(f"__twinsite_state.{name}")

    again = await twinsite(*command, work_dir=tmp_path)
    kept = watermarks(target.bootstrap, name)
    await target.delete_topic(name)
    anew = await twinsite(*command, work_dir=tmp_path)

    assert first.code == 0, first.stderr
    found = partition(again.document["partitions"], name)
    assert (again.code, found["state"], found["reason"]) == (3, "DIVERGED", "state_lost"), again.stderr
    assert kept == {0: (0, 20)}
    assert anew.code == 0, anew.stderr
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 20


def rows_of(number: int, count: int, seed: int = 1) -> list[Row]:
    """Records for one partition."""
    return [replace(row, partition=number) for row in json_rows(count, 100, seed=seed)]
