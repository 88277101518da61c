"""How long deletes are safe that are not copied: told by a running mirror, kept by the source's cleaner."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import TopicFactory
from tests.harness.checker import read_partition
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_compacted
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.segments import is_clean
from tests.integration.test_compaction import SEGMENT_MS

pytestmark = pytest.mark.timeout(180)

HOUR_SECONDS, DAY_SECONDS = 3_600.0, 86_400.0
WHOLE = [HOUR_SECONDS, DAY_SECONDS, None]
"""While nothing is missing, of topics that say so, that say nothing, and that are not compacted."""
KEPT_SECONDS = 4.0
"""For this long the source keeps a tombstone that its cleaner has met."""


def settings_file(folder: Path, source: KafkaCluster, target: KafkaCluster, *topics: str) -> Path:
    """A flow of these topics that looks at their settings every second."""
    path = folder / "flow.yaml"
    document = {
        "flow": topics[0],
        **source.source_settings,
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": list(topics), "refresh_seconds": 1},
    }
    path.write_text(yaml.safe_dump(document))
    return path


def partition(mirror: Twinsite, topic: str) -> dict[str, Any]:
    """What the status says of a topic's only partition; nothing before it says anything."""
    found = [one for one in mirror.status().get("partitions", []) if one["topic"] == topic]
    return found[0] if found else {}


def headroom(mirror: Twinsite, topic: str) -> float:
    """What is told of it; less than any figure while there is none."""
    told = partition(mirror, topic).get("tombstone_headroom_seconds")
    return -1.0 if told is None else told


def told_of(mirror: Twinsite, topics: Sequence[str]) -> list[float | None]:
    """What is told of each; a source that answers late takes of it, for that moment."""
    return [partition(mirror, topic).get("tombstone_headroom_seconds") for topic in topics]


def series(mirror: Twinsite) -> dict[str, float]:
    """The metric's value of each topic that has one."""
    families = text_string_to_metric_families(mirror.get("/metrics").decode())
    samples = [sample for family in families for sample in family.samples]
    name = "twinsite_tombstone_headroom_seconds"
    return {sample.labels["topic"]: sample.value for sample in samples if sample.name == name}


async def test_the_time_for_which_deletes_are_safe_shrinks_while_a_partition_is_behind(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    All there is of it when nothing is missing, the cluster's default too; none where nothing is compacted. A
    longer time that is set meanwhile counts for what is written from then on.
    """
    paused = await topic(source, cleanup_policy="compact", delete_retention_ms=3_600_000)
    default = await topic(source, cleanup_policy="compact,delete", retention_ms=604_800_000)
    plain = await topic(source, delete_retention_ms=3_600_000)
    names = [paused, default, plain]
    for name in names:
        load_compacted(source.bootstrap, name, json_rows(100, 100), 10)

    settings = settings_file(tmp_path, source, target, *names)
    with Twinsite.run("mirror", "--config", str(settings), work_dir=tmp_path) as mirror:
        url = f"http://127.0.0.1:{mirror.port}"
        await mirror.wait_for(
            lambda: all(partition(mirror, name).get("lag_records") == 0 for name in names), "all is copied"
        )
        await mirror.wait_for(lambda: told_of(mirror, names) == WHOLE, "deletes are safe for all there is")
        shown = series(mirror)
        assert (await twinsite("pause", paused, "--url", url, work_dir=tmp_path)).code == 0
        load_compacted(source.bootstrap, paused, json_rows(100, 100), 10)
        await mirror.wait_for(lambda: 0 < headroom(mirror, paused) < HOUR_SECONDS - 3, "a pause takes of it")
        behind = partition(mirror, paused)
        for name in (paused, default):
            await source.alter_topic(name, {"delete.retention.ms": 172_800_000})
        await mirror.wait_for(lambda: headroom(mirror, default) > DAY_SECONDS, "the longer time is read")
        still_behind = headroom(mirror, paused)
        assert (await twinsite("resume", paused, "--url", url, work_dir=tmp_path)).code == 0
        await mirror.wait_for(lambda: headroom(mirror, paused) == 2 * DAY_SECONDS, "nothing is missing")

    assert shown.keys() == {paused, default}
    assert shown[paused] == pytest.approx(HOUR_SECONDS, abs=3)
    assert behind["state"] == "PAUSED"
    assert behind["tombstone_headroom_seconds"] >= HOUR_SECONDS - behind["lag_seconds"] - 0.001
    assert 0 < still_behind < behind["tombstone_headroom_seconds"]


async def test_no_tombstone_goes_sooner_than_was_told_and_then_its_key_lives_on(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A cleaner that goes over the log as often as it can takes one that a paused mirror has not copied, after
    the time that was told, and a warning.
    """
    name = await topic(
        source,
        cleanup_policy="compact",
        segment_ms=SEGMENT_MS,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=int(KEPT_SECONDS * 1_000),
    )
    key = b"deleted"
    load(source.bootstrap, name, [a_row(0, key, b"value")])

    settings = settings_file(tmp_path, source, target, name)
    with Twinsite.run("mirror", "--config", str(settings), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: partition(mirror, name).get("next_offset") == 1, "it is copied")
        url = f"http://127.0.0.1:{mirror.port}"
        assert (await twinsite("pause", name, "--url", url, work_dir=tmp_path)).code == 0
        load(source.bootstrap, name, [a_row(1, key, None)])
        told: list[tuple[float, float]] = []
        segment = 2
        while values(source, name, key):
            told.append((time.monotonic(), headroom(mirror, name)))
            load(source.bootstrap, name, [a_row(segment, b"%d" % segment, b"")])
            await until(lambda: is_clean(source, name), f"{name} is compacted")
            segment += 1
        gone_at, left = time.monotonic(), headroom(mirror, name)
        assert (await twinsite("resume", name, "--url", url, work_dir=tmp_path)).code == 0
        await mirror.wait_for(lambda: headroom(mirror, name) == KEPT_SECONDS, "nothing is missing")

    warning = json.loads(events(mirror.stderr, "tombstone_loss_near")[0])
    assert (warning["level"], warning["topic"], warning["next_offset"]) == ("warning", name, 1)
    assert warning["detail"].startswith("deletes that are not copied")
    assert 0 < told[0][1] <= KEPT_SECONDS
    assert max(at + seconds for at, seconds in told) <= gone_at
    assert left == 0
    assert values(source, name, key) == []
    assert values(target, name, key) == [b"value"]


def a_row(segment: int, key: bytes, value: bytes | None) -> Row:
    """One record, so much later than the one before that it begins a segment."""
    started_ms = int(time.time() * 1_000)
    return Row(key=key, value=value, timestamp_ms=started_ms + segment * 2 * SEGMENT_MS)


def values(cluster: KafkaCluster, topic: str, key: bytes) -> list[bytes | None]:
    """What is there of a key, in order; None is a tombstone."""
    return [record.value for record in read_partition(cluster.bootstrap, topic, 0) if record.key == key]
