"""One partition on its way: what was fetched, sent and acknowledged, and what it is doing.

No I/O. The lanes bring batches and answers, the settler says where to begin; a
partition decides what may be sent next. After any doubt everything not yet
acknowledged is dropped and the partition asks to be looked at again.

Always: ``next_offset <= send_offset <= fetch_offset``, and the queue holds what is to
become of ``[send_offset, fetch_offset)``, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mirror.flow.marks import Marks
from mirror.flow.position import SEQUENCES, Proceed
from mirror.flow.queue import Queue
from mirror.flow.states import PATIENCE, Refusal, pause_seconds
from mirror.kafka.buffers import Buffer
from mirror.kafka.fetch import Isolation, Key
from mirror.model import Batch, Gap, OffsetMode, Reason, State, TopicPartition

HOPELESS = frozenset({State.PAUSED, State.DATA_LOSS, State.DIVERGED, State.TOPIC_RECREATED, State.FENCED})
"""States that only an operator ends."""
NOTHING = memoryview(b"")


@dataclass(slots=True)
class Sent:
    """A batch that waits for its answer."""

    batch: Batch
    buffer: Buffer | None
    target_offset: int
    generation: int


@dataclass(slots=True)
class Counters:
    """What has happened since the mirror started."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    batches_reencoded: int = 0
    duplicates: int = 0
    gap_offsets: int = 0
    lost_offsets: int = 0
    aborted_offsets: int = 0
    marker_offsets: int = 0
    doubts: int = 0
    fenced: int = 0

    def passed(self, gap: Gap) -> None:
        """A gap, or a part of one, is dealt with."""
        self.gap_offsets += gap.offsets
        self.lost_offsets += gap.offsets if gap.lost else 0
        self.aborted_offsets += gap.aborted
        self.marker_offsets += gap.markers


class PartitionCopy:
    """The state of one partition; mutable, owned by the event loop.

    Attributes:
        doubtful_at: Where a batch was found that does not belong there; None where none was.
        read_to: Where a batch of the source ends, as was read last; None where nothing was.
        waited_for_owner: From which look to which another mirror has not gone on, though it should have.
        waits_for: The target broker to which its batches were sent last, or are to be sent.
    """

    __slots__ = (
        "_in_flight_room",
        "_marks",
        "_retrying",
        "_runs_ahead",
        "_unsettled",
        "acknowledged_at",
        "acknowledged_target_offset",
        "attempts",
        "coordinator_epoch",
        "counters",
        "detail",
        "doubtful_at",
        "generation",
        "goal_offset",
        "in_flight",
        "in_flight_max",
        "last_timestamp_ms",
        "look_due_at",
        "looked_at",
        "lost",
        "markers_under_way",
        "mode",
        "next_offset",
        "pause_asked",
        "producer_epoch",
        "queue",
        "rank",
        "read_to",
        "reason",
        "rereading",
        "send_offset",
        "sequence",
        "source_high_watermark",
        "source_last_stable_offset",
        "source_log_start_offset",
        "state",
        "target",
        "target_next_offset",
        "told_at",
        "topic_id",
        "tp",
        "waited_for_owner",
        "waits_for",
    )

    def __init__(
        self, tp: TopicPartition, target: TopicPartition, topic_id: bytes, *, in_flight_max: int
    ) -> None:
        self.tp = tp
        self.target = target
        self.topic_id = topic_id
        self.in_flight_max = in_flight_max
        self.state = State.UNKNOWN
        self.reason: Reason | None = Reason.STARTING
        self.detail = "not looked at yet"
        self.mode: OffsetMode | None = None
        self.lost: tuple[int, int] | None = None
        self.pause_asked = False
        self.goal_offset: int | None = None
        self.rank = 0

        self.next_offset: int | None = None
        self.send_offset = 0
        self.target_next_offset: int | None = None
        self.acknowledged_target_offset: int | None = None
        self.sequence = 0
        self.coordinator_epoch = 0
        self.producer_epoch = 0
        self.generation = 0
        self.in_flight: deque[Sent] = deque()
        self.waits_for: int | None = None
        self.markers_under_way = False
        self.queue = Queue()
        self._in_flight_room = 1
        self._retrying = False
        self._runs_ahead: list[tuple[int, int]] = []
        self._unsettled: list[Batch] = []
        self.rereading = False
        self.read_to: int | None = None
        self.doubtful_at: int | None = None

        self.source_log_start_offset: int | None = None
        self.source_high_watermark: int | None = None
        self.source_last_stable_offset: int | None = None
        self._marks = Marks()
        self.told_at: float | None = None
        self.acknowledged_at = 0.0
        self.last_timestamp_ms: int | None = None
        self.look_due_at: float | None = 0.0
        self.looked_at: float | None = None
        self.attempts = 0
        self.waited_for_owner: tuple[float, float] | None = None
        self.counters = Counters()

    # -- life ------------------------------------------------------------------------------------

    @property
    def key(self) -> Key:
        """Its name in the Fetch API."""
        return Key(self.topic_id, self.tp.partition)

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

        Args:
            epoch: Of the last record copied.
            now: When the look began.
            runs_ahead: For ``mapped``: what the offset map has beyond the target's log end. Whoever noted it
                may have sent what belongs to it, so it stays, unless what is read now says otherwise.
        """
        assert not self.unanswered, f"{self.tp}: looked at while its log end may still move"
        self._settle_up_to(decision.next_offset)
        if not self._queue_fits(decision, mode):
            self.queue.begin(decision.next_offset, epoch)
        if self.next_offset is None or decision.next_offset > self.next_offset:
            self.attempts = 0
        self.waited_for_owner = None
        self.mode = mode
        self.next_offset = self.send_offset = decision.next_offset
        self.target_next_offset = self.acknowledged_target_offset = decision.target_next_offset
        self.sequence = decision.sequence
        self._in_flight_room = self.in_flight_max if decision.remembered else 1
        self._runs_ahead = list(runs_ahead)
        self.coordinator_epoch = decision.coordinator_epoch
        self.producer_epoch = decision.producer_epoch
        self.acknowledged_at = self.looked_at = now
        self.look_due_at = None
        self.lost = None
        missing = decision.next_offset < (self.source_high_watermark or 0)
        self._retrying = self.state is State.BLOCKED and missing
        if self.state is not State.LAGGING and not self._retrying:
            self.state, self.reason, self.detail = State.ACTIVE, None, ""
        if decision.skip_to > decision.next_offset:
            self.queue.push([Gap(decision.next_offset, decision.skip_to, lost=True)], (), None)

    def _settle_up_to(self, next_offset: int) -> None:
        """Count what was sent, was not acknowledged, and is there all the same: it is not sent again."""
        there = [batch for batch in self._unsettled if batch.next_offset <= next_offset]
        self.counters.duplicates += sum(batch.records for batch in there)
        self._unsettled = [batch for batch in self._unsettled if batch.next_offset > next_offset]

    def _queue_fits(self, decision: Proceed, mode: OffsetMode) -> bool:
        """True when what is queued is what goes on from there; what was noted ahead in a map has to go."""
        return (
            bool(self.queue)
            and mode is self.mode is OffsetMode.SAME
            and self.send_offset == decision.next_offset == decision.skip_to
            and self.target_next_offset == decision.target_next_offset
        )

    def look_first(self, now: float) -> None:
        """Ask to be looked at before anything is sent; what is queued is kept if it fits what is found."""
        self.generation += 1
        self.look_due_at = now

    def stop(self, state: State, reason: Reason, detail: str, look_due_at: float | None) -> None:
        """Write nothing for now; look again at ``look_due_at``, or when an operator says so (None)."""
        self.generation += 1
        self.queue.clear(self.send_offset)
        self._retrying = False
        self.state, self.reason, self.detail = state, reason, detail
        self.look_due_at = look_due_at
        self.waited_for_owner = None

    def _unblock(self) -> None:
        """What was blocked is shown so until something was written, or nothing is left to write."""
        if self._retrying:
            self._retrying = False
            self.state, self.reason, self.detail = State.ACTIVE, None, ""

    def look_anew(self, now: float) -> None:
        """Forget what was concluded and queued, and be looked at: an operator said so."""
        self.generation += 1
        self.queue.clear(self.send_offset)
        if self.state is State.DIVERGED:
            self._marks.rewind()
            self.last_timestamp_ms = None
        self.state, self.reason, self.detail = State.UNKNOWN, Reason.STARTING, "to be looked at again"
        self.acknowledged_target_offset = None
        self.read_to = None
        self._unsettled.clear()
        self.attempts = 0
        self.look_due_at = now
        self.waited_for_owner = None

    def stand_by(self, now: float, look_after_seconds: float, words: str) -> None:
        """Another mirror of the flow is to go on here: look later whether it did.

        Whoever has waited for long without a break takes the owner for gone; so anything else that happens to
        the partition ends the wait, and there is none where nothing is to be copied.
        """
        if self.state in HOPELESS:
            return
        waited = self.waited_for_owner or (now, now)
        self.stop(State.STANDBY, Reason.ANOTHER_MIRROR, words, now + look_after_seconds)
        if self.next_offset is None or self.next_offset < (self.source_last_stable_offset or 0):
            self.waited_for_owner = waited[0], now

    def follow(self, next_offset: int, target_next_offset: int, mode: OffsetMode) -> bool:
        """Note how far the owner is; whoever stands by does so before.

        Returns:
            Whether it has come further since the last look.
        """
        before = self.target_next_offset
        moved = before is not None and target_next_offset > before
        if moved or before is None:
            self.waited_for_owner = None
        self.mode = mode
        self.next_offset = self.send_offset = next_offset
        self.target_next_offset = target_next_offset
        return moved

    def doubt(self, now: float, delay_seconds: float = 0.0) -> None:
        """Drop what is not acknowledged and ask to be looked at, after a while; the state stays."""
        if self.state in HOPELESS:
            return
        self.generation += 1
        self.counters.doubts += 1
        self.queue.clear(self.send_offset)
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

    # -- from the source -------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """Source offset from which to fetch."""
        return self.queue.end

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
            at: When that was so; None where nobody knows.
            answered_before: When the answer before this one came, by the same way; None where this is the
                first by it.
        """
        said = [moment for moment in (self.told_at, answered_before) if moment is not None]
        if said and self.source_last_stable_offset is not None:
            self._marks.note(self.source_last_stable_offset, max(said))
        if at is not None:
            self.told_at = at
        if log_start_offset >= 0:
            self.source_log_start_offset = log_start_offset
        if high_watermark >= 0:
            self.source_high_watermark = high_watermark
        if last_stable_offset >= 0:
            self.source_last_stable_offset = last_stable_offset
            if self.next_offset is not None and self.next_offset >= last_stable_offset:
                self._unblock()

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

    # -- to the target ---------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """True while something that was fetched is not written."""
        return bool(self.queue or self.in_flight)

    @property
    def unanswered(self) -> bool:
        """True while something of ours may still be appended: the target's log end says nothing yet."""
        return bool(self.in_flight) or self.markers_under_way

    @property
    def batch_ready(self) -> bool:
        """True when :meth:`take` would give a batch."""
        if len(self.in_flight) >= self._in_flight_room or not self.queue.batch_ready:
            return False
        return not (self._runs_ahead and self.contradicts_map)

    def take(self) -> tuple[Sent, int]:
        """The next batch to send and its sequence; call it only when ``batch_ready``."""
        batch, buffer = self.queue.pop()
        assert batch.base_offset >= self.send_offset
        assert self.target_next_offset is not None
        sent = Sent(batch, buffer, self.target_next_offset, self.generation)
        sequence = self.sequence
        records = batch.next_offset - batch.base_offset
        self.send_offset = batch.next_offset
        self.target_next_offset += records
        self.sequence = (sequence + records) % SEQUENCES
        self.in_flight.append(sent)
        if self._unsettled:  # what is sent again is settled by its own answer
            self._unsettled = [one for one in self._unsettled if one.base_offset >= batch.next_offset]
        return sent, sequence

    def answered(self, sent: Sent, *, appended: bool, now: float, repeated: bool = False) -> bool:
        """Take back a batch whose answer came; True when it counts, False when it is of an older life.

        Args:
            repeated: It was there already, as the broker says.
        """
        assert self.in_flight, f"{self.tp}: an answer came, but nothing was sent"
        self.in_flight.remove(sent)
        if sent.buffer is not None:
            sent.buffer.release()
        current = sent.generation == self.generation
        if appended and current:
            batch = sent.batch
            records = batch.next_offset - batch.base_offset
            if self.next_offset is None or batch.next_offset > self.next_offset:
                self.next_offset = batch.next_offset
                self.acknowledged_target_offset = sent.target_offset + records
            self.acknowledged_at = now
            self._in_flight_room = self.in_flight_max
            self.last_timestamp_ms = batch.max_timestamp_ms
            self.attempts = 0
            self._unblock()
            counters = self.counters
            counters.batches += 1
            counters.records += records
            counters.bytes += len(batch.view)
            counters.duplicates += records if repeated else 0
            self._catch_up()
        else:
            self._unsettled.append(sent.batch._replace(view=NOTHING))
        return current

    def _catch_up(self) -> None:
        """With nothing queued and nothing in flight all that was fetched is dealt with, gaps included."""
        if not self.queue and not self.in_flight:
            self.next_offset = self.send_offset = self.queue.end

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

    @property
    def contradicts_map(self) -> bool:
        """True when the next batch reaches a run that the offset map was given ahead, and what is read there
        does not begin like it.

        The source is not what it was when that was written, or nobody knows: the map has to be corrected
        first, because with a log end there it would be believed.
        """
        if not self._runs_ahead or self.target_next_offset is None:
            return False
        reached = self.queue.first_run(self.target_next_offset)
        return reached is not None and reached[1] >= self._runs_ahead[0][1] and reached != self._runs_ahead[0]

    def map_corrected(self) -> None:
        """The offset map holds nothing any more of what was written ahead."""
        self._runs_ahead = []

    def runs_ahead(self) -> list[tuple[int, int]]:
        """For ``mapped``: the runs that begin after each gap in the queue, as (source, target) offsets."""
        assert self.target_next_offset is not None
        return self.queue.runs(self.target_next_offset)

    def runs_noted(self, count: int, now: float, following: Sequence[tuple[int, int]] = ()) -> None:
        """The first ``count`` runs ahead are in the offset map: their gaps stand in nobody's way any more.

        Args:
            following: What the map has beyond them.
        """
        self._runs_ahead = list(following)
        at_head = self.queue.gap is not None
        for gap in self.queue.drop_gaps(count):
            self.counters.passed(gap)
        if at_head:
            self.send_offset = self.queue.start
        if at_head and not self.in_flight:
            self.next_offset, self.acknowledged_at = self.send_offset, now
            self._unblock()
        self._catch_up()

    def gap_marked(self, offsets: int, now: float) -> None:
        """For ``same``: so many offsets of the gap ahead hold control markers now."""
        assert self.target_next_offset is not None
        assert not self.in_flight
        marked = self.queue.cut_gap(offsets)
        self.next_offset = self.send_offset = marked.next_offset
        self.target_next_offset += offsets
        self.acknowledged_target_offset = self.target_next_offset
        self.acknowledged_at = now
        self.counters.passed(marked)
        self.attempts = 0
        self._unblock()
