"""Copies to which nothing comes, on real brokers: what others do to them is said, though nothing is sent."""

from __future__ import annotations

from functools import partial

import pytest

from mirror import taking_part
from mirror.flow.context import Limits
from mirror.model import PartitionStatus, Reason, State
from tests.conftest import TopicFactory
from tests.harness.checker import watermarks
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import Condition, flow_of, running, states

pytestmark = pytest.mark.timeout(120)

COPIED = 20
FINE = (State.ACTIVE, None)
FOREIGN = (State.DIVERGED, Reason.FOREIGN_WRITE)
TRUNCATED = (State.DIVERGED, Reason.TARGET_TRUNCATED)
NEVER = 3600
IDLE_SECONDS = 1.0
"""Longer than the source holds a request back: what comes after a look is still sent without another."""


def rows(partitions: int) -> list[Row]:
    return [Row(key=b"%d" % n, value=b"value", partition=p) for p in range(partitions) for n in range(COPIED)]


def complete(partitions: int) -> Condition:
    def seen(found: dict[int, PartitionStatus]) -> bool:
        return [found[n].next_offset for n in sorted(found)] == [COPIED] * partitions

    return seen


@pytest.mark.parametrize("offsets", ["same", "mapped"])
async def test_a_foreign_record_in_an_idle_copy_is_said(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    offsets: str,
) -> None:
    """
    The partition beside it stays as it is.
    """
    monkeypatch.setattr(taking_part, "Limits", partial(Limits, idle_look_seconds=IDLE_SECONDS))
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, rows(2))

    async with running(flow_of(source, target, name, offsets=offsets)) as until:
        await until(complete(2))
        load(target.bootstrap, name, [Row(key=b"key", value=b"foreign", partition=0)])
        await until(lambda seen: states(seen) == [FOREIGN, FINE])


async def test_an_idle_copy_that_somebody_has_made_again_is_said_to_be_truncated(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before the mirror's next pass over the topics could have noticed that it was not there.
    """
    monkeypatch.setattr(taking_part, "Limits", partial(Limits, idle_look_seconds=IDLE_SECONDS))
    name = await topic(source)
    load(source.bootstrap, name, rows(1))

    async with running(flow_of(source, target, name, {"refresh_seconds": NEVER})) as until:
        await until(complete(1))
        await target.delete_topic(name)
        await target.create_topic(name)
        await until(lambda seen: states(seen) == [TRUNCATED])


async def test_an_idle_copy_whose_topic_was_deleted_is_said_to_be_truncated_when_it_is_made_again(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By the mirror itself, which knows then; nothing is copied into it.
    """
    monkeypatch.setattr(taking_part, "Limits", partial(Limits, idle_look_seconds=NEVER))
    name = await topic(source)
    load(source.bootstrap, name, rows(1))

    async with running(flow_of(source, target, name)) as until:
        await until(complete(1))
        await target.delete_topic(name)
        await until(lambda seen: states(seen) == [TRUNCATED])

    assert watermarks(target.bootstrap, name) == {0: (0, 0)}
