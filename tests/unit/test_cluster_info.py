"""What a picture of a cluster shows, and what of two of them is the newer one, partition by partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mirror.errors import BrokerError, ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo, cluster_info, newer_leaders
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.model import TopicPartition

ORDERS, ANOTHER = UUID(int=1), UUID(int=2)


def picture(*leaders: tuple[int, int], topic_id: UUID = ORDERS) -> ClusterInfo:
    """A cluster with one topic; of each partition (leader, leader epoch)."""
    partitions = {
        number: PartitionInfo(leader, epoch, (1, 2), (1, 2)) for number, (leader, epoch) in enumerate(leaders)
    }
    return ClusterInfo("c", 1, {}, {"orders": TopicInfo("orders", topic_id, False, partitions)})


def leaders(info: ClusterInfo) -> list[int]:
    return [partition.leader for partition in info.topics["orders"].partitions.values()]


def test_of_each_partition_the_newer_leader_epoch_counts() -> None:
    """
    A broker that is cut off from its cluster answers with what was; what is newer there is taken.
    """
    merged = newer_leaders(picture((2, 7), (1, 3)), picture((1, 6), (2, 4), (3, 0)))

    assert leaders(merged) == [2, 2, 3]


def test_where_nobody_leads_and_where_nothing_is_known_the_leader_is_minus_one() -> None:
    """
    Whoever goes to the leader need not tell a partition without one from a topic that was not described.
    """
    info = picture((2, 7), (-1, 3))

    assert [info.leader(TopicPartition("orders", number)) for number in range(3)] == [2, -1, -1]
    assert info.leader(TopicPartition("payments", 0)) == -1


def test_a_topic_made_again_begins_with_leader_epochs_of_its_own() -> None:
    """
    Low epochs of another topic are not old ones of this.
    """
    merged = newer_leaders(picture((2, 7)), picture((1, 0), topic_id=ANOTHER))

    assert leaders(merged) == [1]


def test_what_is_gone_is_gone() -> None:
    """
    Topics and partitions are those of the newer picture.
    """
    gone = ClusterInfo("c", 1, {}, {})

    assert newer_leaders(picture((2, 7)), gone).topics == {}
    assert leaders(newer_leaders(picture((1, 1), (2, 7)), picture((1, 1)))) == [1]


@pytest.mark.parametrize(
    ("error_code", "kind"), [(29, NotAuthorizedError), (3, BrokerError), (0, ConnectionFailedError)]
)
async def test_who_asks_for_an_offset_is_told_why_there_is_nobody_to_ask(
    error_code: int, kind: type[TwinsiteError]
) -> None:
    """
    Of a topic that may not be described a missing right is named, not a leader.
    """
    topic = SimpleNamespace(
        name="orders", error_code=error_code, topic_id=ORDERS, is_internal=False, partitions=[]
    )
    answer = SimpleNamespace(topics=[topic], brokers=[], cluster_id="c", controller_id=1)
    cluster = SimpleNamespace(name="target", info=cluster_info(answer, seen_at=0.0))
    tp = TopicPartition("orders", 0)

    found = await list_offsets(cast(Any, cluster), [tp], LATEST)

    assert type(found[tp]) is kind


async def test_a_topic_that_is_not_listed_is_told_from_a_partition_without_a_leader() -> None:
    """
    Brokers leave a topic that may not be described out of the list, as one that was deleted: who looks for a
    leader then looks in the wrong place.
    """
    cluster = SimpleNamespace(name="source", info=picture((1, 0)))
    gone, leaderless = TopicPartition("audit", 0), TopicPartition("orders", 7)

    found = await list_offsets(cast(Any, cluster), [gone, leaderless], LATEST)

    assert str(found[gone]) == (
        "source: topic audit was not listed when last asked: "
        "it does not exist, or the mirror may not describe it"
    )
    assert str(found[leaderless]) == "source: no leader is known for orders-7"
