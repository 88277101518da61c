"""What a mirror may ask of the source through a relay: only what reads.

Sources: the Kafka protocol guide (API keys).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

REQUEST_BYTES_MAX = 4 << 20
"""A fetch of ten thousand partitions is a tenth of it."""
READING = {
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    9: "OffsetFetch",
    10: "FindCoordinator",
    15: "DescribeGroups",
    16: "ListGroups",
    18: "ApiVersions",
    23: "OffsetForLeaderEpoch",
    29: "DescribeAcls",
    32: "DescribeConfigs",
    60: "DescribeCluster",
    61: "DescribeProducers",
    65: "DescribeTransactions",
    66: "ListTransactions",
    75: "DescribeTopicPartitions",
}
"""By API key; who is asked decides besides whether the relay's own user may."""

_HEAD = struct.Struct(">hhi")
"""API key, version and correlation id stand before everything else."""


@dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """What came is no request, or none that is passed on."""

    why: str


def requests(buffer: bytearray, at_most: int) -> list[bytes]:
    """Take the whole requests off the front of a buffer, without their sizes; the rest stays there.

    Args:
        at_most: So many of them.

    Raises:
        RefusedError: Something is no request, or not one of :data:`READING`.
    """
    found: list[bytes] = []
    at = 0
    while len(buffer) - at >= 4 and len(found) < at_most:
        size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
        if not _HEAD.size <= size <= REQUEST_BYTES_MAX:
            raise RefusedError(f"a request of {size} bytes")
        end = at + 4 + size
        if len(buffer) < end:
            break
        request = bytes(memoryview(buffer)[at + 4 : end])
        api_key, version, _ = _HEAD.unpack_from(request)
        if api_key not in READING:
            raise RefusedError(f"a request of API {api_key}, version {version}, which does not only read")
        found.append(request)
        at = end
    del buffer[:at]
    return found
