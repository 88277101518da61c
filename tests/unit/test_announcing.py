"""Who owns a flow, in words for an operator."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from checkpoint.errors import StateUnavailableError
from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord, OwnerRecord
from checkpoint.topic_store import TopicStore
from mirror.errors import ConnectionFailedError
from mirror.flow import announcing
from mirror.flow.announcing import (
    WITHDRAW_SECONDS,
    Announcer,
    NotOwnerError,
    announced,
    copied_by,
    require_owner,
)
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import ConnectionOptions
from mirror.kafka.transactions import Token
from mirror.model import TopicPartition
from tests.contract.memory_log import MemoryLog
from tests.harness.daemon import until
from tests.harness.memory_store import MemoryStore

ORDERS_0 = TopicPartition("orders", 0)
OURS, THEIRS = Token(4000, 5), Token(4000, 6)


class ClaimedOwner(Owner):
    """A right that was claimed with one token; the coordinator's answer is what a test says."""

    def __init__(self, token: Token, holder: Token | None) -> None:
        super().__init__(Cluster("target", [], ConnectionOptions()), "orders")
        self.token, self.held = token, True
        self.now_held_by = holder

    async def holder(self) -> Token | None:
        return self.now_held_by

    async def confirm(self, *_: float) -> bool:
        self.held = self.now_held_by == self.token
        return self.held


@pytest.fixture
async def memory() -> FlowMemory:
    """The memory of a flow of which nobody has said that it owns it."""
    state = FlowState(MemoryStore())
    await state.load()
    return FlowMemory(state)


async def test_the_owner_says_so_once_each_time_it_has_become_it(memory: FlowMemory) -> None:
    """
    Under the epoch it was given, with the way to it.
    """
    owner = ClaimedOwner(OURS, OURS)
    announcer = Announcer(owner, memory, "http://127.0.0.1:9640")

    await announcer.announce()
    first = memory.owner
    await announcer.announce()
    second = memory.owner
    owner.token = owner.now_held_by = THEIRS
    await announcer.announce()
    third = memory.owner

    assert first is not None
    assert third is not None
    assert (first.producer_epoch, first.url) == (5, "http://127.0.0.1:9640")
    assert second is first
    assert third.producer_epoch == 6


async def test_the_same_is_written_again_now_and_then(
    memory: FlowMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An idle flow writes nothing else, and would not notice that its state has lost its end.
    """
    monkeypatch.setattr(announcing, "REPEAT_SECONDS", 0.0)
    announcer = Announcer(ClaimedOwner(OURS, OURS), memory, "")
    await announcer.announce()
    first = memory.owner
    await memory.note_owner(None)

    await announcer.announce()

    assert first is not None
    assert memory.owner == first


async def test_what_the_state_has_lost_is_written_again_as_soon_as_that_is_seen() -> None:
    """
    An idle flow writes nothing else. Those who stand by, or start, wait for that.
    """
    log = MemoryLog()
    store = TopicStore(log, writer=lambda: OURS)
    state = FlowState(store)
    await state.load()
    await state.save_flow(FlowRecord(OURS.producer_id, 0, "source-id", "target-id", 0))
    memory = FlowMemory(state, cut_short=lambda: store.cut_short)
    announcer = Announcer(ClaimedOwner(OURS, OURS), memory, "")
    await announcer.announce()
    before = await TopicStore(log).load()

    log.truncate(0)
    with pytest.raises(StateUnavailableError):
        await store.taken_over()
    await announcer.announce()
    written = await TopicStore(log).load()
    end = await log.end()
    await announcer.announce()

    assert before.keys() == {"flow", "owner"}
    assert written == before
    assert await log.end() == end


async def test_who_is_not_the_owner_any_more_says_nothing_and_notices(memory: FlowMemory) -> None:
    """
    Its status stops to say owner: true, though it has nothing to write.
    """
    owner = ClaimedOwner(OURS, THEIRS)

    await Announcer(owner, memory, "").announce()

    assert memory.owner is None
    assert not owner.held


async def test_an_owner_that_ends_takes_its_word_back(memory: FlowMemory) -> None:
    """
    Those who stand by need not wait then.
    """
    owner = ClaimedOwner(OURS, OURS)
    announcer = Announcer(owner, memory, "")
    await announcer.announce()

    await announcer.withdraw()

    assert memory.owner is None


async def test_a_word_that_is_not_answered_is_taken_back_too(
    memory: FlowMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It stands in the state, perhaps: whoever stands by would wait for a mirror that is gone.
    """
    note_owner, answered = memory.note_owner, iter([False, True])

    async def noted(record: OwnerRecord | None) -> None:
        await note_owner(record)
        if not next(answered):
            raise ConnectionFailedError("the answer is lost")

    monkeypatch.setattr(memory, "note_owner", noted)
    announcer = Announcer(ClaimedOwner(OURS, OURS), memory, "")
    with pytest.raises(ConnectionFailedError):
        await announcer.announce()
    left = memory.owner

    await announcer.withdraw()

    assert left is not None
    assert memory.owner is None


async def test_who_ends_without_the_right_leaves_the_word_of_the_owner(memory: FlowMemory) -> None:
    """
    It was taken since; and who never said anything has nothing to take back.
    """
    owner = ClaimedOwner(OURS, OURS)
    announcer = Announcer(owner, memory, "")
    await announcer.announce()
    theirs = OwnerRecord(THEIRS.epoch, "west-4", 1, "", 0)
    await memory.note_owner(theirs)
    owner.now_held_by = THEIRS

    await announcer.withdraw()
    await Announcer(owner, memory, "").withdraw()

    assert memory.owner == theirs


async def test_a_repair_says_that_it_has_the_flow_until_it_ends(memory: FlowMemory) -> None:
    owner = ClaimedOwner(OURS, OURS)

    async with announced(owner, memory, ""):
        await until(lambda: memory.owner is not None, "it has said so", 5)

    assert memory.owner is None


class SlowLog(MemoryLog):
    """What was sent to it lands some time later, also when nobody waits for the answer any more."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = asyncio.Event()
        self.seconds = 0.0

    async def append(self, batch: bytes) -> int:
        self.sent.set()
        return await asyncio.shield(self._land(batch))

    async def _land(self, batch: bytes) -> int:
        await asyncio.sleep(self.seconds)
        return await super().append(batch)


async def test_word_that_is_still_on_its_way_is_taken_back_after_it_has_arrived() -> None:
    """
    Else it lands between what was read of the state and what is written then, as if of somebody else.
    """
    slow = SlowLog()
    state = FlowState(TopicStore(slow, writer=lambda: OURS))
    await state.load()
    await state.save_flow(FlowRecord(OURS.producer_id, 0, "source-id", "target-id", 0))
    slow.seconds = 0.1
    slow.sent.clear()

    with structlog.testing.capture_logs() as logged:
        async with announced(ClaimedOwner(OURS, OURS), FlowMemory(state), ""):
            await slow.sent.wait()

    assert [line["event"] for line in logged] == []
    assert (await TopicStore(slow).load()).keys() == {"flow"}


async def test_word_that_does_not_arrive_is_waited_for_no_longer_than_it_takes_to_take_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcing, "WITHDRAW_SECONDS", 0.05)
    slow = SlowLog()
    state = FlowState(TopicStore(slow, writer=lambda: OURS))
    await state.load()
    slow.seconds = 60.0
    slow.sent.clear()
    others = asyncio.all_tasks()

    with structlog.testing.capture_logs() as logged:
        async with announced(ClaimedOwner(OURS, OURS), FlowMemory(state), ""):
            await slow.sent.wait()

    assert [line["event"] for line in logged] == ["owner_not_withdrawn"]
    left = asyncio.all_tasks() - others
    assert {task.get_coro().__name__ for task in left} == {"_land"}, "only the broker has not ended"  # type: ignore[union-attr]
    for task in left:
        task.cancel()


@pytest.mark.parametrize("how", ["it fails", "it is cancelled"])
async def test_a_repair_that_does_not_end_well_takes_its_word_back_too(memory: FlowMemory, how: str) -> None:
    """
    It ends as it would have; and nobody waits for one that is gone, with nothing to copy for ever.
    """
    said = asyncio.Event()

    async def repair() -> None:
        async with announced(ClaimedOwner(OURS, OURS), memory, ""):
            await until(lambda: memory.owner is not None, "it has said so", 5)
            said.set()
            if how == "it fails":
                raise ConnectionFailedError("no broker answers")
            await asyncio.Event().wait()

    repairing = asyncio.create_task(repair())
    await said.wait()
    if how == "it is cancelled":
        repairing.cancel()
    await asyncio.wait({repairing}, timeout=5)

    assert memory.owner is None
    assert repairing.done()
    assert repairing.cancelled() == (how == "it is cancelled")
    assert repairing.cancelled() or isinstance(repairing.exception(), ConnectionFailedError)


async def test_a_repair_that_is_cancelled_twice_leaves_its_word(memory: FlowMemory) -> None:
    """
    Whoever has asked for the end once more does not wait for a coordinator that does not answer.
    """
    owner, asked = ClaimedOwner(OURS, OURS), asyncio.Event()

    async def no_answer(*_: float) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    async def repair() -> None:
        async with announced(owner, memory, ""):
            await until(lambda: memory.owner is not None, "it has said so", 5)
            owner.confirm = no_answer  # type: ignore[method-assign]
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.Event().wait()

    repairing = asyncio.create_task(repair())
    await asyncio.wait_for(asked.wait(), 5)
    repairing.cancel()
    await asyncio.wait({repairing}, timeout=WITHDRAW_SECONDS / 2)

    assert repairing.cancelled()
    assert memory.owner is not None


async def test_a_mistake_of_ours_while_word_is_left_is_not_lost(memory: FlowMemory) -> None:
    owner = ClaimedOwner(OURS, OURS)
    failed = asyncio.Event()

    async def confirm(*_: float) -> bool:
        failed.set()
        raise AssertionError("a mistake")

    owner.confirm = confirm  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="a mistake"):
        async with announced(owner, memory, ""):
            await failed.wait()


@pytest.mark.parametrize(
    ("word", "holder", "words"),
    [
        (OwnerRecord(6, "west-4", 4711, "", 1_700_000_000_000), THEIRS, "the mirror on west-4, process 4711"),
        (OwnerRecord(5, "west-4", 4711, "", 1_700_000_000_000), THEIRS, "another mirror"),
        (None, THEIRS, "another mirror"),
        (OwnerRecord(5, "west-4", 4711, "", 1_700_000_000_000), None, "another mirror"),
    ],
)
def test_who_copies_is_named_when_it_has_said_so_itself(
    word: OwnerRecord | None, holder: Token | None, words: str
) -> None:
    assert copied_by(word, holder).startswith(f"the owner of the flow is {words}")


@pytest.mark.parametrize("since_ms", [-1, 1_516_000_000_000_000, 10**30])
def test_an_owner_with_a_time_that_makes_no_sense_is_named_all_the_same(since_ms: int) -> None:
    """
    Those who stand by say it at every look: it does not stop them.
    """
    word = OwnerRecord(6, "west-4", 4711, "", since_ms)

    place = "west-4, process 4711, since an unknown time"
    assert copied_by(word, THEIRS) == f"the owner of the flow is the mirror on {place}"


async def test_the_owner_may_whether_it_has_said_so_or_not(memory: FlowMemory) -> None:
    """
    What an owner may do is not decided by what was written down.
    """
    await memory.note_owner(OwnerRecord(THEIRS.epoch, "west-4", 1, "", 0))

    await require_owner(ClaimedOwner(OURS, OURS), memory, ORDERS_0)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://west-4:9640", "ask the owner with --url http://west-4:9640; if it is gone"),
        (
            "http://127.0.0.1:9640",
            "ask the owner, on west-4, with --url http://127.0.0.1:9640; if it is gone",
        ),
        ("http://[::1]:9640", "ask the owner, on west-4, with --url http://[::1]:9640; if it is gone"),
        ("", "ask the owner; if"),
    ],
)
async def test_another_owner_is_named_with_the_way_to_it(memory: FlowMemory, url: str, hint: str) -> None:
    """
    Host, process and time; the address where it has one.
    """
    await memory.note_owner(OwnerRecord(THEIRS.epoch, "west-4", 4711, url, 1_700_000_000_000))

    with pytest.raises(NotOwnerError) as refused:
        await require_owner(ClaimedOwner(OURS, THEIRS), memory, ORDERS_0)

    assert "orders-0: the owner of the flow is the mirror on west-4, process 4711, since 2023-11-14" in str(
        refused.value
    )
    assert refused.value.hint.startswith(hint)
    assert refused.value.exit_code == 4


@pytest.mark.parametrize("said", [None, OwnerRecord(OURS.epoch, "west-3", 1, "", 0)])
async def test_an_owner_that_has_not_said_where_it_runs_is_not_guessed(
    memory: FlowMemory, said: OwnerRecord | None
) -> None:
    """
    The word of an older owner is not the address of this one.
    """
    if said is not None:
        await memory.note_owner(said)

    with pytest.raises(NotOwnerError, match="has not reported where it runs"):
        await require_owner(ClaimedOwner(OURS, THEIRS), memory, ORDERS_0)
