"""Fetch, coded by hand: held against kafka-python's generated messages in both directions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from mirror.errors import AnswerError
from mirror.kafka.fetch import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_VERSION,
    INVALID_FETCH_SESSION_EPOCH,
    FetchAnswer,
    Fetched,
    FetchLimits,
    FetchSession,
    Isolation,
    Key,
    Want,
    decode_answer,
    encode_request,
)

TopicPart = FetchResponse.FetchableTopicResponse
Part = TopicPart.PartitionData

int16 = st.integers(-1, 2**15 - 1)
int32 = st.integers(-1, 2**31 - 1)
int64 = st.integers(-1, 2**63 - 1)
topic_ids = st.binary(min_size=16, max_size=16).filter(any)  # kafka-python takes zeros for none at all
keys = st.builds(
    Key, st.sampled_from([bytes([n]) * 16 for n in range(1, 4)]) | topic_ids, st.integers(0, 300)
)
wants = st.builds(Want, int64, int32, int32, st.integers(0, 2**31 - 1))
limits_drawn = st.builds(
    FetchLimits,
    wait_ms_max=st.integers(0, 2**31 - 1),
    bytes_min=st.integers(0, 2**31 - 1),
    bytes_max=st.integers(0, 2**31 - 1),
    isolation=st.sampled_from(Isolation),
)
LIMITS = FetchLimits()


# -- requests ------------------------------------------------------------------------------------


def asked(body: bytes) -> Any:
    """A request of ours as kafka-python reads it; nothing may be left over."""
    request = FetchRequest.decode(body, version=FETCH_VERSION)
    assert bytes(request.encode()) == body
    return request


def wanted(request: Any) -> dict[Key, Want]:
    return {
        Key(topic.topic_id.bytes, part.partition): Want(
            part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch, part.partition_max_bytes
        )
        for topic in request.topics
        for part in topic.partitions
    }


def forgotten(request: Any) -> set[Key]:
    return {Key(t.topic_id.bytes, p) for t in request.forgotten_topics_data for p in t.partitions}


@given(
    limits=limits_drawn,
    session=st.tuples(st.integers(0, 2**31 - 1), int32),
    changed=st.dictionaries(keys, wants, max_size=30),
    gone=st.sets(keys, max_size=30),
)
def test_a_request_says_what_it_should(
    limits: FetchLimits, session: tuple[int, int], changed: dict[Key, Want], gone: set[Key]
) -> None:
    """
    Every field comes back from kafka-python, which encodes it to the same bytes again.
    """
    request = asked(encode_request(limits, session=session, changed=changed, forgotten=gone))

    assert wanted(request) == changed
    assert forgotten(request) == gone
    assert (request.session_id, request.session_epoch) == session
    assert (request.max_wait_ms, request.min_bytes) == (limits.wait_ms_max, limits.bytes_min)
    assert (request.max_bytes, request.isolation_level) == (limits.bytes_max, limits.isolation)
    assert (request.replica_id, request.rack_id, request.cluster_id) == (-1, "", None)


def test_a_topic_is_named_once_for_all_its_partitions() -> None:
    """
    A thousand partitions of one topic are one entry.
    """
    changed = {Key(b"t" * 16, number): Want(number, 1, 1, 1 << 20) for number in range(1_000)}

    request = asked(encode_request(LIMITS, session=(5, 1), changed=changed, forgotten=changed))

    assert len(request.topics) == len(request.forgotten_topics_data) == 1
    assert wanted(request) == changed


# -- answers -------------------------------------------------------------------------------------


class Said(NamedTuple):
    """What a broker says of one partition, in the order of the answer."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes | None
    diverging: tuple[int, int] | None
    leader: tuple[int, int] | None

    def encoded(self) -> Any:
        tagged: dict[str, Any] = {}
        if self.diverging is not None:
            epoch, end = self.diverging
            tagged["diverging_epoch"] = Part.EpochEndOffset(version=13, epoch=epoch, end_offset=end)
        if self.leader is not None:
            node, epoch = self.leader
            tagged["current_leader"] = Part.LeaderIdAndEpoch(version=13, leader_id=node, leader_epoch=epoch)
        aborted = self.aborted and [
            Part.AbortedTransaction(version=13, producer_id=who, first_offset=first)
            for who, first in self.aborted
        ]
        return Part(
            version=13,
            partition_index=self.partition,
            error_code=self.error_code,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            aborted_transactions=aborted,
            preferred_read_replica=7,
            records=self.records,
            **tagged,
        )

    def expected(self, topic_id: bytes) -> Fetched:
        return Fetched(
            Key(topic_id, self.partition),
            self.error_code,
            self.high_watermark,
            self.last_stable_offset,
            self.log_start_offset,
            self.diverging,
            self.aborted or [],
            memoryview(self.records or b""),
        )


said = st.builds(
    Said,
    st.integers(0, 2**31 - 1),
    int16,
    int64,
    int64,
    int64,
    st.none() | st.lists(st.tuples(int64, int64), max_size=140),
    st.none() | st.binary(max_size=300),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
)
topics = st.lists(st.tuples(topic_ids, st.lists(said, max_size=4)), max_size=4)
SOME = Said(3, 0, 90, 80, 10, [(7, 12), (8, 13)], b"the records", (4, 70), (1, 5))
PLAIN = Said(4, 0, 90, 80, 10, [], b"more records", None, None)


def answer(
    parts: list[tuple[bytes, list[Said]]], throttle_ms: int = 0, code: int = 0, session: int = 5
) -> bytes:
    """As a broker would write it."""
    response = FetchResponse(
        version=13,
        throttle_time_ms=throttle_ms,
        error_code=code,
        session_id=session,
        responses=[
            TopicPart(
                version=13, topic_id=UUID(bytes=topic), partitions=[part.encoded() for part in all_said]
            )
            for topic, all_said in parts
        ],
    )
    return bytes(response.encode(version=13))


def decoded(data: bytes) -> FetchAnswer:
    return decode_answer(memoryview(data))


@given(parts=topics, throttle_ms=int32, code=int16, session=int32)
def test_an_answer_is_read_as_it_was_written(
    parts: list[tuple[bytes, list[Said]]], throttle_ms: int, code: int, session: int
) -> None:
    """
    Many topics, null records, long lists of aborted transactions, divergence, a moved leader.
    """
    expected = [part.expected(topic) for topic, all_said in parts for part in all_said]

    found = decoded(answer(parts, throttle_ms, code, session))

    assert found == FetchAnswer(throttle_ms, code, session, expected)


def test_records_are_views_into_the_answer() -> None:
    """
    Nothing is copied: what is written into a batch lands in the buffer it was received in.
    """
    body = bytearray(answer([(b"t" * 16, [PLAIN])]))

    records = decode_answer(memoryview(body)).partitions[0].records
    records[:4] = b"MORE"

    assert b"MORE records" in body


def uvarint(value: int) -> bytes:
    return bytes(UnsignedVarInt32.encode(value))


def tags(*values: tuple[int, bytes]) -> bytes:
    return uvarint(len(values)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in values)


def part_by_hand(part: Said, strange: tuple[int, bytes]) -> bytes:
    """A partition as a broker of the future writes it: with tagged fields wherever the format allows them."""
    aborted = [struct.pack(">qq", *pair) + tags(strange) for pair in part.aborted or []]
    records = part.records or b""
    known = [(0, struct.pack(">iq", *part.diverging) + tags())] if part.diverging else []
    return (
        struct.pack(">ihqqq", *part[:5])
        + uvarint(len(aborted) + 1)
        + b"".join(aborted)
        + struct.pack(">i", 7)
        + uvarint(len(records) + 1)
        + records
        + tags(*known, strange)
    )


@given(noise=st.binary(max_size=200), tag=st.integers(3, 2**20), part=said)
def test_tagged_fields_of_later_brokers_are_passed_over(noise: bytes, tag: int, part: Said) -> None:
    """
    In every place where the format allows them, beside those we know.
    """
    strange = (tag, noise)
    one = part_by_hand(part, strange)

    body = struct.pack(">ihi", 0, 0, 5) + uvarint(2) + b"t" * 16 + uvarint(3) + one * 2 + tags(strange) * 2

    assert decoded(body).partitions == [part.expected(b"t" * 16)] * 2
    theirs = FetchResponse.decode(body, version=13)
    assert [bytes(p.records) for p in theirs.responses[0].partitions] == [part.records or b""] * 2


def test_a_divergence_without_an_epoch_is_none() -> None:
    """
    A broker that writes out the default has found nothing wrong.
    """
    plain = answer([(b"t" * 16, [PLAIN])])
    default = (0, bytes.fromhex("ffffffff ffffffffffffffff 00"))

    body = plain[:-3] + tags(default) + b"\0\0"

    assert decoded(body).partitions[0].diverging is None


def test_an_answer_that_is_cut_off_is_an_error() -> None:
    """
    Wherever it is cut it is an AnswerError with words; only the empty last section may be missing.
    """
    whole = answer([(b"t" * 16, [SOME, PLAIN]), (b"u" * 16, [PLAIN])])

    for end in range(len(whole) - 1):
        with pytest.raises(AnswerError, match=r"\w"):
            decoded(whole[:end])
    assert decoded(whole[:-1]) == decoded(whole)


@given(data=st.binary(max_size=120), at=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_an_answer_that_lies_is_an_error_or_stays_within_its_bytes(data: bytes, at: int, byte: int) -> None:
    """
    Neither noise nor one wrong byte ends in another error than AnswerError.
    """
    lying = bytearray(answer([(b"t" * 16, [SOME, PLAIN])]))
    lying[at % len(lying)] = byte

    for body in (data, bytes(lying)):
        try:
            found = decoded(body)
        except AnswerError:
            continue

        assert sum(len(fetched.records) for fetched in found.partitions) <= len(body)


# -- sessions ------------------------------------------------------------------------------------


@dataclass
class Broker:
    """What a broker keeps of a fetch session, after KIP-227; it reads requests with kafka-python."""

    session_id: int = 0
    epoch: int = 0
    kept: dict[Key, Want] = field(default_factory=dict)
    sessions: int = 0

    def hear(self, body: bytes) -> FetchAnswer:
        request = asked(body)
        if request.session_epoch == 0:
            self.sessions += 1
            self.session_id, self.epoch, self.kept = self.sessions, 0, {}
        elif request.session_id != self.session_id:
            return FetchAnswer(0, FETCH_SESSION_ID_NOT_FOUND, 0, [])
        elif request.session_epoch != self.epoch:
            return FetchAnswer(0, INVALID_FETCH_SESSION_EPOCH, 0, [])
        self.kept.update(wanted(request))
        for key in forgotten(request):
            self.kept.pop(key, None)
        self.epoch += 1
        return FetchAnswer(0, 0, self.session_id, [])

    def crash(self) -> None:
        self.session_id, self.epoch, self.kept = 0, 0, {}


few_keys = st.builds(Key, st.sampled_from([b"a" * 16, b"b" * 16]), st.integers(0, 2))


class SessionStory(RuleBasedStateMachine):
    """Wishes change, answers come or are lost, brokers restart: the broker never has another picture."""

    def __init__(self) -> None:
        super().__init__()
        self.session = FetchSession()
        self.broker = Broker()
        self.wishes: dict[Key, Want] = {}

    @rule(key=few_keys, want=wants)
    def want(self, key: Key, want: Want) -> None:
        self.session.want(key, want)
        self.wishes[key] = want

    @rule(key=few_keys)
    def forget(self, key: Key) -> None:
        self.session.forget(key)
        self.wishes.pop(key, None)

    @rule()
    def ask(self) -> None:
        wishes = dict(self.wishes)
        heard = self.broker.hear(self.session.request(LIMITS))

        assert self.session.told == wishes
        assert self.session.answered(heard)
        if not heard.error_code:
            assert self.broker.kept == wishes

    @rule()
    def lose_the_answer(self) -> None:
        self.broker.hear(self.session.request(LIMITS))
        self.session.reset()

    @rule()
    def lose_the_request(self) -> None:
        self.session.request(LIMITS)
        self.session.reset()

    @rule()
    def restart_the_broker(self) -> None:
        self.broker.crash()

    @rule(code=st.sampled_from([-1, 3, 100]))
    def fail(self, code: int) -> None:
        self.session.request(LIMITS)

        assert not self.session.answered(FetchAnswer(0, code, 0, []))

    @invariant()
    def nothing_is_wanted_that_nobody_wished(self) -> None:
        assert self.session.wanted == self.wishes


TestSessionStory: Callable[[], object] = SessionStory.TestCase


def test_a_request_grows_with_what_has_changed() -> None:
    """
    A thousand partitions without news cost nothing once the broker knows them.
    """
    session = FetchSession()
    for number in range(1_000):
        session.want(Key(b"t" * 16, number), Want(0, 0, 0, 1 << 20))
    full = session.request(LIMITS)
    session.answered(FetchAnswer(0, 0, 77, []))

    session.want(Key(b"t" * 16, 5), Want(10, 0, 0, 1 << 20))
    request = asked(session.request(LIMITS))

    assert len(full) > 30_000
    assert (request.session_id, request.session_epoch) == (77, 1)
    assert wanted(request) == {Key(b"t" * 16, 5): Want(10, 0, 0, 1 << 20)}
    assert len(session.told) == 1_000


def test_what_is_left_alone_before_the_broker_has_heard_of_it_is_not_asked_for() -> None:
    """
    Neither at once nor later, beside what was wanted before.
    """
    session, broker, want = FetchSession(), Broker(), Want(0, 0, 0, 1)
    before, short = Key(b"t" * 16, 4), Key(b"t" * 16, 5)
    session.want(before, want)
    session.answered(broker.hear(session.request(LIMITS)))

    session.want(short, want)
    session.forget(short)
    asked_for = [wanted(asked(request)) for request in requests_answered(session, broker, 3)]

    assert asked_for == [{}] * 3
    assert broker.kept == session.told == {before: want}


def requests_answered(session: FetchSession, broker: Broker, count: int) -> Iterator[bytes]:
    """So many requests, one after the other."""
    for _ in range(count):
        request = session.request(LIMITS)
        session.answered(broker.hear(request))
        yield request


def test_what_is_wanted_anew_is_new_to_the_broker() -> None:
    """
    A broker says nothing of what it knows and has no news of: it forgets the partition first.
    """
    session, broker, key, want = FetchSession(), Broker(), Key(b"t" * 16, 5), Want(0, 0, 0, 1)
    session.want(key, want)
    session.answered(broker.hear(session.request(LIMITS)))

    session.forget(key)
    session.want(key, want, anew=True)
    session.answered(broker.hear(session.request(LIMITS)))
    known = dict(broker.kept)
    session.answered(broker.hear(session.request(LIMITS)))

    assert known == {}
    assert broker.kept == {key: want}
    assert broker.sessions == 1


def test_the_epoch_of_a_session_begins_again_at_one() -> None:
    """
    After two thousand million requests, as the broker counts: 0 would ask for a new session.
    """
    session = FetchSession()
    session.want(Key(b"t" * 16, 1), Want(0, 0, 0, 1))
    session.request(LIMITS)
    session.answered(FetchAnswer(0, 0, 77, []))
    session._epoch = 2**31 - 1

    session.answered(FetchAnswer(0, 0, 77, []))

    assert asked(session.request(LIMITS)).session_epoch == 1


def test_without_a_session_every_request_is_a_full_one() -> None:
    """
    A broker whose session cache is full answers with session 0.
    """
    session = FetchSession()
    session.want(Key(b"t" * 16, 1), Want(0, 0, 0, 1))

    for _ in range(3):
        request = asked(session.request(LIMITS))
        session.answered(FetchAnswer(0, 0, 0, []))

        assert (request.session_id, request.session_epoch) == (0, 0)
        assert len(wanted(request)) == 1
