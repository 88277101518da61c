"""Over which connection a partition is written: what is up to date does not stand behind what is not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mirror.flow.append_lanes import URGENT_BYTES_MAX, AppendLanes
from mirror.flow.lanes import PARTITIONS_ENOUGH
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.fetch import Isolation
from mirror.model import OffsetMode, TopicPartition
from tests.unit.target_model import source_batch

TP = TopicPartition("orders", 0)


@dataclass
class Lane:
    """A lane that is only its name, and who has left it."""

    node: int
    slot: int
    queue_bytes_max: float = 0.0
    left: list[PartitionCopy] = field(default_factory=list)

    @property
    def urgent(self) -> bool:
        return self.queue_bytes_max > 0

    def leave(self, partition: PartitionCopy) -> None:
        self.left.append(partition)


def lanes() -> AppendLanes[Lane]:
    return AppendLanes(2, Isolation.READ_COMMITTED, Lane)


def a_partition(queued: int, end: int) -> PartitionCopy:
    """So many records are queued, and the source has more up to this offset."""
    partition = PartitionCopy(TP, TP, b"t" * 16, in_flight_max=5)
    partition.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, -1, 0.0)
    partition.heard(0, end, end)
    partition.queue.push([source_batch(number, 1) for number in range(queued)], [], None)
    return partition


def test_what_is_up_to_date_has_a_lane_of_its_own() -> None:
    """
    And what is behind goes by those that others have.
    """
    to = lanes()
    late, live = a_partition(3, 1000), a_partition(3, 3)

    assert not to.to(1, late).urgent
    assert to.to(1, live).urgent
    assert sorted(lane.urgent for lane in to) == [False, True]


def test_it_changes_over_when_it_has_caught_up() -> None:
    """
    Not while something is on its way, which would be overtaken; and the other lane knows it no more.
    """
    to, partition = lanes(), a_partition(3, 6)
    before = to.to(1, partition)
    sent, _ = partition.take()
    partition.queue.push([source_batch(number, 1) for number in range(3, 6)], [], None)

    assert to.to(1, partition) is before
    partition.answered(sent, appended=True, now=1.0)
    after = to.to(1, partition)
    assert after.urgent
    assert before.left == [partition]
    partition.take()
    assert to.to(1, partition) is after
    assert (before.left, after.left) == ([partition], [])


def test_what_falls_behind_a_little_stays() -> None:
    """
    It is up to date again soon; where more is queued than a batch or two it makes room for others.
    """
    to, partition = lanes(), a_partition(3, 3)
    urgent = to.to(1, partition)
    partition.heard(0, 500, 500)

    assert to.to(1, partition) is urgent
    partition.queue.bytes = URGENT_BYTES_MAX + 1
    assert not to.to(1, partition).urgent
    assert urgent.left == [partition]


def test_it_goes_where_its_leader_is() -> None:
    """
    Whatever it is.
    """
    to, live, late = lanes(), a_partition(3, 3), a_partition(3, 1000)

    assert [to.to(node, live).node for node in (1, 2)] == [1, 2]
    assert [to.to(node, late).node for node in (1, 2)] == [1, 2]


@pytest.mark.parametrize("end", [3, 1000])
def test_it_goes_to_another_leader_when_the_one_before_has_answered(end: int) -> None:
    """
    A leader that is frozen or cut off may have taken what it has not answered, or not: what was sent to the
    next one meanwhile came to stand in its place, where that one had forgotten the producer.
    """
    to, partition = lanes(), a_partition(3, end)
    before = to.to(1, partition)
    sent, _ = partition.take()

    assert to.to(2, partition) is before
    partition.answered(sent, appended=False, now=1.0)
    assert to.to(2, partition).node == 2
    assert before.left == [partition]


@pytest.mark.parametrize("end", [3, 1000], ids=["urgent", "behind"])
def test_a_partition_that_is_not_written_any_more_takes_no_place(end: int) -> None:
    """
    Topics come and go; what is in flight of them is answered all the same.
    """
    to = lanes()
    gone = [a_partition(3, end) for _ in range(PARTITIONS_ENOUGH)]
    before = {to.to(1, partition).slot for partition in gone}
    sent, _ = gone[0].take()
    for partition in gone:
        to.leave(partition)
    gone[0].answered(sent, appended=True, now=1.0)

    others = [a_partition(3, end) for _ in range(PARTITIONS_ENOUGH)]

    assert before == {to.to(1, partition).slot for partition in others} == {0}
    [lane] = to
    assert lane.left == gone
