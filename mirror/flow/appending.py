"""Send queued batches to one target broker and tell partitions what became of them.

A lane keeps a few requests in flight, each with at most one batch of a partition.
Partitions take turns. There is no task and no lock: callers with work call
:meth:`AppendLane.offer`, and answers arrive by callback. What is offered in one
turn of the event loop leaves together: a request costs a broker more than a batch.

Sources: KIP-98 (idempotent produce, five batches in flight), docs/design.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from functools import partial

import structlog

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.errors import TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.passage import Sent
from mirror.flow.states import UNANSWERED, append_refusal
from mirror.kafka.answers import Ended
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_throttled_answer, encode_request
from mirror.kafka.connection import Connection
from mirror.kafka.failures import STALE_METADATA_CODES, broker_error
from mirror.kafka.record_batch import seal
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State

log = structlog.get_logger(__name__)

Request = list[tuple[PartitionCopy, Sent]]


class AppendLane:
    """One connection to a target broker, for some of the partitions that it leads."""

    def __init__(self, flow: Flow, node: int, slot: int = 0, queue_bytes_max: float = math.inf) -> None:
        """
        Args:
            node: The broker's id.
            slot: Which of the lanes to that broker this is, counted from 0.
            queue_bytes_max: A partition with more than this queued is not sent here. Once nothing of it is in
                flight, the engine is asked for its lane.
        """
        self._flow = flow
        self._node = node
        self._purpose = f"append-{slot}" if math.isinf(queue_bytes_max) else f"append-urgent-{slot}"
        self._queue_bytes_max = queue_bytes_max
        self._waiting: deque[PartitionCopy] = deque()
        self._members: set[PartitionCopy] = set()
        self._timeout_ms = int(flow.target.options.request_timeout_seconds * 1000)
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pump_planned = False
        self._repeats = Repeats()

    def offer(self, partition: PartitionCopy) -> None:
        """Line up a partition that has a batch to send."""
        self._line_up(partition)
        self.wake()

    def wake(self) -> None:
        """Send what was held back until now, if it may be sent."""
        if self._waiting and not self._pump_planned:
            self._pump_planned = True
            asyncio.get_running_loop().call_soon(self._on_turn)

    def leave(self, partition: PartitionCopy) -> None:
        """Nothing more of the partition is sent here; what is in flight of it is still answered here."""
        if partition in self._members:
            self._members.discard(partition)
            self._waiting.remove(partition)

    def _line_up(self, partition: PartitionCopy) -> None:
        if partition not in self._members:
            self._members.add(partition)
            self._waiting.append(partition)
            if not partition.in_flight:
                partition.waits_for = self._node

    async def close(self) -> None:
        self._waiting.clear()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])

    # -- sending ---------------------------------------------------------------------------------

    def _on_turn(self) -> None:
        self._pump_planned = False
        try:
            self._pump()
        except BaseException as error:  # a bug here must end the mirror, not only the callback
            self._flow.hooks.crash(error)

    def _pump(self) -> None:
        connection = self._connection
        if not self._waiting or not self._flow.may_send:
            return
        if connection is None or connection.closed:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            return
        while self._waiting and connection.unanswered < self._flow.limits.requests_in_flight_max:
            request = self._gather()
            if not request:
                return
            self._send(connection, request)

    def _gather(self) -> Request:
        """One batch of each partition in turn, until the request is full; the last may go over its size."""
        room = self._flow.limits.request_bytes_max
        request: Request = []
        again: list[PartitionCopy] = []
        now = time.monotonic()
        while self._waiting and (room > 0 or not request):
            partition = self._waiting.popleft()
            if (
                partition.look_due_at is not None
                or not partition.batch_ready
                or (not partition.in_flight and self._looks_first(partition, now))
            ):
                self._members.discard(partition)
                continue
            if partition.queue.bytes > self._queue_bytes_max:
                self._members.discard(partition)
                if not partition.in_flight:
                    self._flow.hooks.changed(partition)
                continue
            sent, sequence = partition.take()
            partition.waits_for = self._node
            view = sent.batch.view
            seal(view, self._flow.producer_id, partition.producer_epoch, sequence)
            request.append((partition, sent))
            room -= len(view)
            again.append(partition)
        self._waiting.extend(again)
        return request

    def _looks_first(self, partition: PartitionCopy, now: float) -> bool:
        """After a long silence the broker may have forgotten the producer: look before writing."""
        if now - partition.acknowledged_at < self._flow.limits.idle_look_seconds:
            return False
        partition.look_first(now)
        self._flow.hooks.changed(partition)
        return True

    def _send(self, connection: Connection, request: Request) -> None:
        body = encode_request([(p.target, s.batch.view) for p, s in request], self._timeout_ms)
        version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
        now = time.monotonic()
        if not connection.unanswered:
            self._flow.silence.begins(self._node, now)
        connection.submit(PRODUCE, version, body, partial(self._on_answer, request, now))
        reach("produce_sent")

    async def _open(self) -> None:
        try:
            await self._connect()
        except Exception as error:  # a bug here must end the mirror, not only the task
            self._flow.hooks.crash(error)

    async def _connect(self) -> None:
        try:
            self._connection = await self._flow.writer(self._node, self._purpose)
        except TwinsiteError as error:
            self._give_up(error)
        finally:
            self._opening = None
        self._pump()

    def _say_lost(self, error: BaseException) -> None:
        words = str(error) or "cancelled"
        warn_repeated(log, self._repeats, "append", "broker_not_written", broker=self._node, error=words)

    def _give_up(self, error: TwinsiteError) -> None:
        self._say_lost(error)
        now = time.monotonic()
        waiting = list(self._waiting)
        self._waiting.clear()
        self._members.clear()
        self._flow.hooks.stale(self._flow.target)
        for partition in waiting:
            partition.refused(UNANSWERED, str(error), now)
            self._flow.hooks.changed(partition)

    # -- answers ---------------------------------------------------------------------------------

    def _on_answer(self, request: Request, sent_at: float, answer: memoryview | Ended) -> None:
        try:
            self._read(request, sent_at, answer)
        except BaseException as error:  # a bug here must end the mirror, not only the callback
            self._flow.hooks.crash(error)

    def _read(self, request: Request, sent_at: float, answer: memoryview | Ended) -> None:
        now = time.monotonic()
        try:
            if not isinstance(answer, memoryview):
                raise answer
            outcomes, throttle_ms = decode_throttled_answer(answer)
        except TwinsiteError as error:
            self._lost(request, error, now)
            stirred = [partition for partition, _ in request]
        else:
            reach("produce_answered")
            self._flow.instruments.observe_request("produce", now - sent_at)
            self._flow.instruments.count_throttled("produce", throttle_ms / 1000)
            self._flow.target.last_answer_at = now
            self._flow.silence.begins(self._node, now + throttle_ms / 1000)
            stirred = [p for p, sent in request if not self._goes_on(p, sent, outcomes.get(p.target), now)]
            self._observe_latency(request[0][0], now)
            if now - sent_at > self._flow.limits.idle_look_seconds:
                stirred = self._look_again(request, now)
        self._flow.room.set()
        for partition in stirred:
            self._flow.hooks.changed(partition)
        self._pump()

    def _lost(self, request: Request, error: BaseException, now: float) -> None:
        self._say_lost(error)
        for partition, sent in request:
            self._unanswered(partition, sent, str(error) or "cancelled", now)
        self._flow.hooks.stale(self._flow.target)

    def _goes_on(self, partition: PartitionCopy, sent: Sent, outcome: Outcome | None, now: float) -> bool:
        """Settle what was sent; True when the partition wants only to send more, now or later.

        Its turn decides whether the queue has grown too large for this lane.
        """
        state = partition.state
        self._settle(partition, sent, outcome, now)
        if partition.batch_ready:
            self._line_up(partition)
        elif partition.owner_work:
            return False
        return partition.state is state and partition.look_due_at is None

    @staticmethod
    def _look_again(request: Request, now: float) -> list[PartitionCopy]:
        """The answer took so long that we may have been frozen, and the broker may have forgotten us: nothing
        that is queued may be sent before a look. What sends nothing keeps the time of its own look.
        """
        partitions = [partition for partition, _ in request]
        for partition in partitions:
            if partition.may_send:
                partition.doubt(now)
        return partitions

    def _observe_latency(self, partition: PartitionCopy, now: float) -> None:
        """Report the latency of the partition's last record, if the target has just acknowledged that."""
        stamp, following = partition.last_timestamp_ms, partition.next_offset
        acknowledged = partition.acknowledged_at == now
        if acknowledged and stamp is not None and stamp > 0 and following is not None:
            seconds = time.time() - stamp / 1000
            self._flow.instruments.observe_copy_latency(seconds, partition.tp, following - 1)

    def _unanswered(self, partition: PartitionCopy, sent: Sent, why: str, now: float) -> None:
        if partition.answered(sent, appended=False, now=now):
            partition.refused(UNANSWERED, why, now)

    def _settle(self, partition: PartitionCopy, sent: Sent, outcome: Outcome | None, now: float) -> None:
        """Take the answer to a batch.

        If a time comes with the place where the batch was expected, the broker calls the batch a repeat, or
        gave its records the time of the append. A repeat has the time of the batch that is there: since the
        look as many records of ours were appended there. The next look finds which: if the source was
        compacted in between, they need not be these.
        """
        if outcome is None:
            self._unanswered(partition, sent, "the answer omits the partition", now)
            return
        error_code, base_offset, _, _, time_ms = outcome
        if error_code == 0 and base_offset != sent.target_offset:
            self._misplaced(partition, sent, base_offset, now)
            return
        if error_code == 0 and time_ms < 0:
            partition.answered(sent, appended=True, now=now)
            return
        current = partition.answered(sent, appended=False, now=now)
        if error_code == 0 and time_ms != sent.batch.max_timestamp_ms:
            partition.answered_with_other_time(now, current=current)
        elif error_code == 0 and current:
            partition.doubt(now)
        elif current:
            self._refused(partition, outcome, now)

    def _refused(self, partition: PartitionCopy, outcome: Outcome, now: float) -> None:
        if outcome.error_code == CORRUPT_MESSAGE:
            self._flow.instruments.count_crc_failure("target")
        if outcome.error_code in STALE_METADATA_CODES:
            self._flow.hooks.stale(self._flow.target)
        refusal = append_refusal(outcome.error_code, outcome.message)
        partition.refused(refusal, _words(partition, outcome), now)

    def _misplaced(self, partition: PartitionCopy, sent: Sent, base_offset: int, now: float) -> None:
        """The broker has the batch at another offset than expected, appended now or before: not our doing."""
        partition.answered(sent, appended=False, now=now)
        partition.stop(
            State.DIVERGED,
            Reason.OFFSETS_DIFFER,
            f"source offset {sent.batch.base_offset} landed at target offset {base_offset} instead of "
            f"{sent.target_offset}: something else has written to {partition.target}, or it lost its end",
            None,
        )


def _words(partition: PartitionCopy, outcome: Outcome) -> str:
    return str(broker_error(outcome.error_code, f"Produce to {partition.target}", outcome.message))
