"""What a mirror may ask the source through a relay: only requests that read.

Three of these can do more. A leader concludes from the Fetch of a replica that the replica has the records;
ListOffsets tells a replica more than it tells consumers; and Metadata can create the topics it names. So
these are inspected, as far as needed. FindCoordinator creates the internal topic of groups, or of
transactions, if it does not exist yet, and is left out: no mirror asks the source for a coordinator.

No I/O. Sources: the Kafka protocol guide (API keys), KIP-482 (headers), KIP-903 (who fetches, from 15 on).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from mirror.kafka.wire import read_uvarint

REQUEST_BYTES_MAX = 4 << 20
"""Ten times a Fetch of ten thousand partitions."""
READING = {
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    9: "OffsetFetch",
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
"""By API key. The broker decides in addition whether the relay's own user may ask."""

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
NAMES_MAX = 100_000
"""Topics that one Metadata request may name; more would take long to look through."""
NO_BROKER = frozenset({-1, -2})
"""In place of a broker's id: a consumer, and a consumer for debugging."""
IDS_FROM, MAY_MAKE_NONE_FROM = 10, 4
"""Versions of Metadata from which topics have ids, and from which it says whether topics are created."""

_HEAD = struct.Struct(">hhi")
"""API key, version and correlation id precede everything else."""
_LENGTH, _COUNT = struct.Struct(">h"), struct.Struct(">i")


class Known(NamedTuple):
    """Versions of an API.

    Attributes:
        flexible: The first with tagged fields and compact lengths.
        highest: The last that is understood as far as it is inspected.
    """

    flexible: int
    highest: int


LOOKED_INTO = {FETCH: Known(12, 14), LIST_OFFSETS: Known(6, 11), METADATA: Known(9, 13)}


@dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """A request, or an answer, that is not passed on, or no request at all."""

    why: str


def requests(buffer: bytearray, at_most: int) -> list[bytes]:
    """Take the whole requests off the front of a buffer, without their sizes; the rest stays there.

    Args:
        at_most: How many.

    Raises:
        RefusedError: Something is no request, or not one of :data:`READING`, or would do more than read.
    """
    found: list[bytes] = []
    at = 0
    while len(buffer) - at >= 4 and len(found) < at_most:
        size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
        if not _HEAD.size <= size <= REQUEST_BYTES_MAX:
            raise RefusedError(f"a request with a size of {size} bytes")
        end = at + 4 + size
        if len(buffer) < end:
            break
        request = bytes(memoryview(buffer)[at + 4 : end])
        api_key, version, _ = _HEAD.unpack_from(request)
        if api_key not in READING:
            raise RefusedError(f"a request of API {api_key}, version {version}, which does more than read")
        if api_key in LOOKED_INTO:
            _look_into(request, api_key, version, LOOKED_INTO[api_key])
        found.append(request)
        at = end
    del buffer[:at]
    return found


def _look_into(request: bytes, api_key: int, version: int, known: Known) -> None:
    what = f"{READING[api_key]} version {version}"
    if not 0 <= version <= known.highest:
        raise RefusedError(f"{what}: a relay knows only versions 0 to {known.highest}")
    flexible = version >= known.flexible
    try:
        at = _body_at(request, flexible=flexible)
        if api_key != METADATA:
            _refuse_brokers(what, *_COUNT.unpack_from(request, at))
        elif _makes_topics(memoryview(request), at, version, flexible=flexible):
            raise RefusedError(f"{what} that may create the topics it names (allow_auto_topic_creation)")
    except (ValueError, IndexError, struct.error) as error:
        raise RefusedError(f"cannot decode {what} of {len(request)} bytes: {error}") from error


def _body_at(request: bytes, *, flexible: bool) -> int:
    """Where the header ends, after the client's id.

    Raises:
        ValueError: The header has tagged fields.
    """
    (length,) = _LENGTH.unpack_from(request, _HEAD.size)
    at = _HEAD.size + _LENGTH.size + max(length, 0)
    return _behind_tags(memoryview(request), at) if flexible else at


def _behind_tags(request: memoryview, at: int) -> int:
    """Skip an empty list of tagged fields: known versions have none before what is looked for.

    Raises:
        ValueError: It is not empty.
    """
    if request[at]:
        raise ValueError(f"unexpected tagged fields at byte {at}")
    return at + 1


def _refuse_brokers(what: str, replica_id: int) -> None:
    if replica_id not in NO_BROKER:
        raise RefusedError(f"{what} from a client that claims to be broker {replica_id}")


def _makes_topics(request: memoryview, at: int, version: int, *, flexible: bool) -> bool:
    """Whether topics are named that would be created if they do not exist.

    Raises:
        ValueError: More than ``NAMES_MAX`` are named, or there are tagged fields.
    """
    count, at = _compact(request, at) if flexible else (*_COUNT.unpack_from(request, at), at + _COUNT.size)
    if count > NAMES_MAX:
        raise ValueError(f"{count} topics are named; the limit is {NAMES_MAX}")
    for _ in range(count):
        if flexible:
            length, at = _compact(request, at + (16 if version >= IDS_FROM else 0))
            at = _behind_tags(request, at + max(length, 0))
        else:
            (length,) = _LENGTH.unpack_from(request, at)
            at += _LENGTH.size + max(length, 0)
    return count > 0 and (version < MAY_MAKE_NONE_FROM or request[at] != 0)


def _compact(request: memoryview, at: int) -> tuple[int, int]:
    """A compact length, -1 for null, and where the next field begins."""
    length, at = read_uvarint(request, at)
    return length - 1, at
