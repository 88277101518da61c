"""What gets through a relay to a mirror that may read some topics only: nothing of the others, ever."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import DescribeAclsResponse, DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from mirror.kafka.fetch import decode_answer
from mirror.relay.guarding import VERSIONS, Asked, Guard
from mirror.relay.rules import READING, RefusedError

OPEN, CLOSED = ("open-a", "open-b"), ("hidden-a", "hidden-b")
NAMES = (*OPEN, *CLOSED)
IDS = {name: uuid5(UUID(int=7), name) for name in NAMES}
KNOWN = {topic_id.bytes: name for name, topic_id in IDS.items()}
STRANGER = uuid5(UUID(int=7), "made a moment ago")
GUARD = Guard(lambda name: name.startswith("open-"), KNOWN.get, lambda: NAMES, "not in its role")
SECRETS = [b"hidden", *(IDS[name].bytes for name in CLOSED)]
CORRELATION = (99).to_bytes(4, "big")

topics = st.lists(st.sampled_from(NAMES), unique=True)


def request_of(api_key: int, version: int, body: bytes = b"") -> bytes:
    """A request by its head, with a client id that says nothing."""
    tags = b"\0" if api_key in {3, 18} and version >= 9 else b""
    return api_key.to_bytes(2) + version.to_bytes(2) + CORRELATION + b"\xff\xff" + tags + body


def metadata_request(names: list[str] | None, version: int, *, makes: bool = False) -> bytes:
    of = MetadataRequest.MetadataRequestTopic
    wanted = None if names is None else [of(name=name) for name in names]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=makes)
    request.API_VERSION = version
    request.with_header(correlation_id=99, client_id="m")
    return bytes(request.encode(header=True))


def answer_of(response: Any, version: int) -> memoryview:
    """An answer with its header, as a broker sends it."""
    tags = b"\0" if response.flexible_version_q(version) and response.API_KEY != 18 else b""
    return memoryview(CORRELATION + tags + bytes(response.encode(version=version)))


def passed(asked: Asked, answer: memoryview) -> bytes:
    return b"".join(GUARD.answered(asked, answer).answer)


def read(response: Any, version: int, answer: bytes) -> Any:
    """What the mirror understands of an answer."""
    head = 5 if response.flexible_version_q(version) and response.API_KEY != 18 else 4
    return response.decode(memoryview(answer)[head:], version=version)


def metadata(names: list[str]) -> Any:
    """Of these topics, with three partitions each."""
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    broker = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker(node_id=1, host="kafka-1", port=9092, rack=None)],
        cluster_id="east",
        controller_id=1,
        authorized_operations=None,
        topics=[
            topic(
                error_code=0,
                name=name,
                topic_id=IDS[name],
                is_internal=False,
                authorized_operations=None,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=number,
                        leader_id=1,
                        leader_epoch=5,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for number in range(3)
                ],
            )
            for name in names
        ],
    )


@given(topics, st.integers(*VERSIONS[3]))
def test_of_all_topics_those_that_are_closed_are_not_there(names: list[str], version: int) -> None:
    """
    As brokers leave out what may not be described; everything else is as it was, byte for byte.
    """
    asked = GUARD.asked(metadata_request(None, version))

    got = passed(asked, answer_of(metadata(names), version))

    assert got == bytes(answer_of(metadata([name for name in names if name in OPEN]), version))


@given(topics, st.integers(*VERSIONS[3]))
def test_a_closed_topic_that_is_named_is_refused_by_its_name_alone(names: list[str], version: int) -> None:
    """
    Whether it exists, how many partitions it has and which id: none of it gets out.
    """
    asked = GUARD.asked(metadata_request(names, version))

    result = GUARD.answered(asked, answer_of(metadata(names), version))
    got = read(MetadataResponse, version, b"".join(result.answer))

    assert result.refused == {*names} & {*CLOSED}
    assert [topic.name for topic in got.topics] == names
    for topic in got.topics:
        closed = topic.name in CLOSED
        assert (topic.error_code, len(topic.partitions)) == ((29, 0) if closed else (0, 3))
    assert not any(IDS[name].bytes in b"".join(result.answer) for name in CLOSED)


def test_a_closed_topic_that_is_asked_for_by_its_id_is_an_unknown_one() -> None:
    """
    Its name was not known to whoever asked, and is not told.
    """
    of = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[of(topic_id=IDS[name], name=None) for name in ("hidden-a", "open-a")],
        allow_auto_topic_creation=False,
    )
    request.API_VERSION = 12
    request.with_header(correlation_id=99, client_id="m")

    asked = GUARD.asked(bytes(request.encode(header=True)))
    got = passed(asked, answer_of(metadata(["hidden-a", "open-a"]), 12))
    closed, opened = read(MetadataResponse, 12, got).topics

    assert (closed.error_code, closed.name, closed.topic_id) == (100, None, IDS["hidden-a"])
    assert (opened.error_code, opened.name) == (0, "open-a")
    assert b"hidden" not in got


@given(topics, st.integers(*VERSIONS[2]))
def test_offsets_of_closed_topics_are_refused(names: list[str], version: int) -> None:
    """
    With the error that a broker gives, for each partition that was asked for.
    """
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    partition = topic.ListOffsetsPartitionResponse
    full = ListOffsetsResponse(
        throttle_time_ms=0,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=3, error_code=0, timestamp=1_700_000_000, offset=4711, leader_epoch=8
                    )
                ],
            )
            for name in names
        ],
    )

    result = GUARD.answered(Asked(2, version), answer_of(full, version))
    got = read(ListOffsetsResponse, version, b"".join(result.answer))

    assert result.refused == {*names} & {*CLOSED}
    for one in got.topics:
        (told,) = one.partitions
        closed = one.name in CLOSED
        assert (told.partition_index, told.error_code, told.offset) == (
            (3, 29, -1) if closed else (3, 0, 4711)
        )
        assert told.timestamp == (-1 if closed else 1_700_000_000)


@given(st.lists(st.tuples(st.sampled_from((2, 4, 8, 32)), st.sampled_from(NAMES)), unique=True))
def test_settings_of_closed_topics_and_of_brokers_are_refused(resources: list[tuple[int, str]]) -> None:
    """
    With words that lead to the relay's settings.
    """
    result_of = DescribeConfigsResponse.DescribeConfigsResult
    config = result_of.DescribeConfigsResourceResult
    full = DescribeConfigsResponse(
        throttle_time_ms=0,
        results=[
            result_of(
                error_code=0,
                error_message=None,
                resource_type=kind,
                resource_name=name,
                configs=[
                    config(
                        name="retention.ms",
                        value="hidden-value" if kind != 2 or name in CLOSED else "1",
                        read_only=False,
                        config_source=1,
                        is_sensitive=False,
                        synonyms=[],
                        config_type=5,
                        documentation=None,
                    )
                ],
            )
            for kind, name in resources
        ],
    )

    got = passed(Asked(32, 4), answer_of(full, 4))

    assert b"hidden-value" not in got
    told = [
        (one.resource_type, one.resource_name, one.error_code, len(one.configs))
        for one in read(DescribeConfigsResponse, 4, got).results
    ]
    assert told == [
        (kind, name, *((0, 1) if kind == 2 and name in OPEN else (29, 0) if kind == 2 else (31, 0)))
        for kind, name in resources
    ]


@pytest.mark.parametrize(
    ("kind", "pattern", "name", "told"),
    [
        (2, 3, "open-a", True),
        (2, 3, "*", True),
        (2, 4, "op", True),
        (2, 4, "", True),
        (2, 3, "hidden-a", False),
        (2, 4, "hidden", False),
        (2, 5, "open-a", False),
        (3, 3, "open-a", False),
        (4, 3, "kafka-cluster", False),
    ],
)
def test_rules_are_told_where_they_concern_an_open_topic(
    kind: int, pattern: int, name: str, told: bool
) -> None:
    """
    Who may do what with groups, the cluster and other topics is nobody else's business.
    """
    resource = DescribeAclsResponse.DescribeAclsResource
    acl = resource.AclDescription(principal="User:ann", host="*", operation=3, permission_type=3)
    full = DescribeAclsResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        resources=[resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=[acl])],
    )

    got = read(DescribeAclsResponse, 3, passed(Asked(29, 3), answer_of(full, 3)))

    assert [one.resource_name for one in got.resources] == ([name] if told else [])


def fetched(ids: list[UUID]) -> Any:
    """A Fetch answer with records of each topic."""
    topic = FetchResponse.FetchableTopicResponse
    return FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=5,
        responses=[
            topic(
                topic_id=topic_id,
                partitions=[
                    topic.PartitionData(
                        partition_index=2,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=9,
                        log_start_offset=4,
                        diverging_epoch=None,
                        current_leader=None,
                        snapshot_id=None,
                        aborted_transactions=None,
                        preferred_read_replica=-1,
                        records=b"hidden records" if topic_id not in map(IDS.get, OPEN) else b"records",
                    )
                ],
            )
            for topic_id in ids
        ],
    )


@given(st.lists(st.sampled_from([*IDS.values(), STRANGER]), unique=True))
def test_records_of_closed_topics_stay_where_they_are(ids: list[UUID]) -> None:
    """
    Topics go by their ids there. One that the relay does not know yet is closed, and asked for again.
    """
    whole = answer_of(fetched(ids), 13)

    result = GUARD.answered(Asked(1, 13), whole)
    got = b"".join(result.answer)

    assert b"hidden" not in got
    for told in decode_answer(memoryview(got)[5:]).partitions:
        name = KNOWN.get(told.key.topic_id)
        offsets = (told.high_watermark, told.last_stable_offset, told.log_start_offset)
        if name in OPEN:
            assert (told.error_code, *offsets, bytes(told.records)) == (0, 9, 9, 4, b"records")
        else:
            assert (told.error_code, *offsets, bytes(told.records)) == (29 if name else 100, -1, -1, -1, b"")
    assert result.unknown is (STRANGER in ids)
    assert result.refused == {KNOWN[one.bytes] for one in ids if KNOWN.get(one.bytes) in CLOSED}
    if all(one in map(IDS.get, OPEN) for one in ids):
        assert result.answer == [whole], "not even copied"


def test_only_what_is_understood_is_offered() -> None:
    """
    A mirror asks for what `ApiVersions` says; in versions that both the broker and the relay know.
    """
    entry = ApiVersionsResponse.ApiVersion
    full = ApiVersionsResponse(
        error_code=0,
        api_keys=[entry(api_key=key, min_version=0, max_version=99) for key in range(100)],
        throttle_time_ms=0,
    )

    got = read(ApiVersionsResponse, 2, passed(Asked(18, 2), answer_of(full, 2)))

    assert {one.api_key: (one.min_version, one.max_version) for one in got.api_keys} == VERSIONS


@pytest.mark.parametrize("api_key", sorted(READING.keys() - VERSIONS.keys()))
def test_what_no_mirror_needs_is_not_passed_on(api_key: int) -> None:
    """
    Groups and transactions of others, and ways to learn of topics that are not looked through here.
    """
    with pytest.raises(RefusedError) as refused:
        GUARD.asked(request_of(api_key, 0))

    assert refused.value.why.startswith(READING[api_key])


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(metadata_request(["new"], 12, makes=True), id="would make a topic"),
        pytest.param(request_of(3, 3), id="an old version, which may make topics"),
        pytest.param(request_of(3, 13), id="a version nobody knows here"),
        pytest.param(request_of(1, 12), id="Fetch by names"),
        pytest.param(request_of(1, 14), id="Fetch of a later version"),
        pytest.param(request_of(3, 12), id="cut"),
        pytest.param(request_of(3, 12, b"\xff\xff\xff\xff\x0f"), id="more topics than bytes"),
        pytest.param(request_of(2, 7, bytes(2 << 20)), id="large"),
    ],
)
def test_what_is_not_understood_is_not_passed_on(request_bytes: bytes) -> None:
    """
    In doubt the answer is no.
    """
    with pytest.raises(RefusedError):
        GUARD.asked(request_bytes)


WHOLE_METADATA, WHOLE_FETCH = answer_of(metadata([*NAMES]), 12), answer_of(fetched([*IDS.values()]), 13)


def spoilt(data: st.DataObject, whole: memoryview) -> memoryview:
    """The answer with one byte changed, cut somewhere, or with something behind it."""
    changed = bytearray(whole)
    changed[data.draw(st.integers(4, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = changed[: data.draw(st.integers(4, len(changed)))]
    return memoryview(bytes(cut + data.draw(st.binary(max_size=3))))


@given(st.data())
def test_of_spoilt_metadata_no_closed_topic_is_understood(data: st.DataObject) -> None:
    """
    It is refused, or what the mirror reads in it has no other topics than those it may know.
    """
    try:
        got = passed(Asked(3, 12), spoilt(data, WHOLE_METADATA))
    except RefusedError:
        return

    topics = read(MetadataResponse, 12, got).topics
    assert all(topic.name is None or topic.name.startswith("open-") for topic in topics)


@given(st.data())
def test_of_spoilt_records_no_closed_topic_has_any(data: st.DataObject) -> None:
    """
    It is refused, or no topic but those that may be read has any records.
    """
    try:
        got = passed(Asked(1, 13), spoilt(data, WHOLE_FETCH))
    except RefusedError:
        return

    for told in decode_answer(memoryview(got)[5:]).partitions:
        assert KNOWN.get(told.key.topic_id) in OPEN or not len(told.records)


@pytest.mark.parametrize("behind", [b"", b"\0", b"hidden records"])
def test_what_stands_behind_an_answer_does_not_go_on_with_it(behind: bytes) -> None:
    """
    Nobody has looked at it.
    """
    whole = bytes(answer_of(fetched([IDS["open-a"]]), 13))
    answer = whole[:-1] if not behind else whole + behind

    with pytest.raises(RefusedError, match="Fetch"):
        GUARD.answered(Asked(1, 13), memoryview(answer))


@given(st.none() | topics, st.integers(*VERSIONS[3]))
def test_a_question_for_metadata_reaches_the_broker_as_it_was_understood(
    names: list[str] | None, version: int
) -> None:
    """
    One that says the same to everybody is the same; the broker never reads another one than the guard.
    """
    request_bytes = metadata_request(names, version)

    assert GUARD.asked(request_bytes).request == request_bytes


@given(st.data())
def test_of_a_spoilt_question_the_broker_gets_what_was_understood(data: st.DataObject) -> None:
    """
    Whatever stands in it: refused, or a whole request of its version that makes no topics.
    """
    spoilt_request = bytearray(metadata_request([*NAMES], 12))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt_request[data.draw(st.integers(4, len(spoilt_request) - 1))] = data.draw(st.integers(0, 255))

    try:
        asked = GUARD.asked(bytes(spoilt_request))
    except RefusedError:
        return

    understood = MetadataRequest.decode(memoryview(asked.request), version=12, header=True)
    assert understood.allow_auto_topic_creation is False
    assert bytes(understood.encode(header=True)) == asked.request


def test_a_question_for_settings_is_passed_on_unread() -> None:
    """
    It changes nothing at the broker, and what counts is the answer.
    """
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[resource(resource_type=2, resource_name="hidden-a", configuration_keys=None)],
        include_synonyms=False,
        include_documentation=False,
    )
    request.API_VERSION = 4
    request.with_header(correlation_id=99, client_id="m")

    asked = GUARD.asked(bytes(request.encode(header=True)))

    assert asked == Asked(32, 4)
    assert asked.request == bytes(request.encode(header=True))
