"""Offsets translated from what the target holds: no mirror runs, and the source is gone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from checkpoint.errors import UntranslatableError
from mirror import service
from mirror.config import Settings, parse, shown_as_yaml
from mirror.errors import StateConflictError, UnknownPartitionError, UsageError
from mirror.model import TopicPartition
from mirror.offline import translate
from tests.conftest import TopicFactory
from tests.harness.checker import read_partition, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import twinsite

pytestmark = pytest.mark.timeout(120)

NOBODY = "127.0.0.1:1"


async def copied(source: KafkaCluster, target: KafkaCluster, topic: str, mode: str) -> Settings:
    """Copy a topic to its end; the settings of its flow, with a source that is gone."""
    document = {
        "flow": topic,
        "source": {"bootstrap_servers": source.bootstrap},
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [re.escape(topic)]},
        "offsets": mode,
        "api": {"port": None},
    }
    await service.run(parse(document), stop=asyncio.Event(), once=True, timeout_seconds=60)
    return parse(document | {"source": {"bootstrap_servers": NOBODY}})


def offsets_of(kafka: KafkaCluster, topic: str) -> dict[bytes, int]:
    """Where each record of partition 0 is, by its key, as a consumer sees it."""
    return {record.key: record.offset for record in read_partition(kafka.bootstrap, topic, 0) if record.key}


def following(offsets: dict[bytes, int], offset: int) -> bytes | None:
    """The key of the first record from an offset on; None where there is none."""
    return min((at, key) for key, at in [*offsets.items(), (None, 1 << 62)] if at >= offset)[1]


@pytest.mark.parametrize("mode", ["same", "mapped"])
async def test_every_record_is_found_on_the_other_side(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, mode: str
) -> None:
    """
    In both directions, with aborted transactions and markers between the records.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(200, 100), 7, transactional_id=name)
    settings = await copied(source, target, name, mode)
    there, here = offsets_of(source, name), offsets_of(target, name)
    some = sorted(there)[::25]

    tp = TopicPartition(name, 0)
    forth = [await translate(settings, tp, there[key], reverse=False) for key in some]
    back = [await translate(settings, tp, here[key], reverse=True) for key in some]

    assert len(some) == 8
    assert forth == [here[key] for key in some]
    assert back == [there[key] for key in some]
    assert (there == here) is (mode == "same")


@pytest.mark.parametrize("mode", ["same", "mapped"])
async def test_a_group_goes_on_with_the_record_it_would_have_read_next(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, mode: str
) -> None:
    """
    Whatever it has committed, in both directions: a record's offset, a marker's, or the end behind a marker.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(60, 100), 7, transactional_id=name)
    settings = await copied(source, target, name, mode)
    there, here = offsets_of(source, name), offsets_of(target, name)
    ends = [watermarks(side.bootstrap, name)[0][1] for side in (source, target)]
    at_source, at_target = ([*range(0, end - 10, 9), *range(end - 10, end + 1)] for end in ends)

    tp = TopicPartition(name, 0)
    forth = [await translate(settings, tp, offset, reverse=False, committed=True) for offset in at_source]
    back = [await translate(settings, tp, offset, reverse=True, committed=True) for offset in at_target]

    assert [following(here, offset) for offset in forth] == [following(there, offset) for offset in at_source]
    assert [following(there, offset) for offset in back] == [following(here, offset) for offset in at_target]
    assert [back[-1], forth[-1]] == ends


async def test_what_was_not_copied_is_refused(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Records behind the end, partitions and flows that are not there: nothing is guessed.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(10, 100))
    settings = await copied(source, target, name, "mapped")

    with pytest.raises(UntranslatableError, match="not copied yet"):
        await translate(settings, TopicPartition(name, 0), 10, reverse=False)
    with pytest.raises(UnknownPartitionError, match=f"has not copied {name}-7"):
        await translate(settings, TopicPartition(name, 7), 0, reverse=False)
    with pytest.raises(UsageError, match="flow never-run has no state"):
        await translate(
            settings.model_copy(update={"flow": "never-run"}), TopicPartition(name, 0), 0, reverse=False
        )
    assert "__twinsite_state.never-run" not in target.admin.list_topics(timeout=10).topics


async def test_a_partition_somebody_else_wrote_to_is_refused(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Which records are copies cannot be told any more.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(10, 100))
    settings = await copied(source, target, name, "same")
    load(target.bootstrap, name, json_rows(1, 100))

    with pytest.raises(StateConflictError, match="something else has written there"):
        await translate(settings, TopicPartition(name, 0), 3, reverse=False)


async def test_the_command_line_asks_the_target_when_it_is_given_the_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The same document as from a running mirror, the same exit codes for refusals.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(10, 100))
    file = tmp_path / "flow.yaml"
    file.write_text(shown_as_yaml(await copied(source, target, name, "same")))
    asking = ("offsets", "translate", "--config", str(file), "--topic", name, "--partition", "0")

    answered = await twinsite(*asking, "--offset", "4", "-o", "json", work_dir=tmp_path)
    refused = await twinsite(*asking, "--offset", "10", work_dir=tmp_path)

    assert answered.document == {
        "schema": 1,
        "topic": name,
        "partition": 0,
        "source_offset": 4,
        "target_offset": 4,
    }
    assert (refused.code, refused.stdout) == (4, "")
    assert refused.stderr.startswith("error: source offset 10 is not copied yet")
