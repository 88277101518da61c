"""What a broker's refusal means for a partition: which state, and whether to try again.

Pure. Codes are Kafka's (``Errors.java``); one that is not listed here is taken as a
passing fault of the side that answered, shown with its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.errors import CorruptStateError
from mirror.errors import BrokerError, FencedError, NotAuthorizedError, RelayTooOldError, TwinsiteError
from mirror.model import Reason, State

RETRY_SECONDS_FIRST = 0.1
"""After so long a partition is looked at again that waits for the right to be ours, too."""
RETRY_SECONDS_MAX = 15.0
"""After so long one that is BLOCKED is looked at again, too."""
PATIENCE = 4
"""Failed tries before a passing fault is shown as BLOCKED."""
INVALID_RECORD = 87
WITHOUT_KEY = "Compacted topic cannot accept message without key"
"""What Kafka's LogValidator says of a record; its code does not tell."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``state`` None: the partition is only in doubt, and looked at again."""

    state: State | None
    reason: Reason
    retry: bool = True


_BLOCKED = State.BLOCKED
_DOUBT = Refusal(None, Reason.TARGET_UNAVAILABLE)

APPEND_REFUSALS: dict[int, Refusal] = {
    2: Refusal(None, Reason.CORRUPT_BATCH),
    7: _DOUBT,
    10: Refusal(_BLOCKED, Reason.RECORD_TOO_LARGE),
    18: Refusal(_BLOCKED, Reason.RECORD_TOO_LARGE),
    19: Refusal(_BLOCKED, Reason.NOT_ENOUGH_REPLICAS),
    20: Refusal(_BLOCKED, Reason.NOT_ENOUGH_REPLICAS),
    29: Refusal(_BLOCKED, Reason.TARGET_NOT_AUTHORIZED),
    31: Refusal(_BLOCKED, Reason.TARGET_NOT_AUTHORIZED),
    32: Refusal(_BLOCKED, Reason.TIMESTAMP_REFUSED),
    43: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    44: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    45: _DOUBT,
    46: _DOUBT,
    47: Refusal(None, Reason.NEWER_EPOCH),
    52: Refusal(None, Reason.ANOTHER_MIRROR),
    56: Refusal(_BLOCKED, Reason.STORAGE_ERROR),
    59: _DOUBT,
    76: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    INVALID_RECORD: Refusal(_BLOCKED, Reason.RECORD_REFUSED),
    90: Refusal(State.FENCED, Reason.NEWER_EPOCH, retry=False),
}

OF_RECORDS = frozenset({10, 18, 32, 43, 44, INVALID_RECORD})
"""Said of what is to be written: where a partition is only looked at, that is the flow's state."""

UNREPLICATED = Refusal(None, Reason.NOT_ENOUGH_REPLICAS)
"""What was appended is not acknowledged yet: replicas are slow, or missing."""

FETCH_REFUSALS: dict[int, Refusal] = {
    1: Refusal(None, Reason.LOG_START_MOVED),
    2: Refusal(_BLOCKED, Reason.CORRUPT_BATCH),
    29: Refusal(_BLOCKED, Reason.SOURCE_NOT_AUTHORIZED),
    35: Refusal(_BLOCKED, Reason.UNREADABLE_BATCH),
    56: Refusal(_BLOCKED, Reason.STORAGE_ERROR),
    76: Refusal(_BLOCKED, Reason.UNREADABLE_BATCH),
}


def append_refusal(code: int, words: str | None = None) -> Refusal:
    """What a Produce or WriteTxnMarkers answer means.

    Args:
        words: What the broker has to say beside the code; only INVALID_RECORD needs them to be told apart.
    """
    if code == INVALID_RECORD and words is not None and WITHOUT_KEY in words:
        return Refusal(_BLOCKED, Reason.NULL_KEY_REFUSED)
    return APPEND_REFUSALS.get(code, _DOUBT)


def fetch_refusal(code: int) -> Refusal:
    """What a Fetch answer means. Of CORRUPT_BATCH other replicas are asked before it is so."""
    return FETCH_REFUSALS.get(code, Refusal(None, Reason.SOURCE_UNAVAILABLE))


def look_refusal(error: TwinsiteError, *, at_source: bool) -> Refusal:
    """What it means that a question about the partition could not be answered, or not be noted."""
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
    """What it means for a partition that the way it is read on is closed, and waiting may not open it."""
    if isinstance(error, FencedError):
        return Refusal(State.FENCED, Reason.NEWER_EPOCH, retry=False)
    if isinstance(error, RelayTooOldError):
        return Refusal(_BLOCKED, Reason.RELAY_TOO_OLD)
    return Refusal(_BLOCKED, Reason.SOURCE_UNAVAILABLE)


def pause_seconds(attempts: int) -> float:
    """How long to wait before the next look: doubled with each failed try, up to a bound."""
    return min(RETRY_SECONDS_FIRST * 2.0 ** min(attempts, 16), RETRY_SECONDS_MAX)
