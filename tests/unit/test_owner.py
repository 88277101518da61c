"""What a mirror makes of what a coordinator says that is late, or has forgotten something."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest
from structlog.testing import capture_logs

from mirror.errors import ConnectionFailedError, NotAuthorizedError
from mirror.flow import owner as owning
from mirror.flow.owner import TAKEOVER_WAIT_SECONDS, Owner
from mirror.kafka import transactions
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import ConnectionOptions
from mirror.kafka.transactions import TRANSACTIONAL_ID_NOT_FOUND, Token
from tests.harness.daemon import until


class Coordinator:
    """Counts epochs; may be slow to say which was the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: Token | None = None
        self.marks: dict[Token, int] = {}
        self.slow_seconds = 0.0
        self.loses_answers = False
        for name in ("current_token", "init_producer_id", "mark_of"):
            monkeypatch.setattr(owning, name, getattr(self, name))

    async def current_token(self, *_: object, **__: object) -> Token | None:
        said = self.last
        await asyncio.sleep(self.slow_seconds)
        return said

    async def init_producer_id(self, *_: object, mark: int = 0, **__: object) -> Token:
        epoch = 0 if self.last is None else self.last.epoch + 1
        self.last = Token(7, epoch)
        self.marks[self.last] = mark
        if self.loses_answers:
            raise ConnectionFailedError("no answer for 30 s")
        return self.last

    async def mark_of(self, _: object, __: object, token: Token, **___: object) -> int | None:
        return self.marks.get(token) if token == self.last else None

    def gives_it_to_another(self) -> None:
        """Another mirror claims the right."""
        assert self.last is not None
        self.last = Token(7, self.last.epoch + 1)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    return Coordinator(monkeypatch)


@pytest.fixture
def owner() -> Owner:
    return Owner(cast(Any, None), "f")


async def test_a_right_that_was_ours_once_is_not_taken_for_a_new_one(
    coordinator: Coordinator, owner: Owner
) -> None:
    """
    A coordinator that lost its last records in a power cut would give it out again. What was written under it
    stands in the state already, so that nothing would tell that it has begun.
    """
    for _ in range(6):
        had = await owner.claim()
    coordinator.last = Token(7, had.epoch - 3)

    taken = await owner.claim()

    assert taken.epoch == had.epoch + 1


async def test_a_right_under_which_nothing_may_be_written_is_taken_anew(
    coordinator: Coordinator, owner: Owner
) -> None:
    """
    A newer epoch stands in the state, and the coordinator has forgotten that it gave it away.
    """
    token = await owner.claim()
    owner.outdated(token)

    await owner.ask(5)

    assert owner.token == coordinator.last == Token(7, token.epoch + 1)
    assert owner.held


async def test_whoever_has_to_begin_again_waits_again(coordinator: Coordinator, owner: Owner) -> None:
    """
    Its first write to the state was lost: meanwhile the state told the one before that the right is its own.
    """
    token = await owner.claim()
    owner.begun(token)
    owner.turn.since -= TAKEOVER_WAIT_SECONDS
    might_write = owner.may_write

    owner.begun(token)

    assert (might_write, owner.may_write) == (True, False)
    assert owner.since > time.monotonic() + TAKEOVER_WAIT_SECONDS - 1


async def test_a_right_that_another_has_taken_is_not_taken_back_by_that(
    coordinator: Coordinator, owner: Owner
) -> None:
    """
    That a write was refused is as it should be then.
    """
    token = await owner.claim()
    coordinator.last = Token(7, token.epoch + 1)
    owner.outdated(token)

    await owner.ask(5)

    assert (owner.held, owner.token) == (False, token)


@pytest.mark.parametrize("lost", ["the right", "its last tokens"])
async def test_what_the_state_has_given_to_another_is_not_claimed_again(
    coordinator: Coordinator, owner: Owner, lost: str
) -> None:
    """
    The coordinator was asked before. It says late that nobody has the right, or that it is ours still, under
    a token that is not the last one. By then the state holds something of the new owner: we stand by.
    """
    token = await owner.claim()
    owner.outdated(token)
    if lost == "the right":
        coordinator.last = None
    said = coordinator.last
    coordinator.slow_seconds = 0.05

    async def taken() -> bool:
        return True

    owner.taken_over = taken

    asking = asyncio.create_task(owner.ask(5))
    await asyncio.sleep(0)
    await owner.ask_the_state()
    ours = await asking

    assert (ours, owner.held, owner.token) == (False, False, token)
    assert coordinator.last == said


@pytest.mark.parametrize("teller", ["the coordinator", "the state"])
async def test_a_right_that_another_takes_while_it_is_claimed_again_is_not_taken_back(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch, teller: str
) -> None:
    """
    The coordinator had forgotten us. Before the claim it is asked once more: it names another mirror by then,
    or the flow's state does while the answer is under way.
    """
    token = await owner.claim()
    other = Token(7, token.epoch + 1)
    forgotten = True

    async def current_token(*_: object, **__: object) -> Token | None:
        nonlocal forgotten
        if forgotten:
            forgotten = False
            return None
        if teller == "the coordinator":
            coordinator.last = other
            return other
        await owner.ask_the_state()
        return None

    async def taken() -> bool:
        return True

    owner.taken_over = taken
    monkeypatch.setattr(owning, "current_token", current_token)

    ours = await owner.ask(5)

    assert (ours, owner.held, owner.token) == (False, False, token)
    assert coordinator.last == (other if teller == "the coordinator" else token)
    assert owner.seen == (other if teller == "the coordinator" else None)


@pytest.mark.parametrize("slow_seconds", [0.0, 0.2])
async def test_what_was_said_too_late_confirms_nothing(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch, slow_seconds: float
) -> None:
    """
    Another may have taken the right since the question: markers would be on their way when it begins.
    """
    monkeypatch.setattr(owning, "CONFIRMED_FOR_SECONDS", 0.1)
    await owner.claim(new_flow=True)
    owner._confirmed_at -= 1
    coordinator.slow_seconds = slow_seconds

    if slow_seconds:
        with pytest.raises(ConnectionFailedError, match="too long to say who has the right"):
            await owner.confirm()
    else:
        assert await owner.confirm()


@pytest.mark.parametrize("freezes_at", ["current_token", "init_producer_id"])
async def test_a_coordinator_that_freezes_while_the_right_is_claimed_again_holds_up_nobody(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch, freezes_at: str
) -> None:
    """
    It had forgotten us. Meanwhile the flow's state tells whose the right is. What was begun goes on: the
    coordinator may have given the right out under a new token already.
    """
    had = await owner.claim(new_flow=True)
    owner._confirmed_at -= 60
    frozen, answer = asyncio.Event(), getattr(coordinator, freezes_at)

    async def forgotten(*_: object, **__: object) -> Token | None:
        monkeypatch.setattr(owning, "current_token", coordinator.current_token)
        monkeypatch.setattr(owning, freezes_at, late)
        return None

    async def late(*_: object, **__: object) -> Token | None:
        await frozen.wait()
        return cast(Token | None, await answer())

    async def nobody_else() -> bool:
        return False

    owner.taken_over = nobody_else
    monkeypatch.setattr(owning, "current_token", forgotten)

    async with asyncio.timeout(5):
        meanwhile = await owner.confirm(0.1), owner.token
    coordinator.last = None
    frozen.set()
    await until(lambda: owner.token == coordinator.last, "the claim goes on", 5)

    assert meanwhile == (True, had)


async def test_a_claim_that_got_no_answer_is_not_repeated_once_another_has_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The connection to the coordinator hung for half a minute. By then another mirror has claimed the right,
    and has written to the flow's state.
    """
    owner, claims = Owner(Cluster("target", [], ConnectionOptions()), "f"), list[Any]()
    owner.token, owner.held = Token(7, 3), True

    async def call_coordinator(_: object, __: object, request: Any, *___: object) -> SimpleNamespace:
        if isinstance(request, DescribeTransactionsRequest):
            unknown = SimpleNamespace(error_code=TRANSACTIONAL_ID_NOT_FOUND)
            return SimpleNamespace(transaction_states=[unknown])
        claims.append(request)
        await owner.ask_the_state()
        if len(claims) == 1:
            raise ConnectionFailedError("no answer for 30 s")
        return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=9)

    async def taken() -> bool:
        return True

    owner.taken_over = taken
    monkeypatch.setattr(transactions, "_call_coordinator", call_coordinator)

    with pytest.raises(ConnectionFailedError, match="no answer for 30 s"):
        await owner.ask(5)

    assert (len(claims), owner.held, owner.token) == (1, False, Token(7, 3))


@pytest.mark.parametrize("since", ["the right was lost", "it was claimed once more"])
async def test_a_claim_that_ends_late_counts_only_while_the_right_is_still_ours(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """
    The coordinator had forgotten us, and froze. Meanwhile the flow's state told that another has begun.
    """
    await owner.claim()
    coordinator.last = None
    frozen, claim_now = asyncio.Event(), coordinator.init_producer_id

    async def late(*_: object, **__: object) -> Token:
        await frozen.wait()
        return await claim_now()

    async def taken() -> bool:
        return True

    owner.taken_over = taken
    monkeypatch.setattr(owning, "init_producer_id", late)
    with capture_logs() as logged:
        with pytest.raises(ConnectionFailedError, match="takes too long"):
            await owner.ask(0.05)
        await owner.ask_the_state()
        if since == "it was claimed once more":
            monkeypatch.setattr(owning, "init_producer_id", claim_now)
            await owner.claim()
        had = owner.held, owner.token
        assert owner._claiming is not None

        frozen.set()
        await owner._claiming

    assert (owner.held, owner.token) == had
    assert coordinator.last != owner.token
    assert not logged


@pytest.mark.parametrize("refused", [True, False])
async def test_only_a_claim_that_succeeded_is_logged_as_one(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """
    One that fails is begun anew every second, and why it fails is logged already.
    """
    await owner.claim()
    coordinator.last = None

    async def refusing(*_: object, **__: object) -> Token:
        raise NotAuthorizedError("no WRITE on the transactional id")

    if refused:
        monkeypatch.setattr(owning, "init_producer_id", refusing)
    with capture_logs() as logged, suppress(NotAuthorizedError):
        await owner.ask(5)

    assert [line["event"] for line in logged] == ([] if refused else ["ownership_forgotten"])


async def test_a_claim_whose_answer_is_lost_is_not_taken_for_that_of_another_mirror(
    coordinator: Coordinator, owner: Owner
) -> None:
    """
    The right went to nobody else: who waited for an owner need not wait for itself.
    """
    await owner.claim()
    coordinator.gives_it_to_another()
    await owner.ask(5)
    coordinator.loses_answers = True
    with pytest.raises(ConnectionFailedError):
        await owner.claim(patience_seconds=0.0)

    is_ours = [await owner.is_own(await owner.holder()) for _ in range(2)]
    coordinator.gives_it_to_another()
    is_anothers = await owner.is_own(await owner.holder())

    assert (owner.held, is_ours, is_anothers) == (False, [True, True], False)


async def test_two_mirrors_that_have_drawn_the_same_mark_do_not_take_the_right_from_each_other_for_ever(
    coordinator: Coordinator, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each claim draws a new one.
    """
    drawn = iter([4, 9, 5])
    monkeypatch.setattr(owning, "secrets", SimpleNamespace(randbelow=lambda _: next(drawn)))
    other = Owner(cast(Any, None), "f")
    await owner.claim()
    owner._mark = 10
    await other.claim()

    took_back = await owner.ask(5), owner.held
    other_asks = await other.ask(5), other.held

    assert took_back == (False, True), "it waits until the other one has noticed"
    assert other_asks == (False, False)
    assert list(coordinator.marks.values()) == [5, 10, 6]


async def test_a_right_that_is_claimed_again_is_kept_though_the_first_answer_to_that_is_lost(
    coordinator: Coordinator, owner: Owner
) -> None:
    """
    The coordinator had forgotten us. The next question finds that the right went to us, and it is claimed
    once more, as nobody has told us the token.
    """
    for _ in range(2):
        await owner.claim()
    coordinator.last, coordinator.loses_answers = None, True
    with pytest.raises(ConnectionFailedError):
        await owner.ask(5)
    unknown, coordinator.loses_answers = coordinator.last, False

    await owner.ask(5)

    assert owner.held
    assert owner.token == coordinator.last != unknown


async def test_a_claim_that_may_not_be_repeated_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A repeated one could take the right from a mirror that has taken over meanwhile.
    """
    owner, claims = Owner(Cluster("target", [], ConnectionOptions()), "f"), list[Any]()

    async def unanswered(_: object, __: object, request: Any, *___: object) -> SimpleNamespace:
        claims.append(request)
        raise ConnectionFailedError("no answer for 30 s")

    monkeypatch.setattr(transactions, "_call_coordinator", unanswered)

    with pytest.raises(ConnectionFailedError, match="no answer for 30 s"):
        await owner.claim(patience_seconds=0.0)

    assert [type(request) for request in claims] == [InitProducerIdRequest]
