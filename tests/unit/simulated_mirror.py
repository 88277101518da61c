"""A process of a mirror in the world of :mod:`tests.unit.simulated`: whatever decides is real.

That is the settler and its looks, the keeper, the receiver, the append lane, the partition, and the flow's
memory. As thin as can be is what stands in for the engine, which offers partitions around, for the way to
brokers, and for the coordinator. At each question to a broker, or to the state, the process may be held up,
or there is no answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from uuid import UUID

from checkpoint import batches, content, flow_state, map_chunk
from checkpoint.flow_state import FlowState
from checkpoint.topic_store import TopicStore
from mirror.errors import BatchError, ConnectionFailedError, TwinsiteError
from mirror.flow import ends, following, looking, marking, receiving, replicas
from mirror.flow.context import Flow
from mirror.flow.engine import wants_look
from mirror.flow.keeping import Keeper
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.receiving import Answers, Receiver
from mirror.flow.settling import Settler
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Fetched, Isolation, Want
from mirror.kafka.offsets import DEBUGGER, EARLIEST, Marking, ProducerState
from mirror.kafka.transactions import Token
from mirror.model import State, TopicPartition
from tests.unit import simulated
from tests.unit.simulated import SourceLog, TargetLog
from tests.unit.target_model import BROKERS_MEMORY, ORDERS_0, OURS, Connection, Mirror

TOPIC_ID = UUID(int=1)
TURNS = 300
"""So many turns of the event loop are enough for all that waits for nothing."""
GAP_LIMIT = 4
"""With ``auto``, offsets are mapped soon."""
CHUNK_RUNS = 2
"""An offset map has several chunks soon."""


class Logs:
    """What all processes share.

    Attributes:
        proceeded: Told of each position from which a partition goes on.
        looked: Told when a look has asked for the last time what the broker remembers.
    """

    def __init__(self, target_start: int) -> None:
        self.source = SourceLog()
        self.target = TargetLog(target_start)
        self.state = simulated.State()
        self.rights = 0
        self.late_writes: list[bytes] = []
        self.proceeded: Callable[[Process, Proceed], None] = lambda *_: None
        self.looked: Callable[[Process], None] = lambda _: None


class Line(Connection):
    """A connection; an answer waits until the target's log is replicated up to some offset."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_for: deque[int] = deque()

    def lose(self) -> list[bytes]:
        self.waits_for.clear()
        return super().lose()


class Side:
    """A cluster of one broker as a process knows it."""

    def __init__(self, process: Process, *, is_source: bool) -> None:
        self.name = "source" if is_source else "target"
        self.process, self.is_source = process, is_source
        self.options = SimpleNamespace(request_timeout_seconds=30.0)
        self.last_answer_at: float | None = None
        self.lines: list[Line] = []

    @property
    def info(self) -> Any:
        epoch = self.process.logs.source.epoch if self.is_source else 0
        topic = SimpleNamespace(topic_id=TOPIC_ID)
        return SimpleNamespace(
            leader=lambda _: 1,
            partition=lambda _: SimpleNamespace(leader_epoch=epoch, leader=1, in_sync_replicas=[1]),
            topics={"orders": topic},
            errors={},
        )

    async def connection(self, _node: int, purpose: str) -> Line:
        if purpose == marking.LANE:
            line = Line()
            line.process = self.process  # type: ignore[attr-defined]
            return line
        if not self.lines or self.lines[-1].closed:
            self.lines.append(Line())
        return self.lines[-1]

    async def hear_from(self, _node: int) -> None:
        """It has started on what it received."""


class Right:
    """As :class:`mirror.flow.owner.Owner`, told by the test instead of the coordinator."""

    def __init__(self, flow: Flow) -> None:
        self.turn = flow.turn
        self.turn.lost()
        self.turn._ours_at = -math.inf
        self.held, self.begun_at = False, math.inf
        self.number, self.has_written, self.is_outdated = 0, False, False
        self.seen: Token | None = None
        self.transactional_id = "twinsite.f"

    @property
    def token(self) -> Token | None:
        return Token(OURS, self.number) if self.number else None

    def begun(self, writer: tuple[int, int]) -> None:
        """Something was written to the state under this token."""
        self.has_written = writer == self.token

    def outdated(self, writer: tuple[int, int]) -> None:
        """That could not be done; where it is the last one that was given away another has to be taken."""
        self.is_outdated = writer == self.token

    @property
    def may_write(self) -> bool:
        return self.held and self.begun_at < math.inf

    @property
    def since(self) -> float:
        return self.begun_at if self.begun_at < math.inf else time.monotonic() + 2.5

    async def confirm(self, *_: float) -> bool:
        return self.may_write

    ask = confirm

    async def ask_the_state(self) -> None:
        return

    async def holder(self) -> Token | None:
        return self.seen


class StatePort:
    """The way to the topic of the flow's state; see :class:`checkpoint.topic_store.LogPort`."""

    def __init__(self, process: Process) -> None:
        self._process, self._state = process, process.logs.state
        self.start, self.read = self._state.start, self._state.read

    async def append(self, batch: bytes) -> int:
        process, late_writes = self._process, self._process.logs.late_writes
        process.writing = batch
        await process.question()
        fault, process.write_fault, process.writing = process.write_fault, None, None
        if fault == "late":
            late_writes.append(batch)
        base = await self._state.append(batch) if fault in {None, "unanswered"} else -1
        if fault is not None:
            raise ConnectionFailedError("no answer")
        await process.question(may_fail=False)
        return base

    async def end(self) -> int:
        await self._process.question()
        return await self._state.end()


class Watched(PartitionCopy):
    """Tells of each position from which it goes on."""

    __slots__ = ("process",)
    process: Process

    def proceed(self, decision: Proceed, *rest: Any, **more: Any) -> None:
        self.process.logs.proceeded(self.process, decision)
        super().proceed(decision, *rest, **more)


class Process:
    """One mirror from its start to its end.

    Attributes:
        answer: What has come of the source and is not taken yet: asked for how, and the answer.
        writing: What is being written to the state.
        read_as: Under which right the state was read as its only writer.
        write_fault: What will become of the next write.
        markers_landing: So many markers of the next request land before the connection is lost.
    """

    def __init__(
        self, logs: Logs, offsets: str, isolation: Isolation, *, continue_after_loss: bool = False
    ) -> None:
        base = Mirror()
        self.logs, self.flow, self.lane = logs, base.flow, base.lane
        self.source, self.target = Side(self, is_source=True), Side(self, is_source=False)
        self.flow.source, self.flow.target = cast(Any, self.source), cast(Any, self.target)
        self.flow.hooks = self
        limits = self.flow.limits
        self.flow.limits = replace(
            limits,
            fetch=replace(limits.fetch, isolation=isolation),
            gap_limit=GAP_LIMIT if offsets == "auto" else limits.gap_limit,
        )
        self.right = Right(self.flow)
        self.copy = Watched(ORDERS_0, ORDERS_0, TOPIC_ID.bytes, in_flight_max=BROKERS_MEMORY)
        self.copy.process = self
        self.state = FlowState(
            TopicStore(
                StatePort(self),
                writer=lambda: self.right.token,
                begun=self.right.begun,
                outdated=self.right.outdated,
            )
        )
        self.memory = FlowMemory(self.state)
        self.settler = Settler(
            self.flow,
            self.memory,
            self.right,
            self,
            offsets=offsets,
            continue_after_loss=continue_after_loss,
        )
        self.keeper = Keeper(self.flow, cast(Any, self.right), self.memory, offsets=offsets)
        self.receiver = Receiver(self.flow, lambda _: False)
        self.answer: tuple[Want, Fetched] | None = None
        self.writing: bytes | None = None
        self.write_fault: str | None = None
        self.markers_landing: int | None = None
        self.crashed: BaseException | None = None
        self.looking, self.read_as = False, 0
        self.producer_questions = 0
        self.refused: TwinsiteError | None = None
        self._was_owner = False
        self._questions: float = math.inf
        self._fails = False
        self._gate = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self.keeper.run())
        except Exception as error:
            self.crashed = error

    async def end(self) -> None:
        """SIGKILL."""
        self._running.cancel()
        self._gate.set()
        await asyncio.wait([self._running])
        await self.lane.close()

    # -- being held up ---------------------------------------------------------------------------

    async def question(self, *, may_fail: bool = True) -> None:
        """To a broker, or the state."""
        if self._questions <= 0:
            self._gate.clear()
            await self._gate.wait()
        self._questions -= 1
        if self._fails and may_fail:
            self._fails = False
            raise ConnectionFailedError("no answer")

    def hold_up(self, questions: int) -> None:
        self._questions = questions

    def let_go(self) -> None:
        self._questions = math.inf
        self._gate.set()

    def fail(self) -> None:
        """The next question is not answered."""
        self._fails = True

    # -- what the engine does --------------------------------------------------------------------

    def changed(self, partition: PartitionCopy) -> None:
        if not partition.copying:
            self.keeper.forget(partition)
        elif partition.batch_ready:
            self.lane.offer(partition)
        elif partition.owner_work:
            self.keeper.offer(partition)
        else:
            self.keeper.forget(partition)

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        raise AssertionError(bad)

    def stale(self, _: object) -> None:
        """There is one broker only."""

    def crash(self, error: BaseException) -> None:
        self.crashed = error

    async def objections(self, _: object) -> Mapping[TopicPartition, Any]:
        """There is no other flow."""
        return {}

    def take_right(self) -> None:
        self.logs.rights += 1
        self.right.number, self.right.held, self.right.begun_at = self.logs.rights, True, math.inf
        self.right.has_written = self.right.is_outdated = False
        self.right.turn.lost()
        if self.copy.state is State.STANDBY or self.copy.copying:
            self._doubt()

    async def begin_turn(self) -> None:
        """Who had the right before has noticed by now."""
        self.right.begun_at = self.right.turn.since = time.monotonic()
        self.right.turn.proven(math.inf)
        self.lane.wake()

    def notice(self) -> None:
        """The right is another's."""
        if self.right.held:
            self.right.held = False
            self.right.turn.lost()
            if self.copy.copying:
                self._doubt()

    def _doubt(self) -> None:
        self.copy.doubt(time.monotonic())
        self.changed(self.copy)

    def look(self) -> None:
        if wants_look(self.copy) and not self.looking and not self.crashed:
            self.looking, self.producer_questions = True, 0
            self._group.create_task(self._look())

    async def _look(self) -> None:
        try:
            if not self.right.held:
                self._was_owner = False
                await self.memory.refresh(sole_writer=False)
                self.settler.is_owner = False
            else:
                is_owner = await self.right.confirm()
                await self.memory.refresh(sole_writer=is_owner and self._was_owner)
                self.settler.is_owner = self._was_owner = is_owner
                self.read_as = self.right.number if is_owner else 0
            if self.memory.introduced and wants_look(self.copy):
                await self.settler.settle(self.settler.begin([self.copy], self._group))
        except TwinsiteError as error:
            self.refused = error
        finally:
            self.looking = False

    async def accept_loss(self) -> None:
        """An operator says so, to the owner; see :meth:`mirror.operating.Operator.accept_loss`."""
        lost = self.copy.lost
        if lost is None or self.looking:
            return
        try:
            await self.memory.refresh(sole_writer=False)
            if self.right.may_write:
                await self.memory.accept_loss(ORDERS_0, *lost)
                self.copy.look_anew(time.monotonic())
        except TwinsiteError as error:
            self.refused = error

    async def introduce(self) -> None:
        """The flow begins."""
        await self.memory.refresh(sole_writer=False)
        await self.memory.introduce(OURS, "source", "target")

    def ask(self, batches: int) -> None:
        """The source answers; what it says is on its way."""
        if not self.copy.copying:
            return
        source = self.logs.source
        want = Want(self.copy.ask_offset, source.epoch, self.copy.queue.fetched_epoch, 1 << 20)
        found = source.fetch(want.offset, want.last_fetched_epoch, batches)
        self.answer = want, fetched(self, found)

    async def take(self) -> None:
        """What is on its way arrives."""
        if self.answer is None:
            return
        (want, answer), self.answer = self.answer, None
        if self.copy.copying and self.copy.ask_offset == want.offset:
            buffer = self.flow.pool.take(max(1, len(answer.records)))
            memory = buffer.memory[: len(answer.records)]
            memory[:] = answer.records
            came = answer._replace(records=memory)
            await self.receiver.take(self.copy, came, want.offset, buffer, Answers(time.monotonic(), None))
            buffer.release()
            self.changed(self.copy)

    @property
    def line(self) -> Line | None:
        """The connection over which batches go, if any."""
        last = self.target.lines[-1:]
        return last[0] if last and not last[0].closed else None


def fetched(process: Process, answer: simulated.Answer) -> Fetched:
    """What the source answers."""
    source, isolation = process.logs.source, process.flow.limits.fetch.isolation
    return Fetched(
        process.copy.key,
        answer.error_code,
        source.end,
        source.end,
        source.start,
        answer.diverging,
        answer.aborted if isolation is Isolation.READ_COMMITTED else [],
        memoryview(bytearray(answer.records)),
    )


def fetched_copy(process: Process, want: Want) -> Fetched:
    """What the target answers: no more than is replicated."""
    target = process.logs.target
    records = memoryview(bytearray(target.fetch(want.offset)))
    return Fetched(process.copy.key, 0, target.replicated, target.replicated, target.start, None, [], records)


# -- what is asked of brokers ------------------------------------------------------------------------


async def list_offsets(
    side: Side,
    tps: Collection[TopicPartition],
    timestamp: int,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    replica_id: int = -1,
    **_: object,
) -> dict[TopicPartition, int]:
    await side.process.question()
    source, target = side.process.logs.source, side.process.logs.target
    if side.is_source:
        offset = source.start if timestamp == EARLIEST else source.end
    elif timestamp == EARLIEST:
        offset = target.start
    else:
        offset = target.end if replica_id == DEBUGGER else target.replicated
    return dict.fromkeys(tps, offset)


async def describe_producer(
    side: Side, tps: Collection[TopicPartition], _producer_id: int
) -> dict[TopicPartition, ProducerState | None]:
    process = side.process
    await process.question()
    process.producer_questions += 1
    if process.producer_questions % 2 == 0:
        process.logs.looked(process)
    return dict.fromkeys(tps, process.logs.target.producer())


async def peek_all_at(
    side: Side, _node: int, wants: Mapping[TopicPartition, Want], *_: object
) -> dict[TopicPartition, Fetched]:
    await side.process.question()
    logs = side.process.logs
    came: dict[TopicPartition, Fetched] = {}
    for tp, want in wants.items():
        if side.is_source:
            answer = logs.source.fetch(want.offset, want.last_fetched_epoch, 3)
            came[tp] = fetched(side.process, answer)
        else:
            came[tp] = fetched_copy(side.process, want)
    telling = {tp: one for tp, one in came.items() if one.error_code or one.diverging or len(one.records)}
    return telling or came


async def write_markers(
    line: Any, markings: Mapping[TopicPartition, Marking], **_: object
) -> dict[TopicPartition, TwinsiteError | None]:
    process: Process = line.process
    try:
        await process.question()
    except ConnectionFailedError as unheard:
        return dict.fromkeys(markings, unheard)
    landing, process.markers_landing = process.markers_landing, None
    out: dict[TopicPartition, TwinsiteError | None] = {}
    for tp, one in markings.items():
        target = process.logs.target
        code = target.mark(one, one.count if landing is None else min(landing, one.count))
        target.replicated = target.end
        out[tp] = broker_error(code, "WriteTxnMarkers") if code else None
        if landing is not None:
            out[tp] = ConnectionFailedError("the connection was lost")
    return out


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def in_place_of_brokers() -> ExitStack:
    """While it is entered everybody asks the simulated ones."""
    stack = ExitStack()
    for module, name, stand_in in (
        (looking, "list_offsets", list_offsets),
        (following, "list_offsets", list_offsets),
        (marking, "list_offsets", list_offsets),
        (looking, "describe_producer", describe_producer),
        (looking, "peek_all_at", peek_all_at),
        (ends, "peek_all_at", peek_all_at),
        (replicas, "peek_all_at", peek_all_at),
        (marking, "write_markers", write_markers),
        (marking, "LANDING_SECONDS", 0.0),
        (ends, "in_thread", in_thread),
        (receiving, "in_thread", in_thread),
        (asyncio, "to_thread", in_thread),
        (batches, "BATCH_BYTES_MAX", 1),  # a batch for each item: of several some may be there
        (map_chunk, "CHUNK_RUNS", CHUNK_RUNS),
        (flow_state, "CHUNK_RUNS", CHUNK_RUNS),
        (content, "CHUNK_RUNS", CHUNK_RUNS),
    ):
        stack.enter_context(mock.patch.object(module, name, stand_in))
    return stack
