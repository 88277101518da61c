"""Produce, coded by hand: held against kafka-python's generated messages in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from mirror.errors import AnswerError
from mirror.kafka.append import (
    PRODUCE_VERSION_MAX,
    Outcome,
    decode_answer,
    decode_throttled_answer,
    encode_request,
)
from mirror.kafka.record_batch import seal
from mirror.model import TopicPartition
from tests.unit.batches import entries, read_v2, v2

TopicSaid = ProduceResponse.TopicProduceResponse
PartSaid = TopicSaid.PartitionProduceResponse
ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
PAYMENTS_0 = TopicPartition("payments", 0)

versions = st.integers(9, PRODUCE_VERSION_MAX)
int16 = st.integers(-1, 2**15 - 1)
int64 = st.integers(-1, 2**63 - 1)
names = st.sampled_from(["a", "orders", "ö" * 60, "t" * 249])
partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))
texts = st.none() | st.text(min_size=1, max_size=150)


# -- requests ------------------------------------------------------------------------------------


def asked(parts: list[memoryview | bytes], version: int) -> Any:
    """A request of ours as kafka-python reads it; nothing may be left over."""
    body = b"".join(parts)
    request = ProduceRequest.decode(body, version=version)
    assert bytes(request.encode()) == body
    return request


@given(
    version=versions,
    views=st.dictionaries(partitions, st.binary(min_size=1, max_size=400), max_size=20),
    timeout_ms=st.integers(0, 2**31 - 1),
)
def test_a_request_carries_what_it_was_given(
    version: int, views: dict[TopicPartition, bytes], timeout_ms: int
) -> None:
    """
    Every batch comes back from kafka-python, which encodes the whole to the same bytes again.
    """
    batches = [(tp, memoryview(data)) for tp, data in views.items()]

    request = asked(encode_request(batches, timeout_ms), version)

    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, timeout_ms)
    found = {
        TopicPartition(topic.name, part.index): bytes(part.records)
        for topic in request.topic_data
        for part in topic.partition_data
    }
    assert found == views
    assert len(request.topic_data) == len({tp.topic for tp in views})


def test_batches_are_handed_on_and_not_copied() -> None:
    """
    Each view given is a piece of the request by itself.
    """
    first, second = v2(entries(0, 1)), v2(entries(5, 2))

    parts = encode_request([(ORDERS_0, first), (PAYMENTS_0, second)], 1_000)

    assert [part for part in parts if part is first or part is second] == [first, second]


def test_a_sealed_batch_arrives_with_the_records_it_had() -> None:
    """
    From a fetched batch to what the target reads out of the request.
    """
    view = v2(entries(70, 3), codec="zstd", producer=(5, 5, 5))
    seal(view, 4711, 0, 70)

    request = asked(encode_request([(ORDERS_1, view)], 1_000), PRODUCE_VERSION_MAX)

    ((part,),) = [topic.partition_data for topic in request.topic_data]
    found = [record._replace(offset=record.offset + 70) for record in read_v2(part.records)]
    assert found == entries(70, 3)


# -- answers -------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a broker says of one batch."""

    error_code: int = 0
    base_offset: int = 5
    log_append_ms: int = -1
    log_start_offset: int = 2
    record_errors: tuple[str | None, ...] = ()
    message: str | None = None
    leader: tuple[int, int] | None = None

    def encoded(self, version: int, index: int) -> Any:
        errors = [
            PartSaid.BatchIndexAndErrorMessage(
                version=version, batch_index=number, batch_index_error_message=text
            )
            for number, text in enumerate(self.record_errors)
        ]
        part = PartSaid(
            version=version,
            index=index,
            error_code=self.error_code,
            base_offset=self.base_offset,
            log_append_time_ms=self.log_append_ms,
            log_start_offset=self.log_start_offset,
            record_errors=errors,
            error_message=self.message,
        )
        if self.leader is not None and version >= 10:
            node, epoch = self.leader
            part.current_leader = PartSaid.LeaderIdAndEpoch(
                version=version, leader_id=node, leader_epoch=epoch
            )
        return part

    def expected(self) -> Outcome:
        first = next((text for text in self.record_errors if text), None)
        repeated = self.error_code == 0 and self.log_append_ms >= 0
        words = self.message or first
        return Outcome(self.error_code, self.base_offset, self.log_start_offset, words, repeated)


said = st.builds(
    Said,
    int16,
    int64,
    int64,
    int64,
    st.lists(texts, max_size=4).map(tuple),
    texts,
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
)
answers = st.dictionaries(partitions, said, max_size=12)


def answer(outcomes: dict[TopicPartition, Said], version: int = 12, *, moved: bool = False) -> bytes:
    """As a broker would write it; ``moved``: with the addresses of new leaders."""
    topics: dict[str, list[Any]] = {}
    for tp, told in outcomes.items():
        topics.setdefault(tp.topic, []).append(told.encoded(version, tp.partition))
    response = ProduceResponse(
        version=version,
        responses=[
            TopicSaid(version=version, name=name, partition_responses=parts) for name, parts in topics.items()
        ],
        throttle_time_ms=7,
    )
    if moved and version >= 10:
        response.node_endpoints = [
            ProduceResponse.NodeEndpoint(version=version, node_id=3, host="new", port=9092, rack=None)
        ]
    return bytes(response.encode())


def decoded(data: bytes) -> dict[TopicPartition, Outcome]:
    return decode_answer(memoryview(data))


@given(outcomes=answers, version=versions, moved=st.booleans())
def test_an_answer_is_read_as_it_was_written(
    outcomes: dict[TopicPartition, Said], version: int, moved: bool
) -> None:
    """
    In every version we speak: errors of records, messages, moved leaders and their addresses.
    """
    expected = {tp: told.expected() for tp, told in outcomes.items()}

    assert decoded(answer(outcomes, version, moved=moved)) == expected


@given(outcomes=answers, version=versions, moved=st.booleans())
def test_an_answer_tells_for_how_long_a_quota_holds_us_back(
    outcomes: dict[TopicPartition, Said], version: int, moved: bool
) -> None:
    """
    It stands behind everything that is said of batches.
    """
    _, throttle_ms = decode_throttled_answer(memoryview(answer(outcomes, version, moved=moved)))

    assert throttle_ms == 7


def test_the_message_for_the_batch_goes_before_those_for_its_records() -> None:
    """
    Where the broker says nothing of the batch, the first record it complains about speaks.
    """
    both = Said(87, -1, record_errors=(None, "no key", "no key either"), message="one or more are invalid")

    outcomes = decoded(answer({ORDERS_0: both, ORDERS_1: both._replace(message=None), PAYMENTS_0: Said(87)}))

    assert outcomes[ORDERS_0].message == "one or more are invalid"
    assert outcomes[ORDERS_1].message == "no key"
    assert outcomes[PAYMENTS_0].message is None


def test_an_answer_that_is_cut_off_is_an_error() -> None:
    """
    Wherever it is cut it is an AnswerError with words; the tagged fields at its very end are not needed.
    """
    outcomes = {ORDERS_0: Said(record_errors=("x", "y"), message="words", leader=(1, 2)), PAYMENTS_0: Said()}
    whole = answer(outcomes)
    not_needed = 1

    for end in range(len(whole) - not_needed):
        with pytest.raises(AnswerError, match="truncated or invalid Produce answer"):
            decoded(whole[:end])
    assert decoded(whole[:-not_needed]) == decoded(whole)


@given(data=st.binary(max_size=120), at=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_an_answer_that_lies_is_an_error(data: bytes, at: int, byte: int) -> None:
    """
    Neither noise nor one wrong byte ends in another error than AnswerError.
    """
    lying = bytearray(answer({ORDERS_0: Said(message="words"), PAYMENTS_0: Said(leader=(1, 2))}))
    lying[at % len(lying)] = byte

    for body in (data, bytes(lying)):
        try:
            found = decoded(body)
        except AnswerError:
            continue

        assert len(found) <= len(body)
