"""What a broker answers to a batch that it has already."""

from __future__ import annotations

import pytest

from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.record_batch import seal
from mirror.kafka.transactions import Token, init_producer_id
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.contract.connected import BROKERS, connected
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)


async def append(cluster: Cluster, topic: str, token: Token, sequence: int) -> Outcome:
    """One batch of two records, as an append lane sends it."""
    tp = TopicPartition(topic, 0)
    view = memoryview(bytearray(MemoryLog.encode([(0, b"a", b"1"), (1, b"b", b"2")])))
    seal(view, token.producer_id, token.epoch, sequence)
    info = (await cluster.describe_topics([topic])).partition(tp)
    assert info is not None
    connection = await cluster.connection(info.leader)
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX)
    body = encode_request([(tp, view)], 10_000)
    return decode_answer(await connection.send(PRODUCE, version, body))[tp]


@pytest.mark.parametrize("version", list(BROKERS))
async def test_a_broker_says_of_a_repeat_that_it_is_one(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The offset is that of the first time, and nothing is appended; a batch that is new is no repeat.
    """
    brokers = source if version == "3.9" else target
    name = await topic(brokers)

    async with connected(brokers) as cluster:
        token = await init_producer_id(cluster, f"repeats.{name}")
        answers = [await append(cluster, name, token, sequence) for sequence in (0, 2, 0, 2, 4)]

    assert [one.error_code for one in answers] == [0] * 5
    assert [one.base_offset for one in answers] == [0, 2, 0, 2, 4]
    assert [one.repeated for one in answers] == [False, False, True, True, False]
