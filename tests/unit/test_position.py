"""Where a partition goes on: each decision with what both sides said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import UntranslatableError
from checkpoint.insertions import Insertions
from checkpoint.model import Insertion
from checkpoint.offset_map import OffsetMap
from mirror.flow.facts import Known, SourceLook, TargetLook
from mirror.flow.position import (
    SEQUENCES,
    Decision,
    Insert,
    Prepare,
    Proceed,
    Register,
    Stop,
    Unreplicated,
    decide,
    next_sequence,
)
from mirror.model import OffsetMode, Reason, State

OURS = 4711
TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
SOURCE = SourceLook(TOPIC_ID, log_start_offset=100, high_watermark=900)
EMPTY = TargetLook(0, 0, None, None, 0, None)
COPIED = TargetLook(
    target_log_start_offset=100,
    target_log_end_offset=500,
    last_sequence=399,
    producer_epoch=2,
    coordinator_epoch=7,
    last_producer_id=OURS,
)
SAME = Known(
    TOPIC_ID,
    OffsetMode.SAME,
    start_offset=100,
    prepared=True,
    to_source=lambda end: end,
    target_start_offset=100,
)
MAPPED = replace(
    SAME, mode=OffsetMode.MAPPED, to_source=OffsetMap([(100, 0), (300, 150)]).position, target_start_offset=0
)

offsets = st.integers(0, 1_000)


def decided(
    known: Known | None,
    target: TargetLook,
    source: SourceLook = SOURCE,
    *,
    wanted: str = "same",
    acknowledged: int | None = None,
    continue_after_loss: bool = False,
) -> Decision:
    """What our producer, id 4711 and epoch 2, is to do."""
    return decide(
        known,
        source,
        target,
        producer_id=OURS,
        producer_epoch=2,
        wanted=wanted,
        acknowledged_target_offset=acknowledged,
        continue_after_loss=continue_after_loss,
    )


def stopped(decision: Decision, state: State, reason: Reason) -> Stop:
    """The decision, which is to stop so; it always says what was seen."""
    assert isinstance(decision, Stop)
    assert (decision.state, decision.reason) == (state, reason)
    assert decision.detail
    return decision


# -- sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_sequence", "log_end", "expected"),
    [
        (0, 50, 1),
        (399, 500, 400),
        (SEQUENCES - 2, 50, SEQUENCES - 1),
        (SEQUENCES - 1, 50, 0),
        (None, 0, 0),
        (None, 500, 500),
        (None, SEQUENCES - 1, SEQUENCES - 1),
        (None, SEQUENCES, 0),
        (None, 3 * SEQUENCES + 5, 5),
    ],
)
def test_a_sequence_follows_the_brokers_memory_or_else_the_log_end(
    last_sequence: int | None, log_end: int, expected: int
) -> None:
    """
    Both wrap at 2^31. From the log end all mirrors of a flow compute the same one.
    """
    look = replace(COPIED, last_sequence=last_sequence, target_log_end_offset=log_end)

    assert next_sequence(look, 2) == expected


@pytest.mark.parametrize(("written", "remembered", "sequence"), [(3, 2, 0), (3, 3, 400), (3, None, 500)])
def test_with_a_newer_epoch_than_the_broker_remembers_sequences_begin_again(
    written: int, remembered: int | None, sequence: int
) -> None:
    """
    A broker refuses any other sequence from an epoch that it has not seen yet (KIP-98).
    """
    target = replace(
        COPIED, producer_epoch=remembered, last_sequence=None if remembered is None else COPIED.last_sequence
    )

    decision = decided(replace(SAME, producer_epoch=written), target)

    assert isinstance(decision, Proceed)
    assert (decision.producer_epoch, decision.sequence) == (written, sequence)


# -- the first time ------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["same", "auto"])
def test_an_empty_target_is_made_to_start_where_the_source_does(wanted: str) -> None:
    """
    That is noted first, as not yet prepared, whether the offsets must be the same or better were.
    """
    assert decided(None, EMPTY, wanted=wanted) == Register(OffsetMode.SAME, 100, 100, prepared=False)


def test_an_empty_target_that_starts_there_already_needs_no_preparation() -> None:
    """
    Both at 0 is the usual case; a target emptied up to the very offset is as good.
    """
    at_zero = decided(None, EMPTY, replace(SOURCE, log_start_offset=0))
    emptied = decided(None, replace(EMPTY, target_log_start_offset=100, target_log_end_offset=100))

    assert at_zero == Register(OffsetMode.SAME, 0, 0, prepared=True)
    assert emptied == Register(OffsetMode.SAME, 100, 100, prepared=True)


@pytest.mark.parametrize(
    ("start", "end", "seen"),
    [
        pytest.param(0, 40, "holds offsets 0 to 40 ", id="records below the source's start"),
        pytest.param(0, 100, "holds offsets 0 to 100 ", id="records up to the source's start"),
        pytest.param(0, 300, "holds offsets 0 to 300 ", id="records beyond it"),
        pytest.param(300, 300, "is empty and ends at 300;", id="emptied beyond it"),
    ],
)
def test_a_target_with_a_past_cannot_have_the_same_offsets(start: int, end: int, seen: str) -> None:
    """
    It is refused with the offsets it holds, if any, or mapped from its end on where that is allowed.
    """
    target = replace(EMPTY, target_log_start_offset=start, target_log_end_offset=end)

    refused = stopped(decided(None, target), State.BLOCKED, Reason.TARGET_NOT_EMPTY)

    assert refused.detail.startswith(f"the target partition {seen}")
    mapped = Register(OffsetMode.MAPPED, 100, end, prepared=True, shared=start < end, instead_of=refused)
    assert decided(None, target, wanted="auto") == mapped
    assert decided(None, target, wanted="mapped") == replace(mapped, instead_of=None)


@given(start=offsets, length=offsets, source_start=offsets)
def test_mapped_offsets_begin_at_the_end_of_whatever_is_there(
    start: int, length: int, source_start: int
) -> None:
    """
    Nothing of the target is in the way, nothing needs preparing; whether it is ours alone is noted.
    """
    target = replace(EMPTY, target_log_start_offset=start, target_log_end_offset=start + length)
    source = SourceLook(TOPIC_ID, source_start, source_start + 5)

    decision = decided(None, target, source, wanted="mapped")

    assert decision == Register(
        OffsetMode.MAPPED, source_start, start + length, prepared=True, shared=length > 0
    )


@pytest.mark.parametrize("limit", [99, 100])
def test_padding_has_a_limit(limit: int) -> None:
    """
    A target that would take more records than that to start at the source's offset is refused, or mapped.
    """
    asked = [
        decide(
            None,
            SOURCE,
            EMPTY,
            producer_id=OURS,
            producer_epoch=2,
            wanted=wanted,
            acknowledged_target_offset=None,
            continue_after_loss=False,
            padding_limit=limit,
        )
        for wanted in ("same", "auto")
    ]

    if limit == 100:
        assert asked == [Register(OffsetMode.SAME, 100, 100, prepared=False)] * 2
    else:
        refused = stopped(asked[0], State.BLOCKED, Reason.GAP_TOO_LARGE)
        assert "100 padding records" in refused.detail
        assert asked[1] == Register(OffsetMode.MAPPED, 100, 0, prepared=True, instead_of=refused)


@pytest.mark.parametrize(("limit", "mode"), [(40, OffsetMode.SAME), (39, OffsetMode.MAPPED)])
def test_an_emptied_target_takes_only_the_padding_that_it_lacks(limit: int, mode: OffsetMode) -> None:
    """
    It ends at 60 already; the source starts at 100.
    """
    decision = decide(
        None,
        SOURCE,
        replace(EMPTY, target_log_start_offset=60, target_log_end_offset=60),
        producer_id=OURS,
        producer_epoch=2,
        wanted="auto",
        acknowledged_target_offset=None,
        continue_after_loss=False,
        padding_limit=limit,
    )

    assert isinstance(decision, Register)
    assert decision.mode is mode


@pytest.mark.parametrize("wanted", ["same", "auto", "mapped"])
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(COPIED, id="the broker remembers us"),
        pytest.param(replace(COPIED, last_sequence=None, producer_epoch=None), id="it has forgotten us"),
        pytest.param(replace(COPIED, last_producer_id=9_999), id="others have written since"),
    ],
)
def test_a_copy_of_this_flow_that_its_state_does_not_know_is_not_copied_again(
    wanted: str, target: TargetLook
) -> None:
    """
    How a partition begins is noted ahead of its first record: the state has lost that.
    """
    found = stopped(decided(None, target, wanted=wanted), State.DIVERGED, Reason.STATE_LOST)

    assert "100 to 500" in found.detail
    assert f"producer id {OURS}" in found.detail


def test_what_others_hold_at_the_target_is_no_copy_of_this_flow() -> None:
    """
    Nor is an empty log one, though the flow may have written there: nothing would be there twice.
    """
    others = replace(EMPTY, target_log_end_offset=500, last_producer_id=9_999)
    emptied = replace(COPIED, target_log_start_offset=500, last_producer_id=None)

    assert decided(None, others, wanted="mapped") == Register(OffsetMode.MAPPED, 100, 500, True, shared=True)
    assert decided(None, emptied, wanted="mapped") == Register(OffsetMode.MAPPED, 100, 500, True)


def test_whose_the_end_of_a_log_is_must_be_known_before_a_copy_begins_behind_it() -> None:
    """
    What is not acknowledged cannot be read, and may vanish. Nor does it tell that the flow's state is lost.
    """
    target = replace(EMPTY, target_log_end_offset=500, unreplicated=5)

    assert isinstance(decided(None, target, wanted="mapped"), Unreplicated)
    assert isinstance(decided(None, replace(target, producer_epoch=2), wanted="mapped"), Unreplicated)


# -- preparation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 60, 100])
def test_an_unprepared_target_is_prepared_from_where_the_last_try_ended(end: int) -> None:
    """
    Padding is added only up to the start; once it reaches there only its removal is left.
    """
    known = replace(SAME, prepared=False)
    target = replace(EMPTY, target_log_end_offset=end, last_sequence=end - 1 if end else None)

    assert decided(known, target) == Prepare(100, 0, end, sequence=end)


@pytest.mark.parametrize(("remembered", "sequence"), [(1, 0), (2, 60), (None, 60)])
def test_padding_begins_its_sequences_again_with_a_newer_epoch_than_the_broker_remembers(
    remembered: int | None, sequence: int
) -> None:
    """
    Half of it was written under the older one. The broker refuses any other sequence, however often we look.
    """
    known = replace(SAME, prepared=False, producer_epoch=2)
    last = None if remembered is None else 59
    target = replace(EMPTY, target_log_end_offset=60, last_sequence=last, producer_epoch=remembered)

    assert decided(known, target) == Prepare(100, 0, 60, sequence, producer_epoch=2)


def test_what_somebody_else_has_written_meanwhile_is_not_taken_for_padding() -> None:
    """
    Preparing ends with the deletion of all that stands there.
    """
    known = replace(SAME, prepared=False)
    target = replace(EMPTY, target_log_end_offset=10, last_producer_id=9_999)

    found = stopped(decided(known, target), State.BLOCKED, Reason.FOREIGN_WRITE)

    assert "producer id 9999" in found.detail
    assert isinstance(decided(known, replace(target, last_producer_id=OURS)), Prepare)


def test_a_target_that_ends_behind_its_start_before_anything_is_copied_has_had_another_writer() -> None:
    """
    Where its records are gone by now, too: to go on at that end would leave out what is before it.
    """
    known = replace(SAME, prepared=False)
    target = replace(EMPTY, target_log_start_offset=103, target_log_end_offset=103)

    assert "ends at 103" in stopped(decided(known, target), State.BLOCKED, Reason.FOREIGN_WRITE).detail


# -- going on ------------------------------------------------------------------------------------


def test_a_copy_goes_on_where_the_targets_log_ends() -> None:
    """
    With the same offsets the log end is the source offset; the broker's memory gives the sequence.
    """
    assert decided(SAME, COPIED) == Proceed(
        next_offset=500, target_next_offset=500, sequence=400, coordinator_epoch=7, skip_to=500
    )


def test_a_mapped_copy_goes_on_where_the_map_says() -> None:
    """
    The log end lies in the last run that begins before it.
    """
    target = replace(COPIED, target_log_start_offset=0, target_log_end_offset=160)

    assert decided(MAPPED, target) == Proceed(310, 160, 400, 7, skip_to=310)


@pytest.mark.parametrize(("known", "start"), [(SAME, 100), (MAPPED, 0)])
def test_a_copy_that_holds_nothing_yet_is_told_apart(known: Known, start: int) -> None:
    """
    Not where somebody's records were before: they may have keys that the source deletes later.
    """
    empty = replace(COPIED, target_log_start_offset=start, target_log_end_offset=start, last_producer_id=None)
    begun = replace(empty, target_log_end_offset=start + 1, last_producer_id=OURS)

    said = [
        decided(known, empty),
        decided(known, begun),
        decided(known, empty, replace(SOURCE, log_start_offset=300), continue_after_loss=True),
        decided(replace(known, shared=True), empty),
    ]

    assert [isinstance(one, Proceed) and one.nothing_copied for one in said] == [True, False, True, False]


def test_a_copy_that_is_complete_has_nothing_wrong_with_it() -> None:
    """
    The target ends exactly where the source does.
    """
    decision = decided(SAME, replace(COPIED, target_log_end_offset=900))

    assert isinstance(decision, Proceed)
    assert decision.next_offset == 900


def test_a_log_that_grew_without_us_is_a_position_like_any_other() -> None:
    """
    Another mirror of the flow, or a request whose answer was lost, has appended what follows.
    """
    decision = decided(SAME, COPIED, acknowledged=450)

    assert isinstance(decision, Proceed)
    assert decision.next_offset == 500


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "known", [None, SAME, replace(SAME, prepared=False), replace(SAME, topic_id="other")]
)
def test_a_newer_epoch_at_the_target_deposes_us_whatever_else_is_true(known: Known | None) -> None:
    """
    Nothing is registered, prepared or written by a mirror that was fenced.
    """
    refused = stopped(decided(known, replace(COPIED, producer_epoch=3)), State.FENCED, Reason.NEWER_EPOCH)

    assert "epoch 3" in refused.detail
    assert "ours is 2" in refused.detail


@pytest.mark.parametrize("epoch", [None, 0, 1, 2])
def test_an_older_epoch_or_ours_deposes_nobody(epoch: int | None) -> None:
    """
    A broker that remembers nothing of us neither.
    """
    assert isinstance(decided(SAME, replace(COPIED, producer_epoch=epoch)), Proceed)


@pytest.mark.parametrize("prepared", [True, False])
def test_a_topic_with_another_id_is_another_topic(prepared: bool) -> None:
    """
    The source topic was deleted and made again: nothing is mixed, both ids are told.
    """
    decision = decided(replace(SAME, topic_id="old-id", prepared=prepared), COPIED)

    refused = stopped(decision, State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED)
    assert "old-id" in refused.detail
    assert TOPIC_ID in refused.detail


@pytest.mark.parametrize("known", [SAME, MAPPED])
def test_a_target_that_lost_what_it_had_acknowledged_has_diverged(known: Known) -> None:
    """
    An unclean election at the target: what consumers may have read there is gone.
    """
    refused = stopped(decided(known, COPIED, acknowledged=501), State.DIVERGED, Reason.TARGET_TRUNCATED)

    assert "501" in refused.detail
    assert "500" in refused.detail


@pytest.mark.parametrize("continue_after_loss", [False, True])
@pytest.mark.parametrize("known", [SAME, replace(MAPPED, target_start_offset=100)])
def test_a_target_that_ends_before_the_copy_begins_has_lost_all_of_it(
    known: Known, continue_after_loss: bool
) -> None:
    """
    It was made anew, or emptied. The source has lost nothing, and to go on after a loss is not asked for.
    """
    decision = decided(known, EMPTY, continue_after_loss=continue_after_loss)

    refused = stopped(decision, State.DIVERGED, Reason.TARGET_TRUNCATED)
    assert refused.detail == "the copy begins at target offset 100, and the target ends at 0"


@pytest.mark.parametrize("writer", [-1, 99])
@pytest.mark.parametrize("known", [SAME, MAPPED])
def test_a_last_batch_that_is_not_ours_is_a_foreign_write(known: Known, writer: int) -> None:
    """
    The log end means nothing then; who wrote is told.
    """
    target = replace(COPIED, last_producer_id=writer)

    refused = stopped(decided(known, target), State.DIVERGED, Reason.FOREIGN_WRITE)

    assert f"producer id {writer}" in refused.detail


def test_what_lies_below_the_first_copied_record_may_be_anybodys() -> None:
    """
    A mapped copy begins behind records of others, and so does one with the same offsets behind its padding.
    """
    behind_others = replace(MAPPED, to_source=OffsetMap([(100, 500)]).position, target_start_offset=500)

    decision = decided(behind_others, replace(COPIED, last_producer_id=99))

    assert isinstance(decision, Proceed)
    assert (decision.next_offset, decision.target_next_offset) == (100, 500)


def test_a_log_whose_last_batch_is_gone_by_retention_is_nobodys() -> None:
    """
    There is no batch to look at: the position counts.
    """
    assert isinstance(decided(SAME, replace(COPIED, last_producer_id=None)), Proceed)


def test_a_log_end_before_the_map_begins_has_diverged() -> None:
    """
    The target topic was made anew, or lost its end: nothing is extrapolated.
    """
    late = replace(MAPPED, to_source=OffsetMap([(100, 600)]).position, target_start_offset=600)

    refused = stopped(decided(late, COPIED), State.DIVERGED, Reason.TARGET_TRUNCATED)

    assert "ends at 500" in refused.detail


def test_a_target_that_ends_where_a_shortened_map_begins_has_lost_its_end() -> None:
    """
    The map was shortened to what the target held: its last record, which is to be held against the source's,
    is before it. Where a copy has just begun there is none.
    """
    begins = replace(MAPPED, to_source=OffsetMap([(700, 500)]).position)

    refused = stopped(decided(begins, COPIED), State.DIVERGED, Reason.TARGET_TRUNCATED)

    assert "ends at 500" in refused.detail
    assert isinstance(decided(replace(begins, target_start_offset=500), COPIED), Proceed)


def test_a_source_that_ends_before_the_position_has_lost_its_end() -> None:
    """
    One offset is enough; the high watermark itself is not beyond.
    """
    source = replace(SOURCE, high_watermark=499)

    refused = stopped(decided(SAME, COPIED, source), State.DIVERGED, Reason.SOURCE_TRUNCATED)

    assert "copied up to 500" in refused.detail
    assert isinstance(decided(SAME, COPIED, replace(SOURCE, high_watermark=500)), Proceed)


@pytest.mark.parametrize(
    ("noted", "leader", "reason"),
    [
        (0, 0, Reason.OFFSETS_DIFFER),
        (3, 3, Reason.OFFSETS_DIFFER),
        (3, 4, Reason.SOURCE_TRUNCATED),
        (-1, -1, Reason.SOURCE_TRUNCATED),
        (-1, 3, Reason.SOURCE_TRUNCATED),
    ],
)
@pytest.mark.parametrize("known", [SAME, MAPPED])
def test_a_source_that_has_the_same_leader_has_lost_nothing(
    known: Known, noted: int, leader: int, reason: Reason
) -> None:
    """
    A copy that ends behind it has a batch twice, or a marker that came late.
    """
    source = replace(SOURCE, high_watermark=known.to_source(500) - 1, leader_epoch=leader)
    at = {known.to_source(500): noted}

    refused = stopped(
        decided(replace(known, epoch_before=at.__getitem__), COPIED, source), State.DIVERGED, reason
    )

    assert f"the source ends at {source.high_watermark}" in refused.detail


# -- loss ----------------------------------------------------------------------------------------

OVERTAKEN = replace(SOURCE, log_start_offset=620)


def test_records_removed_before_they_were_copied_are_told_to_the_offset() -> None:
    """
    How many, from where to where; nothing goes on by itself. Where the copy ends is known all the same.
    """
    refused = stopped(decided(SAME, COPIED, OVERTAKEN), State.DATA_LOSS, Reason.LOG_START_MOVED)

    assert (refused.lost_from, refused.lost_to) == (500, 620)
    assert refused.target_end == COPIED.target_log_end_offset
    assert "120 offsets, 500 to 620" in refused.detail


def test_where_the_copy_ends_is_not_known_before_that_is_acknowledged() -> None:
    """
    It may vanish again, and would be missed.
    """
    refused = stopped(
        decided(SAME, replace(COPIED, unreplicated=30), OVERTAKEN), State.DATA_LOSS, Reason.LOG_START_MOVED
    )

    assert refused.target_end is None


def test_a_source_that_starts_at_the_position_has_lost_nothing() -> None:
    """
    Everything removed was copied.
    """
    decision = decided(SAME, COPIED, replace(SOURCE, log_start_offset=500))

    assert isinstance(decision, Proceed)
    assert decision.skip_to == 500


@pytest.mark.parametrize(
    ("accepted", "anyway", "goes_on"),
    [
        ((0, 0), False, False),
        ((500, 619), False, False),
        ((500, 620), False, True),
        ((450, 700), False, True),
        ((550, 700), False, False),
        ((0, 0), True, True),
    ],
)
def test_a_loss_is_passed_over_only_when_that_was_allowed(
    accepted: tuple[int, int], anyway: bool, goes_on: bool
) -> None:
    """
    By an operator for these very offsets, or by the settings for all: the position leaps behind them. What
    was allowed before the target lost its end says nothing of what is missing in front of that.
    """
    known = replace(SAME, loss_accepted=accepted)

    decision = decided(known, COPIED, OVERTAKEN, continue_after_loss=anyway)

    if goes_on:
        assert decision == Proceed(500, 500, 400, 7, skip_to=620)
    else:
        stopped(decision, State.DATA_LOSS, Reason.LOG_START_MOVED)


# -- repairs -------------------------------------------------------------------------------------

REPAIR = Insertion(target_offset=500, records=10, producer_epoch=3, batch=b"")


@pytest.mark.parametrize("remembered", [2, 3])
def test_what_a_repair_was_about_to_append_is_brought_to_its_end_first(remembered: int) -> None:
    """
    Nothing is copied behind a log end that it may have moved. Its epoch, should it stand, deposes nobody.
    """
    known = replace(SAME, insertion=REPAIR)

    assert decided(known, replace(COPIED, producer_epoch=remembered)) == Insert(REPAIR)


def test_what_a_repair_was_about_to_append_waits_for_what_is_not_acknowledged() -> None:
    """
    It may be that: nobody can read it there yet.
    """
    known = replace(SAME, insertion=REPAIR)

    assert isinstance(decided(known, replace(COPIED, unreplicated=10)), Unreplicated)


def test_only_an_epoch_above_that_of_the_last_repair_deposes_us() -> None:
    """
    A partition that was repaired is written to with a newer epoch than the flow's.
    """
    repaired, repairing = replace(SAME, producer_epoch=3), replace(SAME, insertion=REPAIR)
    newer = replace(COPIED, producer_epoch=4)

    assert isinstance(decided(repaired, replace(COPIED, producer_epoch=3)), Proceed)
    for known in repaired, repairing:
        assert "epoch 4" in stopped(decided(known, newer), State.FENCED, Reason.NEWER_EPOCH).detail


def repaired(*ranges: tuple[int, int]) -> Known:
    """A mapped copy of which these target offsets hold what a repair has appended."""
    insertions = Insertions(ranges)
    dense = OffsetMap([(100, 0)])
    return replace(MAPPED, insertions=insertions, to_source=lambda end: dense.position(insertions.dense(end)))


@pytest.mark.parametrize("end", [450, 500, 509])
def test_a_target_that_lost_what_a_repair_has_appended_has_diverged(end: int) -> None:
    """
    What is copied next would stand where the flow's state has no copies, and never be found again.
    """
    target = replace(COPIED, target_log_end_offset=end)

    refused = stopped(decided(repaired((500, 510)), target), State.DIVERGED, Reason.TARGET_TRUNCATED)

    assert refused.detail == f"target offset 509 was written by a repair, and the target ends at {end}"


def test_a_copy_goes_on_behind_what_a_repair_has_appended() -> None:
    """
    With the source record that follows the last copy.
    """
    decision = decided(repaired((500, 510)), replace(COPIED, target_log_end_offset=510))

    assert isinstance(decision, Proceed)
    assert (decision.next_offset, decision.target_next_offset) == (600, 510)


def test_what_others_wrote_before_a_copy_that_holds_nothing_but_a_repair_is_no_foreign_write() -> None:
    """
    The last batch that is looked at is the one in front of what was inserted.
    """
    insertions = Insertions([(500, 510)])
    known = replace(
        MAPPED,
        target_start_offset=500,
        insertions=insertions,
        to_source=lambda end: OffsetMap([(100, 500)]).position(insertions.dense(end)),
    )

    decision = decided(known, replace(COPIED, target_log_end_offset=510, last_producer_id=99))

    assert isinstance(decision, Proceed)
    assert (decision.next_offset, decision.target_next_offset) == (100, 510)


# -- whatever is said ----------------------------------------------------------------------------

looks = st.builds(
    lambda start, length, last, epoch, coordinator, writer: TargetLook(
        start, start + length, last, epoch, coordinator, writer
    ),
    offsets,
    offsets,
    st.none() | st.integers(0, SEQUENCES - 1),
    st.none() | st.integers(0, 4),
    st.integers(0, 9),
    st.sampled_from([None, OURS, 99, -1]),
)
sources = st.builds(
    lambda name, start, length: SourceLook(name, start, start + length),
    st.sampled_from([TOPIC_ID, "other"]),
    offsets,
    offsets,
)


@st.composite
def knowledge(draw: st.DrawFn) -> Known | None:
    """Nothing, or anything a flow may have noted."""
    if draw(st.booleans()):
        return None
    start, target_start = draw(offsets), draw(offsets)
    mode = draw(st.sampled_from(OffsetMode))
    mapped = OffsetMap([(start, target_start)]).position
    return Known(
        TOPIC_ID,
        mode,
        start,
        draw(st.booleans()),
        mapped if mode is OffsetMode.MAPPED else lambda end: end,
        (draw(offsets), draw(offsets)),
        target_start,
    )


@given(
    known=knowledge(),
    source=sources,
    target=looks,
    wanted=st.sampled_from(["same", "auto", "mapped"]),
    acknowledged=st.none() | offsets,
    anyway=st.booleans(),
)
def test_a_mirror_appends_only_at_the_log_end_and_only_what_follows_there(
    known: Known | None,
    source: SourceLook,
    target: TargetLook,
    wanted: str,
    acknowledged: int | None,
    anyway: bool,
) -> None:
    """
    Whatever both sides say: a position is the target's log end, and every refusal comes with its reason.
    """
    decision = decided(
        known, target, source, wanted=wanted, acknowledged=acknowledged, continue_after_loss=anyway
    )

    match decision:
        case Proceed():
            assert known is not None
            assert known.prepared
            assert decision.target_next_offset == target.target_log_end_offset >= (acknowledged or 0)
            assert decision.next_offset == known.to_source(target.target_log_end_offset)
            assert decision.next_offset <= source.high_watermark
            assert decision.skip_to == max(decision.next_offset, source.log_start_offset)
            assert decision.sequence == next_sequence(target, known.producer_epoch)
            assert (target.producer_epoch or 0) <= 2
            lost = source.log_start_offset - decision.next_offset
            assert lost <= 0 or anyway or known.may_lose(decision.next_offset, source.log_start_offset)
        case Prepare():
            assert known is not None
            assert not known.prepared
            assert decision.target_log_end_offset == target.target_log_end_offset
        case Register():
            assert known is None
            assert decision.mode is OffsetMode.MAPPED or wanted != "mapped"
        case Stop():
            assert decision.detail
            assert decision.state not in {State.ACTIVE, State.LAGGING, State.UNKNOWN}
            assert (decision.lost_from is None) is (decision.state is not State.DATA_LOSS)


def test_a_map_that_cannot_say_is_never_guessed_for() -> None:
    """
    Whatever words the map refuses with, they are shown.
    """

    def refuse(end: int) -> int:
        raise UntranslatableError(f"offset {end} is not in any run")

    refused = stopped(
        decided(replace(MAPPED, to_source=refuse), COPIED), State.DIVERGED, Reason.TARGET_TRUNCATED
    )

    assert "not in any run" in refused.detail


def test_nothing_goes_on_from_a_log_end_that_is_not_acknowledged() -> None:
    """
    What is on too few replicas may vanish with the leader; it would count as copied.
    """
    decision = decided(SAME, replace(COPIED, unreplicated=30))

    assert decision == Unreplicated("30 offsets before target offset 500 are not on all in-sync replicas yet")


def test_a_log_that_lost_its_end_is_named_though_replicas_are_missing() -> None:
    """
    What an operator has to know does not wait for replicas.
    """
    decision = decided(SAME, replace(COPIED, unreplicated=30), acknowledged=501)

    assert isinstance(decision, Stop)
    assert decision.reason is Reason.TARGET_TRUNCATED
