"""Whose a target partition is: what other flows have written down, and which of two takes its word back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from checkpoint.errors import StateTakenOverError
from checkpoint.model import FlowRecord, PartitionRecord
from checkpoint.topic_store import TopicStore
from mirror.errors import ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.flow.claims import Claims
from mirror.flow.facts import Known, TargetLook
from mirror.flow.other_flows import OtherFlow
from mirror.flow.position import Decision, Prepare, Proceed, Register, Stop
from mirror.flow.taking import Claim, claim, takes, to_note, yields
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.contract.memory_log import MemoryLog

HERE, ANOTHER = UUID(int=1), UUID(int=2)
ORDERS_0 = TopicPartition("orders", 0)
LEADER = PartitionInfo(1, 0, (1,), (1,))
EMPTY = TargetLook(0, 0, None, None, 0, None, topic_id=str(HERE))
WRITTEN = replace(EMPTY, target_log_end_offset=50)
KNOWN = Known("t", OffsetMode.SAME, 100, True, lambda end: end, target_topic_id=str(HERE))
THEIRS = PartitionRecord("orders", 0, str(UUID(int=9)), "orders", OffsetMode.SAME, True, 0, 0)
REGISTER = Register(OffsetMode.MAPPED, 0, 50, prepared=True, shared=True)


def at(offset: int) -> Proceed:
    return Proceed(offset, offset, 0, 0, offset)


@pytest.mark.parametrize(
    ("decision", "known", "taking", "noted"),
    [
        (REGISTER, None, True, None),
        (Prepare(100, 0, 0, 0), KNOWN, True, None),
        (Prepare(100, 0, 0, 0), replace(KNOWN, target_topic_id=str(ANOTHER)), True, str(HERE)),
        (at(100), KNOWN, True, None),
        (at(101), KNOWN, False, None),
        (at(101), replace(KNOWN, target_topic_id=None), False, str(HERE)),
        (at(101), replace(KNOWN, target_topic_id=str(ANOTHER)), True, str(HERE)),
    ],
)
def test_what_is_not_copied_into_yet_is_taken(
    decision: Decision, known: Known | None, taking: bool, noted: str | None
) -> None:
    """
    So is a topic that was made anew. What was begun before ids were written down just goes on.
    """
    assert takes(decision, known, EMPTY) is taking
    assert to_note(decision, known, EMPTY) == noted


def test_what_holds_our_padding_is_ours_already() -> None:
    """
    A preparation that was cut off goes on, whatever another flow has written down of a topic before this one.
    """
    half = Prepare(100, 0, 50, 50)

    assert not takes(half, KNOWN, WRITTEN)
    assert not takes(half, replace(KNOWN, target_topic_id=None), WRITTEN)
    assert takes(half, replace(KNOWN, target_topic_id=str(ANOTHER)), WRITTEN)


def test_what_does_not_go_on_takes_nothing_and_notes_nothing() -> None:
    """
    Else it would go on later in a topic that was made anew without a question whose that is.
    """
    elsewhere = replace(KNOWN, target_topic_id=str(ANOTHER))
    stop = Stop(State.DIVERGED, Reason.TARGET_TRUNCATED, "it was made anew")

    assert to_note(stop, elsewhere, EMPTY) is None
    assert not takes(stop, elsewhere, EMPTY)


def test_what_others_have_filled_is_taken_as_far_as_asking_whose_it_is() -> None:
    """
    It is refused either way: because it is not empty, or as the copy of another flow.
    """
    filled = Stop(State.BLOCKED, Reason.TARGET_NOT_EMPTY, "it holds others")

    assert takes(filled, None, WRITTEN)
    assert to_note(filled, None, WRITTEN) is None
    assert not yields("z", Claim("a", ORDERS_0), filled, None, WRITTEN)


@pytest.mark.parametrize(
    ("topic_id", "target", "theirs"),
    [
        (HERE, EMPTY, True),
        (HERE, WRITTEN, True),
        (ANOTHER, WRITTEN, False),
        (None, WRITTEN, True),
        (None, EMPTY, False),
        (HERE, replace(WRITTEN, topic_id=None), True),
        (HERE, replace(EMPTY, topic_id=None), False),
    ],
)
def test_a_partition_is_anothers_by_the_id_of_its_topic(
    topic_id: UUID | None, target: TargetLook, theirs: bool
) -> None:
    """
    Where none was written down, or the target does not tell it just now, by what stands there.
    """
    record = replace(THEIRS, target_topic_id=None if topic_id is None else str(topic_id))

    assert claim("old", record, target) == (Claim("old", ORDERS_0) if theirs else None)
    assert claim("old", None, target) is None


def test_of_two_flows_that_begin_at_once_exactly_one_takes_its_word_back() -> None:
    """
    The second one by name; and none that has written anything.
    """

    def back(flow: str, other: str, decision: Decision, target: TargetLook = EMPTY) -> bool:
        return yields(flow, Claim(other, ORDERS_0), decision, KNOWN, target)

    assert [back("a", "b", at(100)), back("b", "a", at(100))] == [False, True]
    assert back("b", "a", Prepare(100, 0, 0, 0))
    assert not back("b", "a", Prepare(100, 0, 50, 50), WRITTEN)
    assert not back("b", "a", at(101))
    assert not yields("b", Claim("a", ORDERS_0), REGISTER, None, EMPTY)


# -- read at the target ----------------------------------------------------------------------------


class Target:
    """A target at which flows keep what they remember.

    Attributes:
        stored: By flow; None: it may not be read.
        silent: Flows whose state nobody leads.
        loads: How often one of them was read.
        asked: Set once somebody asks for what is there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: dict[str, Mapping[str, bytes] | None] = {}
        self.silent: set[str] = set()
        self.loads: list[str] = []
        self.asked = asyncio.Event()
        self.topic_id = HERE
        monkeypatch.setattr("mirror.flow.other_flows.TopicLog", lambda _, topic, **__: Stored(self, topic))
        monkeypatch.setattr("mirror.flow.other_flows.TopicStore", lambda log: log)

    def remember(self, flow: str, *partitions: int, topic_id: UUID = HERE) -> None:
        records = [replace(THEIRS, partition=n, target_topic_id=str(topic_id)) for n in partitions]
        own = FlowRecord(4000, 0, "source-id", "target-id", 0, "")
        self.stored[flow] = {"flow": own.to_bytes(), **{r.key: r.to_bytes() for r in records}}

    async def describe_topics(self, names: Collection[str] | None) -> ClusterInfo:
        assert names is None, "states are listed"
        self.asked.set()
        states = {f"__twinsite_state.{flow}": UUID(int=100 + n) for n, flow in enumerate(self.stored)}
        ids = states | {"orders": self.topic_id}
        topics = {name: TopicInfo(name, topic_id, False, {0: LEADER}) for name, topic_id in ids.items()}
        return ClusterInfo("target-id", 1, {}, topics)


class Stored:
    """The state of a flow, and the log that it is in."""

    def __init__(self, target: Target, topic: str) -> None:
        self.target, self.flow = target, topic.removeprefix("__twinsite_state.")
        self.written_at_ms = int(time.time() * 1000)

    async def end(self) -> int:
        if self.flow in self.target.silent:
            raise ConnectionFailedError(f"target: no leader of the state of {self.flow}")
        return 1

    async def load(self) -> Mapping[str, bytes]:
        self.target.loads.append(self.flow)
        items = self.target.stored[self.flow]
        if items is None:
            raise NotAuthorizedError("target: Fetch: TOPIC_AUTHORIZATION_FAILED")
        return items


async def objections(claims: Claims, partitions: int) -> Mapping[TopicPartition, Claim | TwinsiteError]:
    return await claims.objections({TopicPartition("orders", n): EMPTY for n in range(partitions)})


async def test_partitions_of_other_flows_are_found_by_reading_each_state_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    However many are asked for. Our own word, and one about a topic that was deleted, are no objection.
    """
    target = Target(monkeypatch)
    target.remember("new", *range(1000))
    target.remember("old", 7, 8)
    target.remember("older", 8, 9)
    target.remember("gone", 5, topic_id=ANOTHER)

    found = await objections(Claims(cast(Any, target), "new"), 1000)

    claimed = {tp.partition: one.flow for tp, one in found.items() if isinstance(one, Claim)}
    assert claimed == {7: "old", 8: "old", 9: "older"}
    assert len(found) == 3
    assert sorted(target.loads) == ["gone", "old", "older"]


async def test_all_who_ask_during_one_look_share_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who asks is not told what was seen before: another flow may have written its word down since.
    """
    target = Target(monkeypatch)
    target.remember("old")
    claims = Claims(cast(Any, target), "new")

    first = asyncio.create_task(objections(claims, 1))
    await target.asked.wait()
    later = [asyncio.create_task(objections(claims, 1)) for _ in range(20)]
    await asyncio.sleep(0)
    target.remember("old", 0)
    found = [await one for one in (first, *later)]

    assert [one.get(ORDERS_0) for one in found[1:]] == [Claim("old", ORDERS_0)] * 20
    assert target.loads == ["old"] * 2


async def test_what_was_read_is_decoded_again_only_where_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A flow of many partitions takes long to decode, and is asked for with each group that is begun.
    """
    decoded: list[int] = []
    of = OtherFlow.of

    def counted(name: str, items: Mapping[str, bytes]) -> OtherFlow | None:
        decoded.append(len(items))
        return of(name, items)

    monkeypatch.setattr(OtherFlow, "of", counted)
    target = Target(monkeypatch)
    target.remember("old", 0)
    claims = Claims(cast(Any, target), "new")

    for _ in range(3):
        await objections(claims, 2)
    target.remember("old", 0, 1)
    found = await objections(claims, 2)

    assert decoded == [2, 3]
    assert len(found) == 2


async def test_a_flow_keeps_its_partitions_while_its_state_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Its topic was deleted. That takes several batches, after each of which somebody asks for all of them.
    """
    monkeypatch.setattr("checkpoint.batches.BATCH_BYTES_MAX", 1000)
    target = Target(monkeypatch)
    target.remember("old", *range(20))
    log = WatchedLog()
    monkeypatch.setattr("mirror.flow.other_flows.TopicLog", lambda *_, **__: log)
    monkeypatch.setattr("mirror.flow.other_flows.TopicStore", TopicStore)
    store = TopicStore(log, writer=lambda: (7, 1))
    await store.put(target.stored["old"] or {})
    claims = Claims(cast(Any, target), "new")

    log.ask = lambda: objections(claims, 20)
    before = await log.ask()
    log.truncate(0)
    with suppress(StateTakenOverError):
        await store.put({"owner": b"here"})
    await store.put({"owner": b"here"})

    assert len(before) == 20
    assert len(log.answers) > 3
    assert log.answers == [before] * len(log.answers)


class WatchedLog(MemoryLog):
    """A log of which somebody asks something after each append."""

    def __init__(self) -> None:
        super().__init__()
        self.ask: Callable[[], Awaitable[object]] | None = None
        self.answers: list[object] = []

    async def append(self, batch: bytes) -> int:
        base = await super().append(batch)
        if self.ask is not None:
            self.answers.append(await self.ask())
        return base


async def test_a_state_that_may_not_be_read_is_named_and_objects_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What is known of the others counts.
    """
    target = Target(monkeypatch)
    target.stored["closed"] = None
    target.remember("old", 1)

    with capture_logs() as logs:
        found = await objections(Claims(cast(Any, target), "new"), 2)

    assert [tp.partition for tp in found] == [1]
    assert [(line["event"], line["topic"]) for line in logs] == [
        ("other_flow_not_known", "__twinsite_state.closed")
    ]


async def test_nothing_is_taken_before_each_state_that_may_be_read_was_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Later what was known of the flow counts. What is known of the others comes first.
    """
    target = Target(monkeypatch)
    target.remember("away", 0)
    target.remember("old", 1)
    target.silent = {"away"}
    claims = Claims(cast(Any, target), "new")

    before = await objections(claims, 3)
    target.silent = set()
    known = await objections(claims, 3)
    target.silent = {"away", "old"}
    after = await objections(claims, 3)

    said = [str(before[TopicPartition("orders", n)]) for n in (0, 2)]
    assert said == ["target: no leader of the state of away"] * 2
    assert before[TopicPartition("orders", 1)] == Claim("old", ORDERS_0._replace(partition=1))
    assert known == after
    assert {tp.partition for tp in after} == {0, 1}


async def test_nothing_is_taken_while_a_state_of_which_nothing_was_read_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Its topic was deleted, and the flow's own record comes last. A flow that has written nothing has no claim.
    """
    target = Target(monkeypatch)
    target.remember("old", 1)
    whole = target.stored["old"] or {}
    target.stored = {"old": {key: value for key, value in whole.items() if key != "flow"}, "died": {}}
    claims = Claims(cast(Any, target), "new")

    before = await objections(claims, 2)
    target.stored["old"] = whole
    after = await objections(claims, 2)

    said = [one for one in before.values() if isinstance(one, TwinsiteError)]
    assert len(said) == 2
    assert all(one.retriable and "the state of flow old is incomplete" in str(one) for one in said)
    assert after == {ORDERS_0._replace(partition=1): Claim("old", ORDERS_0._replace(partition=1))}


async def test_what_was_left_of_a_state_long_ago_is_told_by_the_times_of_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It holds nothing up, until somebody writes to it again.
    """
    target, log = Target(monkeypatch), MemoryLog()
    target.stored["died"] = {}
    monkeypatch.setattr("mirror.flow.other_flows.TopicLog", lambda *_, **__: log)
    monkeypatch.setattr("mirror.flow.other_flows.TopicStore", TopicStore)
    await log.append(MemoryLog.encode([(0, THEIRS.key.encode(), THEIRS.to_bytes())]))
    claims = Claims(cast(Any, target), "new")

    left = await objections(claims, 1)
    await TopicStore(log).put({"owner": b"here"})
    looking_on = await objections(claims, 1)
    starting = await objections(Claims(cast(Any, target), "new"), 1)

    assert left == {}
    assert isinstance(looking_on[ORDERS_0], TwinsiteError)
    assert isinstance(starting[ORDERS_0], TwinsiteError)


async def test_a_topic_made_anew_since_it_was_looked_at_is_not_taken_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is looked at again: what would be written down is an id that is gone.
    """
    target = Target(monkeypatch)
    target.topic_id = ANOTHER

    found = await objections(Claims(cast(Any, target), "new"), 1)

    objection = found[ORDERS_0]
    assert isinstance(objection, TwinsiteError)
    assert objection.retriable
