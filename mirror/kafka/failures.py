"""What brokers say no with: error codes by name and kind, and how what may go better later is tried again.

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

from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError

AUTHORIZATION_CODES = frozenset({29, 30, 31, 53, 65})
"""TOPIC_, GROUP_, CLUSTER_, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, DELEGATION_TOKEN_..."""
STALE_METADATA_CODES = frozenset({3, 5, 6, 9, 56, 72, 74, 75, 100, 103})
"""Answers that mean: the picture of the cluster is old, look at it again."""

BeforeSleep = Callable[[RetryCallState], None]


def broker_error(code: int, what: str, message: str | None = None) -> TwinsiteError:
    """Name an error code a broker answered with; ``what`` says what was asked of what."""
    known = kafka.errors.for_code(code)
    name = getattr(known, "message", None) or known.__name__
    text = f"{what}: {name}" + (f" ({message})" if message else "")
    if code in AUTHORIZATION_CODES:
        return NotAuthorizedError(text)
    return BrokerError(name, code, text, retriable=bool(getattr(known, "retriable", False)))


def retrying(
    timeout_seconds: float, *, longest_pause_seconds: float = 2.0, before_sleep: BeforeSleep | None = None
) -> AsyncRetrying:
    """Try again what is worth trying again, with growing, jittered pauses, for so long."""
    return AsyncRetrying(
        retry=retry_if_exception(lambda e: isinstance(e, TwinsiteError) and e.retriable),
        wait=wait_random_exponential(multiplier=0.1, max=longest_pause_seconds),
        stop=stop_after_delay(timeout_seconds),
        before_sleep=before_sleep,
        reraise=True,
    )
