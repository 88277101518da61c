"""Brokers that are too old: said at the start, with what they speak and what is needed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from mirror.clusters import connected
from mirror.config import ClusterSettings
from mirror.errors import UnsupportedVersionError

METADATA, API_VERSIONS = 3, 18
SPOKEN = {1: (0, 12), METADATA: (0, 11), API_VERSIONS: (0, 3)}
"""Of Kafka 3.0: its Fetch names topics by their names only."""


@pytest.fixture
async def old_broker() -> AsyncIterator[str]:
    """A broker that says what it speaks, and that it is alone; the value is its address."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            [size] = struct.unpack(">i", await reader.readexactly(4))
            api, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
            body = struct.pack(">i", correlation_id) + _answer(api, version)
            writer.write(struct.pack(">i", len(body)) + body)
    except asyncio.IncompleteReadError:
        writer.close()


def _answer(api: int, version: int) -> bytes:
    if api == API_VERSIONS:
        spoken = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in SPOKEN.items()
        ]
        return bytes(ApiVersionsResponse(api_keys=spoken).encode(version=version))
    assert api == METADATA
    answer = MetadataResponse(brokers=[], cluster_id="OLD", controller_id=-1, topics=[])
    return b"\0" + bytes(answer.encode(version=version))


async def test_a_controller_is_told_from_a_broker_that_is_too_old(
    old_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its port stands beside the broker's in the settings of a node: no other version of Kafka would help.
    """
    monkeypatch.delitem(SPOKEN, METADATA)

    with pytest.raises(UnsupportedVersionError) as refused:
        async with connected("source", ClusterSettings(bootstrap_servers=(old_broker,))):
            pytest.fail("it was taken")

    assert str(refused.value).startswith(f"{old_broker}: the broker does not speak MetadataRequest")
    assert "the port of a controller" in refused.value.hint


@pytest.mark.parametrize("name", ["source", "target"])
async def test_brokers_that_are_too_old_are_refused_at_the_start(old_broker: str, name: str) -> None:
    """
    Not partition after partition, again and again, as if the network were at fault.
    """
    settings = ClusterSettings(bootstrap_servers=(old_broker,))

    with pytest.raises(UnsupportedVersionError) as refused:
        async with connected(name, settings):
            pytest.fail("it was taken")

    assert (
        str(refused.value) == f"{old_broker}: the broker speaks Fetch versions 0 to 12, the mirror speaks 13"
    )
    assert "Kafka 3.1" in refused.value.hint
