"""What can be compared of two clusters, and what is left out, and why."""

from __future__ import annotations

from mirror.config import parse
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from tests.conftest import TopicFactory
from tests.harness.kafka import KafkaCluster


async def test_partitions_that_only_the_target_has_are_left_out_and_said(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Whatever they hold is no copy, and keys do not fall to the same partitions any more.
    """
    name = await topic(source, partitions=2, prefix="surplus")
    await target.create_topic(name, partitions=4)
    clusters = {
        "source": {"bootstrap_servers": source.bootstrap},
        "target": {"bootstrap_servers": target.bootstrap},
    }
    settings = parse({"flow": name, **clusters, "topics": {"include": [name]}})

    scope = await asking.scope(settings, Wanted(same_offsets=True))

    assert [log.name.partition for log in scope.logs] == [0, 1]
    assert [(one.topic, one.partition) for one in scope.not_compared] == [(name, 2), (name, 3)]
    assert {one.why for one in scope.not_compared} == {
        "only the target has this partition: nothing in it is a copy"
    }
