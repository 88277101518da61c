"""One partition on its way: what is queued, sent and acknowledged, and what a doubt leaves of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.flow.passage import UNSTEADY_SECONDS
from mirror.flow.position import SEQUENCES, Proceed
from mirror.flow.states import PATIENCE, Refusal, append_refusal, pause_seconds
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Isolation
from mirror.model import Gap, OffsetMode, Reason, State
from tests.unit.copies import NOW, PASSING, batch, proceeding, sent, under_way, waiting

SOURCES = Path(__file__).parents[2] / "mirror"

# -- beginning -----------------------------------------------------------------------------------


def test_a_partition_that_was_never_looked_at_copies_nothing() -> None:
    """
    It says so, and is due at once.
    """
    copy = waiting()

    assert (copy.state, copy.reason) == (State.UNKNOWN, Reason.STARTING)
    assert copy.look_due_at == 0.0
    assert not copy.copying
    assert not copy.batch_ready
    assert copy.next_offset is None


def test_a_look_says_where_to_begin() -> None:
    """
    From there it is read, and its first record gets the sequence the look has found.
    """
    copy = proceeding(100, target=7, sequence=40, epoch=6)

    copy.queue.push([batch(100)], (), None)
    first, sequence = copy.take()

    assert copy.copying
    assert (copy.state, copy.reason, copy.detail) == (State.ACTIVE, None, "")
    assert (first.target_offset, sequence) == (7, 40)
    assert (copy.queue.fetched_epoch, copy.coordinator_epoch) == (6, 4)
    assert (copy.next_offset, copy.send_offset, copy.fetch_offset) == (100, 105, 105)


def test_markers_have_a_higher_epoch_than_those_of_another_owner() -> None:
    """
    More of them may be late. Ours that a look finds are no reason: all that may be late has a lower one then.
    """
    copy = proceeding(100)

    found = []
    for seen in (3, 4, -1, 9, 9, 10):
        copy.proceed(Proceed(100, 100, 40, seen, 100), OffsetMode.SAME, 0, NOW)
        found.append(copy.coordinator_epoch)

    assert found == [4, 4, 4, 10, 10, 10]


def test_batches_carry_on_where_the_one_before_ends() -> None:
    """
    Target offsets and sequences count records, and sequences wrap at 2^31.
    """
    copy = proceeding(100, target=7, sequence=SEQUENCES - 7)

    copy.queue.push([batch(100, 5), batch(105, 2), batch(107, 1)], (), None)
    taken = [copy.take() for _ in range(3)]

    assert [one.target_offset for one, _ in taken] == [7, 12, 14]
    assert [sequence for _, sequence in taken] == [SEQUENCES - 7, SEQUENCES - 2, 0]


def test_what_was_lost_and_accepted_is_a_gap_to_begin_with() -> None:
    """
    Reading begins behind it.
    """
    copy = proceeding(100, skip_to=130)

    assert copy.queue.gap == Gap(100, 130, lost=True)
    assert copy.fetch_offset == 130
    assert copy.counters.lost_offsets == 0


def test_what_was_lost_is_counted_once_however_often_its_place_is_begun() -> None:
    """
    It counts when its place is filled, so a look in the middle of that changes nothing.
    """
    copy = proceeding(100, skip_to=130)
    copy.gap_marked(10, NOW)
    copy.doubt(NOW)
    copy.proceed(Proceed(110, 110, 0, 0, 130), OffsetMode.SAME, -1, NOW)
    copy.gap_marked(20, NOW)

    assert copy.counters.lost_offsets == 30
    assert copy.counters.gap_offsets == 30


def test_since_when_a_copy_holds_anything_is_the_last_look_that_found_nothing() -> None:
    """
    What was read before that look, and is kept, was read after the one before; later looks change nothing.
    """
    nothing = Proceed(100, 100, 40, 3, 100, nothing_copied=True)
    copy, found = waiting(), []
    copy.proceed(nothing, OffsetMode.SAME, 0, NOW)
    copy.doubt(NOW)
    copy.proceed(nothing, OffsetMode.SAME, 0, NOW + 1)
    found.append(copy.empty_at)
    copy.queue.push([batch(100, 10)], (), None)
    copy.look_first(NOW + 2)
    copy.proceed(nothing, OffsetMode.SAME, 0, NOW + 2)
    found.append(copy.empty_at)
    copy.answered(copy.take()[0], appended=True, now=NOW + 3)
    copy.doubt(NOW + 4)
    copy.proceed(Proceed(110, 110, 50, 3, 110), OffsetMode.SAME, 0, NOW + 4)

    assert [*found, copy.empty_at] == [NOW + 1] * 3


def test_at_most_so_many_batches_are_on_their_way() -> None:
    """
    The broker remembers five; the sixth waits for an answer.
    """
    copy = under_way(5)

    on_their_way = sent(copy, *(batch(5 * number) for number in range(1, 9)))

    assert len(on_their_way) == 5
    assert not copy.batch_ready
    copy.answered(on_their_way[0], appended=True, now=NOW)
    assert copy.batch_ready


OLD_MS, NEW_MS = 1_700_000_000_000, 2**62


@pytest.mark.parametrize(
    ("newest_ms", "later", "follow"),
    [(OLD_MS, 0.0, 0), (NEW_MS, 0.0, 4), (OLD_MS, UNSTEADY_SECONDS, 4)],
    ids=["old records, just looked at", "new records", "old records, for a while"],
)
def test_a_batch_goes_alone_where_the_broker_might_take_the_next_one_in_its_place(
    newest_ms: int, later: float, follow: int
) -> None:
    """
    As where it has forgotten who writes, which old records make it do, and refuses the first of two. Before
    the first one is in, nothing is known of it.
    """
    copy = proceeding(0)
    batches = [batch(5 * number)._replace(max_timestamp_ms=newest_ms) for number in range(5)]

    first = sent(copy, *batches)
    copy.answered(first[0], appended=True, now=NOW + later)
    following = [copy.take()[1] for _ in range(4) if copy.batch_ready]

    assert len(first) == 1
    assert following == [45, 50, 55, 60][: max(follow, 1)]


def test_an_old_batch_may_follow_new_ones_and_none_follows_it() -> None:
    """
    The broker remembers who wrote the new ones, and would refuse the old one without them. It may forget who
    wrote the old one, so the next goes alone, too.
    """
    copy = proceeding(0)
    ages = [NEW_MS, NEW_MS, OLD_MS, NEW_MS, NEW_MS]
    batches = [batch(5 * number)._replace(max_timestamp_ms=at) for number, at in enumerate(ages)]
    (first,) = sent(copy, *batches)
    copy.answered(first, appended=True, now=NOW)

    on_their_way = [copy.take()[0] for _ in range(3) if copy.batch_ready]
    follows = []
    for one in on_their_way:
        copy.answered(one, appended=True, now=NOW)
        follows.append(copy.batch_ready)

    copy.take()

    assert len(on_their_way) == 2
    assert follows == [False, True]
    assert not copy.batch_ready


def test_a_batch_pushed_elsewhere_than_at_the_end_is_a_bug() -> None:
    """
    Records would be doubled or lost: better no mirror at all.
    """
    copy = proceeding(100)

    with pytest.raises(AssertionError, match="pushed at 100"):
        copy.queue.push([batch(101)], (), None)


# -- answers -------------------------------------------------------------------------------------


def test_an_acknowledged_batch_moves_the_position() -> None:
    """
    And nothing else does: queued and sent is not copied.
    """
    copy = under_way(100, target=7)
    first, second = sent(copy, batch(100), batch(105))

    assert copy.next_offset == 100
    assert copy.answered(first, appended=True, now=NOW + 1)

    assert (copy.next_offset, copy.acknowledged_target_offset, copy.acknowledged_at) == (105, 12, NOW + 1)
    assert (copy.counters.records, copy.counters.batches, copy.counters.bytes) == (5, 1, 5)
    assert copy.last_timestamp_ms == 104
    assert list(copy.in_flight) == [second]


def test_answers_that_overtake_each_other_do_not_move_the_position_back() -> None:
    """
    When a leader moves, two batches may be on two connections.
    """
    copy = under_way(100)
    first, second = sent(copy, batch(100), batch(105))

    copy.answered(second, appended=True, now=NOW)
    copy.answered(first, appended=True, now=NOW)

    assert (copy.next_offset, copy.acknowledged_target_offset) == (110, 110)


def test_a_refused_batch_moves_nothing() -> None:
    """
    What becomes of it is for the next look.
    """
    copy = proceeding(100)
    (only,) = sent(copy, batch(100))

    assert copy.answered(only, appended=False, now=NOW)

    assert (copy.next_offset, copy.counters.records) == (100, 0)


def test_an_answer_from_before_a_doubt_does_not_count() -> None:
    """
    Even a good one: the next look sees what it has done.
    """
    copy = under_way(100)
    first, second = sent(copy, batch(100), batch(105))
    copy.doubt(NOW)

    assert not copy.answered(first, appended=True, now=NOW)
    assert not copy.answered(second, appended=False, now=NOW)

    assert (copy.next_offset, copy.counters.records) == (100, 0)
    assert not copy.in_flight


# -- doubts --------------------------------------------------------------------------------------


def test_a_doubt_drops_what_is_not_acknowledged_and_asks_for_a_look() -> None:
    """
    The state stays: nobody needs to know yet.
    """
    copy = proceeding(100)
    copy.queue.push([batch(100), Gap(105, 110), batch(110)], [(4, 110)], None)
    copy.take()

    copy.doubt(NOW, 2.5)

    assert copy.look_due_at == NOW + 2.5
    assert not copy.copying
    assert not copy.batch_ready
    assert not copy.owner_work
    assert copy.queue.bytes == 0
    assert copy.state is State.ACTIVE


def test_a_look_while_batches_are_unanswered_is_a_bug() -> None:
    """
    The log end would be read while it still moves.
    """
    copy = proceeding(100)
    sent(copy, batch(100))
    copy.doubt(NOW)

    with pytest.raises(AssertionError, match="may still move"):
        copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, NOW)


@pytest.mark.parametrize("state", sorted(HOPELESS))
def test_a_state_that_only_an_operator_ends_is_not_ended_by_a_late_answer(state: State) -> None:
    """
    Neither a doubt nor a refusal makes it look again.
    """
    copy = proceeding(100)
    copy.stop(state, Reason.OPERATOR, "seen", None)

    copy.doubt(NOW)
    copy.refused(PASSING, "late", NOW)
    copy.refused(append_refusal(10), "late", NOW)
    copy.stand_by(NOW, 1.0, "")

    assert (copy.state, copy.detail, copy.look_due_at) == (state, "seen", None)


def test_a_passing_fault_is_shown_once_it_does_not_pass() -> None:
    """
    Before that only the pauses grow.
    """
    copy, seen = proceeding(100), []

    for _ in range(PATIENCE + 1):
        copy.refused(PASSING, "no answer", NOW)
        seen.append((copy.state, copy.look_due_at))

    pauses = [NOW + pause_seconds(number) for number in range(1, PATIENCE + 2)]
    assert [due for _, due in seen] == pauses
    assert [state for state, _ in seen] == [*[State.ACTIVE] * (PATIENCE - 1), State.BLOCKED, State.BLOCKED]
    assert (copy.reason, copy.detail) == (Reason.TARGET_UNAVAILABLE, "no answer")


@pytest.mark.parametrize("reason", [Reason.TARGET_UNAVAILABLE, Reason.NOT_ENOUGH_REPLICAS])
def test_who_waits_for_a_broker_is_looked_at_once_one_answers(reason: Reason) -> None:
    """
    And if that is too early, soon again. What waits for something else goes on to wait.
    """
    copy = proceeding(100)
    for _ in range(20):
        copy.refused(Refusal(None, reason), "no answer", NOW)
    due = copy.look_due_at

    copy.try_now(NOW + 1)
    looked_at = copy.look_due_at
    copy.refused(Refusal(None, reason), "no leader yet", NOW + 1)

    waits_for_broker = reason is Reason.TARGET_UNAVAILABLE
    assert looked_at == (NOW + 1 if waits_for_broker else due)
    assert copy.look_due_at == NOW + 1 + pause_seconds(1 if waits_for_broker else 21)
    assert copy.state is State.BLOCKED


def test_patience_begins_anew_with_every_record_copied() -> None:
    """
    An acknowledged batch, and a look that finds the target further on.
    """
    copy = proceeding(100)
    for _ in range(PATIENCE - 1):
        copy.refused(PASSING, "no answer", NOW)

    copy.proceed(Proceed(105, 105, 45, 3, 105), OffsetMode.SAME, 0, NOW)
    copy.refused(PASSING, "no answer", NOW)

    assert copy.state is State.ACTIVE
    assert copy.attempts == 1


@pytest.mark.parametrize("written", ["a batch", "a marker"])
def test_patience_begins_anew_with_what_is_written_after_a_look_that_found_nothing_new(written: str) -> None:
    """
    Faults that pass one by one are not one that lasts.
    """
    copy = proceeding(100)
    for _ in range(PATIENCE - 1):
        copy.refused(PASSING, "no answer", NOW)
    copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, NOW)

    if written == "a batch":
        (one,) = sent(copy, batch(100))
        copy.answered(one, appended=True, now=NOW)
    else:
        sent(copy, Gap(100, 105))
        copy.gap_marked(5, NOW)
    copy.refused(PASSING, "no answer", NOW)

    assert copy.state is State.ACTIVE
    assert copy.look_due_at == NOW + pause_seconds(1)


def test_a_look_that_finds_nothing_new_does_not_end_the_patience() -> None:
    """
    A batch refused again and again is shown, though each look goes well.
    """
    copy = proceeding(100)

    for _ in range(PATIENCE):
        copy.refused(PASSING, "no answer", NOW)
        stuck = copy.state
        copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, NOW)

    assert stuck is State.BLOCKED


def test_a_final_refusal_is_shown_at_once() -> None:
    """
    With its reason and words; it is tried again where that can help, and only there.
    """
    blocked, fenced = proceeding(100), proceeding(100)

    blocked.refused(append_refusal(10), "too large", NOW)
    fenced.refused(append_refusal(90), "deposed", NOW)

    assert (blocked.state, blocked.reason, blocked.detail) == (
        State.BLOCKED,
        Reason.RECORD_TOO_LARGE,
        "too large",
    )
    assert blocked.look_due_at == NOW + pause_seconds(1)
    assert (fenced.state, fenced.reason, fenced.look_due_at) == (State.FENCED, Reason.NEWER_EPOCH, None)
    assert (blocked.counters.fenced, fenced.counters.fenced) == (0, 1)


def test_an_operator_who_says_go_on_is_heard_in_the_middle_of_copying() -> None:
    """
    What was queued is dropped as after a doubt: nothing may be sent while both sides are looked at.
    """
    copy = proceeding(100)
    (on_its_way,) = sent(copy, batch(100))
    copy.queue.push([batch(105), Gap(110, 112), batch(112)], (), None)

    copy.look_anew(NOW)

    assert not copy.batch_ready
    assert not copy.owner_work
    assert not copy.answered(on_its_way, appended=True, now=NOW)
    assert (copy.state, copy.look_due_at, copy.acknowledged_target_offset) == (State.UNKNOWN, NOW, None)


def test_waiting_for_the_owner_is_timed_from_when_it_stood_still() -> None:
    """
    Looks in between do not count as progress; a position that moved does, and so does the end.
    """
    copy = proceeding(100)
    copy.heard(0, 110, 108)

    def looked(at: int, now: float) -> tuple[bool, tuple[float, float] | None]:
        moved = copy.follow(at, at, OffsetMode.SAME)
        copy.stand_by(now, 1.0, "")
        return moved, copy.waited_for_owner

    assert looked(100, NOW) == (False, (NOW, NOW))
    assert looked(100, NOW + 2) == (False, (NOW, NOW + 2))
    assert looked(101, NOW + 3) == (True, (NOW + 3, NOW + 3))
    assert looked(108, NOW + 4) == (True, None)
    assert looked(108, NOW + 9) == (False, None)
    assert copy.look_due_at == NOW + 10


def test_what_another_mirror_copies_is_shown_with_its_position_and_drops_what_was_queued() -> None:
    """
    Nothing of it is sent any more; when the right is ours it goes on where a look says.
    """
    copy = proceeding(100)
    (on_its_way,) = sent(copy, batch(100))
    copy.queue.push([batch(105)], (), None)
    copy.stand_by(NOW, 0.0, "the owner of the flow is the mirror on west-4")

    shown = copy.state, copy.reason, copy.detail
    copying, ready = copy.copying, copy.batch_ready
    copy.answered(on_its_way, appended=True, now=NOW)
    copy.follow(105, 105, OffsetMode.SAME)
    position = copy.next_offset
    copy.proceed(Proceed(105, 105, 5, 3, 105), OffsetMode.SAME, 0, NOW)

    assert shown == (State.STANDBY, Reason.ANOTHER_MIRROR, "the owner of the flow is the mirror on west-4")
    assert (copying, ready, position) == (False, False, 105)
    assert (copy.state, copy.copying, copy.waited_for_owner) == (State.ACTIVE, True, None)


def test_where_another_mirror_appends_is_where_the_target_has_acknowledged_its_copy() -> None:
    """
    It goes on from what is right by its judgement, or an operator's, also where the log has ended further on
    before. A log that only ends earlier has lost records.
    """
    copy = proceeding(100)
    copy.stand_by(NOW, 1.0, "another")

    acknowledged = []
    for end in (100, 90, 93, 130, 120):
        copy.follow(end, end, OffsetMode.SAME)
        acknowledged.append(copy.acknowledged_target_offset)

    assert acknowledged == [100, 100, 93, 130, 130]
    assert copy.looked_at is None


def test_what_an_operator_has_to_end_is_not_called_standby() -> None:
    copy = proceeding(100)
    copy.stop(State.DIVERGED, Reason.FOREIGN_WRITE, "somebody", None)

    copy.stand_by(NOW, 1.0, "another")

    assert (copy.state, copy.look_due_at) == (State.DIVERGED, None)


@pytest.mark.parametrize("end", ["stop", "refused", "resume", "doubt"])
def test_whatever_else_happens_ends_the_wait_for_the_owner(end: str) -> None:
    """
    Else a topic that was deleted would make a standby take the right from an owner that is well.
    """
    copy = proceeding(100)
    copy.stand_by(NOW, 1.0, "")

    match end:
        case "stop":
            copy.stop(State.BLOCKED, Reason.TOPIC_DELETED, "gone", None)
        case "refused":
            copy.refused(PASSING, "no", NOW)
        case "resume":
            copy.look_anew(NOW)
        case _:
            copy.doubt(NOW)

    assert copy.waited_for_owner is None


# -- memory --------------------------------------------------------------------------------------


def test_a_buffer_is_given_back_when_the_last_batch_in_it_is_answered() -> None:
    """
    Or dropped: by a doubt, a stop, a look.
    """
    pool = BufferPool(idle_bytes_max=0)
    copy = proceeding(0)
    buffer = pool.take(1)
    copy.queue.push([batch(0), Gap(5, 7), batch(7), batch(12)], (), buffer)
    buffer.release()
    first, _ = copy.take()

    copy.doubt(NOW)

    assert pool.used_bytes > 0
    copy.answered(first, appended=True, now=NOW)
    assert pool.used_bytes == 0


def test_queued_bytes_are_those_not_yet_sent() -> None:
    """
    They are what a partition may hold of the flow's memory.
    """
    copy = proceeding(0)

    copy.queue.push([batch(0, 5), Gap(5, 7), batch(7, 3)], (), None)

    assert copy.queue.bytes == 8
    copy.take()
    assert copy.queue.bytes == 3


# -- what the source says ------------------------------------------------------------------------


def test_what_the_source_does_not_say_stays_as_it_was() -> None:
    """
    An error's answer carries offsets of -1.
    """
    copy = proceeding(100)
    copy.heard(90, 900, 800)

    copy.heard(-1, -1, -1)

    assert (copy.source_log_start_offset, copy.source_high_watermark) == (90, 900)
    assert copy.readable_end(Isolation.READ_COMMITTED) == 800
    assert copy.readable_end(Isolation.READ_UNCOMMITTED) == 900


def test_a_copy_was_complete_when_an_answer_brings_nothing_that_was_missing() -> None:
    """
    At the time of the answer before: since then something may have been written.
    """
    copy, seen = proceeding(100), []

    for end, answered_before in ((100, None), (120, 55.0), (120, 66.0)):
        copy.heard(0, end, end, answered_before=answered_before)
        seen.append(copy.complete_at)

    assert seen == [None, 55.0, 55.0]


def test_a_copy_is_not_complete_while_a_transaction_holds_back_what_others_have_committed() -> None:
    """
    It was so when the source ended where the copy does, whatever of that it gave out.
    """
    copy, seen = proceeding(100), []

    for high_watermark, answered_before in ((100, None), (120, 55.0), (130, 66.0), (130, 77.0)):
        copy.heard(0, high_watermark, 100, answered_before=answered_before)
        seen.append(copy.complete_at)

    assert seen == [None, 55.0, 55.0, 55.0]


def test_a_copy_was_complete_when_the_source_told_of_it_whichever_way_the_next_answer_comes() -> None:
    """
    What caught up comes by another channel of the link, or from another broker, from then on.
    """
    copy = proceeding(100)

    copy.heard(0, 100, 100, at=55.0)
    copy.heard(0, 120, 120, at=66.0)

    assert copy.complete_at == 55.0


def test_a_copy_that_always_misses_a_little_is_known_to_have_had_what_was_told_before() -> None:
    """
    A busy partition has something on its way whenever the source answers; it is late by that, and not more.
    """
    copy = proceeding(100)
    for second in range(60):
        copy.heard(0, 200 + 100 * second, 200 + 100 * second, at=1_000.0 + second)
        [batch_sent] = sent(copy, batch(100 + 100 * second, 100))
        assert copy.next_offset != copy.source_last_stable_offset
        copy.answered(batch_sent, appended=True, now=NOW)

    copy.heard(0, 9_999, 9_999, at=1_060.0)
    assert copy.complete_at == 1_059.0


@pytest.mark.parametrize(
    ("state", "goes_on_at", "known"),
    [
        (State.DIVERGED, 90, (None, None)),
        (State.PAUSED, 105, (55.0, 104)),
        (State.PAUSED, 104, (None, None)),
    ],
    ids=str,
)
def test_how_late_a_copy_is_that_has_diverged_is_not_known_when_it_goes_on(
    state: State, goes_on_at: int, known: tuple[float | None, int | None]
) -> None:
    """
    The newest record copied may be gone. Of one that was only paused what was known is still so, unless it
    ends further down.
    """
    copy = proceeding(100)
    copy.heard(0, 105, 105, at=55.0)
    [last] = sent(copy, batch(100))
    copy.answered(last, appended=True, now=NOW)
    copy.heard(0, 105, 105, at=66.0)
    before = copy.complete_at, copy.last_timestamp_ms

    copy.stop(state, Reason.TARGET_TRUNCATED, "as it was found", None)
    copy.look_anew(NOW)
    copy.proceed(Proceed(goes_on_at, goes_on_at, 0, 0, goes_on_at), OffsetMode.SAME, 0, NOW)

    assert before == (55.0, 104)
    assert (copy.complete_at, copy.last_timestamp_ms) == known


@pytest.mark.parametrize("goes_on_at", [95, 104, 130])
def test_how_late_a_copy_is_that_was_seen_to_lose_its_end_under_another_mirror_is_not_known(
    goes_on_at: int,
) -> None:
    """
    That one has lost it, or this one knew its offset map as it was before. It is known again when the copy
    has come to an end of the source.
    """
    copy = proceeding(100)
    copy.heard(0, 105, 105, at=55.0)
    copy.stand_by(NOW, 1.0, "another")
    copy.heard(-1, 105, 105, at=66.0)
    copy.follow(105, 105, OffsetMode.SAME)
    copy.heard(-1, 130, 130, at=77.0)
    before = copy.complete_at

    copy.follow(90, 90, OffsetMode.SAME)
    copy.proceed(Proceed(goes_on_at, goes_on_at, 0, 0, goes_on_at), OffsetMode.SAME, 0, NOW)
    copy.heard(0, 140, 140, at=88.0)

    assert before == 66.0
    assert copy.complete_at == (77.0 if goes_on_at == 130 else None)


def test_nothing_heard_is_nothing_to_read() -> None:
    """
    Before the source has answered there is no end to go to.
    """
    assert waiting().readable_end(Isolation.READ_COMMITTED) == 0


def test_a_refusal_without_a_state_of_its_own_is_shown_as_blocked() -> None:
    """
    So that no partition stands still without a reason.
    """
    copy = proceeding(100)

    for _ in range(PATIENCE):
        copy.refused(Refusal(None, Reason.ANOTHER_MIRROR), "another one writes", NOW)

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.ANOTHER_MIRROR)


# -- shown as blocked until it is over --------------------------------------------------------------


def blocked(at: int = 100, high_watermark: int = 200) -> PartitionCopy:
    """A partition that was blocked, and is looked at again."""
    copy = proceeding(at)
    copy.heard(0, high_watermark, high_watermark)
    copy.stop(State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS, "two of three are down", NOW)
    copy.proceed(Proceed(at, at, 40, 3, at), OffsetMode.SAME, 0, NOW)
    return copy


def test_a_retry_is_no_news() -> None:
    """
    An alert on blocked partitions must not begin anew with every try.
    """
    copy = blocked()

    assert copy.copying
    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS)


def test_a_record_that_was_written_ends_the_block() -> None:
    """
    Whatever stood in the way stands there no more.
    """
    copy = blocked()

    (first,) = sent(copy, batch(100))
    copy.answered(first, appended=True, now=NOW)

    assert (copy.state, copy.reason, copy.detail) == (State.ACTIVE, None, "")


def test_a_block_ends_when_the_source_has_nothing_that_is_missing() -> None:
    """
    Retention may have taken what could not be written.
    """
    copy = blocked()

    copy.heard(0, 200, 100)

    assert copy.state is State.ACTIVE


def test_a_block_with_nothing_left_to_copy_ends_with_the_look() -> None:
    """
    No record will come to prove it.
    """
    assert blocked(at=200, high_watermark=200).state is State.ACTIVE


def test_a_block_that_goes_on_is_tried_again_later() -> None:
    """
    The retry was refused like the try before it.
    """
    copy = blocked()
    (first,) = sent(copy, batch(100))

    copy.answered(first, appended=False, now=NOW)
    copy.refused(append_refusal(19), "not enough replicas", NOW)

    assert copy.state is State.BLOCKED
    assert not copy.copying
    assert copy.look_due_at is not None


# -- a target that replaces record times -------------------------------------------------------------


def stamped(at: int = 100, end: int = 101) -> PartitionCopy:
    """A partition whose last batch got the time of the append, looked at again after the pause."""
    copy = proceeding(at)
    copy.heard(0, end, end)
    (only,) = sent(copy, batch(at, end - at))
    copy.answered(only, appended=False, now=NOW)
    copy.answered_with_other_time(NOW, current=True)
    for _ in range(2):
        copy.proceed(Proceed(end, end, 41, 3, end), OffsetMode.SAME, 0, NOW)
    return copy


def test_that_nothing_is_left_to_copy_does_not_show_that_record_times_are_kept() -> None:
    """
    Nor does what the source says, or a failure that was shown meanwhile.
    """
    copy = stamped()

    copy.heard(0, 101, 101)
    shown, going_on = (copy.state, copy.reason), copy.copying
    copy.stop(State.BLOCKED, Reason.TARGET_UNAVAILABLE, "down", NOW)
    copy.proceed(Proceed(101, 101, 41, 3, 101), OffsetMode.SAME, 0, NOW)

    assert shown == (State.BLOCKED, Reason.APPEND_TIMES)
    assert going_on
    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.APPEND_TIMES)


def test_every_further_batch_that_is_stamped_is_followed_by_a_pause() -> None:
    copy = stamped()

    (second,) = sent(copy, batch(101))
    copy.answered(second, appended=False, now=NOW)
    copy.answered_with_other_time(NOW, current=True)

    assert (copy.state, copy.reason, copy.copying) == (State.BLOCKED, Reason.APPEND_TIMES, False)
    assert copy.look_due_at is not None
    assert copy.look_due_at > NOW + 10


def test_the_first_batch_that_is_stamped_is_looked_at_at_once_also_while_something_else_is_shown() -> None:
    """
    It may be a repeat of other records: what a broker answers that was silent for long.
    """
    copy = proceeding(100)
    copy.heard(0, 102, 102)
    (only,) = sent(copy, batch(100))
    copy.show_unanswered(Reason.TARGET_UNAVAILABLE, "silent")

    copy.answered(only, appended=False, now=NOW)
    copy.answered_with_other_time(NOW, current=True)

    assert (copy.reason, copy.look_due_at) == (Reason.TARGET_UNAVAILABLE, NOW)


def test_what_is_shown_as_unanswered_while_replicas_are_read_is_read_on_afterwards() -> None:
    """
    No look is due that would say where to go on.
    """
    copy = proceeding(100)
    copy.rereading = True
    copy.show_unanswered(Reason.TARGET_UNAVAILABLE, "silent")

    copy.rereading = False

    assert (copy.state, copy.look_due_at, copy.copying) == (State.BLOCKED, None, True)


def test_a_batch_that_keeps_its_times_shows_that_they_are_no_longer_replaced() -> None:
    copy = stamped()

    (second,) = sent(copy, batch(101))
    copy.answered(second, appended=True, now=NOW)
    copy.doubt(NOW)
    copy.proceed(Proceed(102, 102, 42, 3, 102), OffsetMode.SAME, 0, NOW)

    assert (copy.state, copy.reason) == (State.ACTIVE, None)


def test_another_obstacle_is_shown_while_the_batch_that_is_tried_meets_it() -> None:
    """
    It is tried again as soon as after any other refusal, however often. The next stamped answer is followed
    by a pause again.
    """
    copy = stamped()
    copy.heard(0, 102, 102)
    seen = set()

    for _ in range(3):
        (second,) = sent(copy, batch(101))
        copy.answered(second, appended=False, now=NOW)
        copy.refused(append_refusal(10), "too large", NOW)
        seen.add((copy.state, copy.reason))
        copy.proceed(Proceed(101, 101, 41, 3, 101), OffsetMode.SAME, 0, NOW)
        seen.add((copy.state, copy.reason))
    tried_at_once = copy.copying
    (second,) = sent(copy, batch(101))
    copy.answered(second, appended=False, now=NOW)
    copy.answered_with_other_time(NOW, current=True)

    assert seen == {(State.BLOCKED, Reason.RECORD_TOO_LARGE)}
    assert tried_at_once
    assert (copy.reason, copy.copying) == (Reason.APPEND_TIMES, False)
    assert copy.look_due_at is not None
    assert copy.look_due_at > NOW + 10


def test_to_stand_by_does_not_show_that_record_times_are_kept() -> None:
    """
    Another mirror that goes on meanwhile may have its records stamped, too.
    """
    copy = stamped()

    copy.follow(101, 101, OffsetMode.SAME)
    copy.stand_by(NOW, 5.0, "another mirror copies")
    copy.follow(102, 102, OffsetMode.SAME)
    copy.stand_by(NOW, 5.0, "another mirror copies")
    copy.heard(0, 102, 102)
    copy.proceed(Proceed(102, 102, 42, 3, 102), OffsetMode.SAME, 0, NOW)

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.APPEND_TIMES)


def test_settings_that_keep_times_end_what_is_shown_while_a_batch_is_tried_and_nothing_is_left() -> None:
    copy = stamped()
    copy.heard(0, 102, 102)
    copy.stop(State.BLOCKED, Reason.TARGET_UNAVAILABLE, "down", NOW)
    copy.proceed(Proceed(101, 101, 41, 3, 101), OffsetMode.SAME, 0, NOW)

    copy.times_are_kept()
    going_on = (copy.state, copy.reason)
    copy.heard(0, 102, 101)

    assert going_on == (State.BLOCKED, Reason.TARGET_UNAVAILABLE)
    assert (copy.state, copy.reason) == (State.ACTIVE, None)


def test_who_says_go_on_ends_what_no_append_is_left_to_end() -> None:
    copy = stamped()

    copy.look_anew(NOW)
    copy.proceed(Proceed(101, 101, 41, 3, 101), OffsetMode.SAME, 0, NOW)

    assert (copy.state, copy.reason) == (State.ACTIVE, None)


# -- who changes its state -----------------------------------------------------------------------


def test_only_a_partition_itself_changes_its_state() -> None:
    """
    Others call what changes, at the same time, all that belongs together.
    """
    own = {"state", "reason", "detail", "may_send", "look_due_at", "lost", "pause_asked", "unheard"}
    paths = [path for folder in (".", "flow", "sync") for path in sorted((SOURCES / folder).glob("*.py"))]

    assigned = [
        f"{path.name}: {ast.unparse(node)}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in own
    ]

    assert "partition.py: self.state" in assigned
    assert [one for one in assigned if ": self." not in one] == []
