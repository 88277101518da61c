"""The transactional id of a flow on its target: a producer id all mirrors share, and a token of ownership.

No transaction is ever begun. The coordinator durably keeps one producer id per
transactional id. Every InitProducerId raises its epoch, so the last caller can prove
that it was the last. The coordinator also keeps the transaction timeout that the caller
gave. It limits nothing here, and serves as a mark: by it a caller whose answer was lost
knows that it was the last. The coordinator is looked up once, and again whenever in doubt.

Sources: KIP-98 (InitProducerId), KIP-664 (DescribeTransactions), KIP-890, the Kafka protocol
guide (FindCoordinator).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest

from mirror.errors import BrokerError, ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection_pool import CLAIMS, PROMPT
from mirror.kafka.failures import broker_error, retrying

TRANSACTIONAL_ID = 1
"""The key type by which a coordinator is looked up; that of a group would be 0."""
MARKS = 60_000
"""Marks are from 1 to this."""
TRANSACTIONAL_ID_NOT_FOUND = 105
COORDINATOR_CODES = frozenset({14, 15, 16})
WORTH_ANOTHER_TRY = COORDINATOR_CODES | {41, 51}
"""COORDINATOR_LOAD_IN_PROGRESS, _NOT_AVAILABLE, NOT_COORDINATOR, NOT_CONTROLLER, CONCURRENT_TRANSACTIONS."""


class Token(NamedTuple):
    """What the coordinator gave to the last caller of :func:`init_producer_id`."""

    producer_id: int
    epoch: int


async def init_producer_id(
    cluster: Cluster, transactional_id: str, *, timeout_seconds: float = 60.0, mark: int = MARKS
) -> Token:
    """Take the transactional id: same producer id as before, next epoch.

    Args:
        timeout_seconds: How long to retry.
        mark: What :func:`mark_of` gives for the token.

    Raises:
        NotAuthorizedError: No WRITE on the transactional id.
        BrokerError, ConnectionFailedError: No usable answer within ``timeout_seconds``.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=mark, producer_id=-1, producer_epoch=-1
    )
    answer = await _ask(cluster, transactional_id, request, timeout_seconds, highest=4, lane=CLAIMS)
    if answer.producer_id < 0:
        raise BrokerError(
            "NO_PRODUCER_ID", -1, f"{cluster.name}: the coordinator gave producer id {answer.producer_id}"
        )
    return Token(answer.producer_id, answer.producer_epoch)


async def current_token(
    cluster: Cluster, transactional_id: str, *, timeout_seconds: float = 10.0, cut_off: bool = False
) -> Token | None:
    """Who holds the transactional id now; None when the coordinator does not know it.

    Args:
        timeout_seconds: How long to retry.
        cut_off: Also give up a request that is unanswered by then. The next one looks the coordinator up
            again: it may be another broker by then.

    Raises:
        NotAuthorizedError: No DESCRIBE on the transactional id.
        BrokerError, ConnectionFailedError: No usable answer within ``timeout_seconds``.
    """
    answer = await _describe(cluster, transactional_id, timeout_seconds, cut_off=cut_off)
    return None if answer is None else Token(answer.producer_id, answer.producer_epoch)


async def mark_of(
    cluster: Cluster, transactional_id: str, token: Token, *, timeout_seconds: float
) -> int | None:
    """The mark with which a token was taken; None if it is not the last one.

    Args:
        timeout_seconds: How long to retry; what is unanswered by then is given up.

    Raises:
        TwinsiteError: As for :func:`current_token`.
    """
    answer = await _describe(cluster, transactional_id, timeout_seconds, cut_off=True)
    if answer is None or token != (answer.producer_id, answer.producer_epoch):
        return None
    return int(answer.transaction_timeout_ms)


async def _describe(
    cluster: Cluster, transactional_id: str, timeout_seconds: float, *, cut_off: bool
) -> Any | None:
    """What the coordinator knows of the transactional id; None when it does not know it."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer = await _ask(cluster, transactional_id, request, timeout_seconds, cut_off=cut_off)
    return None if answer.error_code == TRANSACTIONAL_ID_NOT_FOUND else answer


async def _ask(
    cluster: Cluster,
    transactional_id: str,
    request: Any,
    timeout_seconds: float,
    highest: int | None = None,
    *,
    cut_off: bool = False,
    lane: str = PROMPT,
) -> Any:
    """Ask, and retry while that may help; with ``cut_off`` also give up a request unanswered by then."""
    ends_at = time.monotonic() + timeout_seconds
    async for attempt in retrying(timeout_seconds):
        with attempt:
            try:
                async with asyncio.timeout(max(0.0, ends_at - time.monotonic()) if cut_off else None):
                    whole = await _call_coordinator(cluster, transactional_id, request, highest, lane)
            except TimeoutError as late:
                raise _unanswered(cluster, transactional_id, timeout_seconds) from late
            except TwinsiteError:
                cluster.coordinators.pop(transactional_id, None)
                raise
            states = getattr(whole, "transaction_states", None)
            answer = whole if states is None else states[0]
            if answer.error_code in COORDINATOR_CODES:
                cluster.coordinators.pop(transactional_id, None)
            if answer.error_code not in {0, TRANSACTIONAL_ID_NOT_FOUND}:
                error = broker_error(
                    answer.error_code, f"{cluster.name}: transactional id {transactional_id}"
                )
                error.retriable |= answer.error_code in WORTH_ANOTHER_TRY
                raise error
            return answer
    raise AssertionError("retrying ends with an answer or an error")


def _unanswered(cluster: Cluster, transactional_id: str, seconds: float) -> ConnectionFailedError:
    where = cluster.info.brokers.get(cluster.coordinators.pop(transactional_id, -1)) or cluster.name
    cluster.note_failure()
    return ConnectionFailedError(
        f"{where}: the coordinator of {transactional_id} has not answered within {seconds:g} s"
    )


async def _call_coordinator(
    cluster: Cluster, transactional_id: str, request: Any, highest: int | None, lane: str
) -> Any:
    """Ask the coordinator, looked up if not known.

    Raises:
        TwinsiteError: It cannot be found, could not be asked, or did not answer.
    """
    known = cluster.coordinators
    if transactional_id not in known:
        known[transactional_id] = await _find_coordinator(cluster, transactional_id)
    return await cluster.call(request, node=known[transactional_id], highest=highest, lane=lane)


async def _find_coordinator(cluster: Cluster, transactional_id: str) -> int:
    keys = [transactional_id]
    request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTIONAL_ID, coordinator_keys=keys)
    answer = await cluster.call(request)
    found = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code:
        what = f"{cluster.name}: finding the coordinator of {transactional_id}"
        raise broker_error(found.error_code, what, found.error_message)
    if found.node_id not in cluster.info.brokers:
        await cluster.refresh()
    return int(found.node_id)
