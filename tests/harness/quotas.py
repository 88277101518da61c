"""Quotas of single clients, as operators set them: bytes a second."""

from __future__ import annotations

from kafka.protocol.admin import AlterClientQuotasRequest

from tests.contract.connected import connected
from tests.harness.kafka import KafkaCluster


async def limit(cluster: KafkaCluster, *, client_id: str, quota: str, bytes_per_second: float) -> None:
    """Set a quota of one client."""
    entry = AlterClientQuotasRequest.EntryData
    entity = entry.EntityData(entity_type="client-id", entity_name=client_id)
    change = entry.OpData(key=quota, value=bytes_per_second, remove=False)
    request = AlterClientQuotasRequest(entries=[entry(entity=[entity], ops=[change])], validate_only=False)
    async with connected(cluster) as way:
        answer = await way.call(request)
    assert [told.error_code for told in answer.entries] == [0]
