"""What is loaded again and again, and what is decoded for it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import content, flow_state, map_chunk
from checkpoint import runs as packed_runs
from checkpoint.errors import StateUnavailableError
from checkpoint.flow_state import FlowState
from checkpoint.map_chunk import CHUNK_RUNS, decode_chunk
from checkpoint.offset_map import OffsetMap
from checkpoint.runs import unpack
from mirror.failpoints import Write
from mirror.model import OffsetMode, TopicPartition
from tests.harness.memory_store import MemoryStore
from tests.unit.flow_states import ORDERS_0, ORDERS_1, BreakingStore, begun, record, runs


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that are decoded from now on."""
    chunks: list[bytes] = []

    def note(data: bytes) -> list[tuple[int, int]]:
        chunks.append(data)
        return decode_chunk(data)

    monkeypatch.setattr(map_chunk, "decode_chunk", note)
    return chunks


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what is unpacked of maps in memory from now on."""
    lengths: list[int] = []

    def note(data: bytes, at: int = 0) -> list[tuple[int, int]]:
        lengths.append(len(data))
        return unpack(data, at)

    monkeypatch.setattr(packed_runs, "unpack", note)
    return lengths


async def test_a_load_decodes_the_chunks_that_have_changed_and_no_others(decoded: list[bytes]) -> None:
    """
    A mirror that stands by looks every second, at maps of millions of runs.
    """
    items: dict[str, bytes] = {}
    owner = await begun(MemoryStore(items))
    await owner.begin(record(ORDERS_1), [(100, 0)])
    await owner.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, 2 * CHUNK_RUNS + 10)]})
    standby = FlowState(MemoryStore(items))
    await standby.load()
    before, other = standby.partition(ORDERS_0), standby.map(ORDERS_1)
    decoded.clear()

    await owner.extend_maps({ORDERS_0: [(9000, 4000)]})
    await standby.load()

    assert decoded == [items["map/orders/0/2"]]
    assert runs(standby) == runs(owner)
    assert (standby.partition(ORDERS_0) is before, standby.map(ORDERS_1) is other) == (True, True)


async def test_others_go_on_while_maps_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Maps of millions of runs take seconds: whether the process lives is asked meanwhile.
    """
    items: dict[str, bytes] = {}
    await begun(MemoryStore(items))
    others, went_on = threading.Event(), []

    def slow(data: bytes) -> list[tuple[int, int]]:
        went_on.append(others.wait(2))
        return decode_chunk(data)

    monkeypatch.setattr(map_chunk, "decode_chunk", slow)
    state = FlowState(MemoryStore(items))
    loading = asyncio.create_task(state.load())
    asyncio.get_running_loop().call_soon(others.set)
    await loading

    assert went_on == [True]
    assert runs(state) == [(100, 0)]


async def test_a_load_that_is_given_up_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What comes of it later is believed by nobody. The next change goes by what is stored.
    """
    items: dict[str, bytes] = {}
    owner = await begun(MemoryStore(items))
    state = FlowState(MemoryStore(items))
    await state.load()
    await owner.extend_maps({ORDERS_0: [(110, 5)]})
    begins, ends = threading.Event(), threading.Event()

    def slow(data: bytes) -> list[tuple[int, int]]:
        begins.set()
        ends.wait(2)
        return decode_chunk(data)

    with monkeypatch.context() as patch:
        patch.setattr(map_chunk, "decode_chunk", slow)
        loading = asyncio.create_task(state.load())
        await asyncio.to_thread(begins.wait, 2)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
    ends.set()
    known, in_step = runs(state), state.in_step
    await state.extend_maps({ORDERS_0: [(120, 9)]})

    assert (known, in_step) == ([(100, 0)], False)
    assert runs(state) == [(100, 0), (110, 5), (120, 9)]


async def test_what_is_forgotten_is_gone_from_memory_and_store_and_nothing_is_decoded_for_it(
    decoded: list[bytes],
) -> None:
    """
    The owner, a mirror that stands by and one that starts anew have the same map, begun at the same place.
    """
    items: dict[str, bytes] = {}
    owner = await begun(MemoryStore(items))
    await owner.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, 3 * CHUNK_RUNS + 10)]})
    standby, restarted = FlowState(MemoryStore(items)), FlowState(MemoryStore(items))
    await standby.load()
    whole = runs(owner)
    decoded.clear()

    await owner.forget_below({ORDERS_0: 2 * CHUNK_RUNS + 7})
    await standby.load()
    without_decoding = list(decoded)
    await restarted.load()
    await owner.extend_maps({ORDERS_0: [(9000, 4000)]})
    await standby.load()

    assert without_decoding == []
    assert sorted(key for key in items if key.startswith("map/")) == ["map/orders/0/2", "map/orders/0/3"]
    assert runs(restarted) == whole[2 * CHUNK_RUNS :]
    assert runs(owner) == runs(standby) == [*whole[2 * CHUNK_RUNS :], (9000, 4000)]


@pytest.mark.parametrize("foreseen", [True, False], ids=["are there already", "supersede all that is behind"])
async def test_runs_noted_far_before_the_end_of_a_map_cost_what_they_are(
    unpacked: list[int], foreseen: bool
) -> None:
    """
    A target that lost its end, or was made anew, is copied again along a map of millions of runs.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, 60 * CHUNK_RUNS)]})
    whole, near = runs(state), 3 * CHUNK_RUNS
    added = [(100 + 2 * n + (not foreseen), n) for n in range(near, near + 20)]
    puts = store.puts
    unpacked.clear()

    await state.extend_maps({ORDERS_0: added})

    cost, again = len(unpacked), FlowState(store)
    await again.load()
    assert cost < 20
    assert store.puts == puts + (0 if foreseen else 2)
    assert runs(state) == runs(again) == (whole if foreseen else [*whole[:near], *added])


async def test_a_map_of_one_chunk_is_left_as_it_is() -> None:
    """
    Whole chunks go or stay: nothing is written for a few runs.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, CHUNK_RUNS)]})
    puts, short = store.puts, state.may_forget(ORDERS_0)

    await state.forget_below({ORDERS_0: CHUNK_RUNS - 1})
    await state.extend_maps({ORDERS_0: [(9000, 4000)]})

    assert (short, state.may_forget(ORDERS_0), state.may_forget(ORDERS_1)) == (False, True, False)
    assert (store.puts, len(runs(state))) == (puts + 1, CHUNK_RUNS + 1)


async def test_a_shortened_map_of_which_the_end_was_removed_and_nothing_written_is_what_is_stored() -> None:
    """
    Runs written ahead are superseded across the border of a chunk, and the store fails in between.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, 3 * CHUNK_RUNS + 10)]})
    whole = runs(state)
    await state.forget_below({ORDERS_0: 2 * CHUNK_RUNS + 7})
    store.items_left = 1

    with pytest.raises(StateUnavailableError):
        await state.extend_maps({ORDERS_0: [(9000, 2 * CHUNK_RUNS + 20)]})

    assert runs(state) == whole[2 * CHUNK_RUNS : 3 * CHUNK_RUNS]
    await state.load()
    assert runs(state) == whole[2 * CHUNK_RUNS : 3 * CHUNK_RUNS]


async def test_a_shortened_map_is_replaced_whole_when_a_partition_begins_anew() -> None:
    """
    None of its chunks stays behind.
    """
    items: dict[str, bytes] = {}
    state = await begun(MemoryStore(items))
    await state.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, 2 * CHUNK_RUNS + 10)]})
    await state.forget_below({ORDERS_0: CHUNK_RUNS + 7})

    await state.begin(record(), [(100, 0)])

    again = FlowState(MemoryStore(items))
    await again.load()
    assert runs(again) == runs(state) == [(100, 0)]
    assert _content(again) == _content(state)


async def test_a_partition_record_that_changes_has_no_chunk_decoded(decoded: list[bytes]) -> None:
    """
    Leader epochs are noted far more often than gaps.
    """
    items: dict[str, bytes] = {}
    owner = await begun(MemoryStore(items))
    standby = FlowState(MemoryStore(items))
    await standby.load()
    decoded.clear()

    await owner.update_partitions(Write.EPOCH_NOTED, {ORDERS_0: lambda r: r.with_epochs(((1, 100),))})
    await standby.load()

    assert decoded == []
    assert standby.partitions == owner.partitions


async def test_an_owner_whose_write_failed_decodes_what_was_written_and_nothing_else(
    decoded: list[bytes],
) -> None:
    """
    It does not know what of it is stored; of the rest it does.
    """
    store = BreakingStore()
    state = await begun(store)
    await state.begin(record(ORDERS_1), [(100, 0)])
    await state.extend_maps({ORDERS_0: [(100 + 2 * n, n) for n in range(1, CHUNK_RUNS + 10)]})
    store.items_left = 1
    with pytest.raises(StateUnavailableError):
        await state.extend_maps({ORDERS_0: [(9000, 4000)], ORDERS_1: [(9000, 4000)]})
    decoded.clear()

    await state.load()

    assert decoded == [store.items["map/orders/0/1"]]
    assert runs(state)[-1] == (9000, 4000)


changes = st.lists(
    st.tuples(
        st.sampled_from(["extend", "supersede", "drop", "forget", "begin", "begin same", "note", "look"]),
        st.sampled_from([ORDERS_0, ORDERS_1]),
        st.integers(0, 12),
        st.one_of(st.none(), st.integers(0, 3)),  # items written before the store fails
    ),
    max_size=30,
)


@given(story=changes)
def test_what_is_loaded_again_is_what_a_first_load_gives(
    story: list[tuple[str, TopicPartition, int, int | None]],
) -> None:
    """
    Whatever was changed meanwhile, by whom, and wherever a write failed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_chunk, "CHUNK_RUNS", 2)
        patch.setattr(flow_state, "CHUNK_RUNS", 2)
        patch.setattr(content, "CHUNK_RUNS", 2)
        asyncio.run(_look_on(story))


async def _look_on(story: list[tuple[str, TopicPartition, int, int | None]]) -> None:
    store = BreakingStore()
    owner, standby = await begun(store), FlowState(store)
    await owner.begin(record(ORDERS_1), [(100, 0)])
    for what, tp, number, items_left in story:
        whole_or_not = what.startswith("begin") and items_left is not None
        store.items_left = 0 if whole_or_not else items_left
        try:
            await _change(owner, what, tp, number)
        except StateUnavailableError:
            assert items_left is not None
            await owner.load()
        store.items_left = None
        if what == "look":
            await standby.load()
            assert _content(standby) == _content(owner)

    await owner.load()
    await standby.load()
    again = FlowState(store)
    await again.load()
    assert _content(owner) == _content(standby) == _content(again)


async def _change(state: FlowState, what: str, tp: TopicPartition, number: int) -> None:
    offsets = state.map(tp)
    if what == "begin":
        await state.begin(replace(record(tp), start_offset=100 + number), [(100 + number, 0)])
    elif what == "begin same":
        await state.begin(record(tp, OffsetMode.SAME))
    elif what == "note":
        await state.update_partitions(Write.EPOCH_NOTED, {tp: lambda r: r.with_epochs(((number, 100),))})
    elif offsets is not None and what == "forget":
        await state.forget_below({tp: number})
    elif offsets is not None and what == "drop":
        await state.drop_ahead(tp, max(number, _kept_from(offsets)))
    elif offsets is not None and what in {"extend", "supersede"}:
        first = list(offsets)[-1][1] + 1 if what == "extend" else max(number, _kept_from(offsets))
        source = offsets.position(first)
        await state.extend_maps({tp: [(source + 2 * n, first + n) for n in range(1, number + 1)]})


def _kept_from(offsets: OffsetMap) -> int:
    """The least log end there may be: the log start is below no more than what was forgotten."""
    return next(iter(offsets))[1] + 1 if offsets.forgotten else 0


Content = tuple[object, object, list[tuple[TopicPartition, int | None, list[tuple[int, int]]]]]


def _content(state: FlowState) -> Content:
    """All that a state answers with."""
    maps = [(tp, offsets) for tp in state.partitions if (offsets := state.map(tp)) is not None]
    found = sorted((tp, offsets.begins_at, list(offsets)) for tp, offsets in maps)
    return state.flow, dict(state.partitions), found
