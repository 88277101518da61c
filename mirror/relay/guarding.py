"""What a mirror that may read only some topics gets of what it asks brokers through a relay.

Of the requests that only read, those that a mirror needs are passed on, in versions that are understood here
to the last field; the answer to `ApiVersions` offers no others. What counts is the answer: it is decoded,
everything about topics that the mirror may not read is removed, or turned into the error that a broker gives
for missing rights, and it is encoded again from what was understood. What cannot be decoded is not passed on
at all. A Fetch answer, which names topics by their ids, is passed on unchanged if all of it may be read.

No I/O. Sources: the Kafka protocol guide; KIP-516 (topic ids), docs/permissions.md (what is needed for what).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.admin import DescribeAclsResponse, DescribeConfigsResponse
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from mirror.errors import AnswerError
from mirror.kafka.fetch import FETCH, FETCH_VERSION, decode_whole_answer
from mirror.relay.rules import READING, RefusedError

REQUEST_BYTES_MAX = 1 << 20
"""Room for a request that names twenty thousand topics."""
LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_ACLS, DESCRIBE_CONFIGS = 2, 3, 18, 29, 32
VERSIONS: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        FETCH: (FETCH_VERSION, FETCH_VERSION),
        LIST_OFFSETS: (1, 7),
        METADATA: (4, 12),
        API_VERSIONS: (0, 4),
        DESCRIBE_ACLS: (1, 3),
        DESCRIBE_CONFIGS: (1, 4),
    }
)
"""By API key: the lowest and the highest version that is passed on."""
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID = 29, 31, 100
TOPIC, LITERAL, PREFIXED = 2, 3, 4
"""Types of resources and of patterns, as Kafka numbers them."""
EVERY_NAME = "*"
NOT_DECODED = (ValueError, TypeError, IndexError, KeyError, AttributeError, struct.error, OverflowError)
"""What kafka-python raises for bytes that it cannot decode."""

_HEAD = struct.Struct(">hhi")
_NO_ID = UUID(int=0)
_RESPONSES: Mapping[int, Any] = MappingProxyType(
    {
        LIST_OFFSETS: ListOffsetsResponse,
        METADATA: MetadataResponse,
        API_VERSIONS: ApiVersionsResponse,
        DESCRIBE_ACLS: DescribeAclsResponse,
        DESCRIBE_CONFIGS: DescribeConfigsResponse,
    }
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was passed on, and has no answer yet.

    Attributes:
        names: Topics that a Metadata request names; None if it asks for all, and for other requests.
        request: What the broker gets.
    """

    api_key: int
    version: int
    names: frozenset[str] | None = None
    request: bytes = field(default=b"", compare=False, repr=False)

    @property
    def api(self) -> str:
        """Kafka's name of the request."""
        return READING[self.api_key]


class Passed(NamedTuple):
    """What the mirror gets as an answer.

    Attributes:
        answer: All of it, in pieces.
        refused: Names of topics that the mirror asked for and may not read.
        unknown: Some topic has an id that is not known: the metadata of the cluster is too old.
    """

    answer: Sequence[bytes | memoryview]
    refused: frozenset[str] = frozenset()
    unknown: bool = False


class Guard:
    """Stands between a mirror and a broker.

    Args:
        allows: Whether the mirror may read a topic of this name.
        name_of: The name of a topic id; None if it is not known.
        topics: The names of all topics, allowed or not.
        why: Why a topic is refused, for answers that have room for a text.
    """

    def __init__(
        self,
        allows: Callable[[str], bool],
        name_of: Callable[[bytes], str | None],
        topics: Callable[[], Iterable[str]],
        why: str,
    ) -> None:
        self._allows = allows
        self._name_of = name_of
        self._topics = topics
        self._why = why

    # -- requests --------------------------------------------------------------------------------

    def asked(self, request: bytes) -> Asked:
        """Judge a request. One that could do more than read is encoded again from what was understood of it.

        Args:
            request: One that is passed on for any mirror, without its size.

        Raises:
            RefusedError: No mirror needs it, it is too long, would do more than read, or is not understood.
        """
        api_key, version, _ = _HEAD.unpack_from(request)
        low, high = VERSIONS.get(api_key, (0, -1))
        if not low <= version <= high:
            words = f"{_called(api_key)} version {version}: its role allows {_passed(api_key)}"
            raise RefusedError(words)
        if len(request) > REQUEST_BYTES_MAX:
            raise RefusedError(
                f"a request of {len(request)} bytes; the limit for its role is {REQUEST_BYTES_MAX}"
            )
        if api_key == METADATA:
            return self._asked_metadata(request, version)
        return Asked(api_key, version, request=request)

    def _asked_metadata(self, request: bytes, version: int) -> Asked:
        try:
            decoded = MetadataRequest.decode(memoryview(request), version=version, header=True)
            names = None if decoded.topics is None else frozenset(t.name for t in decoded.topics if t.name)
            understood = bytes(decoded.encode(header=True))
        except NOT_DECODED as error:
            raise RefusedError(f"cannot decode Metadata of {len(request)} bytes: {error!r}") from error
        if decoded.allow_auto_topic_creation:
            raise RefusedError("Metadata that may create topics (allow_auto_topic_creation)")
        return Asked(METADATA, version, names, understood)

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, asked: Asked, answer: memoryview) -> Passed:
        """What the mirror gets of an answer.

        Args:
            answer: All of it, with its correlation id.

        Raises:
            RefusedError: It is not understood: nothing of it may be passed on.
        """
        try:
            return self._answered(asked, answer)
        except (*NOT_DECODED, AnswerError) as error:
            words = f"cannot decode an answer to {asked.api} of {len(answer)} bytes: {error!r}"
            raise RefusedError(words) from error

    def _answered(self, asked: Asked, answer: memoryview) -> Passed:
        if asked.api_key == FETCH:
            return self._fetch(answer)
        response = _RESPONSES[asked.api_key]
        head, body = _split(response, asked, answer)
        decoded = response.decode(body, version=asked.version)
        found: set[str] = set()
        if asked.api_key == METADATA:
            decoded.topics = list(self._metadata(decoded.topics, asked.names, found))
        elif asked.api_key == LIST_OFFSETS:
            self._list_offsets(decoded.topics, found)
        elif asked.api_key == DESCRIBE_CONFIGS:
            self._describe_configs(decoded.results, found)
        elif asked.api_key == DESCRIBE_ACLS:
            decoded.resources = self._describe_acls(decoded.resources)
        else:
            decoded.api_keys = list(_api_versions(decoded.api_keys))
        return Passed([bytes(head), bytes(decoded.encode())], frozenset(found))

    def _metadata(
        self, topics: Iterable[Any], names: frozenset[str] | None, found: set[str]
    ) -> Iterator[Any]:
        for topic in topics:
            if topic.name is not None and not self._allows(topic.name):
                if names is None:
                    continue  # as if it were not there, as brokers do
                by_name = topic.name in names
                if by_name:
                    found.add(topic.name)
                _close(topic, by_name=by_name)
            yield topic

    def _list_offsets(self, topics: Iterable[Any], found: set[str]) -> None:
        for topic in topics:
            if self._allows(topic.name):
                continue
            found.add(topic.name)
            for partition in topic.partitions:
                partition.error_code = TOPIC_AUTHORIZATION_FAILED
                partition.timestamp = partition.offset = partition.leader_epoch = -1

    def _describe_configs(self, results: Iterable[Any], found: set[str]) -> None:
        for result in results:
            of_topic = result.resource_type == TOPIC
            if of_topic and self._allows(result.resource_name):
                continue
            if of_topic:
                found.add(result.resource_name)
            result.error_code = TOPIC_AUTHORIZATION_FAILED if of_topic else CLUSTER_AUTHORIZATION_FAILED
            result.error_message = self._why
            result.configs = []

    def _describe_acls(self, resources: Iterable[Any]) -> list[Any]:
        topics = [name for name in self._topics() if self._allows(name)]
        return [one for one in resources if one.resource_type == TOPIC and self._concerns(one, topics)]

    def _concerns(self, resource: Any, topics: Iterable[str]) -> bool:
        """Whether an ACL applies to some topic that the mirror may read."""
        name = resource.resource_name
        if resource.pattern_type == PREFIXED:
            return any(topic.startswith(name) for topic in topics)
        return resource.pattern_type == LITERAL and (name == EVERY_NAME or self._allows(name))

    # -- Fetch -----------------------------------------------------------------------------------

    def _fetch(self, answer: memoryview) -> Passed:
        """Records are not examined, and copied only if something is removed."""
        ids = {fetched.key.topic_id for fetched in decode_whole_answer(answer[5:]).partitions}
        names = {topic_id: self._name_of(topic_id) for topic_id in ids}
        errors = {topic_id: code for topic_id, name in names.items() if (code := self._error(name))}
        if not errors:
            return Passed([answer])
        decoded = FetchResponse.decode(answer[5:], version=FETCH_VERSION)
        for topic in decoded.responses:
            code = errors.get(topic.topic_id.bytes, 0)
            if code:
                topic.partitions = [
                    _closed(partition.partition_index, code) for partition in topic.partitions
                ]
        refused = frozenset(name for topic_id in errors if (name := names[topic_id]) is not None)
        return Passed([bytes(answer[:5]), bytes(decoded.encode())], refused, None in names.values())

    def _error(self, name: str | None) -> int:
        if name is None:
            return UNKNOWN_TOPIC_ID
        return 0 if self._allows(name) else TOPIC_AUTHORIZATION_FAILED


def _split(response: Any, asked: Asked, answer: memoryview) -> tuple[memoryview, memoryview]:
    """The header of an answer, and what follows it.

    Raises:
        ValueError: There are tagged fields in the header.
    """
    if asked.api_key == API_VERSIONS or not response.flexible_version_q(asked.version):
        return answer[:4], answer[4:]
    if answer[4]:
        raise ValueError("tagged fields in the header")
    return answer[:5], answer[5:]


def _close(topic: Any, *, by_name: bool) -> None:
    """Leave of a topic in a Metadata answer only what the request already named."""
    topic.error_code = TOPIC_AUTHORIZATION_FAILED if by_name else UNKNOWN_TOPIC_ID
    if by_name:
        topic.topic_id = _NO_ID
    else:
        topic.name = None
    topic.is_internal = False
    topic.partitions = []
    topic.authorized_operations = None


def _closed(partition: int, code: int) -> Any:
    """A partition of a Fetch answer that has an error code and nothing else."""
    return FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        diverging_epoch=None,
        current_leader=None,
        snapshot_id=None,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )


def _api_versions(entries: Iterable[Any]) -> Iterator[Any]:
    """The APIs and versions that both the broker and the relay understand."""
    for entry in entries:
        low, high = VERSIONS.get(entry.api_key, (0, -1))
        entry.min_version, entry.max_version = max(entry.min_version, low), min(entry.max_version, high)
        if entry.min_version <= entry.max_version:
            yield entry


def _called(api_key: int) -> str:
    return READING.get(api_key, f"API {api_key}")


def _passed(api_key: int) -> str:
    if api_key not in VERSIONS:
        return "no such requests"
    low, high = VERSIONS[api_key]
    return f"version {low}" if low == high else f"versions {low} to {high}"
