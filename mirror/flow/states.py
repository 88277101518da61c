"""What a broker's refusal means for a partition: which state, and whether to try again.

Pure. Codes are Kafka's (``Errors.java``). A code that is not listed here counts as a passing fault of the
side that answered, and is shown with its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.errors import CorruptStateError
from mirror import broker_codes as codes
from mirror.errors import BrokerError, FencedError, NotAuthorizedError, RelayTooOldError, TwinsiteError
from mirror.kafka.failures import growing_seconds
from mirror.model import Reason, State

RETRY_SECONDS_FIRST = 0.1
"""Doubled with each failed try. A partition that waits for the right is looked at again after it, too."""
RETRY_SECONDS_MAX = 15.0
"""The longest pause between tries. A partition that a look has blocked is looked at again after it, too."""
PATIENCE = 4
"""Failed tries before a passing fault is shown as BLOCKED."""
WITHOUT_KEY = "Compacted topic cannot accept message without key"
"""Kafka's LogValidator says this; the error code alone does not tell it from other invalid records."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``state`` None: the partition is only in doubt, and looked at again."""

    state: State | None
    reason: Reason
    retry: bool = True


UNANSWERED = Refusal(None, Reason.TARGET_UNAVAILABLE)
"""The target gave no answer, or could not be asked: only a look tells what has become of what was sent."""

_BLOCKED = State.BLOCKED
_DOUBT = Refusal(None, Reason.TARGET_UNAVAILABLE)

APPEND_REFUSALS: dict[int, Refusal] = {
    codes.CORRUPT_MESSAGE: Refusal(None, Reason.CORRUPT_BATCH),
    codes.REQUEST_TIMED_OUT: _DOUBT,
    codes.MESSAGE_TOO_LARGE: Refusal(_BLOCKED, Reason.RECORD_TOO_LARGE),
    codes.RECORD_LIST_TOO_LARGE: Refusal(_BLOCKED, Reason.RECORD_TOO_LARGE),
    codes.NOT_ENOUGH_REPLICAS: Refusal(_BLOCKED, Reason.NOT_ENOUGH_REPLICAS),
    codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Refusal(_BLOCKED, Reason.NOT_ENOUGH_REPLICAS),
    codes.TOPIC_AUTHORIZATION_FAILED: Refusal(_BLOCKED, Reason.TARGET_NOT_AUTHORIZED),
    codes.CLUSTER_AUTHORIZATION_FAILED: Refusal(_BLOCKED, Reason.TARGET_NOT_AUTHORIZED),
    codes.INVALID_TIMESTAMP: Refusal(_BLOCKED, Reason.TIMESTAMP_REFUSED),
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    codes.POLICY_VIOLATION: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER: _DOUBT,
    codes.DUPLICATE_SEQUENCE_NUMBER: _DOUBT,
    codes.INVALID_PRODUCER_EPOCH: Refusal(None, Reason.NEWER_EPOCH),
    codes.TRANSACTION_COORDINATOR_FENCED: Refusal(None, Reason.ANOTHER_MIRROR),
    codes.KAFKA_STORAGE_ERROR: Refusal(_BLOCKED, Reason.STORAGE_ERROR),
    codes.UNKNOWN_PRODUCER_ID: _DOUBT,
    codes.UNSUPPORTED_COMPRESSION_TYPE: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    codes.INVALID_RECORD: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    codes.PRODUCER_FENCED: Refusal(State.FENCED, Reason.NEWER_EPOCH, retry=False),
}

OF_RECORDS = frozenset(
    {
        codes.MESSAGE_TOO_LARGE,
        codes.RECORD_LIST_TOO_LARGE,
        codes.INVALID_TIMESTAMP,
        codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        codes.POLICY_VIOLATION,
        codes.INVALID_RECORD,
    }
)
"""Final refusals of records. In a look, which writes no copies, they are about the flow's state."""

UNREPLICATED = Refusal(None, Reason.NOT_ENOUGH_REPLICAS)
"""What was appended is not acknowledged yet: replicas are slow, or missing."""

FETCH_REFUSALS: dict[int, Refusal] = {
    codes.OFFSET_OUT_OF_RANGE: Refusal(None, Reason.LOG_START_MOVED),
    codes.CORRUPT_MESSAGE: Refusal(_BLOCKED, Reason.CORRUPT_BATCH),
    codes.TOPIC_AUTHORIZATION_FAILED: Refusal(_BLOCKED, Reason.SOURCE_NOT_AUTHORIZED),
    codes.UNSUPPORTED_VERSION: Refusal(_BLOCKED, Reason.UNREADABLE_BATCH),
    codes.KAFKA_STORAGE_ERROR: Refusal(_BLOCKED, Reason.STORAGE_ERROR),
    codes.UNSUPPORTED_COMPRESSION_TYPE: Refusal(_BLOCKED, Reason.UNREADABLE_BATCH),
}


def append_refusal(code: int, words: str | None = None) -> Refusal:
    """What a Produce or WriteTxnMarkers answer means.

    Args:
        words: The broker's error message; only needed to tell kinds of INVALID_RECORD apart.
    """
    if code == codes.INVALID_RECORD and words is not None and WITHOUT_KEY in words:
        return Refusal(_BLOCKED, Reason.NULL_KEY_REFUSED)
    return APPEND_REFUSALS.get(code, _DOUBT)


def fetch_refusal(code: int) -> Refusal:
    """What a Fetch answer means. For CORRUPT_BATCH other replicas are asked before it takes effect."""
    return FETCH_REFUSALS.get(code, Refusal(None, Reason.SOURCE_UNAVAILABLE))


def look_refusal(error: TwinsiteError, *, at_source: bool) -> Refusal:
    """What it means that a look at the partition failed, or that its result could not be written."""
    if isinstance(error, CorruptStateError):
        return Refusal(_BLOCKED, Reason.STATE_UNUSABLE)
    if isinstance(error, NotAuthorizedError):
        return Refusal(_BLOCKED, Reason.SOURCE_NOT_AUTHORIZED if at_source else Reason.TARGET_NOT_AUTHORIZED)
    if isinstance(error, BrokerError) and not at_source and error.code in OF_RECORDS:
        return Refusal(_BLOCKED, Reason.STATE_UNUSABLE)
    if isinstance(error, BrokerError) and not at_source and error.code in APPEND_REFUSALS:
        return APPEND_REFUSALS[error.code]
    return Refusal(None, Reason.SOURCE_UNAVAILABLE if at_source else Reason.TARGET_UNAVAILABLE)


def way_refusal(error: TwinsiteError) -> Refusal:
    """What it means for a partition that its way from the source failed with an error that may not pass."""
    if isinstance(error, FencedError):
        return Refusal(State.FENCED, Reason.NEWER_EPOCH, retry=False)
    if isinstance(error, RelayTooOldError):
        return Refusal(_BLOCKED, Reason.RELAY_TOO_OLD)
    return Refusal(_BLOCKED, Reason.SOURCE_UNAVAILABLE)


def pause_seconds(attempts: int) -> float:
    """How long to wait before the next try: doubled with each failed one, up to RETRY_SECONDS_MAX."""
    return growing_seconds(RETRY_SECONDS_FIRST, attempts + 1, RETRY_SECONDS_MAX)
