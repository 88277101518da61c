"""One request for each right: the smallest that a broker serves only to principals who hold it.

All are kafka-python's generated messages, so that what is tried does not depend on our own wire code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from kafka.protocol.admin import (
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeAclsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest, WriteTxnMarkersRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

TOPIC, ANY = 2, 1
HIGHEST = {"Fetch": 13, "Produce": 9, "ListOffsets": 7, "InitProducerId": 4, "WriteTxnMarkers": 1}
"""The newest versions to use: later ones name topics differently or are for transactions."""


class Requests:
    """Builds a request by the name of its API, all for partition 0 of one topic.

    Args:
        new_topic: A topic that does not exist yet, and will not after CreateTopics either.
        producer_id: One that was given to ``transactional_id``.
    """

    def __init__(
        self, topic: str, topic_id: UUID, new_topic: str, transactional_id: str, producer_id: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.new_topic = new_topic
        self.transactional_id = transactional_id
        self.producer_id = producer_id

    def build(self, api: str) -> Any:
        builders: dict[str, Callable[[], Any]] = {
            "Metadata": self._metadata,
            "ListOffsets": self._list_offsets,
            "Fetch": self._fetch,
            "DescribeProducers": self._describe_producers,
            "Produce": self._produce,
            "DeleteRecords": self._delete_records,
            "CreateTopics": self._create_topics,
            "CreatePartitions": self._create_partitions,
            "DescribeConfigs": self._describe_configs,
            "IncrementalAlterConfigs": self._alter_configs,
            "FindCoordinator": self._find_coordinator,
            "DescribeTransactions": self._describe_transactions,
            "InitProducerId": self._init_producer_id,
            "WriteTxnMarkers": self._write_markers,
            "DescribeAcls": self._describe_acls,
            "CreateAcls": self._create_acls,
        }
        return builders[api]()

    def _metadata(self) -> Any:
        return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)])

    def _list_offsets(self) -> Any:
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        return ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[topic(name=self.topic, partitions=[partition])]
        )

    def _fetch(self) -> Any:
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1024,
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1024,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[topic(topic_id=self.topic_id, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _describe_producers(self) -> Any:
        topic = DescribeProducersRequest.TopicRequest(name=self.topic, partition_indexes=[0])
        return DescribeProducersRequest(topics=[topic])

    def _produce(self) -> Any:
        batch = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=0,
            batch_size=1024,
        )
        batch.append(0, int(time.time() * 1000), b"key", b"value", [])
        topic = ProduceRequest.TopicProduceData
        partition = topic.PartitionProduceData(index=0, records=bytes(batch.build()))
        return ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=5000,
            topic_data=[topic(name=self.topic, partition_data=[partition])],
        )

    def _delete_records(self) -> Any:
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition(partition_index=0, offset=0)
        return DeleteRecordsRequest(timeout_ms=5000, topics=[topic(name=self.topic, partitions=[partition])])

    def _create_topics(self) -> Any:
        topic = CreateTopicsRequest.CreatableTopic
        wanted = topic(
            name=self.new_topic,
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[topic.CreatableTopicConfig(name="retention.ms", value="60000")],
        )
        return CreateTopicsRequest(topics=[wanted], timeout_ms=5000, validate_only=True)

    def _create_partitions(self) -> Any:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=self.topic, count=2, assignments=None)
        return CreatePartitionsRequest(topics=[topic], timeout_ms=5000, validate_only=True)

    def _describe_configs(self) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        wanted = resource(resource_type=TOPIC, resource_name=self.topic, configuration_keys=None)
        return DescribeConfigsRequest(resources=[wanted])

    def _alter_configs(self) -> Any:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = resource.AlterableConfig(name="retention.ms", config_operation=0, value="60000")
        wanted = resource(resource_type=TOPIC, resource_name=self.topic, configs=[config])
        return IncrementalAlterConfigsRequest(resources=[wanted], validate_only=True)

    def _find_coordinator(self) -> Any:
        return FindCoordinatorRequest(key="", key_type=1, coordinator_keys=[self.transactional_id])

    def _describe_transactions(self) -> Any:
        return DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

    def _init_producer_id(self) -> Any:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )

    def _write_markers(self) -> Any:
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        wanted = marker(
            producer_id=self.producer_id,
            producer_epoch=0,
            transaction_result=True,
            coordinator_epoch=0,
            topics=[marker.WritableTxnMarkerTopic(name=self.topic, partition_indexes=[0])],
        )
        return WriteTxnMarkersRequest(markers=[wanted])

    def _describe_acls(self) -> Any:
        return DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )

    def _create_acls(self) -> Any:
        acl = CreateAclsRequest.AclCreation(
            resource_type=TOPIC,
            resource_name="nobody.needs.this",
            resource_pattern_type=3,
            principal="User:nobody",
            host="*",
            operation=3,
            permission_type=3,
        )
        return CreateAclsRequest(creations=[acl])


def error_codes(answer: Any) -> set[int]:
    """Every error code anywhere in an answer, except 0."""
    return {code for code in _error_codes(answer.to_dict()) if code}


def _error_codes(part: Any) -> Iterator[int]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "error_code":
                yield value
            else:
                yield from _error_codes(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _error_codes(value)
