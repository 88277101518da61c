"""Offsets that are kept up to a stated limit, and what happens beyond it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource

from tests.conftest import TopicFactory
from tests.faults.flows import configured
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Finished, events, twinsite

pytestmark = pytest.mark.timeout(120)

STARTS_AT = 250
KILLED = -9


async def copy_once(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    folder: Path,
    failpoints: str = "",
    sync_configs: bool = True,
    **offsets: object,
) -> Finished:
    """One run of ``--once`` over one topic with these settings of ``offsets``."""
    topics = {"include": [re.escape(topic)], "sync_configs": sync_configs}
    command = configured(folder, source, target, topic, topics=topics, offsets=offsets)
    return await twinsite(*command, "--once", "-o", "json", work_dir=folder, failpoints=failpoints)


def state_of(done: Finished) -> tuple[str, str | None, str | None]:
    """Of the only partition: state, reason and mode."""
    one: dict[str, Any] = done.document["partitions"][0]
    return one["state"], one["reason"], one["offset_mode"]


def turns(done: Finished) -> list[dict[str, Any]]:
    """What the log says of partitions that have a map from now on."""
    return [json.loads(line) for line in events(done.stderr, "offsets_mapped")]


async def a_late_log(source: KafkaCluster, topic: TopicFactory) -> str:
    """A topic whose log starts at 250 and ends at 400."""
    name = await topic(source)
    load(source.bootstrap, name, json_rows(400, 50))
    source.delete_records(name, {0: STARTS_AT})
    return name


async def test_padding_up_to_the_limit_keeps_the_offsets(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The limit itself is still allowed.
    """
    name = await a_late_log(source, topic)

    done = await copy_once(source, target, name, tmp_path, mode="same", padding_limit=STARTS_AT)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize("mode", ["same", "mapped"])
async def test_a_copy_that_finds_nothing_to_do_knows_that_nothing_is_missing(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, mode: str
) -> None:
    """
    It ends before the source has told where transactions end; beyond the high watermark there is nothing.
    """
    name = await a_late_log(source, topic)
    assert (await copy_once(source, target, name, tmp_path, mode=mode)).code == 0

    again = await copy_once(source, target, name, tmp_path, mode=mode)

    assert again.code == 0, again.stderr
    assert [one["lag_records"] for one in again.document["partitions"]] == [0]


async def test_a_log_that_starts_above_the_limit_is_refused_and_goes_on_when_the_limit_is_raised(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The reason names both figures and the setting; nothing is written until there is room.
    """
    name = await a_late_log(source, topic)

    refused = await copy_once(source, target, name, tmp_path, mode="same", padding_limit=STARTS_AT - 1)
    untouched = watermarks(target.bootstrap, name)[0]
    raised = await copy_once(source, target, name, tmp_path, mode="same")

    assert (refused.code, state_of(refused)) == (3, ("BLOCKED", "gap_too_large", None))
    assert "250 padding records" in refused.document["partitions"][0]["detail"]
    assert "above the limit of 249 (offsets.padding_limit)" in refused.document["partitions"][0]["detail"]
    assert untouched == (0, 0)
    assert raised.code == 0, raised.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_log_that_starts_above_the_limit_is_mapped_with_auto(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Without padding the copy begins at 0, and the map says where each record is.
    """
    name = await a_late_log(source, topic)

    done = await copy_once(source, target, name, tmp_path, mode="auto", padding_limit=STARTS_AT - 1)

    assert (done.code, state_of(done)) == (0, ("ACTIVE", None, "mapped"))
    assert [line["reason"] for line in turns(done)] == ["gap_too_large"]
    assert watermarks(target.bootstrap, name)[0] == (0, 150)
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


async def test_a_gap_above_the_limit_is_refused_and_filled_when_the_limit_is_raised(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What came before the gap is there with its offsets, and stays.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(100, 50), per_transaction=20, aborted_every=2)

    refused = await copy_once(source, target, name, tmp_path, mode="same", gap_limit=5)
    before = watermarks(target.bootstrap, name)[0]
    raised = await copy_once(source, target, name, tmp_path, mode="same")

    assert (refused.code, state_of(refused)) == (3, ("BLOCKED", "gap_too_large", "same"))
    assert "above the limit of 5 (offsets.gap_limit)" in refused.document["partitions"][0]["detail"]
    assert before == (0, 20)
    assert raised.code == 0, raised.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_topic_that_was_prepared_has_its_own_settings_when_the_copy_ends(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    While a log is made to start where it should nothing may expire; afterwards the source's retention holds.
    """
    name = await topic(source, retention_ms=86_400_000, cleanup_policy="delete")
    load(source.bootstrap, name, json_rows(400, 50))
    source.delete_records(name, {0: STARTS_AT})
    await source.alter_topic(name, {"cleanup.policy": "compact"})

    done = await copy_once(source, target, name, tmp_path, mode="same")

    assert done.code == 0, done.stderr
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    found = target.admin.describe_configs([resource])[resource].result()
    assert {key: found[key].value for key in ("cleanup.policy", "retention.ms")} == {
        "cleanup.policy": "compact",
        "retention.ms": "86400000",
    }


@pytest.mark.parametrize("killed", ["registered", "padded"])
async def test_what_somebody_else_wrote_to_a_target_that_is_being_prepared_is_not_deleted(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, killed: str
) -> None:
    """
    Before the padding, or behind it. To make the partition start late all before that is deleted.
    """
    name = await a_late_log(source, topic)
    first = await copy_once(source, target, name, tmp_path, failpoints=killed, mode="same")
    assert first.code == KILLED, first.stderr
    load(target.bootstrap, name, json_rows(3, 50, seed=2))

    refused = await copy_once(source, target, name, tmp_path, mode="same")

    assert state_of(refused)[:2] == ("BLOCKED", "foreign_write")
    left = [record.value for record in read_partition(target.bootstrap, name, 0)]
    assert left[-3:] == [row.value for row in json_rows(3, 50, seed=2)]


async def test_auto_maps_a_log_that_starts_late_where_the_target_takes_no_padding(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A topic that is compacted, too, takes no record without a key; it was made by somebody else.
    """
    name = await a_late_log(source, topic)
    await target.create_topic(name, config={"cleanup.policy": "compact,delete"})

    refused = await copy_once(source, target, name, tmp_path, sync_configs=False, mode="same")
    mapped = await copy_once(source, target, name, tmp_path, sync_configs=False, mode="auto")

    assert state_of(refused)[:2] == ("BLOCKED", "preparation_refused")
    assert mapped.code == 0, mapped.stderr
    assert state_of(mapped) == ("ACTIVE", None, "mapped")
    assert [line["reason"] for line in turns(mapped)] == ["preparation_refused"]
    assert turns(refused) == []
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")
