"""Mirrors of a flow copy one partition while anything happens: nothing is lost, doubled or reordered.

Whatever decides is real (:mod:`tests.unit.simulated_mirror`); the logs of both sides and the flow's state are
models (:mod:`tests.unit.simulated`), and hypothesis says what happens next. Longer::

    LIFE_EXAMPLES=20000 .venv/bin/python -m pytest tests/unit/test_simulated_life.py

What is assumed: a new owner begins when the one before has noticed, and nothing of that one arrives any more;
nor does a request whose connection was lost, once its sender has looked; nor one of before a broker forgot.

It fails within its usual number of examples where sequences are derived from the log end alone, runs
are noted behind the append, nothing that was noted ahead is ever dropped, or nothing contradicts the map;
where what was begun before a doubt counts; where the state that has lost its end is not written again; and
where a loss is not noted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest

from mirror.flow.partition import HOPELESS
from mirror.flow.position import SEQUENCES, Proceed
from mirror.kafka.fetch import Isolation
from mirror.model import Gap, OffsetMode, Reason, State
from tests.unit.simulated import OLD_MS, Origin, now_ms
from tests.unit.simulated_mirror import TURNS, Logs, Process, in_place_of_brokers
from tests.unit.target_model import ORDERS_0, REFUSALS, Appended, said
from tests.unit.target_model import VERSION as PRODUCE_VERSION

EXAMPLES = int(os.environ.get("LIFE_EXAMPLES", "150"))
FAULTS = ["never", "late", "unanswered"]
KEYS = b"abc"
T = TypeVar("T")


class World:
    """All there is, and all that may happen; what cannot happen now does not.

    Attributes:
        overtaken: The source has lost what was copied, or gaps that were read: the copy may be DIVERGED.
        forgotten: The right was taken while the state had lost its end: so may it be then.
        compacted: Something was, at the source.
        accepted: Source ranges of which an operator has said that they may be left out.
        late: Requests of lost connections, and whose they were, that the broker may still hear.
    """

    def __init__(
        self,
        offsets: str,
        *,
        processes: int = 2,
        fresh: bool = False,
        remembered: int | None = None,
        continue_after_loss: bool = False,
    ) -> None:
        """
        Args:
            fresh: The records are of now: brokers do not forget who wrote them.
            remembered: The last sequence of earlier records of ours that were deleted, if there were any.
        """
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.offsets = offsets
        self.isolation = Isolation.READ_COMMITTED
        self.continue_after_loss = continue_after_loss
        self.timestamp_ms = now_ms() if fresh else OLD_MS
        self.logs = Logs(7 if offsets == "mapped" else 0)
        self.logs.proceeded = self.check_position
        self.source, self.target = self.logs.source, self.logs.target
        if remembered is not None:
            self.target.memory = [Appended(remembered, remembered, self.target.start - 1)]
        self.late: list[tuple[Process, deque[bytes]]] = []
        self.accepted: list[tuple[int, int]] = []
        self.overtaken = self.forgotten = self.compacted = False
        self.logs.looked = self.looked
        self.processes = [self.start() for _ in range(processes)]
        self.owner = self.processes[0]
        self.take_right(0, 0)
        self.run(self.owner.introduce())
        self.logs.state.first = len(self.logs.state.batches)
        self.begin_turn(0, 0)
        self.work(0, 0)

    def start(self) -> Process:
        async def make() -> Process:
            return Process(
                self.logs, self.offsets, self.isolation, continue_after_loss=self.continue_after_loss
            )

        process = self.run(make())
        self.spin()
        return process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """As the runner does, without its handling of signals, which takes longer than most of the work."""
        return self.loop.run_until_complete(work)

    def spin(self) -> None:
        """Let everything happen that waits for nothing."""

        async def turns() -> None:
            loop = cast(Any, asyncio.get_running_loop())
            for _ in range(TURNS):
                await asyncio.sleep(0)
                if not loop._ready:
                    return
            raise AssertionError("something does not come to rest")

        self.run(turns())

    def who(self, number: int) -> Process:
        """Mostly the one that took the right last."""
        others = [process for process in self.processes if process is not self.owner]
        return others[number % len(others)] if number % 4 == 3 and others else self.owner

    def close(self) -> None:
        for process in self.processes:
            self.lose_the_line(process)
            self.run(process.end())
        self.runner.close()

    # -- the source ------------------------------------------------------------------------------

    def append(self, who: int, number: int) -> None:
        keys = bytes(KEYS[(who + n) % len(KEYS)] for n in range(1 + number % 3))
        self.source.append(keys, self.timestamp_ms)

    def transaction(self, who: int, number: int) -> None:
        self.source.transaction(KEYS[who % 3 :][:1] * (1 + number % 2), self.timestamp_ms, aborted=number > 3)

    def compact_source(self, who: int, number: int) -> None:
        self.compacted = True
        self.source.compact(number % 3, markers_too=who % 2 == 0, keep_empty=number > 4)

    def lose_source_end(self, _: int, number: int) -> None:
        """An unclean election: other records will stand where the last ones stood."""
        self.source.lose_its_end(1 + number % 3)
        gaps = [item for one in self.processes for item, _ in one.copy.queue._items if isinstance(item, Gap)]
        noted = [source for source, _ in self.logs.state.map or ()]
        reached = max([self.position(), *noted, *(gap.next_offset for gap in gaps)])
        coming = any(process.answer or process.writing for process in self.processes)
        self.overtaken = self.overtaken or reached > self.source.end or coming

    def retain(self, _: int, number: int) -> None:
        self.source.retain(number)

    @property
    def mapped(self) -> bool:
        record = self.logs.state.record
        return record is not None and record.mode is OffsetMode.MAPPED

    def position(self) -> int:
        """Up to where the target's log end says that the source is copied."""
        offset_map, end = self.logs.state.map, self.target.end
        if not self.mapped:
            return end if self.offsets != "mapped" else 0
        return offset_map.position(end) if offset_map is not None else 0

    def elect(self, _who: int, _number: int) -> None:
        self.source.elect()

    # -- the target ------------------------------------------------------------------------------

    def compact_target(self, _: int, number: int) -> None:
        self.target.compact(number % 3)

    def forget(self, _who: int, _number: int) -> None:
        """By old records brokers forget at any time; what is on its way is of before or never arrives."""
        lines = [process.line for process in self.processes]
        if not any(line and line.unheard for line in lines) and self.target.forget():
            self.late.clear()

    def replicate(self, _who: int, _number: int) -> None:
        self.target.replicated = self.target.end

    def lose_leader(self, _who: int, _number: int) -> None:
        """What is on the leader alone is gone with it, and all connections are."""
        if self.target.replicated < self.target.end:
            self.target.lose_its_leader()
            for process in self.processes:
                self.lose_the_line(process)

    def hear(self, who: int, number: int) -> None:
        """The broker takes the next request, and its answer is on the way."""
        line = self.who(who).line
        if line is not None and line.unheard:
            body, on_answer = line.unheard.popleft()
            data = batch_of(body)
            code, base, repeated = self.target.append(data)
            if number % 4:
                self.replicate(0, 0)
            line.unread.append((bytes(said(code, base, repeated)), on_answer))
            line.waits_for.append(base + int.from_bytes(data[57:61], "big") if code == 0 else 0)

    def refuse(self, who: int, number: int) -> None:
        """The broker answers with an error, which may or may not mean that nothing was appended."""
        line = self.who(who).line
        if line is not None and line.unheard:
            body, on_answer = line.unheard.popleft()
            code, appended = REFUSALS[number % len(REFUSALS)]
            if appended:
                self.target.append(batch_of(body))
            line.unread.append((bytes(said(code, -1)), on_answer))
            line.waits_for.append(0)

    def answer(self, who: int, _: int) -> None:
        line = self.who(who).line
        if line is not None and line.unread and line.waits_for[0] <= self.target.replicated:
            line.waits_for.popleft()
            body, on_answer = line.unread.popleft()
            self.loop.call_soon(on_answer, memoryview(body))
            self.spin()

    def exchange(self, who: int, number: int) -> None:
        for _ in range(1 + number % 3):
            self.hear(who, 1)
        for _ in range(4):
            self.answer(who, 0)

    def lose(self, who: int, _: int) -> None:
        self.lose_the_line(self.who(who))

    def lose_the_line(self, process: Process) -> None:
        if process.line is not None:
            self.late.append((process, deque(process.line.lose())))
            self.spin()

    def arrive_late(self, _: int, number: int) -> None:
        """A request of a lost connection reaches the broker after all; nobody hears of it."""
        if queues := [queue for _, queue in self.late if queue]:
            self.target.append(batch_of(queues[number % len(queues)].popleft()))

    def looked(self, process: Process) -> None:
        """A broker that answers has begun with what it had before."""
        self.late = [one for one in self.late if one[0] is not process]

    def never_arrive(self, _who: int, _number: int) -> None:
        self.late.clear()

    # -- the mirrors -----------------------------------------------------------------------------

    def look(self, who: int, _: int) -> None:
        self.who(who).look()
        self.spin()

    def ask(self, who: int, number: int) -> None:
        self.who(who).ask(1 + number)

    def take(self, who: int, _: int) -> None:
        self.run(self.who(who).take())
        self.spin()

    def read(self, who: int, number: int) -> None:
        self.ask(who, number)
        self.take(who, 0)

    def work(self, who: int, number: int) -> None:
        """What is usual, one after the other."""
        self.look(who, 0)
        self.look(who, 0)
        self.read(who, number)
        self.exchange(who, number)

    def note_ahead(self, who: int, number: int) -> None:
        """What stands behind a batch on its way is noted, and that does not arrive; perhaps meanwhile."""
        self.read(who, 7)
        if number > 3:
            self.hold_up(who, number % 2)
        self.read(who, 0)
        self.lose(who, 0)
        self.never_arrive(0, 0)
        self.let_go(who, 0)

    def hold_up(self, who: int, number: int) -> None:
        self.who(who).hold_up(number % 6)

    def let_go(self, who: int, _: int) -> None:
        self.who(who).let_go()
        self.spin()

    def no_answer(self, who: int, _: int) -> None:
        self.who(who).fail()

    def write_fails(self, who: int, number: int) -> None:
        self.who(who).write_fault = FAULTS[number % len(FAULTS)]

    def write_late(self, _who: int, _number: int) -> None:
        """A write to the state that was given up on reaches the broker."""
        if self.logs.late_writes:
            self.logs.state.arrive(self.logs.late_writes.pop(0))

    def lose_state_end(self, _who: int, number: int) -> None:
        """Whoever has read it as the owner writes again what is gone; who takes the right then does not."""
        self.logs.state.lose_its_end(1 + number % 4)
        self.forgotten = self.forgotten or self.owner.read_as != self.owner.right.number

    def markers_lost(self, who: int, number: int) -> None:
        self.who(who).markers_landing = number % 4

    def take_right(self, who: int, _: int) -> None:
        """Another mirror takes the right; that it may write is another matter."""
        self.owner = self.who(who)
        self.forgotten = self.forgotten or self.logs.state.cut_short
        self.owner.take_right()
        self.spin()

    def begin_turn(self, _who: int, _number: int) -> None:
        """Once the one before has noticed, and nothing of it is on its way any more."""
        if self.owner.right.is_outdated:
            self.take_right(0, 0)
        if self.owner.right.may_write or not self.owner.right.has_written:
            return
        for process in self.processes:
            if process is not self.owner:
                process.notice()
                self.lose_the_line(process)
        self.late = [one for one in self.late if one[0] is self.owner]
        self.run(self.owner.begin_turn())
        self.spin()

    def notice(self, who: int, _: int) -> None:
        process = self.who(who)
        if process is not self.owner:
            process.notice()
            self.spin()

    def die(self, who: int, number: int) -> None:
        """SIGKILL; what was sent may still arrive, and what was being written, too."""
        process = self.who(who)
        if process.writing is not None and number % 2:
            self.logs.late_writes.append(process.writing)
        self.lose_the_line(process)
        self.run(process.end())
        again = self.start()
        self.processes[self.processes.index(process)] = again
        if process is self.owner:
            self.owner = again
            self.take_right(0, 0)

    def read_otherwise(self, who: int, number: int) -> None:
        """Started again with another ``read.isolation``."""
        committed = self.isolation is Isolation.READ_COMMITTED
        self.isolation = Isolation.READ_UNCOMMITTED if committed else Isolation.READ_COMMITTED
        self.die(who, number)

    def accept_loss(self, _who: int, _number: int) -> None:
        if self.owner.copy.lost is not None:
            self.accepted.append(self.owner.copy.lost)
        self.run(self.owner.accept_loss())
        self.spin()

    # -- what is always true, and what is true in the end ----------------------------------------

    def copied(self) -> dict[int, int]:
        """At which target offset each serial stands, or stood before compaction."""
        places = enumerate(self.target.ever, self.target.start)
        return {serial: offset for offset, serial in places if serial is not None}

    def missing(self, below: int) -> dict[int, Origin]:
        """Records that the source has below an offset, and the target never had."""
        copied = self.copied()
        records = self.source.records().items()
        return {serial: at for serial, at in records if at.offset < below and serial not in copied}

    @property
    def ghosts(self) -> list[int]:
        """Records at the target that the source has lost in an unclean election."""
        return [serial for serial in self.target.ever if serial in self.source.replaced]

    def check_position(self, process: Process, decision: Proceed) -> None:
        """Called where a partition goes on: behind all that is there, and before all that is not."""
        if self.overtaken or self.ghosts or (self.forgotten and self.compacted):
            return  # the source tells when it is asked for more: nothing is appended behind what was replaced
        last = max((self.source.origins[serial].offset for serial in self.copied()), default=-1)
        assert decision.next_offset > last, f"{decision} doubles {last}"
        assert not self.missing(decision.next_offset), f"{decision} leaves out records"
        assert decision.target_next_offset == self.target.end

    def check(self) -> None:
        for process in self.processes:
            assert process.crashed is None, repr(process.crashed)
        if self.forgotten and self.compacted:
            return  # what tells that a run of the offset map is missing may be gone, too
        copied, origins = self.copied(), self.source.origins
        offsets = [origins[serial].offset for serial in copied]
        assert len(copied) == sum(serial is not None for serial in self.target.ever), "doubled"
        assert offsets == sorted(offsets), "reordered"
        ghosts = self.ghosts
        assert not ghosts or set(list(copied)[list(copied).index(ghosts[0]) :]) == set(ghosts), "gone on"
        self.overtaken = self.overtaken or bool(ghosts)
        assert ghosts or not self.missing(max(offsets, default=0)), "left out"
        for process in self.processes:
            copy = process.copy
            assert copy.next_offset is None or copy.next_offset <= copy.send_offset <= copy.fetch_offset
            hopeful = copy.state not in HOPELESS or self.overtaken or self.forgotten or copy.lost is not None
            assert hopeful, (copy.state, copy.reason, copy.detail)
            said = 0 if self.overtaken else copy.next_offset or 0
            assert not self.missing(said), "said to be copied"
        if not self.forgotten:
            self.check_places(copied)
            self.check_losses(copied)

    def check_places(self, copied: dict[int, int]) -> None:
        """Offsets are the same, or what the map says: as it is written, or as the owner knows that it was."""
        state = self.logs.state
        offset_map = self.owner.state.map(ORDERS_0) if state.cut_short else state.map
        for serial, target_offset in copied.items():
            source_offset = self.source.origins[serial].offset
            if not self.mapped:
                assert target_offset == source_offset
            else:
                assert offset_map is not None
                assert offset_map.source_of(target_offset, self.target.end) == source_offset

    def check_losses(self, copied: dict[int, int]) -> None:
        """What retention has removed before it was copied is in the ledger, or will be: that, and no more."""
        record, source = self.logs.state.record, self.source
        lost = record.lost if record is not None else ()
        for begin, end in (*lost, *(one.copy.lost for one in self.processes if one.copy.lost)):
            assert begin < end <= source.start, "said to be lost"
        for offset in {at for begin, end in lost for at in range(begin, end)}:
            asked = any(begin <= offset < end for begin, end in self.accepted)
            assert asked or self.continue_after_loss, "nobody was asked"
        for serial, (offset, _) in source.origins.items():
            noted = any(begin <= offset < end for begin, end in lost)
            assert not (noted and serial in copied), "lost, and copied"
            if serial in source.expired and serial not in copied and not (noted or self.overtaken):
                for process in self.processes:
                    assert offset >= (process.copy.next_offset or 0), "lost, and not said"

    def come_to_an_end(self) -> None:
        """No more accidents: after a while all is copied, behind a new leader epoch and a gap, too."""
        for process in self.processes:
            process.let_go()
            process.write_fault = process.markers_landing = None
            process._fails = False
        self.spin()
        self.elect(0, 0)
        self.transaction(0, 0)
        self.append(0, 0)
        self.begin_turn(0, 0)
        for round_ in range(60):
            self.arrive_late(0, 0)
            self.replicate(0, 0)
            self.begin_turn(0, 0)
            self.work(0, 7 - round_ % 8)
            self.check()
            self.accept_loss(0, 0)
            if round_ > 5 and (self.is_done() or self.stopped):
                break
        copy = self.owner.copy
        diverged = (copy.state, copy.reason) == (State.DIVERGED, Reason.SOURCE_TRUNCATED)
        assert diverged or not self.ghosts, (copy.state, copy.reason, copy.detail)
        if (diverged and self.overtaken) or (self.forgotten and (self.compacted or self.stopped)):
            return
        assert self.is_done(), (copy.state, copy.reason, copy.detail, copy.next_offset, self.source.end)
        assert not self.missing(self.source.end)

    @property
    def stopped(self) -> bool:
        """Only an operator can go on; or the partition was to begin, and the source starts above zero."""
        return self.owner.copy.state in HOPELESS | {State.BLOCKED}

    def is_done(self) -> bool:
        copy = self.owner.copy
        return copy.state is State.ACTIVE and copy.copying and copy.next_offset == self.source.end


def batch_of(body: bytes) -> memoryview:
    """The batch of the one partition in a Produce request."""
    ((part,),) = [
        topic.partition_data for topic in ProduceRequest.decode(body, version=PRODUCE_VERSION).topic_data
    ]
    return memoryview(bytes(part.records))


def nothing(*_: object) -> None: ...


Step = Callable[[World, int, int], None]
USUAL: list[Step] = [
    nothing,
    *[World.append] * 3,
    World.transaction,
    *[World.work] * 3,
    World.look,
    World.read,
    World.ask,
    World.take,
    World.hear,
    World.answer,
    World.exchange,
    World.replicate,
    World.begin_turn,
    World.let_go,
    World.write_fails,
]
ACCIDENTS: list[Step] = [
    World.compact_source,
    World.compact_target,
    World.retain,
    World.accept_loss,
    World.elect,
    World.forget,
    World.lose_leader,
    World.refuse,
    World.lose,
    World.arrive_late,
    World.never_arrive,
    World.hold_up,
    World.no_answer,
    World.write_late,
    World.take_right,
    World.notice,
    World.die,
    World.read_otherwise,
]
REPLACED: list[Step] = [
    nothing,
    *[World.append] * 3,
    *[World.transaction] * 3,
    *[World.read] * 3,
    World.work,
    World.hear,
    World.answer,
    *[World.lose_source_end] * 2,
    *[World.note_ahead] * 2,
    World.read_otherwise,
    World.lose,
    World.refuse,
]
"""Of what is read much is not copied yet when it is replaced: runs are noted ahead that are not true."""
Story = list[tuple[Step, int, int]]


def told(steps: Sequence[Step]) -> st.SearchStrategy[Story]:
    """What happens, one thing after the other; each with who does it, and how much of it."""
    numbers = st.integers(0, 7)
    return st.lists(st.tuples(st.sampled_from(steps), numbers, numbers), min_size=20, max_size=60)


def stories(*others: Step) -> st.SearchStrategy[Story]:
    """Of what may go wrong a story has a few kinds, and those often: what matters is two of them together."""
    kinds = st.lists(st.sampled_from([*ACCIDENTS, *others]), min_size=1, max_size=5, unique=True)
    return kinds.flatmap(lambda accidents: told([*USUAL, *accidents * 2]))


def worlds(*offsets: str) -> st.SearchStrategy[Callable[[], World]]:
    """How it is before anything happens."""
    return st.builds(
        partial,
        st.just(World),
        st.sampled_from(offsets),
        processes=st.integers(2, 3),
        fresh=st.booleans(),
        remembered=st.sampled_from([None, 12, SEQUENCES - 4]),
        continue_after_loss=st.booleans(),
    )


def live(begin: Callable[[], World], story: Story) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with in_place_of_brokers():
        world = begin()
        try:
            for step, who, number in story:
                step(world, who, number)
                world.check()
            world.come_to_an_end()
        finally:
            world.close()


@settings(deadline=None, max_examples=EXAMPLES)
@given(begin=worlds("mapped"), story=stories(World.lose_state_end))
def test_with_an_offset_map_the_copy_is_exact(begin: Callable[[], World], story: Story) -> None:
    """
    Compaction on both sides, crashes, lost and late requests, writes to the state that may be there or not,
    brokers that forget, leaders that take with them what they alone have, two or three mirrors.
    """
    live(begin, story)


@settings(deadline=None, max_examples=EXAMPLES)
@given(begin=worlds("same", "auto"), story=stories(World.markers_lost, World.lose_state_end))
def test_with_the_same_offsets_the_copy_is_exact(begin: Callable[[], World], story: Story) -> None:
    """
    The same, and control markers of which only some have landed.
    """
    live(begin, story)


@settings(deadline=None, max_examples=EXAMPLES)
@given(begin=worlds("same", "mapped"), story=stories(World.lose_source_end, World.markers_lost))
def test_nothing_is_appended_behind_what_the_source_has_lost(
    begin: Callable[[], World], story: Story
) -> None:
    """
    Records are replaced in an unclean election: the copy is exact, or DIVERGED and left as it is.
    """
    live(begin, story)


@settings(deadline=None, max_examples=3 * EXAMPLES)
@given(begin=worlds("mapped"), story=told(REPLACED))
@example(
    begin=partial(World, "mapped"),
    story=[  # of two gaps that were noted the first is there still, and records are where the second was
        (World.transaction, 0, 0),
        (World.append, 0, 0),
        (World.transaction, 0, 0),
        (World.append, 0, 0),
        (World.note_ahead, 0, 0),
        (World.lose_source_end, 0, 2),
        (World.append, 0, 2),
        (World.transaction, 0, 5),
        (World.append, 0, 0),
        (World.look, 0, 0),
        (World.look, 0, 0),
        (World.read, 0, 7),
        (World.read, 0, 0),
        (World.exchange, 0, 2),
    ],
)
@example(
    begin=partial(World, "mapped"),
    story=[  # while a gap is being noted what stands before it is lost
        (World.transaction, 0, 0),
        (World.append, 0, 0),
        (World.note_ahead, 0, 4),
    ],
)
def test_an_offset_map_is_true_of_what_is_there_whatever_it_said_ahead(
    begin: Callable[[], World], story: Story
) -> None:
    """
    Where gaps were noted other records are read now: the map is corrected before they are appended.
    """
    live(begin, story)
