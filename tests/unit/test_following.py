"""When another pass is made over topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import mirror.sync.follow
import mirror.sync.target_requests
from mirror.config import parse
from mirror.errors import ConnectionFailedError
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.acls import TopicAcl
from mirror.model import OffsetMode, Reason, State, TopicLeftOut, TopicPartition
from mirror.sync.acls import Skipped
from mirror.sync.follow import Follower
from mirror.sync.returning import Returning
from mirror.sync.target_topics import TargetTopics
from tests.harness.daemon import until
from tests.unit.target_side import ORDERS_ID, SHORT, Cluster, a_topic

ORDERS_0 = TopicPartition("orders", 0)
SETTINGS = parse(
    {
        "source": {"bootstrap_servers": "127.0.0.1:1"},
        "target": {"bootstrap_servers": "127.0.0.1:2"},
        "topics": {"include": [".*"]},
    }
)


class Shown(Cluster):
    """A cluster that counts how often all its topics are asked for.

    Attributes:
        passes: How often.
        during_refresh: Called where it is looked at once more, if anything is.
        silent: Topics of which it does not say anything, asked for them by name.
    """

    passes = 0
    during_refresh: Callable[[], None] | None = None
    silent: frozenset[str] = frozenset()

    def open_ahead(self, nodes: object) -> None:
        pass

    async def refresh(self) -> None:
        await super().refresh()
        if self.during_refresh is not None:
            self.during_refresh()

    async def describe_topics(self, topics: Collection[str] | None) -> Any:
        self.passes += topics is None
        if self.silent.intersection(topics or ()):
            raise ConnectionFailedError("no answer")
        return await super().describe_topics(topics)


class Engine:
    """Copies nothing; a partition that is to go on is looked at anew."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionCopy] = {}

    def add(self, partition: PartitionCopy) -> None:
        self.partitions[partition.tp] = partition

    def drop(self, partition: PartitionCopy) -> None:
        del self.partitions[partition.tp]

    def pause(self, partition: PartitionCopy) -> None:
        partition.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)

    def changed(self, partition: PartitionCopy) -> None:
        pass

    def resume(self, partition: PartitionCopy) -> None:
        partition.look_anew(0.0)


class Memory:
    """What the flow remembers: of which topics it has begun partitions.

    Attributes:
        stored: That is what is stored; one that stands by sees it after a refresh.
    """

    def __init__(self, stored: dict[TopicPartition, str] | None = None) -> None:
        self.stored = {} if stored is None else stored
        self.topic_ids = dict(self.stored)

    def known(self, _: TopicPartition) -> None:
        return None

    def begin(self, tp: TopicPartition, topic_id: UUID = ORDERS_ID) -> None:
        self.stored[tp] = self.topic_ids[tp] = str(topic_id)

    async def refresh(self, *, sole_writer: bool) -> None:
        assert not sole_writer
        self.topic_ids = dict(self.stored)

    async def forget(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            del self.stored[tp], self.topic_ids[tp]


def follower_of(
    source: Cluster, target: Cluster, engine: Engine, memory: Memory | None = None, *, held: bool = True
) -> Follower:
    turn = SimpleNamespace(is_ours=lambda: True)
    hooks = SimpleNamespace(changed=engine.changed, stale=lambda cluster: None)
    flow = SimpleNamespace(source=source, target=target, batch_bytes_max={}, hooks=hooks, turn=turn)
    right = SimpleNamespace(held=held)
    remembered = memory or Memory()
    return Follower(SETTINGS, cast(Any, flow), cast(Any, engine), cast(Any, remembered), cast(Any, right))


async def test_a_copy_that_ends_makes_a_topic_as_soon_as_the_target_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It makes no other pass: what has come to the source since it began is none of it.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "CHANGE_SECONDS", 0.05)
    monkeypatch.setattr(mirror.sync.follow, "TEND_SECONDS", 0.01)
    source, target, engine = Shown("source", orders=SHORT), Shown("target"), Engine()
    rounds: list[bool] = []
    finish = TargetTopics.finish

    async def counted(topics: TargetTopics, *, again: bool) -> frozenset[str]:
        rounds.append(again)
        return await finish(topics, again=again)

    monkeypatch.setattr(TargetTopics, "finish", counted)
    follower = follower_of(source, target, engine)
    target.hangs = True
    await follower.follow()
    partition = engine.partitions[ORDERS_0]
    held_up = partition.state

    following = asyncio.create_task(follower.run(once=True))
    await until(lambda: target.waiting > 1, "it is tried again", 5)
    source.configs["audit"], source.topics["audit"] = {}, a_topic("audit")
    source.topics["orders"] = a_topic("orders", partitions=2)
    target.hangs = False
    await until(lambda: partition.state is State.UNKNOWN, "it is copied", 5)
    passes, tended = source.passes, len(rounds)
    await until(lambda: len(rounds) > tended + 3, "it goes on", 5)
    following.cancel()

    assert held_up is State.BLOCKED
    assert list(target.topics) == ["orders"]
    assert list(engine.partitions) == [ORDERS_0]
    assert source.passes == passes


async def test_a_copy_that_ends_says_to_its_end_what_it_could_not_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It begins nothing later: a topic that proves to be no copy is neither copied then nor in order.
    """
    source, target, engine = Shown("source", orders=SHORT, audit=SHORT), Shown("target"), Engine()
    follower = follower_of(source, target, engine)
    unsure = TopicLeftOut("audit", "not_known", "no leader answers")
    said = {"audit": unsure}

    async def left_out(*_: object) -> dict[str, TopicLeftOut]:
        return dict(said)

    monkeypatch.setattr(Returning, "left_out", left_out)
    await follower.follow()
    said.clear()
    await follower.follow(nothing_new=True)
    to_the_end = follower.left_out
    await follower.follow()

    assert to_the_end == (unsure,)
    assert follower.left_out == ()
    assert {tp.topic for tp in engine.partitions} == {"orders", "audit"}


# -- topics that are not shown any more ------------------------------------------------------------------


class Sites:
    """Two clusters with ``orders`` and ``audit`` at both, and the mirror that copies them.

    Attributes:
        standby: Another mirror of the flow, which stands by.
        said: Of which topics they have said that they are forgotten.
    """

    def __init__(self) -> None:
        topics = {"orders": SHORT, "audit": SHORT}
        self.source, self.target = Shown("source", **topics), Shown("target", **topics)
        self.memory, self.engine = Memory(), Engine()
        self.mirror = follower_of(self.source, self.target, self.engine, self.memory)
        self.standby_engine = Engine()
        self._standby_memory = Memory(self.memory.stored)
        self.standby = follower_of(
            self.source, self.target, self.standby_engine, self._standby_memory, held=False
        )
        self.said: list[str] = []

    async def begin(self) -> None:
        """Both topics are copied."""
        await self.passes(1)
        for tp in self.engine.partitions:
            self.memory.begin(tp)
        await self._standby_memory.refresh(sole_writer=False)

    async def passes(self, count: int, *, nothing_new: bool = False) -> None:
        with capture_logs() as logged:
            for _ in range(count):
                await self.mirror.follow(nothing_new=nothing_new)
                await self.standby.follow(nothing_new=nothing_new)
        self.said += [line["topic"] for line in logged if line["event"] == "topic_forgotten"]

    def delete(self, *clusters: Cluster, topic: str = "orders") -> None:
        for cluster in clusters:
            del cluster.topics[topic]

    @property
    def orders(self) -> PartitionCopy:
        return self.engine.partitions[ORDERS_0]

    @property
    def known(self) -> list[bool]:
        """Whether the partition is in the flow's state, and copied by either mirror."""
        mirrors = self.engine.partitions, self.standby_engine.partitions
        return [ORDERS_0 in self.memory.stored, *(ORDERS_0 in partitions for partitions in mirrors)]


@pytest.fixture
async def sites() -> Sites:
    made = Sites()
    await made.begin()
    return made


async def test_a_topic_that_the_source_does_not_have_any_more_is_deleted(sites: Sites) -> None:
    """
    Its copy is kept; so is what the flow knows of it, however long. Shown again under its id it goes on.
    """
    before = sites.source.topics["orders"]
    sites.delete(sites.source)

    await sites.passes(5)
    gone = (sites.orders.state, sites.orders.reason, sites.orders.topic_gone)
    sites.source.topics["orders"] = before
    await sites.passes(1)

    assert gone == (State.BLOCKED, Reason.TOPIC_DELETED, True)
    assert (sites.orders.state, sites.orders.topic_gone) == (State.UNKNOWN, False)
    assert sites.known == [True, True, True]


async def test_a_topic_that_is_hidden_is_not_said_to_be_deleted(sites: Sites) -> None:
    """
    Whether it is there may not be seen, whatever has become of its copy. Shown again it goes on.
    """
    sites.source.hidden = {"orders"}
    sites.delete(sites.target)

    await sites.passes(3)
    hidden = (sites.orders.state, sites.orders.reason, sites.orders.topic_gone)
    sites.source.hidden = set()
    await sites.passes(1)

    assert hidden == (State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED, False)
    assert sites.orders.state is State.UNKNOWN
    assert sites.known == [True, True, True]


async def test_a_source_that_shows_nothing_says_nothing(sites: Sites) -> None:
    """
    What was said before holds: a topic that was hidden goes on when it is shown again.
    """
    sites.source.hidden = {"orders"}
    await sites.passes(1)
    sites.source.hidden = {"orders", "audit"}
    await sites.passes(1)
    audit = sites.engine.partitions[TopicPartition("audit", 0)]
    meanwhile = (sites.orders.reason, audit.state)
    sites.source.hidden = set()
    await sites.passes(1)

    assert meanwhile == (Reason.SOURCE_NOT_AUTHORIZED, State.UNKNOWN)
    assert sites.orders.state is State.UNKNOWN


async def test_that_a_source_shows_nothing_is_said_once(sites: Sites) -> None:
    """
    Until it shows something again; not where nothing is copied, as there is another word for that.
    """
    shown, told = dict(sites.source.topics), list[tuple[str, int]]()

    for topics in ({}, {}, shown, {}):
        sites.source.topics = dict(topics)
        with capture_logs() as logged:
            await sites.mirror.follow()
        told += [(line["log_level"], line["topics"]) for line in logged if line["event"] == "no_topics_shown"]

    with capture_logs() as logged:
        await follower_of(Shown("source"), Shown("target"), Engine()).follow()

    assert told == [("warning", 2)] * 2
    assert logged == []


async def test_an_operator_who_resumes_what_is_gone_changes_nothing(sites: Sites) -> None:
    """
    It is not looked at where there is nothing; what he has paused stays so, and is gone all the same.
    """
    sites.engine.pause(sites.orders)
    sites.delete(sites.source)
    await sites.passes(1)
    paused = (sites.orders.state, sites.orders.topic_gone)

    sites.engine.resume(sites.orders)
    sites.mirror.hold(sites.orders)

    assert paused == (State.PAUSED, True)
    assert sites.orders.reason is Reason.TOPIC_DELETED


@pytest.mark.parametrize("paused", [True, False])
async def test_a_topic_that_is_gone_at_both_sides_is_forgotten(sites: Sites, paused: bool) -> None:
    """
    At the second pass that says so, by the mirror that copies; the one that stands by lets go of it, too.
    What is made under the name later is a topic like any other.
    """
    if paused:
        sites.engine.pause(sites.orders)
    sites.delete(sites.source, sites.target)

    await sites.passes(1)
    first, said = sites.known, list(sites.said)
    await sites.passes(1)
    second = sites.known
    sites.source.topics["orders"] = a_topic("orders", topic_id=UUID(int=8))
    await sites.passes(1)

    assert (first, said) == ([True, True, True], [])
    assert second == [False, False, False]
    assert sites.said == ["orders"]
    assert (sites.orders.state, sites.orders.topic_id) == (State.UNKNOWN, UUID(int=8).bytes)
    assert "orders" in sites.target.topics


async def test_a_topic_whose_copy_is_hidden_is_not_forgotten(sites: Sites) -> None:
    """
    The target does not say whether it is there.
    """
    sites.target.hidden = {"orders"}
    sites.delete(sites.source)

    await sites.passes(3)

    assert sites.known == [True, True, True]


@pytest.mark.parametrize("again", ["source", "target", "no answer"])
async def test_only_what_is_gone_at_two_passes_running_is_forgotten(sites: Sites, again: str) -> None:
    """
    Made again in between, at either side, or the target has not said so.
    """
    sites.delete(sites.source, sites.target)
    await sites.passes(1)
    cluster = sites.source if again == "source" else sites.target
    if again == "no answer":
        cluster.silent = frozenset({"orders"})
    else:
        cluster.topics["orders"] = a_topic("orders", topic_id=UUID(int=8))
    await sites.passes(1)
    cluster.silent = frozenset()
    cluster.topics.pop("orders", None)

    await sites.passes(1)
    third = sites.known
    await sites.passes(1)

    assert third == [True, True, True]
    assert sites.known == [False, False, False]


async def test_a_copy_that_ends_forgets_nothing(sites: Sites) -> None:
    """
    Its passes are over what it has begun with.
    """
    sites.delete(sites.source, sites.target)

    await sites.passes(3, nothing_new=True)

    assert sites.known == [True, True, True]


async def test_a_topic_of_which_nothing_was_begun_is_let_go_when_it_is_gone(sites: Sites) -> None:
    """
    Nothing of it is in the flow's state.
    """
    sites.memory.stored.pop(ORDERS_0), sites.memory.topic_ids.pop(ORDERS_0)
    sites.delete(sites.source)

    await sites.passes(1)

    assert sites.known == [False, False, False]


def test_a_rule_that_may_be_a_denial_is_warned_of_once() -> None:
    """
    A permission that is not known here may be one. A right that is left out keeps nobody out at the source.
    """
    follower = follower_of(Shown("source"), Shown("target"), Engine())
    kinds = ("ALLOW", "DENY", "UNKNOWN_9")
    rules = [TopicAcl("orders", "LITERAL", f"User:{kind}", "*", "READ", kind) for kind in kinds]

    with capture_logs() as logs:
        for _ in range(2):
            follower._tell_denials([Skipped(rule, "why") for rule in rules])

    assert [(line["event"], line["principal"]) for line in logs] == [
        ("denial_not_carried", "User:DENY"),
        ("denial_not_carried", "User:UNKNOWN_9"),
    ]


@pytest.mark.parametrize("began", ["before the pass", "during the pass"])
async def test_settings_that_keep_record_times_end_what_the_answer_to_an_append_began(began: str) -> None:
    """
    There may be nothing left to copy, so that no append would. Settings that were read earlier end nothing.
    """
    source, target, engine = Shown("source", orders=SHORT), Shown("target"), Engine()
    follower = follower_of(source, target, engine)
    await follower.follow()
    partition = engine.partitions[ORDERS_0]
    look = partial(partition.proceed, Proceed(10, 10, 5, 0, 10), OffsetMode.SAME, 0, 0.0)
    look()

    def stamp() -> None:
        partition.answered_with_other_time(0.0, current=True)
        look()

    if began == "before the pass":
        stamp()
    else:
        source.during_refresh = stamp
    await follower.follow()
    stays = partition.reason is Reason.APPEND_TIMES
    look()

    assert stays == (began == "during the pass")
    assert (partition.state is State.ACTIVE) == (began == "before the pass")


@pytest.mark.parametrize("meanwhile", ["another mirror copies", "a broker does not answer"])
async def test_settings_that_keep_record_times_end_it_too_where_something_else_is_shown(
    meanwhile: str,
) -> None:
    """
    Once that has passed, the partition would be held though nothing replaces times any more: for example when
    this mirror takes over weeks later.
    """
    source, target, engine = Shown("source", orders=SHORT), Shown("target"), Engine()
    follower = follower_of(source, target, engine)
    await follower.follow()
    partition = engine.partitions[ORDERS_0]
    look = partial(partition.proceed, Proceed(10, 10, 5, 0, 10), OffsetMode.SAME, 0, 0.0)
    look()
    partition.answered_with_other_time(0.0, current=True)
    look()
    if meanwhile == "another mirror copies":
        partition.stand_by(0.0, 5.0, meanwhile)
    else:
        partition.stop(State.BLOCKED, Reason.TARGET_UNAVAILABLE, meanwhile, 5.0)
    shown = partition.state, partition.reason

    await follower.follow()
    stays = (partition.state, partition.reason) == shown
    look()

    assert stays
    assert (partition.state, partition.reason) == (State.ACTIVE, None)
