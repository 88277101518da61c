"""A source that takes records away, or a whole topic, from under a running mirror."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import configured, mirror_of, partition, partitions, reached, says
from tests.harness.checker import read_partition, watermarks
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.judging import Record
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(120)


async def test_retention_that_overtakes_a_waiting_mirror_is_stated_and_the_rest_goes_on(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    readers_ahead: Sequence[Twinsite],
) -> None:
    """
    Whoever reads is frozen while old segments go. Awake again the mirror names what is lost, copies the other
    partition, and after accept-loss what is left of this one, each record where it was.
    """
    name = await topic(source, partitions=2, segment_bytes=16_384, retention_bytes=-1)
    load(source.bootstrap, name, [*rows_of(0, 20), *rows_of(1, 20)])
    with Twinsite.run(*mirror_of(source, target, name, name), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: both(mirror, name) == 40, "all is copied")
        for reader in (mirror, *readers_ahead):
            reader.freeze()
        load(
            source.bootstrap,
            name,
            [*rows_of(0, 1000, seed=2), *rows_of(1, 30, seed=2)],
            batch_num_messages=20,
        )
        await source.alter_topic(name, {"retention.bytes": 40_000})
        await until(lambda: start(source, name) > 100, "retention takes what was not copied")
        await source.alter_topic(name, {"retention.bytes": -1})
        for reader in (mirror, *readers_ahead):
            reader.thaw()
        await says(mirror, name, "DATA_LOSS", "log_start_moved")
        await mirror.wait_for(lambda: reached(mirror, name, 1) == 50, "the other partition goes on")
        lost = partition(partitions(mirror), name)
        had, left = watermarks(target.bootstrap, name)[0][1], start(source, name)
        await accept(mirror, name, tmp_path)
        await mirror.wait_for(lambda: reached(mirror, name) == 1020, "it goes on behind the loss")
        ledger = partition(partitions(mirror), name)

    assert had in {20, 21}
    assert (lost["lost_from"], lost["lost_to"]) == (had, left)
    assert f"{left - had} offsets, {had} to {left}," in lost["detail"]
    assert ledger["lost_offsets"] == left - had
    assert records(target, name)[had:] == records(source, name)


async def test_records_deleted_from_under_a_running_mirror_go_into_the_ledger_where_that_is_allowed(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    readers_ahead: Sequence[Twinsite],
) -> None:
    """
    With ``on_data_loss: continue`` nobody is asked; what was given up is counted and the rest is exact. The
    limit for gaps does not hold it up: to go on is what was asked for.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 100))
    topics = {"include": [name]}
    offsets = {"mode": "same", "gap_limit": 10}
    command = configured(
        tmp_path, source, target, name, topics=topics, offsets=offsets, on_data_loss="continue"
    )
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: reached(mirror, name) == 20, "all is copied")
        for reader in (mirror, *readers_ahead):
            reader.freeze()
        load(source.bootstrap, name, json_rows(1, 100, seed=2))  # answers the request that waits
        load(source.bootstrap, name, json_rows(99, 100, seed=3))
        source.delete_records(name, {0: 75})
        for reader in (mirror, *readers_ahead):
            reader.thaw()
        await mirror.wait_for(lambda: reached(mirror, name) == 120, "it goes on by itself")
        found = partition(partitions(mirror), name)

    had = 75 - found["lost_offsets"]
    assert had in {20, 21}
    assert found["state"] == "ACTIVE"
    assert [record.offset for record in records(target, name)] == [*range(had), *range(75, 120)]
    assert records(target, name)[had:] == records(source, name)


async def test_a_topic_made_again_under_a_running_mirror_stops_alone(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nothing of its successor reaches the copy, though it is longer by now; another topic goes on.
    """
    again, other = await topic(source, prefix="again"), await topic(source, prefix="again")
    for name in (again, other):
        load(source.bootstrap, name, json_rows(20, 100))
    topics = {"include": [again, other], "refresh_seconds": 1}
    command = configured(tmp_path, source, target, again, topics=topics)
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: reached(mirror, again) + reached(mirror, other) == 40, "all is copied")
        await source.delete_topic(again)
        await source.create_topic(again, 1)
        for name in (again, other):
            load(source.bootstrap, name, json_rows(40, 100, seed=2))
        await says(mirror, again, "TOPIC_RECREATED", "topic_id_changed")
        await mirror.wait_for(lambda: reached(mirror, other) == 60, "the other topic goes on")

    assert watermarks(target.bootstrap, again) == {0: (0, 20)}
    assert len(records(target, other)) == 60


def rows_of(number: int, count: int, seed: int = 1) -> Iterable[Row]:
    """Records for one partition."""
    return [replace(row, partition=number) for row in json_rows(count, 100, seed=seed)]


def both(mirror: Twinsite, topic: str) -> int:
    """How far both partitions are, together."""
    return reached(mirror, topic) + reached(mirror, topic, 1)


def start(cluster: KafkaCluster, topic: str) -> int:
    """Where the log of the first partition starts."""
    return watermarks(cluster.bootstrap, topic)[0][0]


def records(cluster: KafkaCluster, topic: str) -> list[Record]:
    """What the first partition holds."""
    return list(read_partition(cluster.bootstrap, topic, 0))


async def accept(mirror: Twinsite, topic: str, work_dir: Path) -> None:
    """An operator accepts the loss."""
    url = f"http://127.0.0.1:{mirror.port}"
    done = await twinsite("accept-loss", topic, "--yes", "--url", url, work_dir=work_dir)
    assert done.code == 0, done.stderr
