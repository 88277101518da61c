"""A partition copied through all that may happen to its requests: the copy is exact, or in a named state.

The lane, the partition, the position and the offset map are the real ones. The
target is a model of what a broker checks (KIP-98): sequences, exact repeats of
the last five batches, a memory that may be lost. Answers get lost, requests arrive
late or never, other mirrors of the flow append what we were about to, logs lose
their ends, processes die. Nothing here waits for anything: hypothesis says what
happens next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.offset_map import OffsetMap
from mirror.flow import passage
from mirror.flow.facts import Known, SourceLook
from mirror.flow.partition import HOPELESS
from mirror.flow.position import SEQUENCES, Proceed, Stop, decide
from mirror.model import Batch, Gap, OffsetMode, Reason, State
from tests.unit.target_model import (
    FOREIGN,
    IDLE_LOOK_SECONDS,
    MARKER,
    OURS,
    REFUSALS,
    STRANGE,
    TOPIC_ID,
    Appended,
    Mirror,
    TargetLog,
    heard,
    said,
    source_batch,
)


class World:
    """A source, a target, a mirror between them, and all that may happen; what cannot happen now does not.

    Attributes:
        late: Requests of lost connections that the broker may still hear.
        foreign: Somebody else has written to the target.
        excused: Something has happened after which the copy need not be exact, if only the mirror says so.
        alone: This process has written all that is there, and remembers all it has sent.
    """

    def __init__(
        self, shape: list[tuple[bool, int]], first: int, mode: OffsetMode, remembered: int | None
    ) -> None:
        self.runner = asyncio.Runner()
        self.late: list[deque[bytes]] = []
        self.foreign = False
        self.excused = False
        self.alone = True
        self.source: dict[int, tuple[bool, int, int]] = {}
        self.mode, self.first, at = mode, first, first
        for batch, count in shape:
            for offset in range(at, at + count):
                self.source[offset] = (batch, at, at + count)
            at += count
        self.source_end = at
        self.log = TargetLog(first if mode is OffsetMode.SAME else 7)
        self.map = OffsetMap([(first, self.log.start)], begins_at=first)
        self.ever_noted = OffsetMap(self.map)
        if remembered is not None:
            self.log.memory = [Appended(remembered, remembered, self.log.start - 1)]
        self.mirror = self.start()

    def start(self) -> Mirror:
        async def make() -> Mirror:
            return Mirror()

        return self.runner.run(make())

    def spin(self) -> None:
        """Let everything happen that waits for nothing."""

        async def turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.runner.run(turns())

    def close(self) -> None:
        self.lose_the_connection()
        self.runner.run(self.mirror.lane.close())
        self.runner.close()

    # -- the two logs ----------------------------------------------------------------------------

    def fetched(self, offset: int, items: int) -> Iterator[Batch | Gap]:
        """What is read from an offset on; a batch that holds it is cut there."""
        while offset < self.source_end and items:
            batch, _, end = self.source[offset]
            yield source_batch(offset, end - offset) if batch else Gap(offset, end)
            offset, items = end, items - 1

    def expected(self) -> list[int]:
        """The target's log when all is copied."""
        filler = [MARKER] if self.mode is OffsetMode.SAME else []
        return [
            x for at in range(self.first, self.source_end) for x in ([at] if self.source[at][0] else filler)
        ]

    def end_differs(self, known: Known) -> bool:
        """What the settler finds when it holds the last record of the target against the source's."""
        if not self.log.log:
            return False
        offset = known.to_source(self.log.end - 1)
        return self.log.log[-1] != (offset if self.source[offset][0] else MARKER)

    # -- the mirror ------------------------------------------------------------------------------

    def read(self, number: int) -> None:
        """Fetch a little and send what may be sent."""
        copy = self.mirror.copy
        if copy.copying and copy.fetch_offset < self.source_end:
            buffer = self.mirror.pool.take(1)
            copy.queue.push(list(self.fetched(copy.fetch_offset, 1 + number % 5)), (), buffer)
            buffer.release()
        self.send(0)

    def send(self, _: int) -> None:
        async def offer() -> None:
            if self.mirror.copy.copying and self.mirror.copy.batch_ready:
                self.mirror.lane.offer(self.mirror.copy)

        self.runner.run(offer())
        self.spin()

    def own(self, number: int) -> None:
        """The owner fills the gap ahead, or notes the runs."""
        copy = self.mirror.copy
        if not copy.owner_work or self.foreign:
            return
        if self.mode is OffsetMode.MAPPED:
            if copy.contradicts_map or copy.foresaw_otherwise:
                assert copy.target_next_offset is not None
                self.map.drop_ahead(copy.target_next_offset)
                copy.map_corrected()
            runs = copy.runs_ahead()
            if runs:
                self.map.extend(runs)
                self.ever_noted.extend(runs)
                copy.runs_noted(len(runs), time.monotonic(), self.map.runs_after(runs[-1][1]))
        elif (gap := copy.queue.gap) is not None:
            count = min(gap.offsets, 1 + number % 3)
            self.log.mark(count)
            copy.gap_marked(count, time.monotonic())

    def look(self, _: int) -> None:
        copy = self.mirror.copy
        if copy.look_due_at is None or copy.in_flight:
            return
        known = self.known()
        decision = decide(
            known,
            SourceLook(TOPIC_ID, self.first, self.source_end),
            self.log.look(),
            producer_id=OURS,
            producer_epoch=0,
            wanted="same",
            acknowledged_target_offset=copy.acknowledged_target_offset,
            continue_after_loss=False,
        )
        if isinstance(decision, Stop):
            copy.stop(decision.state, decision.reason, decision.detail, None)
        elif self.end_differs(known):
            copy.stop(State.DIVERGED, Reason.OFFSETS_DIFFER, "the last record is another one", None)
        else:
            assert isinstance(decision, Proceed)
            ahead = self.map.runs_after(self.log.end) if self.mode is OffsetMode.MAPPED else ()
            copy.proceed(decision, self.mode, 0, time.monotonic(), ahead)

    def known(self) -> Known:
        """What the flow remembers of the partition."""
        return Known(
            TOPIC_ID,
            self.mode,
            self.first,
            prepared=True,
            to_source=self.map.position if self.mode is OffsetMode.MAPPED else lambda end: end,
            target_start_offset=self.log.start,
        )

    def doubt(self, _: int) -> None:
        self.mirror.copy.doubt(time.monotonic())

    def look_anew(self, _: int) -> None:
        """An operator says: go on."""
        if not self.excused:
            self.alone = False
            self.mirror.copy.look_anew(time.monotonic())

    def die(self, _: int) -> None:
        """SIGKILL; what was sent may still arrive."""
        if not self.foreign:
            self.alone = False
            self.lose_the_connection()
            self.mirror = self.start()

    # -- the broker ------------------------------------------------------------------------------

    def hear(self, _: int) -> None:
        """The broker takes the next request, and its answer is on the way."""
        connection = self.mirror.connection
        if connection is not None and connection.unheard:
            body, on_answer = connection.unheard.popleft()
            connection.unread.append((bytes(said(*self.log.append(*heard(body)))), on_answer))

    def refuse(self, number: int) -> None:
        """The broker answers with an error, which may or may not mean that nothing was appended."""
        connection = self.mirror.connection
        if connection is not None and connection.unheard and not self.foreign:
            body, on_answer = connection.unheard.popleft()
            code, appended = REFUSALS[number % len(REFUSALS)]
            if appended:
                self.log.append(*heard(body))
            connection.unread.append((bytes(said(code, -1)), on_answer))

    def answer(self, _: int) -> None:
        connection = self.mirror.connection
        if connection is not None and connection.unread:
            body, on_answer = connection.unread.popleft()
            on_answer(memoryview(body))
            self.spin()

    def exchange(self, number: int) -> None:
        """Some requests are heard, and all that were are answered."""
        for _ in range(1 + number % 3):
            self.hear(0)
        for _ in range(4):
            self.answer(0)

    def lose(self, _: int) -> None:
        if not self.foreign:
            self.lose_the_connection()

    def lose_the_connection(self) -> None:
        if self.mirror.connection is not None:
            self.late.append(deque(self.mirror.connection.lose()))
            self.spin()

    def arrive_late(self, number: int) -> None:
        """A request of a lost connection reaches the broker after all; nobody hears of it."""
        if queues := [queue for queue in self.late if queue]:
            self.log.append(*heard(queues[number % len(queues)].popleft()))

    def never_arrive(self, _: int) -> None:
        self.late.clear()

    def forget(self, _: int) -> None:
        """After a day the broker has forgotten the producer; no request lives that long."""
        if not self.unheard_anywhere():
            self.log.memory = None
            self.excused = True

    def forget_the_marker(self, _: int) -> None:
        """Its time has come while requests are on their way."""
        self.log.memory = None

    def truncate(self, number: int) -> None:
        """An unclean election at the target: the end of its log is gone, and the broker's memory with it.

        The mirror looks then. If it did not, only who writes exactly as much as was lost would go unseen, and
        only after the broker has forgotten the producer too.
        """
        kept = max(len(self.log.log) - 1 - number % 4, 0)
        memory = [known for known in self.log.memory or () if self.ends(known) <= self.log.start + kept]
        if memory and not self.unheard_anywhere() and not self.foreign:
            self.excused = True
            self.log.memory = memory
            del self.log.log[kept:], self.log.writers[kept:]
            self.mirror.copy.doubt(time.monotonic())

    def unheard_anywhere(self) -> bool:
        connection = self.mirror.connection
        return any(self.late) or (connection is not None and bool(connection.unheard))

    @staticmethod
    def ends(known: Appended) -> int:
        return known.base_offset + (known.last_sequence - known.first_sequence) % SEQUENCES + 1

    # -- others ----------------------------------------------------------------------------------

    def another_mirror(self, number: int) -> None:
        """Not the owner, with the same flow: it appends what comes next, cut as it likes.

        With an offset map it was the owner, and goes on with what it has noted.
        """
        end, mapped = self.log.end, self.mode is OffsetMode.MAPPED
        at = self.ever_noted.position(end) if mapped else end
        if self.excused or at not in self.source or not self.source[at][0]:
            return
        self.alone = False
        to = min(at + 1 + number % 3, self.source[at][2])
        known = self.log.memory
        sequence = (known[-1].last_sequence + 1) if known else end
        self.log.append(sequence % SEQUENCES, list(range(at, to)))

    def foreign_write(self, _: int) -> None:
        """Somebody produces into the copy: the next answer or the next look tells."""
        if not self.unheard_anywhere() and not self.mirror.copy.in_flight:
            self.foreign = self.excused = True
            self.log.write([STRANGE], FOREIGN)

    # -- what is always true, and what is true in the end ----------------------------------------

    def check(self) -> None:
        """Never a record twice, never one left out, never two in the wrong order, never silence."""
        copy = self.mirror.copy
        assert self.mirror.hooks.crashed is None
        assert self.excused or self.log.log == self.expected()[: len(self.log.log)]
        assert copy.next_offset is None or copy.next_offset <= copy.send_offset <= copy.fetch_offset
        assert copy.state in {State.ACTIVE, State.LAGGING} or (copy.reason and copy.detail)
        assert copy.queue.bytes or copy.in_flight or not self.mirror.pool.used_bytes

    def come_to_an_end(self) -> None:
        """No more accidents: after a while all is copied, or somebody is told why not, with good reason."""
        while any(self.late):
            self.arrive_late(0)
        for _ in range(60):
            for step in (self.look, self.read, self.own, self.send, self.exchange):
                step(2)
            self.check()
        copy = self.mirror.copy
        copy.doubt(time.monotonic())
        self.look(0)
        if self.foreign or copy.state in HOPELESS:
            assert copy.state is State.DIVERGED
            assert self.excused
        else:
            assert self.log.log == self.expected()
            assert copy.next_offset == self.source_end
            assert self.mirror.pool.used_bytes == 0
            if self.alone and not self.excused:
                records = sum(offset != MARKER for offset in self.log.log)
                assert copy.counters.records + copy.counters.duplicates == records
            if self.mode is OffsetMode.MAPPED:
                ours = range(self.log.start, self.log.end)
                assert [self.map.source_of(offset, self.log.end) for offset in ours] == self.log.log


Step = Callable[[World, int], None]
USUAL: list[Step] = [World.look, World.look, World.read, World.own, World.hear, World.answer, World.exchange]
ACCIDENTS: list[Step] = [
    World.refuse,
    World.refuse,
    World.lose,
    World.arrive_late,
    World.never_arrive,
    World.die,
    World.doubt,
    World.look_anew,
    World.another_mirror,
]
DISASTERS: list[Step] = [World.forget, World.truncate, World.foreign_write]


def stories(*disasters: Step) -> st.SearchStrategy[list[tuple[Step, int]]]:
    """What happens, one thing after the other; each with a number that says how much of it, or which."""
    steps = st.sampled_from([*USUAL * 3, *ACCIDENTS * 2, *disasters])
    return st.lists(st.tuples(steps, st.integers(0, 7)), min_size=25, max_size=50)


def live(world: World, story: list[tuple[Step, int]]) -> None:
    world.look(0)
    try:
        for step, number in story:
            step(world, number)
            world.check()
        world.come_to_an_end()
    finally:
        world.close()


shapes = st.lists(st.tuples(st.sampled_from([True, True, False]), st.integers(1, 3)), min_size=1, max_size=14)
"""Batches (True) and gaps of so many offsets."""
memories = st.sampled_from([None, None, 12, SEQUENCES - 4])
"""The last sequence of earlier records that were trimmed away, if there were any."""
first_offsets = st.sampled_from([0, 100])


@settings(deadline=None, max_examples=60)
@given(shape=shapes, first=first_offsets, memory=memories, mode=st.sampled_from(OffsetMode), story=stories())
def test_whatever_happens_on_the_way_the_copy_is_exact(
    shape: list[tuple[bool, int]],
    first: int,
    memory: int | None,
    mode: OffsetMode,
    story: list[tuple[Step, int]],
) -> None:
    """
    Refusals, lost answers, late requests, crashes, a second mirror, a rash operator: all is copied, once,
    in order, at the right offsets, and no partition stands still.
    """
    live(World(shape, first, mode, memory), story)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    first=first_offsets,
    memory=memories,
    mode=st.sampled_from(OffsetMode),
    story=stories(*DISASTERS * 2),
)
def test_a_copy_that_cannot_be_exact_says_so(
    shape: list[tuple[bool, int]],
    first: int,
    memory: int | None,
    mode: OffsetMode,
    story: list[tuple[Step, int]],
) -> None:
    """
    A broker that forgets its producers, a target that loses its end, somebody who writes into the copy: it is
    exact all the same, or DIVERGED.
    """
    live(World(shape, first, mode, memory), story)


def test_the_second_of_two_batches_is_not_appended_without_the_first() -> None:
    """
    A broker that knows nothing of the producer would take it, with any sequence: there is no second one.
    """
    world = World([(True, 1), (True, 1)], 0, OffsetMode.SAME, None)

    live(world, [(World.read, 4), (World.refuse, 2), (World.hear, 0), (World.answer, 0)])

    assert world.log.log == [0, 1]


def test_an_answer_with_another_offset_is_enough_to_know() -> None:
    """
    Somebody wrote before us: the partition stops without another look, and sends nothing more.
    """
    world = World([(True, 1)] * 3, 0, OffsetMode.SAME, 12)
    world.look(0)
    world.foreign_write(0)

    world.read(1)
    world.exchange(0)

    copy = world.mirror.copy
    assert (copy.state, copy.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert "landed at target offset 1 instead of 0" in copy.detail
    assert not copy.batch_ready
    world.close()


def test_a_batch_that_lands_below_where_it_belongs_stops_the_partition() -> None:
    """
    The target has lost its end and forgotten the producer, and took the batch all the same.
    """
    world = World([(True, 1)] * 3, 0, OffsetMode.SAME, 12)
    world.look(0)
    world.read(0)
    world.exchange(0)
    world.log.log.clear()
    world.log.memory = None

    world.read(0)
    world.exchange(0)

    copy = world.mirror.copy
    assert (copy.state, copy.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert "landed at target offset 0 instead of 1" in copy.detail
    world.close()


def test_an_answer_that_cannot_be_read_is_a_doubt() -> None:
    """
    Nobody knows what the broker did: the partition looks, and goes on from what it sees.
    """
    world = World([(True, 1)] * 2, 0, OffsetMode.SAME, 12)
    world.look(0)
    world.read(0)
    world.hear(0)
    connection = world.mirror.connection
    assert connection is not None
    _, on_answer = connection.unread.popleft()

    on_answer(memoryview(b"\xff\xff"))
    world.spin()

    copy = world.mirror.copy
    assert copy.look_due_at is not None
    assert world.mirror.hooks.crashed is None
    world.come_to_an_end()
    assert world.log.log == world.expected()
    world.close()


def test_an_answer_that_is_old_is_a_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A process that was frozen may have been forgotten by the broker: what it still holds is not sent.
    """
    world = World([(True, 1)] * 2, 0, OffsetMode.SAME, 12)
    world.look(0)
    world.read(0)
    world.hear(0)
    long_after = time.monotonic() + IDLE_LOOK_SECONDS + 1
    monkeypatch.setattr("mirror.flow.appending.time.monotonic", lambda: long_after)

    world.answer(0)

    copy = world.mirror.copy
    assert copy.next_offset == 1
    assert copy.look_due_at is not None
    assert not copy.batch_ready
    monkeypatch.undo()
    world.close()


@pytest.mark.parametrize("steady", [False, True])
def test_a_batch_appended_without_the_one_before_is_never_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, *, steady: bool
) -> None:
    """
    The broker forgets the producer, refuses a batch, and would take the next one. For a while after a look
    there is none; later the copy is not exact any more, and says so.
    """
    if steady:
        monkeypatch.setattr(passage, "UNSTEADY_SECONDS", 0.0)
    world = World([(True, 1)] * 6, 0, OffsetMode.SAME, 12)
    first = [(World.read, 0), (World.exchange, 0), (World.forget, 0)]

    live(
        world,
        [*first, (World.read, 4), (World.refuse, 2), (World.hear, 0), (World.answer, 0), (World.answer, 0)],
    )

    assert world.log.log[:2] == [0, 2 if steady else 1]
    assert (world.mirror.copy.state is State.DIVERGED) is steady


def test_no_batch_takes_the_place_of_one_that_is_refused_behind_a_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The broker has forgotten the producer, and then knows it by a marker: it refuses whatever does not begin
    with sequence 0. Once it has forgotten that too it would take the next batch.
    """
    monkeypatch.setattr(passage, "UNSTEADY_SECONDS", 0.0)
    world = World([(True, 1), (False, 1), *[(True, 1)] * 4], 0, OffsetMode.SAME, 12)
    before = [(World.read, 0), (World.exchange, 0), (World.forget, 0), (World.read, 4), (World.own, 0)]

    live(world, [*before, (World.send, 0), (World.hear, 0), (World.forget_the_marker, 0), (World.hear, 0)])

    assert world.log.log == [0, MARKER, 2, 3, 4, 5]


def test_what_the_owner_before_has_noted_stays_true_while_it_still_writes() -> None:
    """
    It has lost the right to write the offset map, and goes on with what it holds: over a gap, and further
    than the broker remembers. Where the copy goes on from is the same as before.
    """
    world = World([(True, 1), (False, 3), *[(True, 1)] * 7], 0, OffsetMode.MAPPED, 12)
    world.read(4)
    world.look(0)
    world.read(4)
    world.own(0)
    world.die(0)
    world.never_arrive(0)

    world.look(0)
    for _ in range(8):
        world.another_mirror(0)
    world.mirror.copy.doubt(time.monotonic())
    world.look(0)

    assert world.mirror.copy.state is State.ACTIVE
    assert world.mirror.copy.next_offset == 11
    world.come_to_an_end()
    world.close()
