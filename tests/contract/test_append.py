"""What a broker answers to a batch that it has already, or whose record times it replaces."""

from __future__ import annotations

import pytest

from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.record_batch import seal, walk
from mirror.kafka.transactions import Token, init_producer_id
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.contract.connected import BROKERS, connected
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)


async def append(cluster: Cluster, topic: str, token: Token, sequence: int) -> tuple[Outcome, int]:
    """One batch of two records, as an append lane sends it; also answers with their newest time."""
    tp = TopicPartition(topic, 0)
    view = memoryview(bytearray(MemoryLog.encode([(0, b"a", b"1"), (1, b"b", b"2")])))
    seal(view, token.producer_id, token.epoch, sequence)
    info = (await cluster.describe_topics([topic])).partition(tp)
    assert info is not None
    connection = await cluster.connection(info.leader)
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX)
    body = encode_request([(tp, view)], 10_000)
    outcome = decode_answer(await connection.send(PRODUCE, version, body))[tp]
    return outcome, next(walk(view))[0].max_timestamp


@pytest.mark.parametrize("version", list(BROKERS))
async def test_a_broker_says_of_a_repeat_when_that_batch_is_from(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The offset is that of the first time, and nothing is appended; a batch that is new is no repeat.
    """
    brokers = source if version == "3.9" else target
    name = await topic(brokers)

    async with connected(brokers) as cluster:
        token = await init_producer_id(cluster, f"repeats.{name}")
        told = [await append(cluster, name, token, sequence) for sequence in (0, 2, 0, 2, 4)]
        answers, newest_ms = [one for one, _ in told], told[0][1]

    assert [one.error_code for one in answers] == [0] * 5
    assert [one.base_offset for one in answers] == [0, 2, 0, 2, 4]
    assert [one.time_ms for one in answers] == [-1, -1, newest_ms, newest_ms, -1]


@pytest.mark.parametrize("version", list(BROKERS))
async def test_a_broker_that_replaces_record_times_answers_with_another_time(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also of a repeat: the batch that it has already got such a time.
    """
    brokers = source if version == "3.9" else target
    name = await topic(brokers, message_timestamp_type="LogAppendTime")

    async with connected(brokers) as cluster:
        token = await init_producer_id(cluster, f"stamped.{name}")
        told = [await append(cluster, name, token, sequence) for sequence in (0, 0, 2)]

    assert [one.base_offset for one, _ in told] == [0, 0, 2]
    assert all(one.time_ms > newest_ms for one, newest_ms in told)
