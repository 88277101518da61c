"""A peer whose answers are cut off: a broken broker, or something in between."""

from __future__ import annotations

import asyncio
import struct

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from mirror.errors import AnswerError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address, ConnectionOptions

METADATA, API_VERSIONS, VERSION = 3, 18, 12
WHOLE = b"\0" + bytes(
    MetadataResponse(brokers=[], cluster_id="CLUSTER", controller_id=1, topics=[]).encode(version=VERSION)
)


@pytest.mark.parametrize("kept", range(1, len(WHOLE) - 1))
async def test_an_answer_that_is_cut_off_is_an_error_of_the_connection(kept: int) -> None:
    """
    Whoever asked handles it like a lost answer; it does not end the mirror.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in (_versions(), WHOLE[:kept]):
            [size] = struct.unpack(">i", await reader.readexactly(4))
            _, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
            writer.write(struct.pack(">ii", len(body) + 4, correlation_id) + body)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        connection = await Connection.open(Address(host, port), ConnectionOptions())
        with pytest.raises(AnswerError, match="truncated or invalid answer to Metadata"):
            await connection.call(MetadataRequest(topics=[]))
        connection.close()
        await over.wait()


def _versions() -> bytes:
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=METADATA, min_version=0, max_version=VERSION),
        ApiVersionsResponse.ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=3),
    ]
    return bytes(ApiVersionsResponse(api_keys=keys).encode(version=3))
