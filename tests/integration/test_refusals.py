"""What target brokers refuse of sound records, by the reason that a partition shows for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact
from tests.harness.data import Row, json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Finished, twinsite

pytestmark = pytest.mark.timeout(120)


async def copy_once(source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path) -> Finished:
    """One run of ``--once`` over one topic, whose settings at the target are left alone."""
    settings = folder / "flow.yaml"
    document = {
        "flow": topic,
        "source": {"bootstrap_servers": source.bootstrap},
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [re.escape(topic)], "sync_configs": False},
    }
    settings.write_text(yaml.safe_dump(document))
    arguments = ("--config", str(settings), "--once", "-o", "json", "--timeout-seconds", "5")
    return await twinsite("mirror", *arguments, work_dir=folder)


async def test_records_without_a_key_that_a_compacted_topic_refuses(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The reason says which of many things INVALID_RECORD may mean; without compaction it goes on.
    """
    name = await topic(source)
    load(source.bootstrap, name, (Row(key=None, value=row.value) for row in json_rows(20, 100)))
    await target.create_topic(name, config={"cleanup.policy": "compact"})

    refused = await copy_once(source, target, name, tmp_path)
    await target.alter_topic(name, {"cleanup.policy": "delete"})
    copied = await copy_once(source, target, name, tmp_path)

    [partition] = refused.document["partitions"]
    assert (partition["state"], partition["reason"]) == ("BLOCKED", "null_key_refused")
    assert "compact" in partition["hint"]
    assert copied.code == 0, copied.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])
