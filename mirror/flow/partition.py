"""One partition of a flow: what it is doing and why, and when it is looked at next.

No I/O. The lanes bring batches and answers; the settler says where to begin. After any doubt everything not
yet acknowledged is dropped, and the partition asks to be looked at again.

What was fetched, sent and acknowledged is in :mod:`mirror.flow.passage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirror.flow.marks import Marks
from mirror.flow.passage import Passage
from mirror.flow.position import Proceed, Stop
from mirror.flow.states import PATIENCE, RETRY_SECONDS_MAX, Refusal, pause_seconds
from mirror.kafka.fetch import Isolation, Key
from mirror.model import Gap, OffsetMode, Reason, State, TopicPartition

HOPELESS = frozenset({State.PAUSED, State.DATA_LOSS, State.DIVERGED, State.TOPIC_RECREATED, State.FENCED})
"""States that only an operator ends."""
FOLLOWED = frozenset({State.PAUSED, State.DATA_LOSS, State.FENCED})
"""Those of them in which a mirror that stands by goes on noting how far the owner is. An operator may have
ended them there; once this mirror is the owner it goes on from that, or says how far the copy is.
"""
AWAY = frozenset({Reason.SOURCE_UNAVAILABLE, Reason.TARGET_UNAVAILABLE})
"""Reasons that end when a broker answers again."""
COPIED = frozenset({State.ACTIVE, State.LAGGING})
"""States of a partition that is copied: nothing keeps it from that."""


class Unheard(NamedTuple):
    """The source was not heard, as the way to it has reported; counts until the source is heard after that.

    Attributes:
        at: When that was reported (monotonic seconds).
        why: In words.
    """

    at: float
    why: str


class PartitionCopy(Passage):
    """The state of one partition; mutable, owned by the event loop.

    Attributes:
        key: Its name in the Fetch API.
        lost: The source range [from, to) that waits for an operator's decision; None if nothing does.
        mapped_for: Why it is about to be mapped instead of keeping its offsets; None once it goes on mapped.
        doubtful_at: The offset at which a batch was found that does not belong there; None if none was.
        batch_end: Where a batch of the source ends: the one that was read last, or, according to a look, the
            one that was copied last; None if that is not known.
        copied_elsewhere: Another mirror has copied it since this one last did. How far behind that copy is,
            and what the target has acknowledged to that mirror, is not known here.
        stamped: An answer has shown that the target replaces record times; nothing has shown since that it no
            longer does.
        looked_at: When the last look began that found where the copy ends (monotonic seconds); None if there
            was none, or another mirror may have copied since.
        may_send: A look has found where to go on, and nothing has made it doubtful since: what is queued is
            sent. In state BLOCKED that is another try.
        topic_gone: The source no longer has the topic: nothing is missing, and nothing can be lost.
        unheard: The last report that the source was not heard; None if there was none.
        waited_for_owner: The first and the last look (monotonic seconds) between which the owner has not
            moved, though it should have; None if it did, or had nothing to copy.
    """

    __slots__ = (
        "_marks",
        "batch_end",
        "copied_elsewhere",
        "detail",
        "doubtful_at",
        "goal_offset",
        "key",
        "look_due_at",
        "looked_at",
        "lost",
        "mapped_for",
        "may_send",
        "pause_asked",
        "rank",
        "reason",
        "rereading",
        "source_high_watermark",
        "source_last_stable_offset",
        "source_log_start_offset",
        "stamped",
        "state",
        "target",
        "told_at",
        "topic_gone",
        "topic_id",
        "unheard",
        "waited_for_owner",
    )

    def __init__(
        self, tp: TopicPartition, target: TopicPartition, topic_id: bytes, *, in_flight_max: int
    ) -> None:
        super().__init__(tp, in_flight_max=in_flight_max)
        self.target = target
        self.topic_id = topic_id
        self.key = Key(topic_id, tp.partition)
        self.topic_gone = False
        self.state = State.UNKNOWN
        self.reason: Reason | None = Reason.STARTING
        self.detail = "not looked at yet"
        self.lost: tuple[int, int] | None = None
        self.mapped_for: tuple[Reason, str] | None = None
        self.pause_asked = False
        self.goal_offset: int | None = None
        self.rank = 0

        self.may_send = False
        self.stamped = False
        self.rereading = False
        self.batch_end: int | None = None
        self.doubtful_at: int | None = None

        self.unheard: Unheard | None = None
        self.source_log_start_offset: int | None = None
        self.source_high_watermark: int | None = None
        self.source_last_stable_offset: int | None = None
        self._marks = Marks()
        self.told_at: float | None = None
        self.look_due_at: float | None = 0.0
        self.looked_at: float | None = None
        self.copied_elsewhere = False
        self.waited_for_owner: tuple[float, float] | None = None

    # -- life ------------------------------------------------------------------------------------

    @property
    def copying(self) -> bool:
        """Whether more of it is to be read: as long as it may be sent, except while replicas are reread."""
        return self.may_send and not self.rereading

    def proceed(
        self,
        decision: Proceed,
        mode: OffsetMode,
        epoch: int,
        now: float,
        runs_ahead: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Begin, or begin again, where a look says.

        If the copy now ends before where it was, it has lost records: when it was complete no longer counts.
        The last stable offset is forgotten if all up to it is copied and the log is known to go on.

        After an answer with another time than the records have there is a pause, then another try. If that
        is refused for another reason, that reason is shown.

        Args:
            epoch: The leader epoch of the last record copied.
            now: When the look began (monotonic seconds).
            runs_ahead: For ``mapped``: the runs of the offset map beyond the target's log end. The batches
                they belong to may have been sent, so they stay unless what is read now contradicts them.
        """
        if decision.next_offset < (self.next_offset or 0):
            self._go_back()
        self._begin(decision, mode, epoch, now, runs_ahead)
        self.waited_for_owner, self.copied_elsewhere = None, False
        self.looked_at = now
        self.look_due_at = None
        missing = decision.next_offset < (self.source_high_watermark or 0)
        if missing and (self.source_last_stable_offset or 0) <= decision.next_offset:
            self.source_last_stable_offset = None
        blocked = self.state is State.BLOCKED
        if self.stamped and not (blocked and (missing or self.reason is Reason.APPEND_TIMES)):
            self._stop_stamped(now)
            return
        self.may_send = True
        if self.state is not State.LAGGING and not (blocked and (missing or self.stamped)):
            self._in_order()

    def _in_order(self) -> None:
        self.state, self.reason, self.detail = State.ACTIVE, None, ""

    def measured(self, behind: tuple[Reason, str] | None) -> None:
        """Its lag was measured while it was ACTIVE or LAGGING.

        Args:
            behind: Why it is LAGGING now, also in words; None: it is ACTIVE.
        """
        assert self.state in COPIED
        if behind is None:
            self._in_order()
        else:
            self.state, (self.reason, self.detail) = State.LAGGING, behind

    def look_again(self, at: float | None) -> None:
        """Send nothing until a look has found where to go on. None: it is due when an operator says so."""
        self.may_send, self.look_due_at = False, at

    def look_first(self, now: float) -> None:
        """Ask for a look before anything more is sent; the queue is kept if it fits what the look finds."""
        self.generation += 1
        self.look_again(now)

    def stop(self, state: State, reason: Reason, detail: str, look_due_at: float | None) -> None:
        """Write nothing for now; look again at ``look_due_at``, or when an operator says so (None)."""
        self._drop()
        self.lost = None
        self.state, self.reason, self.detail = state, reason, detail
        self.look_again(look_due_at)
        self.waited_for_owner = None

    def found(self, stop: Stop, now: float) -> None:
        """Stop for what was found; where that is BLOCKED, look again after RETRY_SECONDS_MAX."""
        again = now + RETRY_SECONDS_MAX if stop.state is State.BLOCKED else None
        self.stop(stop.state, stop.reason, stop.detail, again)
        if stop.lost_from is not None and stop.lost_to is not None:
            self.lost = stop.lost_from, stop.lost_to
        if stop.target_end is not None:
            self.acknowledged_target_offset = stop.target_end

    def _went_on(self, *, appended: bool = False) -> None:
        """End BLOCKED: it is shown until something was written, or nothing is left to write.

        Where record times were replaced, only an append shows that they no longer are.
        """
        if appended:
            self.stamped = False
        if self.state is State.BLOCKED and self.may_send and not self.stamped:
            self._in_order()

    def answered_with_other_time(self, now: float, *, current: bool) -> None:
        """A batch was appended, by an answer with another time than that of its records.

        Either the target replaces record times, or it takes the batch for a repeat of as many other records,
        because the source was compacted since those were sent. The answer does not tell which, nor does the
        position that a look finds. But in the second case the last record at the target is not the source's
        at that position, and a look compares them (:mod:`mirror.flow.ends`). It does so at once for the first
        such answer; every further one is followed by a pause.

        Args:
            current: False if the batch is of an older generation: what was decided since then stands, and the
                look that is due takes note of the answer.
        """
        further, self.stamped = self.stamped, True
        if not current:
            return
        if further and self.state is State.BLOCKED:
            self._stop_stamped(now)
        else:
            self.doubt(now)

    def times_are_kept(self) -> None:
        """Note that, going by the target topic's settings, record times are not replaced, or no longer."""
        self.stamped = False
        end = self.source_last_stable_offset
        if end is not None and self.next_offset is not None and self.next_offset >= end:
            self._went_on()

    def _stop_stamped(self, now: float) -> None:
        words = (
            f"{self.target} replaces record times (message.timestamp.type=LogAppendTime): its answer has "
            "another time than the newest record sent"
        )
        self.found(Stop(State.BLOCKED, Reason.APPEND_TIMES, words), now)

    def look_anew(self, now: float, *, as_told: bool = True) -> None:
        """Forget conclusions and the queue, and ask for a look.

        Args:
            as_told: An operator said so: a target log that ends earlier than it did is not held against it.
        """
        self._drop()
        if self.state is State.DIVERGED:
            self._go_back()
        self.state, self.reason, self.detail = State.UNKNOWN, Reason.STARTING, "to be looked at again"
        if as_told:
            self.acknowledged_target_offset = None
        self.lost = None
        self.batch_end = None
        self.stamped = False
        self._unsettled.clear()
        self.attempts = 0
        self.look_again(now)
        self.waited_for_owner = None

    def _go_back(self) -> None:
        self._marks.rewind()
        self.last_timestamp_ms = None

    def pause(self) -> None:
        """Copy nothing of it until :meth:`resume`. What only an operator ends is still shown."""
        self.pause_asked = True
        if self.state not in HOPELESS:
            self.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)

    def resume(self, now: float) -> None:
        """An operator wants it copied: look again, and go on if the look allows it."""
        self.pause_asked = False
        self.look_anew(now)

    def stand_by(self, now: float, look_after_seconds: float, words: str) -> None:
        """Leave the partition to another mirror of the flow, and look later whether it went on.

        A long unbroken wait makes the owner count as gone. So anything else that happens to the partition
        ends the wait, and while nothing is to be copied there is no wait.
        """
        self.copied_elsewhere = True
        if self.state in HOPELESS:
            return
        waited = self.waited_for_owner or (now, now)
        self.stop(State.STANDBY, Reason.ANOTHER_MIRROR, words, now + look_after_seconds)
        if self.next_offset is None or self.next_offset < (self.source_last_stable_offset or 0):
            self.waited_for_owner = waited[0], now

    def follow(self, next_offset: int, target_next_offset: int, mode: OffsetMode) -> bool:
        """Note how far the owner is; call it before :meth:`stand_by`.

        When the owner's copy was complete is remembered: this mirror may be the next owner. So is up to where
        the target has acknowledged what the owner appends: it goes on only from an end that is right by its
        judgement, or an operator's. That a log now ends earlier is for a look to judge.

        Returns:
            Whether the owner has come further since the last look.
        """
        before = self.target_next_offset
        moved = before is not None and target_next_offset > before
        if moved or before is None:
            self.waited_for_owner = None
        if next_offset < (self.next_offset or 0):
            self._go_back()
        self.mode = mode
        self.next_offset = self.send_offset = next_offset
        self.target_next_offset = target_next_offset
        if moved:
            self.acknowledged_target_offset = target_next_offset
        self.looked_at = None
        self._marks.reach(next_offset)
        return moved

    def doubt(self, now: float, delay_seconds: float = 0.0) -> None:
        """Drop what is not acknowledged and ask for a look after ``delay_seconds``; the state stays."""
        if self.state in HOPELESS:
            return
        self._drop()
        self.look_again(now + delay_seconds)
        self.waited_for_owner = None

    def refused(
        self, refusal: Refusal, words: str, now: float, *, again_seconds: float | None = None
    ) -> None:
        """A broker refused or did not answer. Shown at once if the refusal names a state, else from the
        PATIENCE-th attempt on.

        Args:
            again_seconds: Until the next look; None: longer after each attempt.
        """
        self.counters.fenced += refusal.reason is Reason.NEWER_EPOCH
        if self.state in HOPELESS:
            return
        self.attempts += 1
        delay = pause_seconds(self.attempts) if again_seconds is None else again_seconds
        if refusal.state is None and self.attempts < PATIENCE:
            self.doubt(now, delay)
        else:
            state = refusal.state or State.BLOCKED
            self.stop(state, refusal.reason, words, now + delay if refusal.retry else None)

    def try_now(self, now: float) -> None:
        """Look now instead of later, as a broker answers again, if that is what is waited for."""
        if self.reason in AWAY and self.look_due_at is not None:
            self.attempts = 0
            self.look_due_at = min(self.look_due_at, now)

    def show_unanswered(self, reason: Reason, words: str) -> None:
        """Show BLOCKED because an answer has been outstanding for long, until something was written or a look
        has found where to go on. Nothing is given up: the answer still counts if it comes.
        """
        self.state, self.reason, self.detail = State.BLOCKED, reason, words

    # -- from the source -------------------------------------------------------------------------

    @property
    def ask_offset(self) -> int:
        """Source offset to ask for. Where a batch was out of place it is asked for with the batch before it:
        alone, a broker would skip a batch whose header gives a lower offset.
        """
        offset = self.fetch_offset
        with_before = offset == self.doubtful_at and offset > (self.source_log_start_offset or 0)
        return offset - 1 if with_before else offset

    def found_at_source(self, batch_end: int | None, doubtful_at: int | None) -> None:
        """Note what a look has found where the copy goes on; None for what it does not know.

        Args:
            batch_end: Where the batch ends that was copied last. What is queued was read behind that.
            doubtful_at: The offset at which a batch was found that does not belong there.
        """
        if batch_end is not None and not self.queue:
            self.batch_end = batch_end
        if doubtful_at is not None:
            self.doubtful_at = doubtful_at

    def heard(
        self,
        log_start_offset: int,
        high_watermark: int,
        last_stable_offset: int,
        *,
        at: float | None = None,
        answered_before: float | None = None,
    ) -> None:
        """Note what the source said of its log. A negative offset means that it said nothing.

        What it said before still held when the answer before this one came.

        Args:
            last_stable_offset: Up to where it lets the flow read; with read_uncommitted the high watermark.
            at: When that was so (monotonic seconds); None if not known.
            answered_before: When the previous answer came the same way (monotonic seconds); None if this is
                the first that way.
        """
        if answered_before is not None:
            self.still_so(answered_before if self.told_at is None else max(self.told_at, answered_before))
        elif self.told_at is not None:
            self.still_so(self.told_at)
        if at is not None:
            self.told_at = at
        if log_start_offset >= 0:
            self.source_log_start_offset = log_start_offset
        if high_watermark >= 0:
            self.source_high_watermark = high_watermark
        if last_stable_offset >= 0:
            self.source_last_stable_offset = last_stable_offset
            if self.next_offset is not None and self.next_offset >= last_stable_offset:
                self._went_on()

    def not_heard(self, why: str, now: float) -> None:
        """Note that the source could not be heard just now. The state stays: what counts is for how long."""
        self.unheard = Unheard(now, why)

    def still_so(self, at: float) -> None:
        """What the source last said still held at that moment: it would have reported any change."""
        if self.source_last_stable_offset is not None and self.source_high_watermark is not None:
            self._marks.note(self.source_high_watermark, at)
        self.told_at = at if self.told_at is None else max(self.told_at, at)

    @property
    def complete_at(self) -> float | None:
        """The last moment at which nothing was missing, according to the source (monotonic seconds); None if
        there is none.
        """
        return self._marks.passed_at(self.next_offset)

    def readable_end(self, isolation: Isolation) -> int:
        """Up to where the source lets a reader go, as last heard; 0 if nothing was heard."""
        end = (
            self.source_last_stable_offset
            if isolation is Isolation.READ_COMMITTED
            else self.source_high_watermark
        )
        return end or 0

    # -- what only the owner may write ----------------------------------------------------------

    @property
    def owner_work(self) -> bool:
        """True when nothing can be sent before the owner has written a gap or an epoch.

        A control marker is not conditional: it may only follow a log end that is known for certain, so
        nothing may be in flight. What goes into the flow's state is written ahead, and does not wait.
        """
        if not self.queue or self.look_due_at is not None or self.markers_under_way:
            return False
        if self.queue.epoch_first or self.contradicts_map:
            return True
        return self.queue.gap is not None and (self.mode is OffsetMode.MAPPED or not self.in_flight)

    @property
    def gap_to_mark(self) -> Gap | None:
        """The gap at the head, if control markers may fill it now: a leader epoch in it is noted before."""
        if not self.owner_work or self.mode is not OffsetMode.SAME or self.queue.epoch_first:
            return None
        return self.queue.gap
