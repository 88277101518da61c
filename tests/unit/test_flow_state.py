"""What a flow remembers: records, and changes that are interrupted anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import content, flow_state, map_chunk
from checkpoint import runs as packed_runs
from checkpoint.errors import (
    CorruptStateError,
    StateTakenOverError,
    StateUnavailableError,
    UntranslatableError,
)
from checkpoint.flow_state import FlowState
from checkpoint.map_chunk import CHUNK_RUNS, decode_chunk, encode_chunk
from checkpoint.model import (
    LEADER_EPOCHS_KEPT,
    FlowRecord,
    Insertion,
    OwnerRecord,
    PartitionRecord,
    parse_map_key,
)
from checkpoint.offset_map import OffsetMap
from checkpoint.runs import unpack
from checkpoint.store import apply
from mirror.errors import UnknownPartitionError
from mirror.model import OffsetMode, TopicPartition
from tests.harness.memory_store import MemoryStore

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
FLOW = FlowRecord(4000, 2, "source-id", "target-id", 1_700_000_000_000)
OWNER = OwnerRecord(5, "west-3", 4711, "http://west-3:9640", 1_700_000_000_000)


def record(tp: TopicPartition = ORDERS_0, mode: OffsetMode = OffsetMode.MAPPED) -> PartitionRecord:
    return PartitionRecord(
        topic=tp.topic,
        partition=tp.partition,
        topic_id="8c9ad3c1-0000-0000-0000-000000000001",
        target_topic="orders",
        mode=mode,
        prepared=True,
        start_offset=100,
        target_start_offset=0,
    )


class BreakingStore(MemoryStore):
    """A store that writes a few more items and then fails, leaving what it has written.

    Attributes:
        items_left: So many items are written; None: as many as there are.
    """

    def __init__(self, items: dict[str, bytes] | None = None) -> None:
        self.items = {} if items is None else items
        super().__init__(self.items)
        self.items_left: int | None = None
        self.puts = 0

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        self.puts += 1
        for key, value in items.items():
            await asyncio.sleep(0)
            if self.items_left == 0:
                raise StateUnavailableError("the broker is gone")
            apply(self.items, key, value)
            if self.items_left is not None:
                self.items_left -= 1


async def begun(store: MemoryStore) -> FlowState:
    state = FlowState(store)
    await state.load()
    await state.begin(record(), [(100, 0)])
    return state


def runs(state: FlowState, tp: TopicPartition = ORDERS_0) -> list[tuple[int, int]]:
    offsets = state.map(tp)
    assert offsets is not None
    return list(offsets)


# -- records -------------------------------------------------------------------------------------


def test_records_are_json_that_a_person_can_read() -> None:
    """
    A console consumer is enough to see what a flow believes.
    """
    known = record().with_epochs(((3, 100),)).with_loss(5, 9)

    assert json.loads(known.to_bytes())["leader_epochs"] == [[3, 100]]
    assert json.loads(known.to_bytes())["mode"] == "mapped"
    assert PartitionRecord.from_bytes(known.to_bytes()) == known
    assert FlowRecord.from_bytes(FLOW.to_bytes()) == FLOW
    assert OwnerRecord.from_bytes(OWNER.to_bytes()) == OWNER


def test_an_owner_says_where_it_runs_in_words() -> None:
    """
    What an operator needs to find the process at three in the morning.
    """
    assert OWNER.place == "west-3, process 4711, since 2023-11-14 22:13:20 UTC"


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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "version None"),
        (FLOW.to_bytes().replace(b'"version": 1', b'"version": 2'), "version 2"),
        (FLOW.to_bytes().replace(b'"producer_id"', b'"producer"'), "wrong fields"),
        (FLOW.to_bytes().replace(b'"producer_epoch": 2', b'"producer_epoch": "2"'), "'2' for producer_epoch"),
        (
            FLOW.to_bytes().replace(b'"producer_epoch": 2', b'"producer_epoch": true'),
            "True for producer_epoch",
        ),
    ],
)
def test_a_record_that_is_not_understood_is_refused(data: bytes, words: str) -> None:
    """
    A newer version may mean something else by the same fields.
    """
    with pytest.raises(CorruptStateError, match=words):
        FlowRecord.from_bytes(data)


def test_a_partition_record_of_before_targets_had_ids_is_read() -> None:
    """
    The target's topic is known by its id from when that was written down on.
    """
    fields = json.loads(record().to_bytes())
    del fields["target_topic_id"]

    known = PartitionRecord.from_bytes(json.dumps(fields).encode())

    assert known == record()
    assert known.target_topic_id is None


@pytest.mark.parametrize(
    "changed",
    [
        (b'"mapped"', b'"other"'),
        (b'"8c9ad3c1-', b'"orders-'),
        (b'"target_topic_id": null', b'"target_topic_id": "orders"'),
    ],
)
def test_a_partition_record_with_an_unknown_mode_or_topic_id_is_refused(changed: tuple[bytes, bytes]) -> None:
    """
    Whatever it is, it cannot be copied by the rules of this version.
    """
    with pytest.raises(CorruptStateError, match="cannot be read"):
        PartitionRecord.from_bytes(record().to_bytes().replace(*changed))


def test_only_the_newest_leader_epochs_are_kept() -> None:
    """
    The record stays small however often the source elects.
    """
    known = record().with_epochs(tuple((epoch, epoch * 10) for epoch in range(100)))

    assert len(known.leader_epochs) == LEADER_EPOCHS_KEPT
    assert known.leader_epochs[-1] == (99, 990)
    assert known.with_epochs(((99, 5), (98, 1))) == known


@pytest.mark.parametrize(("offset", "epoch"), [(10, -1), (11, 2), (50, 2), (51, 7), (900, 7)])
def test_the_epoch_of_the_last_record_below_an_offset_is_known(offset: int, epoch: int) -> None:
    """
    The record at the first offset of an epoch is not below it.
    """
    known = record().with_epochs(((2, 10), (7, 50)))

    assert known.epoch_before(offset) == epoch


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=8))
def test_lost_ranges_hold_each_lost_offset_once(losses: list[tuple[int, int]]) -> None:
    """
    However often the same loss is noted, before or after a crash.
    """
    known, lost = record(), set[int]()

    for begin, count in losses:
        known = known.with_loss(begin, begin + count)
        lost |= set(range(begin, begin + count))

    noted = [offset for begin, end in known.lost for offset in range(begin, end)]
    assert noted == sorted(lost)


@pytest.mark.parametrize("key", ["map/t/0", "map/t/x/0", "map/t/0/-1", "other/t/0/0"])
def test_a_key_that_makes_no_sense_is_refused(key: str) -> None:
    """
    It is not the state of a flow.
    """
    with pytest.raises(CorruptStateError, match="makes no sense"):
        parse_map_key(key)


# -- the state -----------------------------------------------------------------------------------


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
    await state.update_partitions({tp: lambda r: r.with_epochs(((1, 100),)) for tp in (ORDERS_0, ORDERS_1)})

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
        group.create_task(state.update_partitions({ORDERS_0: lambda r: r.with_epochs(((1, 100),))}))
        group.create_task(state.update_partitions({ORDERS_0: lambda r: r.with_loss(100, 105)}))
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
        ({"other": b""}, "makes no sense"),
        ({record().key: record(ORDERS_1).to_bytes()}, "holds the record of partition/orders/1"),
        ({record().key: record().to_bytes()}, "there is no offset map"),
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


# -- loading again -------------------------------------------------------------------------------


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


class FrozenStore(MemoryStore):
    """A store that gives up a write only when it is told to.

    Attributes:
        gives_up: Set once it does; None: it answers.
    """

    def __init__(self) -> None:
        super().__init__({})
        self.gives_up: asyncio.Event | None = None
        self.puts = 0

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        self.puts += 1
        if self.gives_up is not None:
            await self.gives_up.wait()
            raise StateUnavailableError("no answer within 10 s")
        await super().put(items)


async def test_who_waits_behind_a_write_that_gets_no_answer_does_not_wait_for_one_of_its_own() -> None:
    """
    Of a thousand partitions that begin at once, each would be tried for as long as the first, one after the
    other. Who comes later tries anew.
    """
    store = FrozenStore()
    state = await begun(store)
    store.gives_up, before = asyncio.Event(), store.puts

    async with asyncio.TaskGroup() as group:
        writes = [group.create_task(failing(state.begin(record(ORDERS_1), [(100, 0)]))) for _ in range(3)]
        reads = group.create_task(failing(state.load()))
        await asyncio.sleep(0)
        store.gives_up.set()
    puts = store.puts - before
    store.gives_up = None
    await state.begin(record(ORDERS_1), [(100, 0)])

    assert puts == 1
    assert {task.result() for task in (*writes, reads)} == {"no answer within 10 s"}
    assert runs(state, ORDERS_1) == [(100, 0)]


async def failing(work: Awaitable[None]) -> str:
    """Why it could not be done."""
    with pytest.raises(StateUnavailableError) as failed:
        await work
    return str(failed.value)


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

    await owner.update_partitions({ORDERS_0: lambda r: r.with_epochs(((1, 100),))})
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
        await state.update_partitions({tp: lambda r: r.with_epochs(((number, 100),))})
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
