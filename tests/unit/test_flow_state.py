"""What a flow remembers, and changes that are interrupted anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import content, flow_state, map_chunk
from checkpoint.errors import (
    CorruptStateError,
    StateTakenOverError,
    StateUnavailableError,
    UntranslatableError,
)
from checkpoint.flow_state import FlowState
from checkpoint.map_chunk import CHUNK_RUNS, encode_chunk
from checkpoint.model import Insertion
from checkpoint.offset_map import OffsetMap
from mirror.errors import UnknownPartitionError
from mirror.failpoints import Write
from mirror.model import OffsetMode
from tests.harness.memory_store import MemoryStore
from tests.unit.flow_states import FLOW, ORDERS_0, ORDERS_1, OWNER, BreakingStore, begun, record, runs


async def test_everything_is_there_after_a_restart() -> None:
    """
    The flow, its partitions, their maps.
    """
    items: dict[str, bytes] = {}
    state = await begun(MemoryStore(items))
    await state.save_flow(FLOW)
    await state.begin(record(ORDERS_1, OffsetMode.SAME))
    await state.extend_maps({ORDERS_0: [(120, 10), (150, 30)]})

    again = FlowState(MemoryStore(items))
    await again.load()

    assert again.flow == FLOW
    assert again.partitions == {ORDERS_0: record(), ORDERS_1: record(ORDERS_1, OffsetMode.SAME)}
    assert runs(again) == [(100, 0), (120, 10), (150, 30)]
    assert again.map(ORDERS_1) is None


async def test_a_gap_before_the_first_record_is_known_after_a_restart() -> None:
    """
    The first run was superseded by one behind the gap; the record still says where the copy began.
    """
    items: dict[str, bytes] = {}
    state = await begun(MemoryStore(items))
    await state.extend_maps({ORDERS_0: [(105, 0)]})

    again = FlowState(MemoryStore(items))
    await again.load()
    offsets = again.map(ORDERS_0)

    assert offsets is not None
    assert offsets.committed_to_target(102, 0) == 0


async def test_many_partitions_are_written_at_once() -> None:
    """
    A thousand partitions with a gap ahead cost one round trip.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.begin(record(ORDERS_1), [(100, 0)])
    store.puts = 0

    await state.extend_maps({ORDERS_0: [(120, 10)], ORDERS_1: [(130, 10)]})
    await state.update_partitions(
        Write.EPOCH_NOTED, {tp: lambda r: r.with_epochs(((1, 100),)) for tp in (ORDERS_0, ORDERS_1)}
    )

    assert store.puts == 2


async def test_nothing_is_believed_before_it_is_written() -> None:
    """
    While the write is on its way, and after it failed, the old state stands.
    """
    store = BreakingStore()
    state = await begun(store)
    store.items_left = 0

    with pytest.raises(StateUnavailableError):
        await state.extend_maps({ORDERS_0: [(120, 10)]})

    assert runs(state) == [(100, 0)]


async def test_a_write_that_failed_and_is_stored_all_the_same_is_seen_before_the_next_one() -> None:
    """
    A run nobody remembers would be applied one day, when the log reaches it.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.begin(record(ORDERS_1), [(100, 0)])
    store.items_left = 1
    with pytest.raises(StateUnavailableError):
        await state.extend_maps({ORDERS_0: [(120, 10)], ORDERS_1: [(120, 10)]})
    store.items_left = None

    await state.drop_ahead(ORDERS_0, 5)

    again = FlowState(store)
    await again.load()
    assert runs(again) == runs(state) == [(100, 0)]


async def test_what_was_read_of_a_flow_is_known_on_while_its_own_record_is_gone() -> None:
    """
    Nobody removes that, so the topic was deleted. What is there meanwhile may be older, or not fit
    to what is not there yet.
    """
    items: dict[str, bytes] = {}
    writing, reading = FlowState(MemoryStore(items)), FlowState(MemoryStore(items))
    await writing.load()
    await writing.save_flow(FLOW)
    await writing.save_owner(OWNER)
    for tp in (ORDERS_0, ORDERS_1):
        await writing.begin(record(tp), [(100, 0)])
    earlier = dict(items)
    await writing.extend_maps({ORDERS_0: [(100 + 40 * n, 20 * n) for n in range(1, CHUNK_RUNS + 10)]})
    await reading.load()
    later = dict(items)

    items.clear()
    await reading.load()
    after_it_was_deleted = reading.flow, reading.owner, set(reading.partitions), runs(reading)
    items |= {key: earlier[key] for key in earlier if "orders/0" in key}
    await reading.load()
    while_it_is_written = reading.flow, reading.owner, set(reading.partitions), runs(reading)
    items |= {key: later[key] for key in later if "orders/0" in key or key == "flow"}
    await reading.load()

    assert after_it_was_deleted == (FLOW, OWNER, {ORDERS_0, ORDERS_1}, runs(writing))
    assert while_it_is_written == after_it_was_deleted
    assert (reading.flow, reading.owner, set(reading.partitions)) == (FLOW, None, {ORDERS_0})


async def test_since_when_nothing_has_come_of_a_state_without_its_record_is_known() -> None:
    """
    To who has read it before, and to who starts; what comes while it is written again is seen.
    """
    items: dict[str, bytes] = {}
    writing, reading = FlowState(MemoryStore(items)), FlowState(MemoryStore(items))
    seen: list[float | None] = []

    async def look(state: FlowState) -> None:
        await state.load()
        seen.append(state.unwritten_since)

    for _ in range(2):
        await look(writing)
    await writing.save_flow(FLOW)
    introduced = writing.unwritten_since
    await look(reading)
    items.clear()
    for _ in range(2):
        await look(reading)
    items["owner"] = OWNER.to_bytes()
    await look(reading)
    await reading.save_owner(OWNER)

    new, still_new, there, gone, still_gone, owner_came = seen
    assert new == still_new
    assert new is not None
    assert introduced is there is reading.unwritten_since is None
    assert gone == still_gone
    assert gone is not None
    assert owner_came is not None
    assert owner_came > gone


@pytest.mark.parametrize("items_left", [None, *range(11)])
async def test_what_is_left_of_a_state_whose_record_is_gone_is_removed_ahead_of_what_is_known(
    items_left: int | None,
) -> None:
    """
    Else it would be believed together with that. Wherever that is cut off what is there makes sense.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.begin(record(ORDERS_1), [(100, 0)])
    await state.extend_maps({ORDERS_0: [(100 + 40 * n, 20 * n) for n in range(1, CHUNK_RUNS + 10)]})
    left = dict(store.items)
    await state.save_flow(FLOW)
    await state.begin(record(), [(70, 0)])
    await state.extend_maps({ORDERS_0: [(70 + 60 * n, 20 * n) for n in range(1, CHUNK_RUNS + 10)]})
    await state.forget([ORDERS_1])
    wanted = dict(store.items)
    store.items.clear()
    store.items.update(left)
    store.items_left = items_left
    await state.load()

    with suppress(StateUnavailableError):
        await state.save_owner(None)
    await FlowState(MemoryStore(store.items)).load()
    store.items_left = None
    await state.save_owner(None)

    assert store.items == wanted


@pytest.mark.parametrize("items_left", [None, *range(6)])
async def test_who_changes_a_state_that_is_gone_writes_first_what_it_had_read(items_left: int | None) -> None:
    """
    The flow's own record last: where that is cut off it is gone still, and written again before the next try.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.save_flow(FLOW)
    await state.begin(record(ORDERS_1), [(100, 0)])
    store.items.clear()
    store.items_left = items_left
    await state.load()

    with suppress(StateUnavailableError):
        await state.save_owner(OWNER)
    cut_off = dict(store.items)
    store.items_left = None
    await state.save_owner(OWNER)

    again = FlowState(MemoryStore(store.items))
    await again.load()
    assert (again.flow, again.owner, set(again.partitions)) == (FLOW, OWNER, {ORDERS_0, ORDERS_1})
    assert [runs(again, tp) for tp in (ORDERS_0, ORDERS_1)] == [[(100, 0)]] * 2
    assert len(cut_off) == (6 if items_left is None else items_left)
    if "flow" not in cut_off:
        await FlowState(MemoryStore(cut_off)).load()  # what is there makes sense to whoever reads it
        assert len(cut_off) < 5


async def test_a_state_that_could_not_be_read_again_is_not_written_to() -> None:
    """
    What is in memory is older than what is stored: another change of it would put the old back.
    """
    store = BreakingStore()
    state = await begun(store)
    store.items["map/orders/0/0"] = b"damaged in between"
    with pytest.raises(CorruptStateError):
        await state.load()

    with pytest.raises(CorruptStateError):
        await state.extend_maps({ORDERS_0: [(120, 10)]})

    assert not state.in_step
    assert store.items["map/orders/0/0"] == b"damaged in between"


async def test_concurrent_changes_of_one_partition_are_all_kept() -> None:
    """
    Each change starts from what the one before it has left.
    """
    store = BreakingStore()
    state = await begun(store)

    async with asyncio.TaskGroup() as group:
        group.create_task(
            state.update_partitions(Write.EPOCH_NOTED, {ORDERS_0: lambda r: r.with_epochs(((1, 100),))})
        )
        group.create_task(
            state.update_partitions(Write.LOSS_NOTED, {ORDERS_0: lambda r: r.with_loss(100, 105)})
        )
        group.create_task(state.extend_maps({ORDERS_0: [(105, 0)]}))

    known = state.partition(ORDERS_0)
    assert known is not None
    assert (known.leader_epochs, known.lost) == (((1, 100),), ((100, 105),))
    assert runs(state) == [(105, 0)]


async def test_runs_of_an_unknown_partition_are_refused() -> None:
    """
    Nothing is written for any partition of the call.
    """
    store = BreakingStore()
    state = await begun(store)

    with pytest.raises(UnknownPartitionError):
        await state.extend_maps({ORDERS_0: [(120, 10)], ORDERS_1: [(1, 1)]})

    assert runs(state) == [(100, 0)]


async def test_what_was_forgotten_was_never_begun() -> None:
    """
    Neither the partition nor its map is there after a restart; it can begin again.
    """
    store = MemoryStore({})
    state = FlowState(store)
    await state.load()
    await state.begin(record(), [(100, 0)])
    await state.begin(record(ORDERS_1), [(100, 0)])

    await state.forget([ORDERS_0])
    again = FlowState(store)
    await again.load()

    for one in (state, again):
        assert (one.partition(ORDERS_0), one.map(ORDERS_0)) == (None, None)
        assert one.partition(ORDERS_1) == record(ORDERS_1)
    await again.begin(record(), [(200, 0)])
    assert runs(again) == [(200, 0)]


@pytest.mark.parametrize("written", range(5))
async def test_what_a_crash_leaves_of_what_is_forgotten_does_no_harm(written: int) -> None:
    """
    However little of it was stored: what is known is whole, and it can begin again.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.extend_maps({ORDERS_0: [(200 + 2 * n, 10 + n) for n in range(CHUNK_RUNS)]})
    await state.begin_insertion(ORDERS_0, Insertion(10, 3, 1, b"a batch"))
    store.items_left = written

    with contextlib.suppress(StateUnavailableError):
        await state.forget([ORDERS_0])
    again = FlowState(MemoryStore(store.items))
    await again.load()
    known, offsets = again.partition(ORDERS_0), again.map(ORDERS_0)
    await again.begin(record(), [(300, 0)])
    afresh = FlowState(MemoryStore(store.items))
    await afresh.load()

    assert (known is None, offsets is None) == (written > 0, written > 0)
    for one in (again, afresh):
        assert (runs(one), one.insertion(ORDERS_0)) == ([(300, 0)], None)


async def test_runs_that_do_not_fit_the_map_mean_that_another_mirror_has_written() -> None:
    """
    Ours are made from an older picture.
    """
    state = await begun(MemoryStore())
    await state.extend_maps({ORDERS_0: [(200, 10)]})

    with pytest.raises(StateTakenOverError, match="orders-0"):
        await state.extend_maps({ORDERS_0: [(150, 20)]})


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"other": b""}, "invalid key"),
        ({record().key: record(ORDERS_1).to_bytes()}, "holds the record of partition/orders/1"),
        ({record().key: record().to_bytes()}, "it has no offset map"),
        ({record().key: b"{"}, "partition/orders/0: "),
        ({"map/orders/0/0": b"12345678"}, "orders-0: .* does not match its CRC"),
        (
            {"map/orders/0/1": encode_chunk([(0, 0)]), "map/orders/0/3": encode_chunk([(0, 0)])},
            "chunk 2 .* is missing",
        ),
    ],
)
async def test_a_state_that_cannot_be_trusted_is_not_used(items: dict[str, bytes], words: str) -> None:
    """
    The refusal names the key or the partition.
    """
    with pytest.raises(CorruptStateError, match=words):
        await FlowState(MemoryStore(items)).load()


steps = st.lists(
    st.tuples(
        st.integers(0, 10),  # how far the log has come since
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=6),  # gaps and records ahead
        st.one_of(st.none(), st.integers(0, 4)),  # items written before the store fails
        st.one_of(st.none(), st.integers(0, 5)),  # records deleted at the target, counted from its end
    ),
    max_size=10,
)


@given(story=steps)
def test_a_write_may_fail_anywhere_and_what_is_stored_is_a_map_that_is_right(
    story: list[tuple[int, list[tuple[int, int]], int | None, int | None]],
) -> None:
    """
    After every failure the stored map, loaded, gives the position the mirror was at, and says of every record
    that is still there what it said before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_chunk, "CHUNK_RUNS", 2)
        patch.setattr(flow_state, "CHUNK_RUNS", 2)
        patch.setattr(content, "CHUNK_RUNS", 2)
        asyncio.run(_live_through(story))


async def _live_through(
    story: list[tuple[int, list[tuple[int, int]], int | None, int | None]],
) -> None:
    store = BreakingStore()
    state = await begun(store)
    log_start = log_end = 0
    for advance, ahead, items_left, kept in story:
        await state.drop_ahead(ORDERS_0, log_end)
        source, target, added = _position(state, log_end), log_end, []
        for gap, records in ahead:
            source += gap
            added.append((source, target))
            source, target = source + records, target + records
        store.items_left = items_left
        try:
            await state.extend_maps({ORDERS_0: added})
            log_end += min(advance, target - log_end)
        except StateUnavailableError:
            assert items_left is not None
        store.items_left = None

        again = FlowState(store)
        await again.load()
        before_gap, behind_gap = _position(state, log_end), _position(again, log_end)
        assert before_gap == behind_gap or (before_gap < behind_gap and (behind_gap, log_end) in added)
        log_start = log_start if kept is None else max(log_start, log_end - kept)
        await _shorten(store, state, items_left, log_start, log_end)


async def _shorten(
    store: BreakingStore, state: FlowState, items_left: int | None, log_start: int, log_end: int
) -> None:
    await state.load()
    offsets = _map(state)
    there = [offsets.source_of(target, log_end) for target in range(log_start, log_end)]
    whole = len(offsets)
    store.items_left = items_left
    try:
        await state.forget_below({ORDERS_0: log_start})
    except StateUnavailableError:
        assert len(_map(state)) == whole
    else:
        assert _map(state).below(log_start) < 2
    store.items_left = None

    again = FlowState(store)
    await again.load()
    for each in (_map(state), _map(again)):
        assert [each.source_of(target, log_end) for target in range(log_start, log_end)] == there
        assert each.position(log_end) == offsets.position(log_end)
        if each.forgotten:
            before = f"begins at source offset {next(iter(each))[0]}"
            with pytest.raises(UntranslatableError, match=before):
                each.target_of(next(iter(each))[0] - 1, log_end)


def _map(state: FlowState) -> OffsetMap:
    offsets = state.map(ORDERS_0)
    assert offsets is not None
    return offsets


def _position(state: FlowState, log_end: int) -> int:
    offsets = state.map(ORDERS_0)
    assert offsets is not None
    return offsets.position(log_end)


async def test_where_the_owner_runs_is_known_to_others_after_a_look() -> None:
    """
    And the word of an older owner gives way to that of a newer one.
    """
    items: dict[str, bytes] = {}
    ours, theirs = FlowState(MemoryStore(items)), FlowState(MemoryStore(items))
    await ours.save_owner(OWNER)
    newer = replace(OWNER, producer_epoch=6, host="west-4")
    await ours.save_owner(newer)

    before = theirs.owner
    await theirs.load()

    assert (before, theirs.owner, ours.owner) == (None, newer, newer)
