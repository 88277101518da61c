"""Which partition travels on which connection."""

from __future__ import annotations

import pytest

from mirror.flow.lanes import PARTITIONS_ENOUGH, Lanes
from mirror.flow.partition import PartitionCopy
from mirror.model import TopicPartition

Lane = tuple[int, int]
"""A lane that is only its name: the broker, and its number there."""


def partitions(count: int) -> list[PartitionCopy]:
    tps = [TopicPartition("orders", number) for number in range(count)]
    return [PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5) for tp in tps]


def lanes(per_broker: int) -> Lanes[Lane]:
    return Lanes(per_broker, lambda node, slot: (node, slot))


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [1]),
        (PARTITIONS_ENOUGH, [PARTITIONS_ENOUGH]),
        (PARTITIONS_ENOUGH + 1, [PARTITIONS_ENOUGH, 1]),
        (64, [32, 32]),
        (101, [51, 50]),
    ],
)
def test_a_lane_is_opened_when_those_before_it_have_partitions_enough(count: int, sizes: list[int]) -> None:
    """
    With few to a lane, requests would be small. From then on they are spread evenly, whatever their numbers:
    of two brokers that lead in turn the one has only even partitions.
    """
    to = lanes(2)

    found = [to.to(1, partition) for partition in partitions(2 * count)[::2]]

    assert [found.count(lane) for lane in to] == sizes


def test_there_are_no_more_lanes_than_may_be() -> None:
    for most in (1, 2, 5):
        to = lanes(most)
        for partition in partitions(200):
            to.to(1, partition)
        assert len(list(to)) == most


def test_each_broker_has_its_own() -> None:
    to = lanes(2)
    here, there = partitions(2)

    assert (to.to(1, here), to.to(2, there)) == ((1, 0), (2, 0))


def test_a_partition_keeps_to_its_lane() -> None:
    """
    What it has on its way over one connection must not be overtaken over another.
    """
    to = lanes(2)
    everybody = partitions(40)
    before = [to.to(1, partition) for partition in everybody]
    for partition in everybody[::2]:
        to.leave(partition)

    stayed = everybody[1::2]
    assert [to.to(1, partition) for partition in stayed] == before[1::2]
    assert [to.of(partition) for partition in stayed] == before[1::2]


def test_a_partition_moves_with_its_leader() -> None:
    to = lanes(1)
    first, second = partitions(2)
    to.to(1, first)

    moved = to.to(2, first)

    assert moved == (2, 0)
    assert to.of(first) == moved
    assert to.to(1, second) == (1, 0)


def test_whoever_leaves_makes_room_for_the_next() -> None:
    to = lanes(2)
    *everybody, late = partitions(41)
    lane = [to.to(1, partition) for partition in everybody][3]

    assert to.leave(everybody[3]) == lane
    assert to.of(everybody[3]) is None
    assert to.to(1, late) == lane


def test_whoever_has_no_lane_leaves_none() -> None:
    assert lanes(2).leave(partitions(1)[0]) is None


def test_a_lane_that_was_opened_ahead_is_the_first_one() -> None:
    """
    Whoever comes travels on it; it is not opened twice.
    """
    to = lanes(2)
    to.open(1)
    to.open(1)
    [one] = partitions(1)

    assert list(to) == [(1, 0)]
    assert to.to(1, one) == (1, 0)
    assert list(to) == [(1, 0)]
