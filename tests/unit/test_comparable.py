"""What of each partition is compared, and why the rest is not, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from checkpoint.flow_state import FlowState
from checkpoint.model import PartitionRecord
from mirror.acknowledged import Words
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.model import OffsetMode, TopicPartition
from mirror.proving.comparable import AROUND, Comparable, Told
from mirror.proving.wanted import Wanted
from mirror.sync.names import NamePolicy, TopicSelector
from spark_jobs.documents import Scope
from spark_jobs.window import ALL, Range
from tests.harness.memory_store import MemoryStore
from tests.unit.statuses import a_partition

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC, ANOTHER = UUID(int=1), UUID(int=2)


def cluster(*, partitions: int = 1, topic_id: UUID = TOPIC) -> Cluster:
    """A cluster that has told of one topic; nothing can be asked of it."""
    held = {number: PartitionInfo(1, 0, (1,), (1,)) for number in range(partitions)}
    info = ClusterInfo("c", 1, {}, {"orders": TopicInfo("orders", topic_id, False, held)})
    return cast(Cluster, SimpleNamespace(info=info))


def comparable(
    wanted: Wanted | None = None, source: Cluster | None = None, target: Cluster | None = None
) -> Comparable:
    selector = TopicSelector([".*"], (), NamePolicy(""))
    ours, theirs = source or cluster(), target or cluster()
    wanted = wanted or Wanted(same_offsets=True)
    return Comparable("flow", wanted, ours, theirs, {"orders": "orders"}, selector, {}, asked_at_ms=0)


def told(
    source: Range,
    target: Range,
    *,
    wanted: Range = ALL,
    policies: dict[str, str] | None = None,
    closed: dict[str, str] | None = None,
    standing: bool = True,
) -> Told:
    """Both have one partition of the topic."""
    policies = {"orders": "delete"} if policies is None else policies
    still = {ORDERS_0} if standing else set()
    return Told({ORDERS_0: source}, {ORDERS_0: target}, {ORDERS_0: wanted}, policies, closed or {}, still)


def compared(of: Comparable, all_told: Told) -> Scope:
    of.compare(of.copied(of.on_both_sides()), all_told)
    return of.scope()


def why_not(scope: Scope) -> list[tuple[int | None, str]]:
    return [(one.partition, one.why) for one in scope.not_compared]


async def remembered(*, prepared: bool = True, target_topic_id: UUID = TOPIC) -> FlowState:
    """What a flow knows that copies the partition from offset 100 on, to the same offsets."""
    state = FlowState(MemoryStore())
    await state.load()
    copied = PartitionRecord("orders", 0, str(TOPIC), "orders", OffsetMode.SAME, prepared, 100, 100)
    await state.begin(replace(copied, target_topic_id=str(target_topic_id)))
    return state


def test_what_both_have_is_compared_and_what_was_not_copied_yet_is_pending() -> None:
    """
    Offsets are the same where nothing is known and somebody said so.
    """
    scope = compared(comparable(), told(Range(0, 100), Range(0, 90)))

    (log,) = scope.append_only
    assert (log.window.source, log.window.pending) == (Range(0, 90), Range(90, 100))
    assert (scope.compacted, why_not(scope)) == ([], [])


@pytest.mark.parametrize(
    ("target", "knows", "standing", "never_copied"),
    [
        (Range(100, 300), True, True, Range(300, 500)),
        (Range(100, 300), True, False, Range(300, 300)),
        (Range(100, 300), False, True, Range(300, 500)),
        (Range(0, 0), False, True, Range(0, 0)),
    ],
)
async def test_what_the_source_has_deleted_was_never_copied_only_where_the_copy_stood_still(
    target: Range, knows: bool, standing: bool, never_copied: Range
) -> None:
    """
    One that goes on may have copied it meanwhile, as may one of which old files are read; and of one that
    nobody remembers, and that holds nothing, nobody knows from where on it copies.
    """
    told_of = comparable(Wanted(same_offsets=not knows))
    told_of.state = await remembered() if knows else None

    (log,) = compared(told_of, told(Range(500, 500), target, standing=standing)).append_only

    assert log.window.never_copied == never_copied


def test_some_offsets_are_compared_with_what_stands_around_them() -> None:
    """
    What is compacted is compared whole, whatever is wanted.
    """
    size = 10 * AROUND
    some = Range(4 * AROUND, 5 * AROUND)
    logs = Range(0, size), Range(0, size)

    (log,) = compared(comparable(), told(*logs, wanted=some)).append_only
    (whole,) = compared(comparable(), told(*logs, wanted=some, policies={"orders": "compact"})).compacted

    assert log.window.source == Range(3 * AROUND, 6 * AROUND)
    assert whole.window.source == Range(0, size)


def test_a_partition_that_only_one_side_has_is_left_out_with_a_reason() -> None:
    """
    Whichever side it is.
    """
    lacking = comparable(source=cluster(partitions=2))
    odd = comparable(target=cluster(partitions=2))

    assert lacking.on_both_sides() == odd.on_both_sides() == [ORDERS_0]
    assert why_not(lacking.scope()) == [
        (ORDERS_1.partition, "the target has no such partition, or Describe is missing")
    ]
    assert [one.partition for one in odd.scope().not_compared] == [ORDERS_1.partition]


@pytest.mark.parametrize(
    ("all_told", "why"),
    [
        (told(Range(0, 9), Range(0, 9), policies={}), "not authorized to read cleanup.policy"),
        (told(Range(0, 9), Range(0, 9), closed={"orders": "it may not be read"}), "it may not be read"),
    ],
    ids=["policy", "records"],
)
def test_a_topic_that_may_not_be_read_is_left_out_with_what_is_missing(all_told: Told, why: str) -> None:
    """
    One that is not compared is never said to be the same.
    """
    scope = compared(comparable(), all_told)

    ((_, words),) = why_not(scope)
    assert words.startswith(why)
    assert scope.logs == []


async def test_what_stood_there_before_the_copy_began_is_not_compared() -> None:
    """
    The flow remembers where it began.
    """
    ours = comparable(Wanted())
    ours.state = await remembered()

    (log,) = compared(ours, told(Range(0, 200), Range(0, 200))).append_only

    assert log.window.source == Range(100, 200)


async def test_a_copy_of_a_topic_that_was_made_anew_is_one_of_another() -> None:
    """
    So is one that is being prepared no copy yet, and what the flow does not know none at all.
    """
    anew, early, unknown = (
        comparable(Wanted(), cluster(topic_id=topic)) for topic in (ANOTHER, TOPIC, TOPIC)
    )
    anew.state, early.state = await remembered(), await remembered(prepared=False)

    reasons = []
    for one in (anew, early, unknown):
        assert one.copied(one.on_both_sides()) == {}
        ((_, words),) = why_not(one.scope())
        reasons.append(words)

    assert reasons == [
        "its topic was created again at the source: the copy is of the deleted one",
        "it is being prepared: nothing of it is copied yet",
        "flow flow has not begun to copy it",
    ]


@pytest.mark.parametrize(
    ("target_topic_id", "ends_at", "is_known"),
    [(TOPIC, 150, True), (ANOTHER, 150, False), (ANOTHER, 200, True)],
    ids=["the same topic", "made again", "made again and filled again"],
)
async def test_how_far_a_topic_was_copied_that_was_made_again_at_the_target_is_not_known(
    target_topic_id: UUID, ends_at: int, is_known: bool
) -> None:
    """
    What it held before may have been the rest: nobody may call that on its way, and the sites the same.
    """
    of = comparable(Wanted())
    of.state = await remembered(target_topic_id=target_topic_id)

    scope = compared(of, told(Range(100, 200), Range(100, ends_at)))

    (log,) = scope.append_only
    assert log.window.target == Range(100, ends_at)
    words = "its topic was created again at the target: how far it was copied is not known"
    assert [words in why for _, why in why_not(scope)] == [True] * (not is_known)


async def test_of_a_topic_that_was_made_again_a_mirror_may_know_how_far_it_had_been_copied() -> None:
    of = comparable(Wanted())
    of.state = await remembered(target_topic_id=ANOTHER)
    end = a_partition("orders", 0, next_offset=150, target_log_end_offset=150)
    of.words = Words("http://mirror", {ORDERS_0: end})

    ((_, words),) = why_not(compared(of, told(Range(100, 200), Range(100, 150))))

    assert "created again at the target: what the mirror had not copied is missing" in words
