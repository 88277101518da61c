"""What a transaction coordinator answers, and whether it is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError
from mirror.kafka import transactions
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection_pool import PROMPT, WAITING
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.transactions import Token, current_token, init_producer_id, mark_of

NONE, REQUEST_TIMED_OUT, COORDINATOR_LOADING, NOT_COORDINATOR, CONCURRENT = 0, 7, 14, 16, 51
INVALID_PRODUCER_EPOCH, NOT_AUTHORIZED = 47, 53


def coordinator(
    monkeypatch: pytest.MonkeyPatch, codes: Sequence[int], producer_id: int = 4000
) -> tuple[Cluster, list[int]]:
    """A cluster whose coordinator answers with these codes; and those it has not given yet."""
    cluster, left = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions()), list(codes)

    async def answer(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(error_code=left.pop(0), producer_id=producer_id, producer_epoch=3)

    monkeypatch.setattr(transactions, "_call_coordinator", answer)
    return cluster, left


async def test_a_producer_id_that_is_none_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With -1 a batch is of no idempotent producer: a broker would append it anywhere, and more than once.
    """
    cluster, left = coordinator(monkeypatch, [NONE, NONE], producer_id=-1)

    with pytest.raises(BrokerError, match="producer id -1") as refused:
        await init_producer_id(cluster, "twinsite.orders")

    assert (refused.value.retriable, left) == (False, [NONE])


@pytest.mark.parametrize("code", [REQUEST_TIMED_OUT, COORDINATOR_LOADING, CONCURRENT])
async def test_a_coordinator_that_is_not_ready_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """
    A timeout is among its answers: what it asks of others may have taken too long.
    """
    cluster, left = coordinator(monkeypatch, [code, code, NONE])

    token = await init_producer_id(cluster, "twinsite.orders")

    assert (token, left) == (Token(4000, 3), [])


@pytest.mark.parametrize(
    ("code", "kind"), [(INVALID_PRODUCER_EPOCH, BrokerError), (NOT_AUTHORIZED, NotAuthorizedError)]
)
async def test_a_coordinator_that_refuses_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TwinsiteError]
) -> None:
    """
    Its answer would be the same.
    """
    cluster, left = coordinator(monkeypatch, [code, NONE])

    with pytest.raises(kind) as refused:
        await init_producer_id(cluster, "twinsite.orders")

    assert (refused.value.retriable, left) == (False, [NONE])


async def test_a_coordinator_is_looked_up_once_and_again_where_it_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A broker that is none any more says so; nobody else does.
    """
    cluster = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions())
    cluster.info = replace(cluster.info, brokers={1: Address("east", 1), 2: Address("east", 2)})
    leads, asked = [1, 2], list[int]()

    async def answer(request: Any, *, node: int | None = None, **_: object) -> SimpleNamespace:
        if node is None:
            found = SimpleNamespace(error_code=NONE, node_id=leads.pop(0))
            return SimpleNamespace(coordinators=[found])
        asked.append(node)
        code = NOT_COORDINATOR if node == 1 else NONE
        return SimpleNamespace(error_code=code, producer_id=4000, producer_epoch=3)

    monkeypatch.setattr(cluster, "call", answer)

    tokens = [await init_producer_id(cluster, "twinsite.orders") for _ in range(2)]

    assert (tokens, asked, leads) == ([Token(4000, 3)] * 2, [1, 2, 2], [])


async def test_with_which_mark_a_token_was_taken_is_told_of_the_last_one_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What the coordinator knows of an older one says nothing of who has it now.
    """
    cluster = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions())

    async def answer(*_: object, **__: object) -> SimpleNamespace:
        state = SimpleNamespace(
            error_code=NONE, producer_id=4000, producer_epoch=3, transaction_timeout_ms=1234
        )
        return SimpleNamespace(transaction_states=[state])

    monkeypatch.setattr(transactions, "_call_coordinator", answer)

    tokens = Token(4000, 2), Token(4000, 3)
    marks = [await mark_of(cluster, "twinsite.orders", token, timeout_seconds=5) for token in tokens]

    assert marks == [None, 1234]


async def test_who_asks_whose_the_right_is_does_not_wait_behind_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A coordinator answers a claim once other brokers have it, and nothing else on that connection before.
    """
    cluster = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions())
    cluster.coordinators["twinsite.orders"] = 1
    lanes = list[str]()

    async def answer(*_: object, lane: str, **__: object) -> SimpleNamespace:
        lanes.append(lane)
        token = SimpleNamespace(error_code=NONE, producer_id=4000, producer_epoch=3)
        return token if len(lanes) == 1 else SimpleNamespace(transaction_states=[token])

    monkeypatch.setattr(cluster, "call", answer)

    claimed = await init_producer_id(cluster, "twinsite.orders")
    current = await current_token(cluster, "twinsite.orders")

    assert claimed == current
    assert (lanes[0] in WAITING, lanes[1]) == (True, PROMPT)
