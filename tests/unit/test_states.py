"""What a refusal means: which state, whether it is tried again, and when."""

from __future__ import annotations

import pytest
from kafka import errors as kafka_errors

from checkpoint.errors import CorruptStateError
from mirror.errors import (
    AuthenticationError,
    BrokerError,
    ConnectionFailedError,
    FencedError,
    NotAuthorizedError,
    RelayTooOldError,
    TwinsiteError,
)
from mirror.flow.states import (
    APPEND_REFUSALS,
    FETCH_REFUSALS,
    RETRY_SECONDS_FIRST,
    RETRY_SECONDS_MAX,
    Refusal,
    append_refusal,
    fetch_refusal,
    look_refusal,
    pause_seconds,
    way_refusal,
)
from mirror.kafka.failures import broker_error
from mirror.model import Reason, State


def code(name: str) -> int:
    """Kafka's number of an error, as kafka-python knows it."""
    return int(getattr(kafka_errors, name).errno)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MessageSizeTooLargeError", Reason.RECORD_TOO_LARGE),
        ("RecordListTooLargeError", Reason.RECORD_TOO_LARGE),
        ("NotEnoughReplicasError", Reason.NOT_ENOUGH_REPLICAS),
        ("NotEnoughReplicasAfterAppendError", Reason.NOT_ENOUGH_REPLICAS),
        ("TopicAuthorizationFailedError", Reason.TARGET_NOT_AUTHORIZED),
        ("ClusterAuthorizationFailedError", Reason.TARGET_NOT_AUTHORIZED),
        ("InvalidTimestampError", Reason.TIMESTAMP_REFUSED),
        ("UnsupportedForMessageFormatError", Reason.RECORD_REFUSED),
        ("PolicyViolationError", Reason.RECORD_REFUSED),
        ("InvalidRecordError", Reason.RECORD_REFUSED),
        ("UnsupportedCompressionTypeError", Reason.RECORD_REFUSED),
        ("KafkaStorageError", Reason.STORAGE_ERROR),
    ],
)
def test_an_append_refused_for_its_content_or_the_targets_state_blocks_and_is_tried_again(
    name: str, reason: Reason
) -> None:
    """
    At once, with a reason that says whose turn it is.
    """
    assert append_refusal(code(name)) == Refusal(State.BLOCKED, reason, retry=True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "Compacted topic cannot accept message without key in topic partition orders-0.",
            "null_key_refused",
        ),
        ("One or more records have been rejected due to invalid timestamp", "record_refused"),
        ("", "record_refused"),
        (None, "record_refused"),
    ],
)
def test_a_record_without_a_key_is_told_from_others_that_are_refused_by_the_brokers_words(
    words: str | None, reason: str
) -> None:
    """
    It has the same code. Who reads that keys are missing looks at the wrong thing where none are.
    """
    refused = append_refusal(code("InvalidRecordError"), words)

    assert refused == Refusal(State.BLOCKED, Reason(reason))


def test_a_fenced_producer_is_deposed_and_nothing_is_tried_again() -> None:
    """
    Only an operator ends that.
    """
    assert append_refusal(code("ProducerFencedError")) == Refusal(
        State.FENCED, Reason.NEWER_EPOCH, retry=False
    )


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (FencedError("newer"), Refusal(State.FENCED, Reason.NEWER_EPOCH, retry=False)),
        (RelayTooOldError("old"), Refusal(State.BLOCKED, Reason.RELAY_TOO_OLD)),
        (AuthenticationError("who"), Refusal(State.BLOCKED, Reason.SOURCE_UNAVAILABLE)),
    ],
)
def test_a_way_that_waiting_does_not_open_is_refused_for_a_reason(
    error: TwinsiteError, refusal: Refusal
) -> None:
    """
    A relay that has met a newer mirror of the flow deposes us as the target does.
    """
    assert way_refusal(error) == refusal


def test_a_newer_epoch_is_looked_at_first() -> None:
    """
    It may be that of a repair, of which the flow's state tells.
    """
    assert append_refusal(code("InvalidProducerEpochError")) == Refusal(None, Reason.NEWER_EPOCH)


@pytest.mark.parametrize(
    "name",
    [
        "OutOfOrderSequenceNumberError",
        "DuplicateSequenceNumberError",
        "UnknownProducerIdError",
        "RequestTimedOutError",
        "NotLeaderForPartitionError",
        "UnknownTopicOrPartitionError",
        "CoordinatorNotAvailableError",
    ],
)
def test_what_another_look_settles_is_only_a_doubt(name: str) -> None:
    """
    The log may or may not have grown: the partition keeps its state and is looked at.
    """
    assert append_refusal(code(name)).state is None
    assert append_refusal(code(name)).retry


@pytest.mark.parametrize("number", [-1, 4711, 0])
def test_an_error_nobody_has_heard_of_is_a_doubt(number: int) -> None:
    """
    On either side, shown as that side being unavailable should it last.
    """
    assert append_refusal(number) == Refusal(None, Reason.TARGET_UNAVAILABLE)
    assert fetch_refusal(number) == Refusal(None, Reason.SOURCE_UNAVAILABLE)


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("OffsetOutOfRangeError", None, Reason.LOG_START_MOVED),
        ("CorruptRecordError", State.BLOCKED, Reason.CORRUPT_BATCH),
        ("TopicAuthorizationFailedError", State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED),
        ("KafkaStorageError", State.BLOCKED, Reason.STORAGE_ERROR),
        ("UnsupportedCompressionTypeError", State.BLOCKED, Reason.UNREADABLE_BATCH),
        ("FencedLeaderEpochError", None, Reason.SOURCE_UNAVAILABLE),
        ("UnknownLeaderEpochError", None, Reason.SOURCE_UNAVAILABLE),
    ],
)
def test_a_refused_fetch_says_what_is_wrong_with_the_source(
    name: str, state: State | None, reason: Reason
) -> None:
    """
    An offset out of range is looked at: only a look knows whether anything was lost.
    """
    assert fetch_refusal(code(name)) == Refusal(state, reason)


def test_a_look_that_is_forbidden_names_the_side() -> None:
    """
    Permissions are given on one cluster or the other.
    """
    error = NotAuthorizedError("no DESCRIBE on topic orders")

    assert look_refusal(error, at_source=True) == Refusal(State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED)
    assert look_refusal(error, at_source=False) == Refusal(State.BLOCKED, Reason.TARGET_NOT_AUTHORIZED)


def test_a_look_that_fails_is_a_doubt_on_that_side() -> None:
    """
    Unless the target refuses with a code that means something to an append.
    """
    away = ConnectionFailedError("gone")
    storage = BrokerError(
        "KAFKA_STORAGE_ERROR", code("KafkaStorageError"), "the disk is full", retriable=True
    )

    assert look_refusal(away, at_source=True) == Refusal(None, Reason.SOURCE_UNAVAILABLE)
    assert look_refusal(away, at_source=False) == Refusal(None, Reason.TARGET_UNAVAILABLE)
    assert look_refusal(storage, at_source=False) == Refusal(State.BLOCKED, Reason.STORAGE_ERROR)
    assert look_refusal(storage, at_source=True) == Refusal(None, Reason.SOURCE_UNAVAILABLE)


def test_every_refusal_that_is_not_tried_again_is_a_state() -> None:
    """
    A partition in doubt that nobody looks at would stand still in silence.
    """
    for refusal in (*APPEND_REFUSALS.values(), *FETCH_REFUSALS.values()):
        assert refusal.retry or refusal.state is not None


def test_the_pause_between_looks_doubles_up_to_a_bound() -> None:
    """
    However often it failed before.
    """
    pauses = [pause_seconds(attempts) for attempts in range(2_000)]

    assert pauses[:4] == [RETRY_SECONDS_FIRST * factor for factor in (1, 2, 4, 8)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_SECONDS_MAX


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(broker_error(10, "target: Produce to __twinsite_state.f-0"), id="a record too large"),
        pytest.param(broker_error(32, "target: Produce to __twinsite_state.f-0"), id="a time refused"),
        pytest.param(CorruptStateError("a chunk does not match its CRC"), id="damage"),
    ],
)
def test_what_is_wrong_with_the_flows_state_is_not_said_of_the_target_topic(error: TwinsiteError) -> None:
    """
    Nothing is written to a partition that is looked at; and brokers and network are in order.
    """
    assert look_refusal(error, at_source=False) == Refusal(State.BLOCKED, Reason.STATE_UNUSABLE)
