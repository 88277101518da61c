"""A running mirror notices by itself that a partition lags; log, status and metrics say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.faults.flows import partitions
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, events

pytestmark = pytest.mark.timeout(120)


def settings_file(folder: Path, source: KafkaCluster, target: KafkaCluster, topic: str) -> Path:
    """A flow of one topic with a stated lag of half a second."""
    path = folder / "flow.yaml"
    document = {
        "flow": topic,
        **source.source_settings,
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [topic]},
        "lagging_after_seconds": 0.5,
        "log": {"format": "json"},
    }
    path.write_text(yaml.safe_dump(document))
    return path


def changes_to(mirror: Twinsite, state: str) -> int:
    """How often the log says that a partition has come to this state."""
    return sum(f'"state": "{state}"' in line for line in events(mirror.stderr, "partition_state_changed"))


def shown(mirror: Twinsite) -> dict[str, Any]:
    """What is said of the only partition; nothing while nobody answers. A late answer of the source is a lag,
    too.
    """
    return next(iter(partitions(mirror)), {})


def is_active(partition: dict[str, Any]) -> bool:
    """Without a word more."""
    return [partition.get(field, "") for field in ("state", "reason", "detail")] == ["ACTIVE", None, ""]


async def test_a_transaction_left_open_is_noticed_without_anybody_asking(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The first question comes after the log line; when the transaction ends the partition is ACTIVE again.
    """
    name = await topic(source)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"held back")
    producer.flush()

    with Twinsite.run(
        "mirror", "--config", str(settings_file(tmp_path, source, target, name)), work_dir=tmp_path
    ) as mirror:
        await mirror.wait_for(lambda: changes_to(mirror, "LAGGING") >= 1, "the log says that it lags")
        held: dict[str, Any] = {}
        metrics = ""

        def is_held() -> bool:
            nonlocal metrics
            held.clear()
            held.update(shown(mirror))
            metrics = mirror.get("/metrics").decode()
            return (
                held.get("reason") == "open_transaction"
                and f'reason="open_transaction",state="LAGGING",topic="{name}"' in metrics
            )

        await mirror.wait_for(is_held, "for the transaction")
        alive = mirror.get("/livez?verbose").decode()
        producer.commit_transaction()
        await mirror.wait_for(
            lambda: changes_to(mirror, "ACTIVE") >= 2 and is_active(shown(mirror)), "it is active"
        )

    assert (held["state"], held["reason"]) == ("LAGGING", "open_transaction")
    assert "find-hanging" in held["hint"]
    assert "partitions_watched" in alive
