"""Repair one partition: first make it ready, then put differences right, batch by batch.

:mod:`mirror.repairing.accepting` decides what may stay as it is, :mod:`mirror.repairing.bounds` how much goes
into a batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from checkpoint.insertions import Inserted
from checkpoint.model import Insertion
from mirror.errors import TwinsiteError
from mirror.flow.facts import Known
from mirror.flow.foreign import foreign_stretches
from mirror.flow.inserting import PRODUCER_EPOCH_MAX, Standing, finish, insertion_of, stands_at
from mirror.flow.position import Decision, Insert, Proceed, Stop
from mirror.flow.reading import read_batches, read_records, read_some
from mirror.flow.records import Record, key_of, tombstone
from mirror.kafka.cluster import Cluster
from mirror.kafka.offsets import EARLIEST, LATEST, offsets_of_all
from mirror.model import OffsetMode, Reason, TopicPartition
from mirror.repairing.accepting import acceptable, check_inserted
from mirror.repairing.bounds import Bounds
from mirror.repairing.model import Begun, Note, RefusedError, Repaired, Status, Step, Wanted
from mirror.repairing.part import FOREIGN, KnownOf, Part
from spark_jobs.plan import Mend, PartitionPlan
from spark_jobs.result import key_text

MENDS_AT_ONCE = 200
"""How many differences have their records read together; also the most in one batch."""
REFUSALS_MAX = 100
"""How many records the broker may refuse one by one; with more, their contents are hardly the cause."""
KEYS_BEHIND_MAX = 2_000_000
"""How many records may follow what the plan has seen; with more, a new plan is cheaper than their keys."""

T = TypeVar("T")


class PartitionRepair:
    """A partition while it is repaired."""

    def __init__(
        self,
        part: Part,
        plan: PartitionPlan,
        wanted: Wanted,
        note: Note,
        *,
        made_at_ms: int,
        begun: Begun | None = None,
    ) -> None:
        self._part, self._flow, self._memory = part, part.flow, part.memory
        self._plan, self._wanted, self._note = plan, wanted, note
        self._done = Repaired(plan)
        self._read_to, self._read_at_ms = plan.target_end, made_at_ms
        self._begun = begun
        self._seen: dict[Mend, Record | None] = {}
        self._at_once = MENDS_AT_ONCE
        """Records in a batch at most; fewer after the broker has refused one, until the record is found."""
        self._refusals = 0
        self._behind: set[bytes | None] = set()
        """Keys that others have written at the target after what the plan has seen."""

    async def run(self) -> Repaired:
        try:
            await self._make_ready()
            if self._wanted.accept:
                await self._accept()
            while left := self._left():
                await self._mend_some(left)
        except TwinsiteError as refusal:
            self._done.why_not = str(refusal)
            self._done.steps += [Step(mend, Status.REFUSED) for mend in self._left()]
        return self._done

    def _left(self) -> Sequence[Mend]:
        """The differences that nothing has become of yet; they are dealt with in their order."""
        return self._plan.mends[len(self._done.steps) :]

    async def _make_ready(self) -> None:
        """Check that the partition may be written to, and record in the flow's state what it has become.

        Raises:
            RefusedError: It may not be written to.
            TwinsiteError: A request to a cluster fails.
        """
        if self._wanted.apply:
            await self._part.be_owner()
        decision = await self._decide()
        if isinstance(decision, Insert) and self._wanted.apply:
            await self._finish(decision.insertion)
            decision = await self._decide()
        if isinstance(decision, Stop) and decision.reason is Reason.ANOTHER_FLOW:
            raise RefusedError(decision.detail)
        known = self._known()
        if self._begun is not None and known.insertion is None and self._wanted.apply:
            await self._tell_end(self._begun, known)
        self._done.foreign = await self._foreign(known, decision)
        keeps_offsets = known.mode is OffsetMode.SAME
        check_inserted(self._plan, self._done.foreign, self._wanted, keeps_offsets=keeps_offsets)
        self._done.becomes_mapped = keeps_offsets and bool(self._plan.mends or self._done.foreign)
        if self._wanted.apply:
            await self._become_what_it_is()

    async def _become_what_it_is(self) -> None:
        name, done = self._plan.name, self._done
        if done.becomes_mapped:
            self._say("becomes_mapped")
            await self._memory.become_mapped(name)
        if done.foreign:
            self._say("left_where_it_is", target_offsets=[list(one) for one in done.foreign])
            await self._memory.note_inserted(name, done.foreign)

    async def _accept(self) -> None:
        """Accept what differs; nothing more if records of others stay, as what they shifted is in place then.

        Raises:
            RefusedError: That would hide more than the differences that the plan names, or too much.
            UntranslatableError: It is not known where a record belongs.
        """
        if self._done.foreign:
            return
        name, end = self._plan.name, self._plan.target_end
        place = partial(self._memory.translate, name, reverse=False, target_log_end=end)
        self._done.accepted = acceptable(self._plan, place)
        if self._done.accepted and self._wanted.apply:
            self._say("accepted", target_offsets=[list(one) for one in self._done.accepted])
            await self._memory.note_accepted(name, self._done.accepted)

    def _known(self) -> Known:
        known = self._memory.known(self._plan.name)
        if known is None:
            raise RefusedError(f"flow {self._flow.name} does not copy it")
        if known.topic_id != self._plan.topic_id:
            raise RefusedError("the topic was created again at the source since the plan was made")
        return known

    async def _foreign(self, known: Known, decision: Decision) -> Sequence[Inserted]:
        """What others have written, if the copy has stopped because of it and could go on after it.

        Raises:
            RefusedError: The copy has stopped for another reason, or could not go on.
        """
        if isinstance(decision, Proceed | Insert):
            return ()
        if not isinstance(decision, Stop) or decision.reason not in FOREIGN or known.shared:
            raise RefusedError(_why_not(decision))
        start = max(known.target_start_offset, await self._offset_at(EARLIEST))
        end = await self._offset_at(LATEST)
        batches = read_batches(self._flow.target, self._plan.target_name, start, end)
        headers = [header async for header, _ in batches]
        found = foreign_stretches(headers, known.insertions, self._flow.producer_id, start, end)
        if found:
            then = await self._decide(lambda name: self._memory.known_mapped(name, found))
            if isinstance(then, Proceed):
                return found
            raise RefusedError(
                f"{_why_not(decision)}; and even without what others have written: {_why_not(then)}"
            )
        raise RefusedError(_why_not(decision))

    # -- where it goes on ------------------------------------------------------------------------

    async def _decide(self, known_of: KnownOf | None = None) -> Decision:
        """What a mirror would do with the partition now.

        Raises:
            TwinsiteError: It cannot be looked at.
        """
        names = {self._plan.name: self._plan.target_name}
        found = await self._part.decisions(names, known_of or (lambda _: self._known()))
        decision: Decision | TwinsiteError = found[self._plan.name]
        if isinstance(decision, TwinsiteError):
            raise decision
        return decision

    async def _offset_at(self, timestamp: int) -> int:
        """Where the target's log starts, or ends."""
        target = self._plan.target_name
        return (await offsets_of_all(self._flow.target, [target], timestamp))[target]

    async def _place(self) -> Proceed:
        """Where the next batch goes.

        Raises:
            RefusedError: Nothing may be appended.
        """
        while True:
            decision = await self._decide()
            match decision:
                case Proceed():
                    return decision
                case Insert(insertion):
                    await self._finish(insertion)
                case _:
                    raise RefusedError(_why_not(decision))

    # -- what is appended ------------------------------------------------------------------------

    async def _mend_some(self, left: Sequence[Mend]) -> None:
        """Put right the first of those that are left."""
        some = left[:MENDS_AT_ONCE]
        records = await self._records(some)
        bounds = _answered(self._part.bounds[self._plan.target_topic])
        group = some[: min(self._at_once, bounds.fitting([records.get(mend) for mend in some]))]
        await self._read_behind(await self._offset_at(LATEST), bounds)  # may take long: before it is our turn
        if not self._wanted.apply:
            self._done.steps += [self._step(mend, records.get(mend), bounds) for mend in group]
            return
        await self._part.be_owner()
        place = await self._place()
        await self._read_behind(place.target_next_offset, bounds)
        steps = {mend: self._step(mend, records.get(mend), bounds) for mend in group}
        if any(step.status is Status.PLANNED for step in steps.values()):
            await self._append(steps, records, place, bounds)
        else:
            self._done.steps += steps.values()

    async def _records(self, mends: Sequence[Mend]) -> dict[Mend, Record]:
        """What to append for each, if it can be read and is what the plan names.

        Each record is read only once: it may be far away.
        """
        unread = [mend for mend in mends if mend not in self._seen]
        here = {mend.source_offset: mend for mend in unread if mend.source_offset is not None}
        there = {
            mend.target_offset: mend
            for mend in unread
            if mend.source_offset is None and mend.target_offset is not None
        }
        originals = await self._still_there(self._flow.source, self._plan.name, here)
        copies = await self._still_there(self._flow.target, self._plan.target_name, there)
        found = {here[offset]: record for offset, record in originals.items()}
        found |= {there[offset]: record for offset, record in copies.items()}
        right = {mend: _to_append(mend, record) for mend, record in found.items()}
        self._seen = {mend: right.get(mend, self._seen.get(mend)) for mend in mends}
        return {mend: record for mend, record in self._seen.items() if record is not None}

    async def _still_there(
        self, cluster: Cluster, tp: TopicPartition, offsets: Collection[int]
    ) -> dict[int, Record]:
        start = (await offsets_of_all(cluster, [tp], EARLIEST))[tp]
        return await read_some(cluster, tp, [offset for offset in offsets if offset >= start])

    async def _read_behind(self, end: int, bounds: Bounds) -> None:
        """Note which keys were written since the last time, up to a target offset.

        Raises:
            RefusedError: The log has become shorter, too much was written, or tombstones may be gone.
        """
        now_ms = _now_ms()
        if end < self._read_to:
            raise RefusedError(f"the target ended at {self._read_to} and now ends at {end}: reconcile again")
        if end - self._read_to + len(self._behind) > KEYS_BEHIND_MAX:
            raise RefusedError(f"more than {KEYS_BEHIND_MAX} records were copied meanwhile: reconcile again")
        if outlived := bounds.outlived(now_ms - self._read_at_ms):
            raise RefusedError(outlived)
        async for record in read_records(self._flow.target, self._plan.target_name, self._read_to, end):
            self._behind.add(key_of(record))
        self._read_to, self._read_at_ms = end, now_ms

    def _step(self, mend: Mend, record: Record | None, bounds: Bounds) -> Step:
        """What is to be done about a difference."""
        if record is None:
            return Step(mend, Status.NOT_THERE, why="run `twinsite reconcile` again")
        if key_of(record) in self._behind:
            return Step(mend, Status.MOVED_ON)
        too_large = bounds.too_large(record)
        return Step(mend, Status.TOO_LARGE, why=too_large) if too_large else Step(mend, Status.PLANNED)

    async def _append(
        self, steps: dict[Mend, Step], records: Mapping[Mend, Record], place: Proceed, bounds: Bounds
    ) -> None:
        """Append the records of the steps that are planned, and note at once what has become of all of them.

        If the broker refuses a batch of several, it is not known which of them it refuses: all steps are left
        for smaller batches.

        Raises:
            RefusedError: Nothing more may be appended, or too much was refused.
            TwinsiteError: A request fails, perhaps after the batch was appended.
        """
        if place.producer_epoch >= PRODUCER_EPOCH_MAX:
            raise RefusedError(f"it was repaired {place.producer_epoch} times: copy the topic again")
        mends = [mend for mend, step in steps.items() if step.status is Status.PLANNED]
        run = [records[mend] for mend in mends]
        insertion = insertion_of(run, self._flow.producer_id, place.producer_epoch, place.target_next_offset)
        self._say(
            "appends",
            target_offset=insertion.target_offset,
            producer_epoch=insertion.producer_epoch,
            records=[_said(mend) for mend in mends],
        )
        done, before = self._done.steps, len(self._done.steps)
        done += (steps | {mend: Step(mend, Status.BEGUN) for mend in mends}).values()
        await self._memory.begin_insertion(self._plan.name, insertion)
        standing = await finish(self._flow, self._memory, self._plan.name, self._plan.target_name, insertion)
        ended = _ended(mends, records, standing)
        done[before:] = (steps | ended).values() if ended else ()
        self._say_ends(standing, insertion)
        if standing.at is None:
            self._note_refusal(len(mends), standing.refusal)
            return
        self._at_once = min(2 * self._at_once, MENDS_AT_ONCE)
        await self._read_behind(standing.at, bounds)  # a mirror may have written before it heard of this
        self._read_to = standing.at + len(mends)

    def _note_refusal(self, records: int, why: str) -> None:
        """Try smaller batches after one of several records was refused for good; count those of one.

        Raises:
            RefusedError: Too many were refused.
        """
        if records > 1:
            self._at_once = records // 2
            return
        self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            raise RefusedError(why)

    async def _finish(self, insertion: Insertion) -> None:
        """Complete an insertion that an earlier repair began, and report its end.

        Raises:
            RefusedError: Nothing may be written: ``--apply`` was not given.
        """
        if not self._wanted.apply:
            raise RefusedError("an earlier repair was interrupted here: run it again with --apply")
        name, target = self._plan.name, self._plan.target_name
        self._say_ends(await finish(self._flow, self._memory, name, target, insertion), insertion)
        self._begun = None

    def _say_ends(self, standing: Standing, insertion: Insertion) -> None:
        self._say_end(standing, records=insertion.records)
        if standing.again is not None:
            keys = [key_text(key) for key in sorted(standing.overtaken)]
            self._say_end(standing.again, records=len(keys), again=keys)

    def _say_end(self, standing: Standing, **fields: object) -> None:
        if standing.at is None:
            self._say("refused", why=standing.refusal, **fields)
        else:
            self._say("appended", target_offset=standing.at, **fields)

    async def _tell_end(self, begun: Begun, known: Known) -> None:
        """Report what has become of a batch that an earlier repair began. A mirror has completed it since; or
        that repair did, and was killed before it could report it.
        """
        start = max(begun.target_offset, await self._offset_at(EARLIEST))
        ranges = known.insertions.behind(start)
        at = await stands_at(self._flow, self._plan.target_name, begun.producer_epoch, ranges)
        if at is not None:
            self._say("appended", target_offset=at, records=begun.records, seen_later=True)
        elif known.producer_epoch < begun.producer_epoch:
            self._say("not_appended", records=begun.records)
        else:
            self._say("not_seen", records=begun.records)

    def _say(self, event: str, **fields: object) -> None:
        topic, partition = self._plan.target_name
        self._note({"event": event, "topic": topic, "partition": partition, **fields})


def _answered(answer: T | TwinsiteError) -> T:
    if isinstance(answer, TwinsiteError):
        raise answer
    return answer


def _to_append(mend: Mend, record: Record) -> Record | None:
    """What puts a key right, given the record that the plan names; None if that has another key, or none."""
    key = key_of(record)
    if key is None or not key.startswith(mend.key):
        return None
    return record if mend.source_offset is not None else tombstone(record.offset, key, _now_ms())


def _ended(mends: Sequence[Mend], records: Mapping[Mend, Record], standing: Standing) -> dict[Mend, Step]:
    """What has become of the records of a batch; empty if one of several is refused: which is not known."""
    if standing.at is None:
        return {mend: Step(mend, Status.REFUSED, why=standing.refusal) for mend in mends if len(mends) == 1}
    overtaken = {mend for mend in mends if key_of(records[mend]) in standing.overtaken}
    return {
        mend: Step(mend, Status.MOVED_ON if mend in overtaken else Status.APPENDED, at)
        for at, mend in enumerate(mends, standing.at)
    }


def _why_not(decision: Decision) -> str:
    if isinstance(decision, Stop):
        return f"{decision.state}: {decision.detail}"
    return "it is not copied yet, or not at the moment"


def _said(mend: Mend) -> dict[str, object]:
    return {
        "kind": mend.kind,
        "key": key_text(mend.key),
        "source_offset": mend.source_offset,
        "target_offset": mend.target_offset,
    }


def _now_ms() -> int:
    return round(time.time() * 1000)
