"""The way of one partition's batches: what was fetched, sent and acknowledged, and what may be sent next.

Numbers only, and no I/O. Why a partition does not go on, and when it is looked at, is in
:mod:`mirror.flow.partition`.

Always: ``next_offset <= send_offset <= fetch_offset``. The queue covers ``[send_offset, fetch_offset)`` with
batches and gaps, in order. What was sent before a doubt belongs to an older generation: its answer is taken,
but moves nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mirror.flow.position import SEQUENCES, Proceed
from mirror.flow.queue import Queue
from mirror.kafka.buffers import Buffer
from mirror.model import Batch, Gap, OffsetMode, TopicPartition

NOTHING = memoryview(b"")
UNSTEADY_SECONDS = 5.0
"""For this long after a look, whatever made it necessary may not be over."""
FRESH_MS = 3_600_000
"""Records younger than this are not old: a broker forgets a producer a day after its newest record's time."""


@dataclass(slots=True)
class Sent:
    """A batch in flight, and the target offset it is expected to get."""

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
    fenced: int = 0

    def passed(self, gap: Gap) -> None:
        """Count a gap, or a part of one, that is dealt with."""
        self.gap_offsets += gap.offsets
        self.lost_offsets += gap.offsets if gap.lost else 0
        self.aborted_offsets += gap.aborted
        self.marker_offsets += gap.markers


class Passage:
    """Where one partition is; mutable, owned by the event loop.

    Attributes:
        attempts: Failed tries since something was last written.
        empty_at: When a look last found that nothing was copied yet (monotonic seconds); all that was copied
            since was read later. None if no look did.
        coordinator_epoch: The lowest epoch that its next control markers may have: above that of all markers
            that may still land, ours or another owner's (:mod:`mirror.flow.marking`).
        waits_for: The target broker to which its batches were last sent, or are about to be sent.
    """

    __slots__ = (
        "_fresh_from_ms",
        "_in_flight_room",
        "_runs_ahead",
        "_steady",
        "_steady_at",
        "_unsettled",
        "acknowledged_at",
        "acknowledged_target_offset",
        "attempts",
        "coordinator_epoch",
        "counters",
        "empty_at",
        "generation",
        "in_flight",
        "in_flight_max",
        "last_timestamp_ms",
        "markers_under_way",
        "mode",
        "next_offset",
        "producer_epoch",
        "queue",
        "send_offset",
        "sequence",
        "target_next_offset",
        "tp",
        "waits_for",
    )

    def __init__(self, tp: TopicPartition, *, in_flight_max: int) -> None:
        self.tp = tp
        self.in_flight_max = in_flight_max
        self.mode: OffsetMode | None = None
        self.next_offset: int | None = None
        self.send_offset = 0
        self.target_next_offset: int | None = None
        self.acknowledged_target_offset: int | None = None
        self.acknowledged_at = 0.0
        self.last_timestamp_ms: int | None = None
        self.empty_at: float | None = None
        self.sequence = 0
        self.coordinator_epoch = -1
        self.producer_epoch = 0
        self.generation = 0
        self.in_flight: deque[Sent] = deque()
        self.waits_for: int | None = None
        self.markers_under_way = False
        self.queue = Queue()
        self.attempts = 0
        self.counters = Counters()
        self._in_flight_room = 1
        self._steady, self._steady_at, self._fresh_from_ms = False, 0.0, 0
        self._runs_ahead: list[tuple[int, int]] = []
        self._unsettled: list[Batch] = []

    # -- where it begins, and begins again -------------------------------------------------------

    def _begin(
        self,
        decision: Proceed,
        mode: OffsetMode,
        epoch: int,
        now: float,
        runs_ahead: Sequence[tuple[int, int]],
    ) -> None:
        """Begin, or begin again, there; as for :meth:`mirror.flow.partition.PartitionCopy.proceed`."""
        assert not self.unanswered, f"{self.tp}: looked at while its log end may still move"
        self._settle_up_to(decision.next_offset)
        if not self._queue_fits(decision, mode):
            self.queue.begin(decision.next_offset, epoch)
            self.empty_at = now if decision.nothing_copied else self.empty_at
        if self.next_offset is None or decision.next_offset > self.next_offset:
            self.attempts = 0
        self.mode = mode
        self.next_offset = self.send_offset = decision.next_offset
        self.target_next_offset = self.acknowledged_target_offset = decision.target_next_offset
        self.sequence = decision.sequence
        self._in_flight_room = 1
        self._steady_at, self._steady = now + UNSTEADY_SECONDS, False
        self._fresh_from_ms = int(time.time() * 1000) - FRESH_MS
        self._runs_ahead = list(runs_ahead)
        if decision.coordinator_epoch > self.coordinator_epoch:  # of another owner: more of them may be late
            self.coordinator_epoch = decision.coordinator_epoch + 1
        self.producer_epoch = decision.producer_epoch
        self.acknowledged_at = now
        if decision.skip_to > decision.next_offset:
            self.queue.push([Gap(decision.next_offset, decision.skip_to, lost=True)], (), None)

    def _settle_up_to(self, next_offset: int) -> None:
        """Count as duplicates what was sent, not acknowledged, and is at the target after all."""
        there = [batch for batch in self._unsettled if batch.next_offset <= next_offset]
        self.counters.duplicates += sum(batch.records for batch in there)
        self._unsettled = [batch for batch in self._unsettled if batch.next_offset > next_offset]

    def _queue_fits(self, decision: Proceed, mode: OffsetMode) -> bool:
        """True when the queue continues exactly there; never for ``mapped``, whose runs were noted ahead."""
        return (
            bool(self.queue)
            and mode is self.mode is OffsetMode.SAME
            and self.send_offset == decision.next_offset == decision.skip_to
            and self.target_next_offset == decision.target_next_offset
        )

    def _drop(self) -> None:
        """Forget the queue; answers to what is in flight no longer count."""
        self.generation += 1
        self.queue.clear(self.send_offset)

    def _went_on(self, *, appended: bool = False) -> None:
        """Called when something was written, or a gap is dealt with.

        Args:
            appended: A batch was, and its records have kept their times.
        """

    # -- batches ---------------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """Source offset from which to fetch."""
        return self.queue.end

    @property
    def pending(self) -> bool:
        """True while something that was fetched is not yet acknowledged or dealt with."""
        return bool(self.queue or self.in_flight)

    @property
    def unanswered(self) -> bool:
        """True while something of ours may still be appended, so that the target's log end means nothing."""
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
        base_offset, next_offset, _, newest_ms, _ = batch
        assert base_offset >= self.send_offset
        assert self.target_next_offset is not None
        sent = Sent(batch, buffer, self.target_next_offset, self.generation)
        sequence = self.sequence
        records = next_offset - base_offset
        self.send_offset = next_offset
        self.target_next_offset += records
        self.sequence = (sequence + records) % SEQUENCES
        self.in_flight.append(sent)
        if newest_ms < self._fresh_from_ms and not self._steady:
            self._in_flight_room = 1
        if self._unsettled:  # what is sent again is settled by its own answer
            self._unsettled = [one for one in self._unsettled if one.base_offset >= next_offset]
        return sent, sequence

    def _may_be_followed(self, batch: Batch) -> bool:
        """Whether more than one batch may be in flight from now on; ``batch`` is acknowledged.

        If a batch is refused by a broker that has forgotten the producer, the next one is appended in its
        place. A broker forgets a producer whose newest record is old; batches are refused where leaders and
        replicas change, and for a while after. So nothing may follow a batch of old records in flight until
        UNSTEADY_SECONDS after a look.
        """
        unanswered = (sent.batch for sent in self.in_flight)
        return self._steady or all(
            one.max_timestamp_ms >= self._fresh_from_ms for one in (batch, *unanswered)
        )

    def answered(self, sent: Sent, *, appended: bool, now: float) -> bool:
        """Take the answer to a batch; False if the batch is of an older generation: it moves nothing then."""
        assert self.in_flight, f"{self.tp}: an answer came, but nothing was sent"
        self.in_flight.remove(sent)
        if sent.buffer is not None:
            sent.buffer.release()
        current = sent.generation == self.generation
        if appended and current:
            base_offset, next_offset, _, newest_ms, view = sent.batch
            records = next_offset - base_offset
            if self.next_offset is None or next_offset > self.next_offset:
                self.next_offset = next_offset
                self.acknowledged_target_offset = sent.target_offset + records
            self.acknowledged_at = now
            self._steady = self._steady or now >= self._steady_at
            if self._in_flight_room == 1 and self._may_be_followed(sent.batch):
                self._in_flight_room = self.in_flight_max
            self.last_timestamp_ms = newest_ms
            self.attempts = 0
            self._went_on(appended=True)
            counters = self.counters
            counters.batches += 1
            counters.records += records
            counters.bytes += len(view)
            self._catch_up()
        else:
            self._unsettled.append(sent.batch._replace(view=NOTHING))
        return current

    def _catch_up(self) -> None:
        """If nothing is queued or in flight, all that was fetched is dealt with, gaps included."""
        if not self.in_flight and not self.queue:
            self.next_offset = self.send_offset = self.queue.end

    # -- what only the owner may write -----------------------------------------------------------

    @property
    def contradicts_map(self) -> bool:
        """True when the next batch reaches a run that was noted ahead in the offset map, and what was read
        there does not begin as that run does.

        The source has changed since that was written, or may have. The map must be corrected before the batch
        is sent: once the log ends there the map would be believed.
        """
        if not self._runs_ahead or self.target_next_offset is None:
            return False
        reached = self.queue.first_run(self.target_next_offset)
        return reached is not None and reached[1] >= self._runs_ahead[0][1] and reached != self._runs_ahead[0]

    @property
    def foresaw_otherwise(self) -> bool:
        """True when the queue has other gaps than were noted ahead in the offset map, so that its runs would
        not fit into the map: for example if aborted transactions are read now (``read.isolation``).
        """
        if self.mode is not OffsetMode.MAPPED or not self._runs_ahead or self.target_next_offset is None:
            return False
        runs = self.queue.runs(self.target_next_offset)
        return any(read != foreseen for read, foreseen in zip(runs, self._runs_ahead, strict=False))

    def map_corrected(self) -> None:
        """The offset map no longer holds any runs that were noted ahead."""
        self._runs_ahead = []

    def runs_ahead(self) -> list[tuple[int, int]]:
        """For ``mapped``: the runs that begin after each gap in the queue, as (source, target) offsets.

        If runs were noted ahead, at most as many as are known of those: the map may hold different ones after
        them, which are looked up once these are noted.
        """
        assert self.target_next_offset is not None
        return self.queue.runs(self.target_next_offset)[: len(self._runs_ahead) or None]

    def runs_noted(self, count: int, now: float, following: Sequence[tuple[int, int]] = ()) -> None:
        """The first ``count`` runs ahead are in the offset map: their gaps leave the queue.

        Args:
            following: The runs of the map beyond them, or the first of those.
        """
        self._runs_ahead = list(following)
        at_head = self.queue.gap is not None
        for gap in self.queue.drop_gaps(count):
            self.counters.passed(gap)
        if at_head:
            self.send_offset = self.queue.start
        if at_head and not self.in_flight:
            self.next_offset, self.acknowledged_at = self.send_offset, now
            self._went_on()
        self._catch_up()

    def gap_marked(self, offsets: int, now: float) -> None:
        """For ``same``: the first ``offsets`` offsets of the gap at the head hold control markers now.

        A broker that had forgotten the producer knows it by them, without a sequence: it refuses the next
        batch. So nothing may follow that one in flight, or it might be appended in its place.
        """
        assert self.target_next_offset is not None
        assert not self.in_flight
        marked = self.queue.cut_gap(offsets)
        self.next_offset = self.send_offset = marked.next_offset
        self.target_next_offset += offsets
        self._in_flight_room = 1
        self.acknowledged_target_offset = self.target_next_offset
        self.acknowledged_at = now
        self.counters.passed(marked)
        self.attempts = 0
        self._went_on()
