"""When a target topic is changed: by whom, after which look, and as long as nobody else writes to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import mirror.sync.source_topics
import mirror.sync.target_requests
from mirror.errors import ConnectionFailedError
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import look_refusal
from mirror.kafka.cluster_info import PartitionInfo
from mirror.model import OffsetMode, Reason, State, TopicPartition
from mirror.sync.preparing import PREPARING_CONFIGS
from monitoring.outlook import Retention
from tests.unit.target_side import AS_RECORDED, KEPT, ORDERS_ID, SHORT, Cluster, Side, a_topic

TOPIC_ALREADY_EXISTS = 36


@pytest.fixture
async def side() -> Side:
    """One whose target topic is to keep less than it does."""
    side = Side(Cluster("source", orders=SHORT), Cluster("target", orders=KEPT))
    side.begin()
    return side


# -- the look --------------------------------------------------------------------------------------------


async def test_settings_follow_once_a_look_has_found_where_the_copy_ends(side: Side) -> None:
    """
    The pass before it does not wait for that.
    """
    await side.pass_by()
    before = list(side.target.changed)

    side.look(side.partitions[TopicPartition("orders", 0)])
    await side.topics.finish(again=False)

    assert before == []
    assert side.target.configs["orders"] == SHORT | AS_RECORDED


async def fail_to_look(side: Side, copy: PartitionCopy) -> None:
    error = ConnectionFailedError("no leader is known")
    for _ in range(4):
        copy.refused(look_refusal(error, at_source=True), str(error), time.monotonic())


async def pause(side: Side, copy: PartitionCopy) -> None:
    copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)


async def resume_over_foreign_records(side: Side, copy: PartitionCopy) -> None:
    side.look(copy)
    copy.stop(State.DIVERGED, Reason.FOREIGN_WRITE, "somebody else has written", None)
    copy.look_anew(time.monotonic())


async def stand_by(side: Side, copy: PartitionCopy) -> None:
    side.look(copy)
    side.right.held = False
    copy.stand_by(time.monotonic(), 1.0, "another mirror copies")


async def take_over_what_was_followed(side: Side, copy: PartitionCopy) -> None:
    """What was appended meanwhile may be anybody's."""
    await stand_by(side, copy)
    for end in (20, 23):
        copy.follow(end, end, OffsetMode.SAME)
    side.right.held, side.target.ends[copy.target] = True, 23


async def let_others_write(side: Side, copy: PartitionCopy) -> None:
    side.look(copy)
    side.target.ends[copy.target] += 3


@pytest.mark.parametrize(
    "happens",
    [
        fail_to_look,
        pause,
        resume_over_foreign_records,
        stand_by,
        take_over_what_was_followed,
        let_others_write,
    ],
)
@pytest.mark.parametrize("made_in_this_run", [False, True])
async def test_a_topic_is_left_alone_of_which_nobody_can_say_that_it_holds_our_copy_alone(
    happens: Callable[[Side, PartitionCopy], Any], made_in_this_run: bool
) -> None:
    """
    Neither settings nor partitions follow, in a pass or between two; nor do ACLs.
    """
    source, target = Cluster("source", orders=SHORT), Cluster("target", orders=KEPT)
    side = Side(source, Cluster("target") if made_in_this_run else target)
    copy = side.begin()
    await side.pass_by()
    source.topics["orders"] = a_topic("orders", partitions=2)
    source.configs["orders"] = {"retention.ms": "5"}

    await happens(side, copy)
    for _ in range(2):
        await side.pass_by()
        await side.topics.finish(again=True)

    assert side.target.changed == []
    assert await side.topics.owned_copies_of(["orders"]) == []


async def test_where_a_log_does_not_end_where_we_have_left_it_its_copy_is_looked_at(side: Side) -> None:
    """
    An idle copy would never find out; when the look goes on over it all the same, settings follow.
    """
    (copy,) = side.partitions.values()
    await let_others_write(side, copy)

    await side.pass_by()
    asked_for, changed = copy.look_due_at, list(side.target.changed)
    side.look(copy, end=23)
    await side.topics.finish(again=False)

    assert asked_for is not None
    assert (side.looks, changed) == ([copy.tp], [])
    assert side.target.configs["orders"] == SHORT | AS_RECORDED


async def test_what_was_copied_into_a_topic_that_has_to_be_made_again_is_looked_at_at_once(
    side: Side,
) -> None:
    """
    It was deleted while nothing was copied: nobody would find out before the next record.
    """
    (copy,) = side.partitions.values()
    side.look(copy)
    await side.pass_by()
    before = list(side.looks)

    del side.target.topics["orders"]
    await side.pass_by()

    assert before == []
    assert (side.looks, copy.copying) == ([copy.tp], False)


async def test_an_empty_copy_whose_topic_somebody_has_made_anew_is_looked_at(side: Side) -> None:
    """
    It ends where it was left. What is written down is the id of a topic that is gone, until a look notes it.
    """
    (copy,) = side.partitions.values()
    side.look(copy, end=0)
    await side.pass_by()
    before = list(side.looks)

    side.target.topics["orders"] = a_topic("orders", topic_id=UUID(int=8))
    await side.pass_by()
    seen, side.noted = list(side.looks), UUID(int=8)
    side.look(copy, end=0)
    await side.pass_by()

    assert (before, seen, side.looks) == ([], [copy.tp], [copy.tp])
    assert copy.copying


async def test_what_is_on_its_way_to_the_target_is_no_reason_to_wait(side: Side) -> None:
    """
    A busy copy ends further down each time it is asked for; a foreign record shifts what it sends.
    """
    (copy,) = side.partitions.values()
    side.look(copy)
    copy.markers_under_way = True
    side.target.ends[copy.target] += 7

    await side.pass_by()

    assert side.target.configs["orders"] == SHORT | AS_RECORDED
    assert side.looks == []


async def test_partitions_are_added_as_soon_as_those_that_are_there_were_looked_at(side: Side) -> None:
    """
    Until then the new ones are in conflict, and those that are there are copied.
    """
    side.source.topics["orders"] = a_topic("orders", partitions=3)
    conflicts = await side.topics.bring_up(side.source.topics)

    side.look(side.partitions[TopicPartition("orders", 0)])
    added = await side.topics.finish(again=False)

    assert (conflicts["orders"].reason, conflicts["orders"].first_partition) == (Reason.TARGET_PARTITIONS, 1)
    assert added == {"orders"}
    assert "orders has 3 partitions" in side.target.changed


# -- what may not be seen --------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [True, False])
async def test_a_topic_that_may_not_be_described_is_taken_neither_for_a_missing_one_nor_for_ours(
    create: bool,
) -> None:
    """
    A list of topics leaves it out, and it may hold anything; once it is shown it is copied to.
    """
    side = Side(Cluster("source", orders=SHORT), Cluster("target", orders=KEPT), create=create)
    side.target.hidden = {"orders"}

    hidden = await side.topics.bring_up(side.source.topics)
    side.target.hidden = set()
    shown = await side.topics.bring_up(side.source.topics)

    assert [(c.reason, c.first_partition) for c in hidden.values()] == [(Reason.TARGET_NOT_AUTHORIZED, 0)]
    assert "not authorized to see whether target topic orders exists" in hidden["orders"].detail
    assert side.target.configs["orders"] == KEPT
    assert shown == {}


# -- settings that cannot be read just now ---------------------------------------------------------------


async def test_a_topic_whose_settings_a_broker_does_not_know_yet_is_made_with_them_a_moment_later() -> None:
    """
    A broker that is asked for the settings of a new topic may not have heard of it.
    """
    side = Side(Cluster("source", orders=SHORT), Cluster("target"), sync_configs=False)
    side.source.unknown = {"orders": 1}

    conflicts = await side.topics.bring_up(side.source.topics)

    assert conflicts == {}
    assert side.target.configs["orders"] == SHORT | AS_RECORDED


@pytest.mark.parametrize("sync_configs", [True, False])
async def test_a_topic_whose_settings_cannot_be_read_is_made_at_a_pass_in_which_they_can(
    monkeypatch: pytest.MonkeyPatch, sync_configs: bool
) -> None:
    """
    It would keep everything, for ever where settings do not follow.
    """
    monkeypatch.setattr(mirror.sync.source_topics, "SETTINGS_SECONDS", 0.0)
    side = Side(Cluster("source", orders=SHORT), Cluster("target"), sync_configs=sync_configs)
    side.source.unknown = {"orders": 1}

    conflicts = await side.topics.bring_up(side.source.topics)
    made_then = dict(side.target.configs)
    later = await side.topics.bring_up(side.source.topics)

    assert conflicts["orders"].reason is Reason.SOURCE_UNAVAILABLE
    assert made_then == {}
    assert later == {}
    assert side.target.configs["orders"] == SHORT | AS_RECORDED


@pytest.mark.parametrize("at_source", [True, False])
async def test_settings_that_cannot_be_read_just_now_change_nothing_and_no_right_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, side: Side, at_source: bool
) -> None:
    """
    What was known of the source topic still holds.
    """
    monkeypatch.setattr(mirror.sync.source_topics, "SETTINGS_SECONDS", 0.0)
    await side.pass_by()
    side.look(side.partitions[TopicPartition("orders", 0)])
    await side.topics.finish(again=False)
    kept = side.source_topics.retention("orders")
    changed = list(side.target.changed)
    cluster = side.source if at_source else side.target
    cluster.unknown = {"orders": 1}

    with capture_logs() as logs:
        await side.pass_by()

    assert side.target.changed == changed
    assert side.source_topics.retention("orders") == kept
    assert kept.ms == 3_600_000
    assert [line for line in logs if line["event"] == "setting_left_out"] == []


# -- what is said ----------------------------------------------------------------------------------------


async def test_a_topic_made_with_fewer_replicas_than_the_source_has_is_warned_of_once() -> None:
    """
    A broker that is being started again does not count, and a topic keeps the replicas it is made with.
    """
    side = Side(Cluster("source", orders={}), Cluster("target"), replication_factor_capped=True)
    partition = PartitionInfo(0, 0, (0, 1, 2), (0, 1, 2))
    side.source.topics["orders"] = replace(a_topic("orders"), partitions={0: partition})

    with capture_logs() as logs:
        await side.pass_by()
        await side.pass_by()

    said = [
        (line["log_level"], line["topic"], line["setting"])
        for line in logs
        if line["event"] == "setting_left_out"
    ]
    assert said == [("warning", "orders", "replication.factor")]


# -- changes that fail -----------------------------------------------------------------------------------


async def test_a_batch_limit_that_the_target_refuses_is_not_counted_on(side: Side) -> None:
    """
    Larger batches would be sent, and refused, where they could be split.
    """
    side.source.configs["orders"] = {"max.message.bytes": "8000000"}
    await side.pass_by()
    side.look(side.partitions[TopicPartition("orders", 0)])
    side.target.refuses = True

    await side.topics.finish(again=True)

    assert side.limits == {"orders": 1048588}


async def test_a_change_during_which_the_connection_is_lost_is_made_the_next_time(side: Side) -> None:
    """
    A copy that ends has no further pass.
    """
    await side.pass_by()
    side.look(side.partitions[TopicPartition("orders", 0)])
    side.target.loses = 1

    with pytest.raises(ConnectionFailedError):
        await side.topics.finish(again=False)
    await side.topics.finish(again=True)

    assert side.target.configs["orders"] == SHORT | AS_RECORDED


@pytest.mark.parametrize("append_times", [False, True])
async def test_a_target_that_lets_changes_wait_holds_up_the_copying_of_no_topic(
    monkeypatch: pytest.MonkeyPatch, append_times: bool
) -> None:
    """
    Its controller may hang. One topic is waited for, not each; all are changed when it answers. A topic that
    would replace the times of records has to wait for that.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "CHANGE_SECONDS", 0.05)
    times = {"message.timestamp.type": "LogAppendTime"} if append_times else {}
    names = ["orders", *(f"orders{n}" for n in range(20))]
    source = Cluster("source", **dict.fromkeys(names, SHORT))
    side = Side(source, Cluster("target", **dict.fromkeys(names, KEPT | times)))
    for name in names:
        side.look(side.begin(topic=name))
    await side.pass_by()
    changed_first = list(side.target.changed)
    for name in names:
        side.target.configs[name] = KEPT | times

    side.target.hangs = True
    conflicts = await side.topics.bring_up(side.source.topics)
    side.target.hangs = False
    await side.topics.finish(again=False)

    assert len({line.split()[0] for line in changed_first}) == len(names)
    assert {c.reason for c in conflicts.values()} == ({Reason.APPEND_TIMES} if append_times else set())
    assert len(conflicts) == (len(names) if append_times else 0)
    assert side.target.waiting == 1
    assert [side.target.configs[name] for name in names] == [SHORT | AS_RECORDED] * len(names)


async def test_a_target_that_cannot_make_topics_just_now_holds_up_the_copying_of_none_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Its controller may hang: without what a new topic gets by itself none is made, at the next pass it is.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "CHANGE_SECONDS", 0.05)
    side = Side(Cluster("source", orders=SHORT, new=SHORT), Cluster("target", orders=SHORT | AS_RECORDED))
    side.look(side.begin())
    side.target.hangs = True

    conflicts = await asyncio.wait_for(side.topics.bring_up(side.source.topics), 5)
    undone = side.topics.unanswered
    side.target.hangs = False
    later = await side.topics.bring_up(side.source.topics)

    assert [(c.topic, c.reason, c.first_partition) for c in conflicts.values()] == [
        ("new", Reason.TARGET_UNAVAILABLE, 0)
    ]
    assert "target topic new does not exist, and is not created for now: target: no answer" in str(conflicts)
    assert (later, undone, side.topics.unanswered) == ({}, True, False)
    assert side.target.configs["new"] == SHORT | AS_RECORDED


class Mute(Cluster):
    """Does what it is asked for, and does not answer.

    Attributes:
        mute: To what, by the names of requests; questions that change nothing are answered.
    """

    def __init__(self, name: str, **topics: Mapping[str, str]) -> None:
        super().__init__(name, **topics)
        self.mute: set[str] = set()

    async def call_controller(self, request: Any) -> Any:
        answer = await super().call_controller(request)
        if type(request).__name__ in self.mute and not request.validate_only:
            await asyncio.Event().wait()
        return answer


async def test_a_topic_of_which_nobody_has_heard_that_it_was_made_is_ours_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It starts late, and is known again by what it keeps meanwhile; then it gets its own settings.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "CREATION_SECONDS", 0.05)
    source, target = Cluster("source", orders=SHORT), Mute("target")
    source.ends[TopicPartition("orders", 0)] = 5
    side = Side(source, target)
    target.mute = {"CreateTopicsRequest"}

    conflicts = await asyncio.wait_for(side.topics.bring_up(source.topics), 5)
    target.mute = set()
    copy = side.begin()
    side.prepared = False
    later = await side.topics.bring_up(source.topics)
    meanwhile = dict(target.configs["orders"])
    side.prepared = True
    side.look(copy)
    await side.topics.finish(again=False)

    assert [c.reason for c in conflicts.values()] == [Reason.TARGET_UNAVAILABLE]
    assert later == {}
    assert meanwhile.items() >= PREPARING_CONFIGS.items()
    assert target.configs["orders"].items() >= SHORT.items()
    assert await side.topics.owned_copies_of(["orders"]) == ["orders"]


async def test_partitions_that_are_added_without_an_answer_hold_up_no_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first topic is waited for, not each; all are asked for again between passes.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "CHANGE_SECONDS", 0.05)
    names = [f"orders{n}" for n in range(20)]
    configs = dict.fromkeys(names, SHORT | AS_RECORDED)
    side = Side(Cluster("source", **configs), Cluster("target", **configs))
    for name in names:
        side.look(side.begin(topic=name))
        side.source.topics[name] = a_topic(name, 2)

    side.target.hangs = True
    conflicts = await asyncio.wait_for(side.topics.bring_up(side.source.topics), 5)
    side.target.hangs = False
    added = await side.topics.finish(again=False)

    assert {(c.reason, c.first_partition) for c in conflicts.values()} == {(Reason.TARGET_UNAVAILABLE, 1)}
    assert side.target.waiting == 1
    assert added == conflicts.keys() == {*names}


# -- topics that are made to start late ------------------------------------------------------------------


async def test_a_topic_gets_what_the_source_keeps_when_it_is_prepared_not_when_it_was_made() -> None:
    """
    Preparing takes minutes where much is padded, and the source may have been told to keep more by then.
    """
    source, target = Cluster("source", orders=SHORT), Cluster("target")
    source.ends[TopicPartition("orders", 0)] = 5
    side = Side(source, target)
    copy = side.begin()
    side.prepared = False
    await side.pass_by()
    meanwhile = dict(target.configs["orders"])

    source.configs["orders"] = {"retention.ms": "2592000000"}
    await side.pass_by()
    side.prepared = True
    side.look(copy)
    await side.topics.finish(again=False)

    assert meanwhile.items() >= PREPARING_CONFIGS.items()
    assert target.configs["orders"]["retention.ms"] == "2592000000"
    assert "retention.ms=3600000" not in " ".join(target.changed)


class Frozen(Cluster):
    """Does not say where its partitions start."""

    async def call(self, request: Any, **_: object) -> Any:
        if type(request).__name__ == "ListOffsetsRequest":
            await asyncio.Event().wait()
        return await super().call(request)


@pytest.mark.parametrize("leader", [0, -1], ids=["frozen", "none"])
async def test_a_topic_of_which_nobody_says_where_it_starts_is_made_to_start_late(
    leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its other partitions do not wait for the one whose leader is away; when that is back it is as any other.
    """
    monkeypatch.setattr(mirror.sync.source_topics, "STARTS_SECONDS", 0.05)
    side = Side(Frozen("source", orders=SHORT), Cluster("target"))
    side.source.topics["orders"] = a_topic("orders", leader=leader)

    conflicts = await asyncio.wait_for(side.topics.bring_up(side.source.topics), 5)
    meanwhile = dict(side.target.configs["orders"])
    side.look(side.begin())
    await side.topics.finish(again=False)

    assert conflicts == {}
    assert meanwhile.items() >= PREPARING_CONFIGS.items()
    assert side.target.configs["orders"].items() >= SHORT.items()
    assert "cleanup.policy" not in side.target.configs["orders"]


class Raced(Cluster):
    """Another mirror creates a topic first, and sets it up to be prepared."""

    def _create(self, asked: Any, validate_only: bool) -> Any:
        answer = super()._create(asked, validate_only)
        if not validate_only:
            answer.error_code = TOPIC_ALREADY_EXISTS
        return answer


@pytest.mark.parametrize("lost_the_race", [True, False], ids=["lost the race", "saw it"])
@pytest.mark.parametrize("passes", [0, 1], ids=["no pass since", "a pass since"])
async def test_a_standby_that_takes_over_leaves_a_topic_alone_whose_preparation_the_owner_has_finished(
    passes: int, lost_the_race: bool
) -> None:
    """
    It saw the topic in preparation, long ago perhaps. What it has now is its owner's, or an operator's.
    """
    source, target = Cluster("source", orders=SHORT), Raced("target")
    source.ends[TopicPartition("orders", 0)] = 5
    side = Side(source, target, sync_configs=False)
    side.right.held = False
    side.prepared = False
    copy = side.begin()
    await side.pass_by()
    if not lost_the_race:
        await side.pass_by()

    target.configs["orders"] = {"retention.ms": "2592000000", "cleanup.policy": "compact"}
    for _ in range(passes):
        await side.pass_by()
    side.right.held = side.prepared = True
    side.look(copy)
    await side.topics.finish(again=True)

    assert target.changed == []


async def test_a_mirror_that_may_not_read_settings_at_the_target_prepares_only_what_it_has_created() -> None:
    """
    It cannot see that a topic is in preparation, nor that it no longer is.
    """
    settled = []
    for kind in (Raced, Cluster):
        source, target = Cluster("source", orders=SHORT), kind("target")
        source.ends[TopicPartition("orders", 0)] = 5
        target.unknown = {"orders": 1_000}
        side = Side(source, target, sync_configs=False)
        copy = side.begin()
        await side.pass_by()
        side.look(copy)
        await side.topics.finish(again=True)
        settled.append(target.changed)

    assert settled == [
        [],
        ["orders cleanup.policy=None", "orders retention.ms=3600000", "orders retention.bytes=None"],
    ]


@pytest.mark.parametrize("accepted_later", [True, False])
async def test_a_topic_that_is_prepared_again_after_a_refusal_gets_its_settings_between_passes(
    accepted_later: bool,
) -> None:
    """
    Its settings were refused the first time; then it was deleted, and created again.
    """
    source, target = Cluster("source", orders=SHORT), Cluster("target")
    source.ends[TopicPartition("orders", 0)] = 5
    side = Side(source, target)
    copy = side.begin()
    await side.pass_by()
    side.look(copy)
    target.refuses = True
    await side.topics.finish(again=False)
    target.refuses = False
    if accepted_later:
        await side.topics.finish(again=True)

    del target.topics["orders"]
    await side.pass_by()
    meanwhile = dict(target.configs["orders"])
    side.look(copy)
    await side.topics.finish(again=False)

    assert meanwhile.items() >= PREPARING_CONFIGS.items()
    assert target.configs["orders"].items() >= SHORT.items()


async def test_a_topic_whose_source_keeps_everything_in_the_words_of_a_preparation_is_not_prepared() -> None:
    """
    Its settings would be given to it again and again, and others would never follow.
    """
    source = Cluster("source", orders=PREPARING_CONFIGS | {"max.message.bytes": "3000000"})
    side = Side(source, Cluster("target", orders=PREPARING_CONFIGS | AS_RECORDED))
    side.look(side.begin())

    for _ in range(2):
        await side.pass_by()
        await side.topics.finish(again=True)

    assert side.target.changed == ["orders max.message.bytes=3000000"]


# -- what a pass waits for -------------------------------------------------------------------------------


async def test_a_pass_that_makes_a_topic_does_not_wait_for_leaders_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A partition without a leader may be without one for hours; new topics are not held up by it.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "VISIBLE_SECONDS", 60.0)
    source = Cluster("source", orders=SHORT, old={})
    target = Cluster("target", old={})
    target.topics["old"] = a_topic("old", leader=-1)
    side = Side(source, target)

    await side.pass_by()

    assert "orders" in target.topics
    assert target.described == 3


async def test_a_pass_whose_changes_are_refused_waits_for_nothing(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    There is nothing to be seen of them.
    """
    monkeypatch.setattr(mirror.sync.target_requests, "VISIBLE_SECONDS", 60.0)
    side.look(side.partitions[TopicPartition("orders", 0)])
    side.source.topics["old"] = side.target.topics["old"] = a_topic("old", leader=-1)
    side.source.configs["old"] = side.target.configs["old"] = {}
    side.target.refuses = True

    await side.pass_by()

    assert side.target.described == 1


async def test_where_nothing_is_to_be_brought_in_step_the_target_is_not_asked(side: Side) -> None:
    """
    That is seen every second, and what the target says of ten thousand partitions takes a while to read.
    """
    side.target.configs["orders"] = SHORT | AS_RECORDED
    side.look(side.partitions[TopicPartition("orders", 0)])
    await side.pass_by()
    before = side.target.described, side.target.refreshed

    added = await side.topics.finish(again=False)

    assert added == frozenset()
    assert (side.target.described, side.target.refreshed) == before


# -- two at once, and what breaks in the middle ----------------------------------------------------------


class OneByOne(Cluster):
    """Its controller works on one request after the other.

    Attributes:
        begun: Asked for a change.
        may_go_on: What it waits for then.
    """

    def __init__(self, name: str, **topics: Mapping[str, str]) -> None:
        super().__init__(name, **topics)
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()

    async def call_controller(self, request: Any) -> Any:
        if self.hangs:
            self.waiting += 1
            await asyncio.Event().wait()
        async with self._turn:
            self.begun.set()
            await self.may_go_on.wait()
            return await super().call_controller(request)


@pytest.mark.parametrize("preparing", [True, False], ids=["prepared", "left alone"])
async def test_topics_that_are_brought_in_step_by_two_at_once_are_so_once(preparing: bool) -> None:
    """
    As at the end of a mirror that still runs, for which another topic is ready by then.
    """
    names = ["t1", "t2", "t3"]
    now = {**PREPARING_CONFIGS, **AS_RECORDED} if preparing else KEPT
    side = Side(
        Cluster("source", **dict.fromkeys(names, SHORT)), OneByOne("target", **dict.fromkeys(names, now))
    )
    copies = []
    for name in names:
        tp = TopicPartition(name, 0)
        side.partitions[tp] = copy = PartitionCopy(tp, tp, ORDERS_ID.bytes, in_flight_max=5)
        copies.append(copy)
    side.prepared = not preparing
    target = cast(OneByOne, side.target)
    target.may_go_on.set()
    await side.pass_by()
    target.may_go_on.clear()
    target.begun.clear()
    side.prepared = True
    for copy in copies[1:]:
        side.look(copy)

    tending = asyncio.create_task(side.topics.finish(again=False))
    await target.begun.wait()
    side.look(copies[0])
    ending = asyncio.create_task(side.topics.finish(again=True))
    for _ in range(20):
        await asyncio.sleep(0)
    target.may_go_on.set()
    await asyncio.gather(tending, ending)

    assert {target.configs[name].get("retention.ms") for name in names} == {SHORT["retention.ms"]}


class Breaks(Cluster):
    """The connection to its controller breaks with this request.

    Attributes:
        at: How many requests there are before.
    """

    at = -1

    async def call_controller(self, request: Any) -> Any:
        if self.hangs:
            self.waiting += 1
            await asyncio.Event().wait()
        self.at -= 1
        if self.at == -1:
            raise ConnectionFailedError("the connection is lost")
        return await super().call_controller(request)


async def test_partitions_that_were_added_are_told_of_though_the_connection_breaks_then() -> None:
    """
    They are copied from then on; else they would wait for a pass, and for ever where there is no other.
    """
    names = ["t1", "t2"]
    configs = dict.fromkeys(names, SHORT | AS_RECORDED)
    side = Side(Cluster("source", **configs), Breaks("target", **configs))
    for name in names:
        side.source.topics[name] = a_topic(name, 2)
        tp = TopicPartition(name, 0)
        side.partitions[tp] = PartitionCopy(tp, tp, ORDERS_ID.bytes, in_flight_max=5)
    await side.pass_by()
    for copy in side.partitions.values():
        side.look(copy)

    cast(Breaks, side.target).at = 1
    with pytest.raises(ConnectionFailedError):
        await side.topics.finish(again=False)

    assert await side.topics.finish(again=False) == {*names}


async def test_a_loss_found_at_a_start_keeps_nothing_from_the_other_partitions() -> None:
    """
    All that is there is ours, and where it ends is known: settings follow, and partitions are added.
    """
    source, target = Cluster("source", orders=SHORT), Cluster("target", orders=KEPT)
    source.topics["orders"] = a_topic("orders", 3)
    target.topics["orders"] = a_topic("orders", 2)
    side = Side(source, target)
    well, lost = side.begin(0), side.begin(1)
    side.look(well)
    lost.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "found at the start", None)
    lost.acknowledged_target_offset = target.ends[lost.target] = 20
    lost.looked_at = time.monotonic()

    await side.pass_by()

    assert set(target.changed) == {"orders has 3 partitions", "orders retention.ms=3600000"}


# -- what is gone ----------------------------------------------------------------------------------------


async def test_nothing_is_remembered_of_a_topic_that_is_gone() -> None:
    """
    Of one that is copied still, or only not shown just now, everything is.
    """
    side = Side(Cluster("source", orders=SHORT, audit=SHORT), Cluster("target", orders=SHORT, audit=SHORT))
    orders, audit = side.begin(), side.begin(topic="audit")
    await side.pass_by()
    there = (side.source_topics.retention("orders"), dict(side.limits))

    side.source.topics = {}
    orders.topic_gone = True
    await side.pass_by()

    assert audit.topic_gone is False
    assert there == (Retention(3_600_000, -1), {"orders": 1_048_588, "audit": 1_048_588})
    assert side.source_topics.retention("orders") == Retention()
    assert side.source_topics.retention("audit") == Retention(3_600_000, -1)
    assert side.limits == {"audit": 1_048_588}


@pytest.mark.parametrize(("refuses", "kept"), [(False, True), (True, False)])
async def test_a_topic_that_was_set_back_keeps_record_times_from_then_on(refuses: bool, kept: bool) -> None:
    times = {"message.timestamp.type": "LogAppendTime"}
    side = Side(Cluster("source", orders=SHORT), Cluster("target", orders=SHORT | times))
    side.look(side.begin())
    side.target.refuses = refuses

    await side.pass_by()

    assert side.topics.keeps_times("orders") is kept


@pytest.mark.parametrize("sync_configs", [True, False])
async def test_a_topic_that_replaces_times_is_held_until_its_settings_can_be_read_again(
    sync_configs: bool,
) -> None:
    """
    One batch would get the time of its append. The flow's own topic is not set back either meanwhile.
    """
    times = {"message.timestamp.type": "LogAppendTime"}
    source, target = Cluster("source", orders=SHORT), Cluster("target", orders=SHORT | times)
    side = Side(source, target, sync_configs=sync_configs)
    side.look(side.begin())
    target.refuses = True
    held: list[Reason | None] = []

    for unread in (0, 1, 0):
        target.unknown = {"orders": unread}
        conflict = (await side.topics.bring_up(source.topics)).get("orders")
        held.append(conflict.reason if conflict else None)
        target.unknown = {}
    target.configs["orders"] = dict(SHORT)
    over = await side.topics.bring_up(source.topics)

    assert held == [Reason.APPEND_TIMES] * 3
    assert not over


async def test_a_pass_that_does_not_see_a_topic_does_not_forget_that_it_replaces_times() -> None:
    """
    In the next one its settings may not be read yet.
    """
    source = Cluster("source", orders=SHORT)
    target = Cluster("target", orders=SHORT | {"message.timestamp.type": "LogAppendTime"})
    side = Side(source, target)
    side.look(side.begin())
    target.refuses = True
    await side.pass_by()

    target.hidden = {"orders"}
    await side.pass_by()
    target.hidden, target.unknown = set(), {"orders": 1}
    unread = await side.topics.bring_up(source.topics)

    assert unread["orders"].reason is Reason.APPEND_TIMES
