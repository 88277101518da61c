"""Which requests a relay takes for reading: what they say counts, not their names alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from mirror.relay.rules import LOOKED_INTO, RefusedError, requests

names = st.lists(st.text(max_size=300), max_size=5)
client_ids = st.none() | st.text(max_size=200)


def encoded(request: Any, version: int, client_id: str | None = "m") -> bytes:
    request.API_VERSION = version
    request.with_header(correlation_id=99, client_id=client_id)
    return bytes(request.encode(header=True))


def metadata(topics: list[str] | None, version: int, *, makes: bool, client_id: str | None = "m") -> bytes:
    topic = MetadataRequest.MetadataRequestTopic
    wanted = None if topics is None else [topic(name=name) for name in topics]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=makes)
    return encoded(request, version, client_id)


def fetch(version: int, replica_id: int, client_id: str | None = "m") -> bytes:
    request = FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=[])
    return encoded(request, version, client_id)


def offsets(version: int, replica_id: int, client_id: str | None = "m") -> bytes:
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=0, topics=[])
    return encoded(request, version, client_id)


def pass_on(request: bytes) -> list[bytes]:
    return requests(bytearray(len(request).to_bytes(4) + request), 16)


@pytest.mark.parametrize("version", [0, 3, 4, 6])
@pytest.mark.parametrize("key_type", [0, 1])
def test_nobody_looks_for_a_coordinator(version: int, key_type: int) -> None:
    """
    A broker makes the topic in which groups, or transactions, are kept when it is asked for the first time.
    """
    request = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])

    with pytest.raises(RefusedError, match="does more than read"):
        pass_on(encoded(request, version))


@given(st.integers(4, LOOKED_INTO[1].highest), st.sampled_from([-1, -2]), client_ids)
def test_what_a_consumer_fetches_is_passed_on(version: int, replica_id: int, client_id: str | None) -> None:
    """
    As it is, whatever it calls itself.
    """
    request = fetch(version, replica_id, client_id)

    assert pass_on(request) == [request]


@given(st.integers(4, LOOKED_INTO[1].highest), st.integers(0, 2**31 - 1), client_ids)
def test_nobody_fetches_as_a_broker(version: int, replica_id: int, client_id: str | None) -> None:
    """
    The leader would take what it asks for as what this replica has: producers are told that records are safe
    which nobody else has.
    """
    with pytest.raises(RefusedError, match=f"claims to be broker {replica_id}"):
        pass_on(fetch(version, replica_id, client_id))


def test_versions_of_fetch_that_say_elsewhere_who_asks_are_not_passed_on() -> None:
    """
    From 15 on that is a tagged field at the end.
    """
    with pytest.raises(RefusedError, match="versions 0 to 14"):
        pass_on(fetch(15, -1))


@given(st.integers(1, LOOKED_INTO[2].highest), client_ids)
def test_nobody_asks_for_offsets_as_a_broker(version: int, client_id: str | None) -> None:
    """
    A consumer does.
    """
    request = offsets(version, -1, client_id)

    assert pass_on(request) == [request]
    with pytest.raises(RefusedError, match="claims to be broker 2"):
        pass_on(offsets(version, 2, client_id))


@given(st.none() | names, st.integers(4, LOOKED_INTO[3].highest), client_ids)
def test_metadata_that_makes_no_topics_is_passed_on(
    topics: list[str] | None, version: int, client_id: str | None
) -> None:
    """
    As it is, for all topics or for some.
    """
    request = metadata(topics, version, makes=False, client_id=client_id)

    assert pass_on(request) == [request]


@given(names.filter(bool), st.integers(0, LOOKED_INTO[3].highest))
def test_metadata_makes_no_topics(topics: list[str], version: int) -> None:
    """
    In the versions before 4 it does so by itself.
    """
    with pytest.raises(RefusedError, match="may create"):
        pass_on(metadata(topics, version, makes=True))


@pytest.mark.parametrize("topics", [None, []])
def test_where_no_topic_is_named_none_is_made(topics: list[str] | None) -> None:
    """
    Whatever such a request says of it.
    """
    request = metadata(topics, 12, makes=True)

    assert pass_on(request) == [request]


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(fetch(13, -1)[:12], id="a Fetch that is cut"),
        pytest.param(metadata(["a"], 12, makes=False)[:20], id="metadata that is cut"),
        pytest.param(metadata(["a"], 12, makes=False).replace(b"m\0", b"m\1"), id="tagged fields"),
        pytest.param(metadata([], 4, makes=False)[:-5] + b"\x7f\xff\xff\xff\0", id="very many names"),
        pytest.param(b"\0\3\xff\xff" + bytes(20), id="a version there is not"),
    ],
)
def test_what_is_not_understood_is_not_passed_on(request_bytes: bytes) -> None:
    """
    In doubt the answer is no.
    """
    with pytest.raises(RefusedError):
        pass_on(request_bytes)
