"""One partition of a flow: what it is doing and why, and when it is looked at next.

No I/O. The lanes bring batches and answers, the settler says where to begin. After any doubt everything not
yet acknowledged is dropped and the partition asks to be looked at again.

What of it was fetched, sent and acknowledged stands in :mod:`mirror.flow.passage`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror.flow.marks import Marks
from mirror.flow.passage import Passage
from mirror.flow.position import Proceed
from mirror.flow.states import PATIENCE, Refusal, pause_seconds
from mirror.kafka.fetch import Isolation, Key
from mirror.model import OffsetMode, Reason, State, TopicPartition

HOPELESS = frozenset({State.PAUSED, State.DATA_LOSS, State.DIVERGED, State.TOPIC_RECREATED, State.FENCED})
"""States that only an operator ends."""


class PartitionCopy(Passage):
    """The state of one partition; mutable, owned by the event loop.

    Attributes:
        key: Its name in the Fetch API.
        lost: The source range [from, to) that waits for an operator's decision; None where nothing does.
        mapped_for: Why it is about to be mapped instead of having the same offsets, until it goes on so.
        doubtful_at: Where a batch was found that does not belong there; None where none was.
        read_to: Where a batch of the source ends, as was read last; None where nothing was.
        copied_elsewhere: Another mirror has copied it since this one did last: how far behind that is, and
            what the target has acknowledged to it, is not known here.
        topic_gone: The source has no such topic any more: nothing of it is missing, or can be lost.
        waited_for_owner: From which look to which another mirror has not gone on, though it should have.
    """

    __slots__ = (
        "_marks",
        "_retrying",
        "copied_elsewhere",
        "detail",
        "doubtful_at",
        "goal_offset",
        "key",
        "look_due_at",
        "looked_at",
        "lost",
        "mapped_for",
        "pause_asked",
        "rank",
        "read_to",
        "reason",
        "rereading",
        "source_high_watermark",
        "source_last_stable_offset",
        "source_log_start_offset",
        "state",
        "target",
        "told_at",
        "topic_gone",
        "topic_id",
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

        self._retrying = False
        self.rereading = False
        self.read_to: int | None = None
        self.doubtful_at: int | None = None

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
        """True between a look that found where to go on and the next doubt, but while replicas are asked."""
        copied = self.state is State.ACTIVE or self.state is State.LAGGING or self._retrying
        return copied and self.look_due_at is None and not self.rereading

    def proceed(
        self,
        decision: Proceed,
        mode: OffsetMode,
        epoch: int,
        now: float,
        runs_ahead: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Begin, or begin again, where a look says.

        How far one may read at the source is not known any more where what was heard of that before is all
        copied, and the look has found that the log goes on. Where the copy ends before where it was it is not
        what it was: when that was complete says nothing of it.

        Args:
            epoch: Of the last record copied.
            now: When the look began.
            runs_ahead: For ``mapped``: what the offset map has beyond the target's log end. Whoever noted it
                may have sent what belongs to it, so it stays, unless what is read now says otherwise.
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
        self._retrying = self.state is State.BLOCKED and missing
        if self.state is not State.LAGGING and not self._retrying:
            self.state, self.reason, self.detail = State.ACTIVE, None, ""

    def look_first(self, now: float) -> None:
        """Ask to be looked at before anything is sent; what is queued is kept if it fits what is found."""
        self.generation += 1
        self.look_due_at = now

    def stop(self, state: State, reason: Reason, detail: str, look_due_at: float | None) -> None:
        """Write nothing for now; look again at ``look_due_at``, or when an operator says so (None)."""
        self._drop()
        self._retrying = False
        self.lost = None
        self.state, self.reason, self.detail = state, reason, detail
        self.look_due_at = look_due_at
        self.waited_for_owner = None

    def _went_on(self) -> None:
        """What was blocked is shown so until something was written, or nothing is left to write."""
        if self._retrying:
            self._retrying = False
            self.state, self.reason, self.detail = State.ACTIVE, None, ""

    def look_anew(self, now: float) -> None:
        """Forget what was concluded and queued, and be looked at: an operator said so."""
        self._drop()
        if self.state is State.DIVERGED:
            self._go_back()
        self.state, self.reason, self.detail = State.UNKNOWN, Reason.STARTING, "to be looked at again"
        self.acknowledged_target_offset = None
        self.lost = None
        self.read_to = None
        self._unsettled.clear()
        self.attempts = 0
        self.look_due_at = now
        self.waited_for_owner = None

    def _go_back(self) -> None:
        self._marks.rewind()
        self.last_timestamp_ms = None

    def stand_by(self, now: float, look_after_seconds: float, words: str) -> None:
        """Another mirror of the flow is to go on here: look later whether it did.

        Whoever has waited for long without a break takes the owner for gone; so anything else that happens to
        the partition ends the wait, and there is none where nothing is to be copied.
        """
        self.copied_elsewhere = True
        if self.state in HOPELESS:
            return
        waited = self.waited_for_owner or (now, now)
        self.stop(State.STANDBY, Reason.ANOTHER_MIRROR, words, now + look_after_seconds)
        if self.next_offset is None or self.next_offset < (self.source_last_stable_offset or 0):
            self.waited_for_owner = waited[0], now

    def follow(self, next_offset: int, target_next_offset: int, mode: OffsetMode) -> bool:
        """Note how far the owner is; whoever stands by does so before.

        When that copy was complete is remembered: this mirror may be the next owner.

        Returns:
            Whether it has come further since the last look.
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
        self._marks.reach(next_offset)
        return moved

    def doubt(self, now: float, delay_seconds: float = 0.0) -> None:
        """Drop what is not acknowledged and ask to be looked at, after a while; the state stays."""
        if self.state in HOPELESS:
            return
        self._drop()
        self.look_due_at = now + delay_seconds
        self.waited_for_owner = None

    def refused(self, refusal: Refusal, words: str, now: float) -> None:
        """A broker said no, or nothing: shown at once where that is final, else after some tries."""
        self.counters.fenced += refusal.reason is Reason.NEWER_EPOCH
        if self.state in HOPELESS:
            return
        self.attempts += 1
        delay = pause_seconds(self.attempts)
        if refusal.state is None and self.attempts < PATIENCE:
            self.doubt(now, delay)
        else:
            state = refusal.state or State.BLOCKED
            self.stop(state, refusal.reason, words, now + delay if refusal.retry else None)

    def show_unanswered(self, reason: Reason, words: str) -> None:
        """Whoever is to answer has not done so for long: shown until something was written, or a look has
        found where to go on. Nothing is given up: the answer counts if it comes.
        """
        self._retrying = self.copying
        self.state, self.reason, self.detail = State.BLOCKED, reason, words

    # -- from the source -------------------------------------------------------------------------

    @property
    def ask_offset(self) -> int:
        """Source offset to ask for. Where a batch was out of place, with the one before it: asked for what
        follows alone, a broker would pass over one that says it stands further down.
        """
        offset = self.fetch_offset
        with_before = offset == self.doubtful_at and offset > (self.source_log_start_offset or 0)
        return offset - 1 if with_before else offset

    def heard(
        self,
        log_start_offset: int,
        high_watermark: int,
        last_stable_offset: int,
        *,
        at: float | None = None,
        answered_before: float | None = None,
    ) -> None:
        """What the source said of its log. A negative offset means that it said nothing.

        What it said before was still so when the answer before this one came.

        Args:
            last_stable_offset: Where it lets the flow read to; with read_uncommitted the high watermark.
            at: When that was so; None where nobody knows.
            answered_before: When the answer before this one came, by the same way; None where this is the
                first by it.
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

    def still_so(self, at: float) -> None:
        """What the source said last was so at that moment, too: it had told of anything else."""
        if self.source_last_stable_offset is not None and self.source_high_watermark is not None:
            self._marks.note(self.source_high_watermark, at)
        self.told_at = at if self.told_at is None else max(self.told_at, at)

    @property
    def complete_at(self) -> float | None:
        """The last moment at which nothing was missing, as far as the source's answers tell; monotonic."""
        return self._marks.passed_at(self.next_offset)

    def readable_end(self, isolation: Isolation) -> int:
        """Where the source lets a reader go, as last heard; 0 when nothing was heard."""
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
        nothing may be in flight. What goes into the flow's own state is written ahead and may overtake.
        """
        if not self.queue or self.look_due_at is not None or self.markers_under_way:
            return False
        if self.queue.epoch_first or self.contradicts_map:
            return True
        return self.queue.gap is not None and (self.mode is OffsetMode.MAPPED or not self.in_flight)
