"""A batch that is damaged in the mirror's memory: the target's broker finds it."""

from __future__ import annotations

import pytest

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.record_batch import build, seal
from mirror.kafka.transactions import init_producer_id
from mirror.model import TopicPartition
from tests.contract.connected import BROKERS, NUMBERS, connected
from tests.harness.checker import watermarks
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(params=BROKERS)
def brokers(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster of each version."""
    found: KafkaCluster = request.getfixturevalue(BROKERS[request.param])
    return found


async def test_a_payload_that_has_changed_since_it_was_checked_is_refused(brokers: KafkaCluster) -> None:
    """
    Sealing carries the CRC over; one computed anew would vouch for the damage.
    """
    tp = TopicPartition(f"damaged-{next(NUMBERS)}", 0)
    await brokers.create_topic(tp.topic)
    record = b"\x12\0\0\0\1\x06abc\0"
    view = build(record, count=1, codec=0, base_timestamp=1, max_timestamp=1)

    async with connected(brokers) as cluster:
        cluster.follow([tp.topic])
        info = (await cluster.refresh()).partition(tp)
        assert info is not None
        token = await init_producer_id(cluster, tp.topic)
        connection = await cluster.connection(info.leader)
        view[-2] ^= 1
        seal(view, token.producer_id, 0, 0)
        number = connection.version(PRODUCE, PRODUCE_VERSION_MAX)
        answer = await connection.send(PRODUCE, number, encode_request([(tp, view)], 10_000))

    assert decode_answer(answer)[tp].error_code == CORRUPT_MESSAGE
    assert watermarks(brokers.bootstrap, tp.topic)[0] == (0, 0)
