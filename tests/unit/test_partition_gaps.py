"""Gaps, doubles and leader epochs of one partition: what is dealt with before records go on."""

from __future__ import annotations

import pytest

from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.model import Batch, Gap, OffsetMode, Reason, State
from tests.unit.copies import NOW, batch, proceeding, sent, under_way, waiting

# -- gaps with the same offsets ------------------------------------------------------------------


def test_a_gap_waits_until_nothing_is_on_its_way() -> None:
    """
    A marker is not conditional: the log end must be known for certain.
    """
    copy = proceeding(100)
    (first,) = sent(copy, batch(100), Gap(105, 110))
    before = copy.owner_work

    copy.answered(first, appended=True, now=NOW)

    assert (before, copy.owner_work) == (False, True)
    assert copy.queue.gap == Gap(105, 110)
    assert copy.next_offset == 105


def test_markers_take_up_offsets_but_no_sequences() -> None:
    """
    The batch behind a gap of three has offset 108 and the sequence that follows on the last record's.
    """
    copy = proceeding(100, sequence=40)
    (first,) = sent(copy, batch(100), Gap(105, 108), batch(108))
    copy.answered(first, appended=True, now=NOW)

    copy.gap_marked(3, NOW)
    behind, sequence = copy.take()

    assert (behind.target_offset, sequence) == (108, 45)
    assert (copy.next_offset, copy.acknowledged_target_offset) == (108, 108)
    assert copy.counters.gap_offsets == 3


def test_the_first_batch_behind_markers_is_alone_until_it_is_acknowledged() -> None:
    """
    A broker that had forgotten the producer knows it by the markers only, and refuses that batch.
    """
    copy = under_way(100)
    sent(copy, Gap(100, 103))
    copy.gap_marked(3, NOW)

    behind = sent(copy, batch(103), batch(108), batch(113))

    assert [one.target_offset for one in behind] == [103]
    copy.answered(behind[0], appended=True, now=NOW)
    assert [one.target_offset for one in sent(copy, batch(118), batch(123))] == [108, 113]


def test_a_large_gap_is_marked_piece_by_piece() -> None:
    """
    What is left of it stays at the head of the queue.
    """
    copy = proceeding(100)
    sent(copy, Gap(100, 110))

    copy.gap_marked(4, NOW)

    assert copy.queue.gap == Gap(104, 110)
    assert (copy.next_offset, copy.target_next_offset) == (104, 104)
    copy.gap_marked(6, NOW)
    assert not copy.pending
    assert copy.next_offset == copy.fetch_offset == 110


@pytest.mark.parametrize("steps", [[10], [2, 8], [5, 1, 4], [1] * 10])
def test_why_a_gap_is_one_is_counted_once_however_it_is_cut(steps: list[int]) -> None:
    """
    Seven of ten offsets are accounted for; the rest had no batch.
    """
    copy = proceeding(100)
    sent(copy, Gap(100, 110, aborted=5, markers=2))

    for step in steps:
        copy.gap_marked(step, NOW)

    counters = copy.counters
    assert (counters.gap_offsets, counters.aborted_offsets, counters.marker_offsets) == (10, 5, 2)
    assert counters.lost_offsets == 0


# -- duplicates ----------------------------------------------------------------------------------


def test_what_the_target_had_already_is_not_sent_again_and_counts() -> None:
    """
    Of two batches without an answer a look finds the first: it is there once, and is not sent again.
    """
    copy = under_way(100)
    first, second = sent(copy, batch(100), batch(105))
    for one in (first, second):
        copy.answered(one, appended=False, now=NOW)
    copy.doubt(NOW)

    copy.proceed(Proceed(105, 105, 45, 3, 105), OffsetMode.SAME, 0, NOW)

    assert (copy.counters.records, copy.counters.duplicates) == (0, 5)


def test_what_the_target_had_already_counts_once_however_often_it_is_looked_at() -> None:
    """
    As where the batch behind it is doubted again.
    """
    copy = proceeding(100)
    (lost,) = sent(copy, batch(100))
    copy.answered(lost, appended=False, now=NOW)

    for _ in range(3):
        copy.doubt(NOW)
        copy.proceed(Proceed(105, 105, 45, 3, 105), OffsetMode.SAME, 0, NOW)

    assert copy.counters.duplicates == 5


def test_what_is_sent_again_counts_by_its_own_answer() -> None:
    """
    The target did not have it when it was looked at; whatever comes now is no duplicate of what is settled.
    """
    copy = proceeding(100)
    (lost,) = sent(copy, batch(100))
    copy.answered(lost, appended=False, now=NOW)
    copy.doubt(NOW)
    copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, NOW)
    (again,) = sent(copy, batch(100))
    copy.answered(again, appended=True, now=NOW)
    copy.doubt(NOW)

    copy.proceed(Proceed(105, 105, 45, 3, 105), OffsetMode.SAME, 0, NOW)

    assert (copy.counters.records, copy.counters.duplicates) == (5, 0)


def test_what_arrived_after_the_look_and_before_the_next_one_counts() -> None:
    """
    It was not there, and then it was, and nothing was sent meanwhile.
    """
    copy = proceeding(100)
    (late,) = sent(copy, batch(100))
    copy.answered(late, appended=False, now=NOW)
    copy.doubt(NOW)
    copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, NOW)
    copy.doubt(NOW)

    copy.proceed(Proceed(105, 105, 45, 3, 105), OffsetMode.SAME, 0, NOW)

    assert copy.counters.duplicates == 5


# -- gaps with mapped offsets --------------------------------------------------------------------


def mapped() -> PartitionCopy:
    """Batches and gaps in turn: source 100-104, 110-114, 117-118, target from 7 on."""
    copy = proceeding(100, target=7, mode=OffsetMode.MAPPED)
    copy.queue.push(
        [batch(100), Gap(105, 110), batch(110), Gap(115, 117), batch(117, 2), Gap(119, 125)], (), None
    )
    return copy


def test_runs_are_known_before_their_records_are_sent() -> None:
    """
    Each gap ahead begins a run where the records before it will end.
    """
    copy = mapped()

    assert copy.runs_ahead() == [(110, 12), (117, 17), (125, 19)]
    (first,) = [copy.take()[0]]
    assert copy.runs_ahead() == [(110, 12), (117, 17), (125, 19)]
    assert copy.owner_work
    assert list(copy.in_flight) == [first]


def test_noted_runs_stand_in_nobodys_way_any_more() -> None:
    """
    What lies behind goes on at once, with dense offsets at the target.
    """
    copy = mapped()
    first, _ = copy.take()

    copy.runs_noted(3, NOW)
    behind = [copy.take()[0] for _ in range(2)]

    assert [one.target_offset for one in behind] == [12, 17]
    assert copy.counters.gap_offsets == 5 + 2 + 6
    for one in (first, *behind):
        copy.answered(one, appended=True, now=NOW)
    assert copy.next_offset == 125


def test_a_gap_that_is_noted_does_not_make_what_is_on_its_way_in_front_of_it_copied() -> None:
    """
    That is so when it is acknowledged; then the gap behind it is passed, too.
    """
    copy = proceeding(100, target=7, mode=OffsetMode.MAPPED)
    (first,) = sent(copy, batch(100), Gap(105, 110))

    copy.runs_noted(1, NOW)
    noted = copy.next_offset, copy.acknowledged_target_offset
    copy.answered(first, appended=True, now=NOW)

    assert noted == (100, 7)
    assert (copy.next_offset, copy.acknowledged_target_offset) == (110, 12)


def test_what_is_queued_of_a_mapped_copy_is_read_again_after_a_look() -> None:
    """
    Its gaps are noted, and gone from the queue: what is behind them would be taken to follow without one.
    """
    copy = mapped()
    copy.runs_noted(3, NOW)
    copy.look_first(NOW)

    ahead = [(110, 12), (117, 17), (125, 19)]
    copy.proceed(Proceed(100, 7, 40, 3, 100), OffsetMode.MAPPED, 0, NOW, ahead)

    assert (copy.pending, copy.fetch_offset) == (False, 100)


def going_on_with(*runs_ahead: tuple[int, int]) -> PartitionCopy:
    """A mapped partition, source 100, target 7, whose map was written ahead by somebody."""
    copy = waiting()
    copy.proceed(Proceed(100, 7, 40, 3, 100), OffsetMode.MAPPED, 0, NOW, runs_ahead)
    return copy


def test_records_where_the_map_has_a_gap_wait_until_it_is_corrected() -> None:
    """
    The source lost its end and has other records now: what was foreseen would be believed after a crash.
    """
    copy = going_on_with((110, 13))
    copy.queue.push([batch(100), batch(105)], (), None)
    before, _ = copy.take()
    copy.answered(before, appended=True, now=NOW)
    stopped = (copy.batch_ready, copy.owner_work, copy.contradicts_map)

    copy.map_corrected()

    assert before.target_offset == 7
    assert stopped == (False, True, True)
    assert copy.batch_ready


@pytest.mark.parametrize(
    ("behind", "contradicts"),
    [((), True), ((Gap(105, 110),), False), ((Gap(105, 109),), True), ((batch(105),), True)],
    ids=["nothing is known", "the gap that was foreseen", "another gap", "records"],
)
def test_a_batch_that_ends_where_a_run_was_to_begin_waits_unless_that_is_so(
    behind: tuple[Batch | Gap, ...], contradicts: bool
) -> None:
    """
    With the log's end there, a crash would make the next mirror go on behind a gap that there may not be.
    """
    copy = going_on_with((110, 12))

    copy.queue.push([batch(100), *behind], (), None)

    assert (copy.contradicts_map, copy.batch_ready) == (contradicts, not contradicts)


@pytest.mark.parametrize(
    ("ahead", "otherwise"),
    [
        ([], False),
        ([(110, 12), (121, 17)], False),
        ([(110, 12)], False),
        ([(110, 12), (121, 17), (140, 30)], False),
        ([(110, 12), (120, 17)], True),
        ([(110, 12), (118, 15), (121, 17)], True),
        ([(110, 12), (130, 25)], True),
    ],
)
def test_other_gaps_than_were_foreseen_are_seen_before_they_are_noted(
    ahead: list[tuple[int, int]], otherwise: bool
) -> None:
    """
    Not the first one alone: a map that does not fit would refuse what was to be noted of others as well.
    """
    copy = going_on_with(*ahead)

    copy.queue.push([batch(100), Gap(105, 110), batch(110), Gap(115, 121), batch(121)], (), None)

    assert copy.foresaw_otherwise is otherwise


def test_a_gap_that_was_foreseen_is_noted_and_what_is_foreseen_behind_it_stays() -> None:
    """
    Up to the next one batches go on at once.
    """
    copy = going_on_with((110, 12), (117, 17))
    copy.queue.push([batch(100), Gap(105, 110), batch(110, 4)], (), None)
    copy.take()
    foreseen = (copy.batch_ready, copy.contradicts_map)

    copy.runs_noted(1, NOW, following=[(117, 17)])
    copy.take()
    copy.queue.push([batch(114, 2)], (), None)

    assert foreseen == (False, False)
    assert (copy.target_next_offset, copy.contradicts_map) == (16, True)


def test_runs_noted_while_more_came_leave_the_new_gaps() -> None:
    """
    Only what was written down is taken out of the queue.
    """
    copy = mapped()
    copy.take()
    noted = copy.runs_ahead()
    copy.queue.push([batch(125), Gap(130, 133)], (), None)

    copy.runs_noted(len(noted), NOW)

    assert copy.runs_ahead() == [(133, 24)]


def test_a_gap_at_the_end_is_dealt_with_once_it_is_noted() -> None:
    """
    With nothing behind it the position stands behind the gap.
    """
    copy = proceeding(100, target=7, mode=OffsetMode.MAPPED)
    sent(copy, Gap(100, 120))

    copy.runs_noted(1, NOW + 1)

    assert (copy.next_offset, copy.send_offset, copy.acknowledged_at) == (120, 120, NOW + 1)
    assert not copy.owner_work


# -- leader epochs -------------------------------------------------------------------------------


def test_a_batch_of_a_new_leader_epoch_waits_until_the_epoch_is_noted() -> None:
    """
    After a crash the source must be asked about the epoch of what was copied last, no older one.
    """
    copy = under_way(100, epoch=4)

    copy.queue.push([batch(100), batch(105, epoch=5)], [(4, 100), (5, 105)], None)
    copy.take()

    assert not copy.batch_ready
    assert copy.owner_work
    assert copy.queue.epochs == [(5, 105)]
    assert copy.queue.fetched_epoch == 5
    copy.queue.note_epochs([(5, 105)])
    assert copy.batch_ready


def test_a_batch_in_front_of_a_new_leader_epoch_waits_for_nothing() -> None:
    """
    Nobody would note the epoch before its first record is next.
    """
    copy = under_way(100, epoch=4)

    copy.queue.push([batch(100), batch(105), batch(110, epoch=5)], [(5, 110)], None)
    in_front = [copy.take()[0] for _ in range(3) if copy.batch_ready and not copy.owner_work]

    assert [one.batch.base_offset for one in in_front] == [100, 105]
    assert (copy.batch_ready, copy.owner_work) == (False, True)


def test_of_several_new_leader_epochs_those_that_are_noted_stand_in_nobodys_way() -> None:
    """
    The next one does, as soon as its first record is next.
    """
    copy = under_way(100, epoch=4)
    copy.queue.push([batch(100), batch(105), batch(110)], [(5, 100), (6, 105), (7, 110)], None)

    copy.queue.note_epochs([(5, 100), (6, 105)])
    ready = [copy.take()[0] for _ in range(3) if copy.batch_ready]

    assert [one.batch.base_offset for one in ready] == [100, 105]
    assert copy.queue.epochs == [(7, 110)]


def test_an_epoch_that_was_noted_is_asked_about_after_a_doubt() -> None:
    """
    Asked about an older one, the source would answer that what was copied since is not its own.
    """
    copy = under_way(100, epoch=4)
    copy.queue.push([batch(100), batch(105)], [(5, 100), (6, 105)], None)
    copy.queue.note_epochs([(5, 100)])

    copy.doubt(NOW)

    assert copy.queue.fetched_epoch == 5


def test_an_epoch_that_is_known_is_not_noted_again() -> None:
    """
    Nor one that begins behind what was taken of the answer.
    """
    copy = proceeding(100, epoch=4)

    copy.queue.push([batch(100)], [(4, 90), (5, 105)], None)

    assert copy.queue.epochs == []
    assert copy.queue.fetched_epoch == 4


def test_an_epoch_dropped_before_it_was_noted_is_noted_when_it_comes_again() -> None:
    """
    Else a restart would ask about an older epoch, and the source answer that we have diverged.
    """
    copy = proceeding(100, epoch=4)
    copy.queue.push([batch(100, epoch=5)], [(5, 100)], None)
    copy.stop(State.BLOCKED, Reason.CORRUPT_BATCH, "the next batch is corrupt", NOW + 1)

    copy.queue.push([batch(100, epoch=5), batch(105, epoch=5)], [(5, 100)], None)

    assert copy.queue.epochs == [(5, 100)]
    assert not copy.batch_ready
