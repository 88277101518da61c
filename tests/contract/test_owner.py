"""Who may write what no sequence guards: one mirror at a time, on real coordinators."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from checkpoint.errors import StateUnavailableError
from mirror.errors import ConnectionFailedError
from mirror.flow import owner as owning
from mirror.flow.owner import TAKEOVER_WAIT_SECONDS, Owner
from mirror.kafka.transactions import init_producer_id
from tests.contract.connected import NUMBERS, connected
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)

FORGETFUL = {
    "transactional.id.expiration.ms": 1_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
}


async def test_of_mirrors_that_begin_a_flow_at_once_only_the_first_may_write_at_once(
    target: KafkaCluster,
) -> None:
    """
    None of them finds anybody before it. Those who came later wait until the first has lost its right.
    """
    flow = f"begun-at-once-{next(NUMBERS)}"
    async with AsyncExitStack() as stack:
        owners = [Owner(await stack.enter_async_context(connected(target)), flow) for _ in range(3)]

        tokens = await asyncio.gather(*(owner.claim(new_flow=True) for owner in owners))

        first = min(range(3), key=lambda number: tokens[number].epoch)
        assert sorted(token.epoch for token in tokens) == [0, 1, 2]
        assert [number for number, owner in enumerate(owners) if owner.may_write] == [first]


async def test_a_mirror_that_begins_a_flow_alone_need_not_wait(target: KafkaCluster) -> None:
    """
    There is nobody whose last markers could still be on their way.
    """
    async with connected(target) as cluster:
        owner = Owner(cluster, f"begun-alone-{next(NUMBERS)}")

        await owner.claim(new_flow=True)

        assert await owner.confirm()


async def test_whoever_takes_over_waits_and_the_former_owner_learns_of_it(target: KafkaCluster) -> None:
    """
    The new one writes nothing yet; the old one stops when it asks the next time, before that is over.
    """
    async with connected(target) as cluster:
        old = Owner(cluster, f"taken-over-{next(NUMBERS)}")
        new = Owner(cluster, old.transactional_id.removeprefix("twinsite."))
        await old.claim(new_flow=True)
        token = await new.claim(new_flow=True)
        began = time.monotonic()
        new.begun(token)

        asked = time.monotonic()
        while await old.confirm():
            assert asked < began + TAKEOVER_WAIT_SECONDS
            assert not await new.confirm() or time.monotonic() >= began + TAKEOVER_WAIT_SECONDS
            await asyncio.sleep(0.05)
            asked = time.monotonic()

        await eventually_confirmed(new)
        assert time.monotonic() >= began + TAKEOVER_WAIT_SECONDS


async def test_whoever_takes_over_waits_from_the_first_write_to_the_state_on(target: KafkaCluster) -> None:
    """
    Before it the former owner cannot see there that it has been replaced. What an older token has written is
    no such write.
    """
    async with connected(target) as cluster:
        new = Owner(cluster, f"not-begun-{next(NUMBERS)}")
        older = await new.claim()
        token = await new.claim()
        before = new.since
        new.begun(older)
        await asyncio.sleep(TAKEOVER_WAIT_SECONDS)
        waiting = await new.confirm()
        new.begun(token)
        since = new.since

        await eventually_confirmed(new)

    assert not waiting
    assert before + TAKEOVER_WAIT_SECONDS <= since <= time.monotonic()


async def test_the_state_proves_the_right_where_the_coordinator_does_not(target: KafkaCluster) -> None:
    """
    And that it is gone. Where it cannot tell either that is said.
    """

    async def cannot_tell() -> bool:
        raise StateUnavailableError("it is away")

    async def another() -> bool:
        return True

    async def nobody_else() -> bool:
        return False

    async with connected(target) as cluster:
        owner = Owner(cluster, f"by-its-state-{next(NUMBERS)}")
        await owner.claim(new_flow=True)
        owner.turn.lost()

        owner.taken_over = cannot_tell
        with pytest.raises(StateUnavailableError, match="it is away"):
            await owner.ask_the_state()
        unproven = owner.turn.is_ours()
        owner.taken_over = nobody_else
        await owner.ask_the_state()
        proven = owner.turn.is_ours(), owner.held
        owner.taken_over = another
        await owner.ask_the_state()
        owner.taken_over = nobody_else
        await owner.ask_the_state()

    assert (unproven, proven) == (False, (True, True))
    assert (owner.turn.is_ours(), owner.held) == (False, False)


@pytest.fixture(params=["source", "target"])
def brokers(request: pytest.FixtureRequest) -> KafkaCluster:
    """The shared clusters of the two versions."""
    return cast(KafkaCluster, request.getfixturevalue(request.param))


async def test_a_claim_whose_answer_is_lost_is_told_from_one_of_another_mirror(
    brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The coordinator knows with which mark the right was claimed last, also while it was never used.
    """

    async def unanswered(*args: Any, **options: Any) -> None:
        await init_producer_id(*args, **options)
        raise ConnectionFailedError("no answer for 30 s")

    async with connected(brokers) as cluster:
        ours = Owner(cluster, f"unanswered-{next(NUMBERS)}")
        theirs = Owner(cluster, ours.transactional_id.removeprefix("twinsite."))
        await theirs.claim()
        with monkeypatch.context() as patched:
            patched.setattr(owning, "init_producer_id", unanswered)
            with pytest.raises(ConnectionFailedError):
                await ours.claim(patience_seconds=0.0)
        after_ours = await ours.is_own(await ours.holder()), await theirs.is_own(await theirs.holder())
        await theirs.claim()
        after_theirs = await ours.is_own(await ours.holder())

    assert (after_ours, after_theirs) == ((True, False), False)


async def eventually_confirmed(owner: Owner) -> None:
    """Returns when the owner may write; the test's time-out is the limit."""
    # its right ripens with the clock, nothing rings a bell
    while not await owner.confirm():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_a_right_that_the_coordinator_has_forgotten_is_taken_again(tmp_path: Path) -> None:
    """
    It forgets ids that nobody used for a week, here for a second. Several who ask at once take it once. They
    wait, as another mirror may have done so just before.
    """
    async with (
        KafkaCluster.start(
            version="4.3", name="forgetful", properties=FORGETFUL, work_dir=tmp_path
        ) as target,
        connected(target) as cluster,
    ):
        owner = Owner(cluster, "forgotten")
        first = await owner.claim()
        while await owner.holder() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

        confirmed = await asyncio.gather(owner.ask(5), owner.ask(5))

        assert not any(confirmed)
        assert owner.token is not None
        assert owner.token == await owner.holder() != first
        assert owner.token.epoch == 0
