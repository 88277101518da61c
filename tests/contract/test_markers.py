"""What a broker answers to several control markers for one partition."""

from __future__ import annotations

import pytest
from kafka.protocol.producer import WriteTxnMarkersRequest

from mirror.kafka.cluster import Cluster
from mirror.kafka.offsets import DEBUGGER, LATEST, Marking, list_offsets, write_markers
from mirror.kafka.transactions import Token, init_producer_id
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.contract.connected import BROKERS, connected
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)


async def marked(cluster: Cluster, tp: TopicPartition, token: Token, epochs: list[int]) -> int:
    """Send one marker of each coordinator epoch in one request; answers the error code of the partition."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])
    entries = [
        marker(
            producer_id=token.producer_id,
            producer_epoch=token.epoch,
            transaction_result=True,
            coordinator_epoch=epoch,
            topics=[topic],
        )
        for epoch in epochs
    ]
    connection = await cluster.connection(await leader(cluster, tp))
    answer = await connection.call(WriteTxnMarkersRequest(markers=entries), highest=1)
    [one] = answer.markers
    return int(one.topics[0].partitions[0].error_code)


async def leader(cluster: Cluster, tp: TopicPartition) -> int:
    info = (await cluster.describe_topics([tp.topic])).partition(tp)
    assert info is not None
    return info.leader


@pytest.mark.parametrize("version", list(BROKERS))
async def test_success_does_not_say_how_many_of_several_markers_were_appended(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    There is one entry for the producer, and in it the outcome of the last marker: two of three were refused
    here, as of an older coordinator. So the log end is asked; it is told at once, acknowledged or not.
    """
    brokers = source if version == "3.9" else target
    tp = TopicPartition(await topic(brokers), 0)

    async with connected(brokers) as cluster:
        token = await init_producer_id(cluster, f"markers.{tp.topic}")
        node = await leader(cluster, tp)
        connection = await cluster.connection(node)
        whose = {"producer_id": token.producer_id, "producer_epoch": token.epoch}
        first = await write_markers(connection, {tp: Marking(2, 5)}, **whose)

        code = await marked(cluster, tp, token, [4, 4, 6])
        ends = await list_offsets(cluster, [tp], LATEST, replica_id=DEBUGGER, leader=node)

    assert (first, code, ends) == ({tp: None}, 0, {tp: 3})
