"""Refusals of brokers: error codes by name and kind, and retries of what may succeed later.

Sources: the Kafka protocol guide (error codes).
"""

from __future__ import annotations

from collections.abc import Callable

import kafka.errors
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from mirror.broker_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError

AUTHORIZATION_CODES = frozenset({29, 30, 31, 53, 65})
"""TOPIC_, GROUP_, CLUSTER_, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, DELEGATION_TOKEN_..."""
STALE_METADATA_CODES = frozenset({3, 5, 6, 9, 56, 72, 74, 75, 100, 103})
"""Codes that mean: our snapshot of the cluster is stale, read it again."""

BeforeSleep = Callable[[RetryCallState], None]


def broker_error(code: int, what: str, message: str | None = None) -> TwinsiteError:
    """The error for a code that a broker answered with.

    Args:
        what: Which request to which cluster it was, for messages.
        message: What the broker said about it.
    """
    known = kafka.errors.for_code(code)
    name = getattr(known, "message", None) or known.__name__
    text = f"{what}: {name}" + (f" ({message})" if message else "")
    if code in AUTHORIZATION_CODES:
        return NotAuthorizedError(text)
    return BrokerError(name, code, text, retriable=bool(getattr(known, "retriable", False)))


def says_gone(error: TwinsiteError | None) -> bool:
    """True if a broker, asked for a topic by name, has said that it does not exist."""
    return isinstance(error, BrokerError) and error.code == UNKNOWN_TOPIC_OR_PARTITION


def growing_seconds(first_seconds: float, failures: int, longest_seconds: float) -> float:
    """The pause after this many failures in a row, at least one: doubled with each, up to a bound."""
    return min(first_seconds * 2.0 ** min(failures - 1, 16), longest_seconds)


def retrying(
    timeout_seconds: float, *, longest_pause_seconds: float = 2.0, before_sleep: BeforeSleep | None = None
) -> AsyncRetrying:
    """Retries errors that are ``retriable``, with growing, jittered pauses.

    Args:
        timeout_seconds: How long to begin new attempts; one that runs is not cut off. 0: one attempt.
        before_sleep: Called after each failed attempt that is retried.
    """
    return AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, TwinsiteError) and e.retriable),
        wait=wait_random_exponential(multiplier=0.1, max=longest_pause_seconds),
        stop=stop_after_delay(timeout_seconds),
        before_sleep=before_sleep,
        reraise=True,
    )
