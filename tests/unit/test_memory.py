"""What the flow remembers, in the words of the settler and the keeper."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from mirror.flow.facts import SourceLook, TargetLook
from mirror.flow.keeping import Ledger
from mirror.flow.memory import AnotherClusterError, FlowMemory, OtherNamesError
from mirror.flow.needs import Memory
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed, Register, decide
from mirror.model import OffsetMode, TopicPartition
from tests.harness.memory_store import MemoryStore
from tests.unit.target_model import source_batch

ORDERS_0 = TopicPartition("orders", 0)
EAST_ORDERS_0 = TopicPartition("east.orders", 0)
TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
SAME = Register(OffsetMode.SAME, 100, 100, prepared=False)
MAPPED = Register(OffsetMode.MAPPED, 100, 7, prepared=True)


class Restarts:
    """The memory of a flow whose mirror is started again and again."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    async def start(self) -> FlowMemory:
        state = FlowState(MemoryStore(self.items))
        await state.load()
        return FlowMemory(state)


@pytest.fixture
def restarts() -> Restarts:
    return Restarts()


def position(memory: FlowMemory, target_log_end: int) -> int:
    known = memory.known(ORDERS_0)
    assert known is not None
    return known.to_source(target_log_end)


async def test_a_memory_is_what_settler_and_keeper_ask_for(restarts: Restarts) -> None:
    """
    It fits both of their Protocols.
    """
    memory: Memory = await restarts.start()
    ledger: Ledger = await restarts.start()

    await ledger.note_epochs({})

    assert memory.known(ORDERS_0) is None
    assert memory.epoch_at(ORDERS_0, 5) == -1


@pytest.mark.parametrize("shared", [False, True])
async def test_whose_the_target_partition_is_outlives_a_restart(restarts: Restarts, shared: bool) -> None:
    """
    Settings of a topic that held records of others are left alone, whoever asks and whenever.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, EAST_ORDERS_0, TOPIC_ID, replace(MAPPED, shared=shared))

    known = (await restarts.start()).known(ORDERS_0)

    assert known is not None
    assert (known.target_topic, known.shared) == ("east.orders", shared)


async def test_the_topic_that_is_written_to_is_known_by_its_id(restarts: Restarts) -> None:
    """
    As it was when the partition began, until it is noted that it goes on in another one.
    """
    first, anew = str(UUID(int=1)), str(UUID(int=2))
    memory = await restarts.start()
    await memory.register(ORDERS_0, EAST_ORDERS_0, TOPIC_ID, SAME, first)
    began = (await restarts.start()).known(ORDERS_0)

    await memory.note_targets({ORDERS_0: anew})
    since = (await restarts.start()).known(ORDERS_0)

    assert began is not None
    assert since is not None
    assert (began.target_topic_id, since.target_topic_id) == (first, anew)
    assert (since.target_topic, since.start_offset) == ("east.orders", 100)


async def test_names_that_were_changed_are_refused(restarts: Restarts) -> None:
    """
    Both names are told; the names the flow began with are taken.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, EAST_ORDERS_0, TOPIC_ID, SAME)

    memory.check_names(lambda topic: f"east.{topic}")
    with pytest.raises(OtherNamesError, match=r"orders to east\.orders; .* in west\.orders"):
        memory.check_names(lambda topic: f"west.{topic}")


async def test_a_registered_partition_is_known_after_a_restart(restarts: Restarts) -> None:
    """
    With the same offsets the position is the log end itself.
    """
    await (await restarts.start()).register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)

    known = (await restarts.start()).known(ORDERS_0)

    assert known is not None
    assert (known.topic_id, known.mode, known.start_offset) == (TOPIC_ID, OffsetMode.SAME, 100)
    assert not known.prepared
    assert known.to_source(123) == 123


async def test_a_mapped_partition_begins_with_a_run_from_its_start(restarts: Restarts) -> None:
    """
    The target held seven records of others; the first of ours is the source's record 100.
    """
    await (await restarts.start()).register(ORDERS_0, EAST_ORDERS_0, TOPIC_ID, MAPPED)

    memory = await restarts.start()

    assert [position(memory, end) for end in (7, 8, 20)] == [100, 101, 113]


async def test_the_position_is_behind_a_gap_as_soon_as_its_run_is_noted(restarts: Restarts) -> None:
    """
    Before and after a restart.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)

    await memory.note_runs({ORDERS_0: [(120, 10)]})

    for each in (memory, await restarts.start()):
        assert [position(each, end) for end in (9, 10, 11)] == [102, 120, 121]


async def test_runs_that_were_never_reached_stay_until_what_is_read_contradicts_them(
    restarts: Restarts,
) -> None:
    """
    Batches of whoever noted them may still arrive. Or the source lost its end and has other records now: the
    gap that was foreseen is none.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)
    await memory.note_runs({ORDERS_0: [(120, 10), (150, 20)]})

    again = await restarts.start()
    ahead, there = again.runs_after(ORDERS_0, 9), position(again, 25)
    await again.drop_runs(ORDERS_0, 15)

    assert (ahead, there) == ([(120, 10), (150, 20)], 155)
    assert position(again, 25) == 135
    assert position(await restarts.start(), 25) == 135


async def test_a_run_that_begins_where_the_log_ends_stays_when_the_map_is_corrected(
    restarts: Restarts,
) -> None:
    """
    The position is behind its gap, which is not read again: without the run the records that follow would
    have the offsets of the gap.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)
    await memory.note_runs({ORDERS_0: [(120, 10), (150, 20)]})
    copy = PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(120, 10, 0, 1, 120), OffsetMode.MAPPED, -1, 0.0, memory.runs_after(ORDERS_0, 10))
    copy.queue.push([source_batch(120, 10)], [], None)  # what is behind the batch was not read yet

    contradicted = copy.contradicts_map
    await memory.drop_runs(ORDERS_0, copy.target_next_offset or 0)

    assert contradicted
    assert memory.translate(ORDERS_0, 12, reverse=True, target_log_end=20) == 122
    assert position(await restarts.start(), 20) == 130


async def test_a_prepared_partition_stays_prepared(restarts: Restarts) -> None:
    """
    Nothing else of it changes.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)
    await memory.note_epochs({ORDERS_0: [(3, 100), (5, 140)]})

    await memory.prepared(ORDERS_0)

    again = await restarts.start()
    known = again.known(ORDERS_0)
    assert known is not None
    assert known.prepared
    assert [again.epoch_at(ORDERS_0, offset) for offset in (100, 101, 140, 141)] == [-1, 3, 3, 5]


async def test_a_partition_that_becomes_mapped_keeps_the_offsets_it_has(restarts: Restarts) -> None:
    """
    From its first record up to now they are the same; from the next gap on they differ.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)
    await memory.note_epochs({ORDERS_0: [(3, 100)]})

    await memory.become_mapped(ORDERS_0)
    await memory.note_runs({ORDERS_0: [(9_000, 130)]})

    again = await restarts.start()
    known = again.known(ORDERS_0)
    assert known is not None
    assert known.mode is OffsetMode.MAPPED
    assert [position(again, end) for end in (100, 129, 130)] == [100, 129, 9_000]
    assert again.epoch_at(ORDERS_0, 200) == 3


async def test_a_mapped_partition_goes_on_where_the_map_says(restarts: Restarts) -> None:
    """
    The decision takes the position from the map and everything else from the target.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)
    await memory.note_runs({ORDERS_0: [(120, 10)]})

    decision = decide(
        memory.known(ORDERS_0),
        SourceLook(TOPIC_ID, log_start_offset=0, high_watermark=500),
        TargetLook(
            target_log_start_offset=0,
            target_log_end_offset=12,
            last_sequence=4,
            producer_epoch=0,
            coordinator_epoch=0,
            last_producer_id=4000,
        ),
        producer_id=4000,
        producer_epoch=0,
        wanted="mapped",
        acknowledged_target_offset=None,
        continue_after_loss=False,
    )

    assert isinstance(decision, Proceed)
    assert (decision.next_offset, decision.target_next_offset, decision.sequence) == (122, 12, 5)


async def test_an_accepted_loss_is_noted(restarts: Restarts) -> None:
    """
    What the operator allowed, and what was then given up.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)

    await memory.accept_loss(ORDERS_0, 200, 250)
    await memory.note_loss(ORDERS_0, 200, 250)

    memory = await restarts.start()
    known = memory.known(ORDERS_0)
    assert known is not None
    assert known.loss_accepted == (200, 250)
    assert memory.lost_ranges(ORDERS_0) == ((200, 250),)
    assert memory.lost_ranges(TopicPartition("orders", 1)) == ()


async def test_what_was_copied_is_known_with_its_topic_after_a_restart(restarts: Restarts) -> None:
    """
    Also when the source does not show the topic any more, or another one under its name.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, EAST_ORDERS_0, TOPIC_ID, MAPPED)

    assert (await restarts.start()).topic_ids == {ORDERS_0: TOPIC_ID}


async def test_a_flow_is_introduced_once_and_recognised_later(restarts: Restarts) -> None:
    """
    It keeps the producer id it began with.
    """
    memory = await restarts.start()
    assert not memory.introduced

    await memory.introduce(4000, "source-id", "target-id")

    again = await restarts.start()
    await again.introduce(4000, "source-id", "target-id")
    assert (again.producer_id, again.producer_epoch) == (4000, 0)


async def test_a_flow_that_meets_other_clusters_is_refused(restarts: Restarts) -> None:
    """
    Its offsets would mean nothing there.
    """
    await (await restarts.start()).introduce(4000, "source-id", "target-id")

    with pytest.raises(AnotherClusterError, match="other-id"):
        await (await restarts.start()).introduce(4000, "other-id", "target-id")


async def test_what_another_mirror_has_written_is_seen_after_a_refresh(restarts: Restarts) -> None:
    """
    The only writer need not look, as long as its writes succeed.
    """
    ours, theirs = await restarts.start(), await restarts.start()
    await theirs.register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)

    await ours.refresh(sole_writer=True)
    assert ours.known(ORDERS_0) is None

    await ours.refresh(sole_writer=False)
    assert ours.known(ORDERS_0) is not None


async def test_offsets_are_translated_both_ways_or_refused(restarts: Restarts) -> None:
    """
    Mapped through the map; the same offsets are the same, where there is a record.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)

    assert memory.translate(ORDERS_0, 101, reverse=False, target_log_end=9) == 8
    assert memory.translate(ORDERS_0, 8, reverse=True, target_log_end=9) == 101
    with pytest.raises(UntranslatableError, match="not copied yet"):
        memory.translate(ORDERS_0, 102, reverse=False, target_log_end=9)
    with pytest.raises(UntranslatableError, match="has not been copied yet"):
        memory.translate(TopicPartition("orders", 1), 0, reverse=False, target_log_end=9)


async def test_the_same_offsets_are_the_same_from_the_first_record_copied_on(restarts: Restarts) -> None:
    """
    Both ways; what is before it was not copied.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, SAME)

    for reverse in (False, True):
        assert memory.translate(ORDERS_0, 101, reverse=reverse, target_log_end=103) == 101
        for offset in (99, 103):
            with pytest.raises(UntranslatableError, match=r"begins at|not (written|copied) yet"):
                memory.translate(ORDERS_0, offset, reverse=reverse, target_log_end=103)


async def test_where_a_group_goes_on_is_told_where_there_is_no_record_too(restarts: Restarts) -> None:
    """
    At the end of the copy, and in a gap; a record is there in neither place.
    """
    memory = await restarts.start()
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, MAPPED)
    await memory.note_runs({ORDERS_0: [(105, 8)]})

    def committed(offset: int, *, reverse: bool = False) -> int:
        return memory.translate(ORDERS_0, offset, reverse=reverse, target_log_end=9, committed=True)

    assert [committed(offset) for offset in (100, 101, 102, 104, 105, 106)] == [7, 8, 8, 8, 8, 9]
    assert [committed(offset, reverse=True) for offset in (7, 8, 9)] == [100, 105, 106]
    with pytest.raises(UntranslatableError, match="107 is not copied yet"):
        committed(107)
    with pytest.raises(UntranslatableError, match="10 is beyond the log end 9"):
        committed(10, reverse=True)
