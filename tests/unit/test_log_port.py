"""The flow's state topic, where it was and is no more: who makes it again, and who says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from mirror.errors import BrokerError, ConnectionFailedError
from mirror.kafka import log_port
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.kafka.dial import Address
from mirror.kafka.failures import broker_error
from mirror.kafka.log_port import StateTopic, TopicLog, ensure_state_topic
from mirror.kafka.offsets import Answers
from mirror.kafka.topics import Setting
from mirror.model import TopicPartition

STATE = "__twinsite_state.here"
GONE = 3


class Target:
    """A target that shows the state topic, or does not; each time it was made its id is another one.

    Attributes:
        made_by_us: What the attempt to make it finds out.
    """

    name = "target"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, made_by_us: bool) -> None:
        self.made_by_us = made_by_us
        self.shown = True
        monkeypatch.setattr(log_port, "list_offsets", self.list_offsets)

    @property
    def info(self) -> ClusterInfo:
        led = {0: PartitionInfo(1, 0, (1,), (1,))}
        topics = {STATE: TopicInfo(STATE, UUID(int=1), False, led)} if self.shown else {}
        return ClusterInfo("target-id", 1, {1: Address("h", 1)}, topics)

    async def describe_topics(self, _: Collection[str]) -> ClusterInfo:
        return self.info

    async def list_offsets(self, *_: object, **__: object) -> Answers[int]:
        there = 7 if self.shown else broker_error(GONE, "target: it")
        return {TopicPartition(STATE, 0): there}

    async def make(self) -> StateTopic:
        self.shown = True
        return StateTopic(self.made_by_us, 1, True)


@pytest.mark.parametrize("made_by_us", [True, False])
async def test_a_state_topic_is_said_to_be_made_again_by_who_made_it(
    monkeypatch: pytest.MonkeyPatch, made_by_us: bool
) -> None:
    """
    Not where another mirror of the flow was faster, or it was only not shown to us.
    """
    target = Target(monkeypatch, made_by_us=made_by_us)
    state = TopicLog(cast(Any, target), STATE, make=target.make)
    await state.end()
    target.shown = False

    with capture_logs() as logs:
        end = await state.end()

    assert end == 7
    assert [line["event"] for line in logs] == ["state_topic_made_again"] * made_by_us


async def test_a_leader_of_the_state_topic_that_does_not_answer_is_not_waited_for_longer_than_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nor does it help that patience is short.
    """
    target = Target(monkeypatch, made_by_us=True)
    monkeypatch.setattr(log_port, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(log_port, "list_offsets", never)

    for patience, longest in ((0.01, 0.05), (0.1, 0.1)):
        state = TopicLog(cast(Any, target), STATE, patience_seconds=patience)
        with pytest.raises(ConnectionFailedError, match=f"{STATE}-0 has not answered within {longest} s"):
            await state.end()


async def test_an_answer_that_takes_its_time_over_a_slow_link_is_waited_for_as_long_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It may be of megabytes. To ask for it again would never come to an end.
    """
    target, asked = Target(monkeypatch, made_by_us=True), SimpleNamespace(arriving_at=None)
    monkeypatch.setattr(log_port, "ANSWER_SECONDS", 0.02)
    monkeypatch.setattr(log_port, "ARRIVING_SECONDS", 0.02)

    async def connection(*_: object) -> SimpleNamespace:
        return asked

    async def peek(*_: object) -> list[object]:
        asked.arriving_at = time.monotonic()
        await asyncio.sleep(0.1)
        return []

    monkeypatch.setattr(target, "connection", connection, raising=False)
    monkeypatch.setattr(log_port, "peek", peek)
    state = TopicLog(cast(Any, target), STATE, patience_seconds=0.01)

    whole = await state.read(0)
    asked.arriving_at = None
    monkeypatch.setattr(log_port, "peek", never)
    with pytest.raises(ConnectionFailedError, match="has not answered within"):
        await state.read(0)

    assert whole == b""


async def never(*_: object, **__: object) -> Answers[int]:
    """No answer."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


@pytest.mark.parametrize(("code", "is_made"), [(40, True), (44, True), (38, False)])
async def test_where_brokers_do_not_let_a_topic_be_flushed_it_is_made_without_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int, is_made: bool
) -> None:
    """
    Anything else that they refuse is an error as before: replicas that are not there, for one.
    """
    target = Target(monkeypatch, made_by_us=True)
    target.shown = False
    asked: list[bool] = []

    async def create_topic(*_: object, configs: Mapping[str, str], **__: object) -> bool:
        asked.append("flush.messages" in configs)
        if asked[-1]:
            raise broker_error(code, "target: creating topic")
        target.shown = True
        return True

    monkeypatch.setattr(log_port, "create_topic", create_topic)

    if is_made:
        assert await ensure_state_topic(cast(Any, target), STATE, 1) == (True, 1, False)
        assert asked == [True, False]
    else:
        with pytest.raises(BrokerError, match="creating topic"):
            await ensure_state_topic(cast(Any, target), STATE, 1)
        assert asked == [True]


@pytest.mark.parametrize(("code", "another_try"), [(38, True), (41, True), (42, False)])
async def test_a_state_topic_is_worth_another_try_where_brokers_have_gone_down_just_now(
    monkeypatch: pytest.MonkeyPatch, code: int, another_try: bool
) -> None:
    """
    It is to have no more replicas than brokers were up. A mirror that starts while they restart waits for
    them, as for a controller that moves; it does not wait for what is refused for good.
    """
    target = Target(monkeypatch, made_by_us=True)
    target.shown = False

    async def create_topic(*_: object, **__: object) -> bool:
        raise broker_error(code, "target: creating topic")

    monkeypatch.setattr(log_port, "create_topic", create_topic)

    with pytest.raises(BrokerError, match="creating topic") as refused:
        await ensure_state_topic(cast(Any, target), STATE, 1)

    assert refused.value.retriable is another_try


@pytest.mark.parametrize(
    ("settings", "flushed"),
    [
        ({"cleanup.policy": "compact", "flush.messages": "1"}, True),
        ({"cleanup.policy": "compact", "flush.messages": "9223372036854775807"}, False),
        ({"cleanup.policy": "compact"}, None),
    ],
)
async def test_of_a_state_topic_that_is_there_its_settings_say_whether_it_is_flushed(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], flushed: bool | None
) -> None:
    """
    Brokers that have no such setting, or show none, leave it unknown.
    """
    target = Target(monkeypatch, made_by_us=False)

    async def describe_configs(*_: object) -> dict[str, dict[str, Setting]]:
        return {STATE: {name: Setting(value, explicit=True) for name, value in settings.items()}}

    monkeypatch.setattr(log_port, "describe_configs", describe_configs)

    assert await ensure_state_topic(cast(Any, target), STATE, 1) == (False, 1, flushed)
