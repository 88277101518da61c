"""What a repair appends, and what it leaves, without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint.model import Insertion
from mirror.errors import TwinsiteError
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.inserting import Standing
from mirror.flow.position import Proceed
from mirror.flow.records import Record, key_of
from mirror.kafka.record_batch import walk
from mirror.kafka.varint import encode_varint
from mirror.model import TopicPartition
from mirror.repairing import partition as repairing
from mirror.repairing.bounds import Bounds
from mirror.repairing.model import Repaired, Status, Wanted
from spark_jobs.findings import Kind
from spark_jobs.plan import Mend, PartitionPlan
from spark_jobs.window import Range

ORDERS_0 = TopicPartition("orders", 0)
END = 1_000
"""Where the target's log ends."""


def record(offset: int, key: bytes | None) -> Record:
    tail = encode_varint(-1) if key is None else encode_varint(len(key)) + key
    return Record(offset, 1_000 + offset, tail + encode_varint(1) + b"v" + b"\0")


def missing(offset: int, key: bytes) -> Mend:
    return Mend(kind=Kind.MISSING, key=key, source_offset=offset, target_offset=None)


def extra(offset: int, key: bytes) -> Mend:
    return Mend(kind=Kind.RESURRECTED, key=key, source_offset=None, target_offset=offset)


class Target:
    """A broker that appends what it takes.

    Attributes:
        refuses: Whether it will not have a key, and the whole batch with it.
        batches: The keys that were sent, batch by batch.
        appended: The keys that stand.
        fails: What fails once something stands: ``append``, its answer; ``audit``, the line that says so;
            ``behind``, the look at what was written before it.
    """

    fails = ""

    def __init__(self, refuses: Callable[[bytes | None], bool]) -> None:
        self._refuses = refuses
        self.batches: list[list[bytes | None]] = []
        self.appended: list[bytes | None] = []
        self.audit: list[Mapping[str, object]] = []

    @property
    def end(self) -> int:
        return END + len(self.appended)

    async def finish(self, *_: Any) -> Standing:
        insertion: Insertion = _[-1]
        keys = [key_of(one) for one in decode(*next(walk(memoryview(insertion.batch))), DECODED_BYTES_MAX)[0]]
        self.batches.append(keys)
        if any(map(self._refuses, keys)):
            return Standing(None, "append to orders-0: INVALID_RECORD")
        at = self.end
        self.appended += keys
        self.fail("append")
        return Standing(at)

    def note(self, line: Mapping[str, object]) -> None:
        self.audit.append(line)
        self.fail("audit")

    def fail(self, what: str) -> None:
        if self.appended and self.fails == what:
            raise TwinsiteError(f"{what} fails")


class Repair(repairing.PartitionRepair):
    """One that reads and writes nothing but these."""

    target: Target
    records: Mapping[int, Record]

    async def _make_ready(self) -> None:
        """Nothing stands in the way."""

    async def _offset_at(self, timestamp: int) -> int:
        return self.target.end

    async def _place(self) -> Proceed:
        return Proceed(
            next_offset=0, target_next_offset=self.target.end, sequence=0, coordinator_epoch=0, skip_to=0
        )

    async def _read_behind(self, end: int, bounds: Bounds) -> None:
        """Nobody else writes."""
        self.target.fail("behind")

    async def _still_there(self, *_: Any) -> dict[int, Record]:
        offsets: Collection[int] = _[-1]
        return {offset: self.records[offset] for offset in offsets}


async def repaired(
    monkeypatch: pytest.MonkeyPatch, target: Target, mends: Sequence[Mend], records: Mapping[int, Record]
) -> Repaired:
    async def nothing(*_: Any) -> None:
        """It is there already."""

    plan = PartitionPlan(
        name=ORDERS_0,
        target_topic="orders",
        topic_id="id",
        is_compacted=True,
        target_end=END,
        mends=mends,
        beyond_repair=[],
        unnamed=0,
        pending=Range(0, 0),
    )
    part = SimpleNamespace(
        flow=SimpleNamespace(producer_id=7, source=None, target=None),
        memory=SimpleNamespace(begin_insertion=nothing),
        be_owner=nothing,
        bounds={"orders": Bounds(1 << 20, 86_400_000)},
    )
    monkeypatch.setattr(repairing, "finish", target.finish)
    now_ms = round(time.time() * 1000)
    work = Repair(cast(Any, part), plan, Wanted(apply=True), target.note, made_at_ms=now_ms)
    work.target, work.records = target, records
    return await work.run()


async def test_nothing_is_deleted_or_appended_for_a_record_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A tombstone for it would be one for the empty key, which is another.
    """
    mends = [extra(5, b""), missing(6, b""), extra(7, b""), missing(8, b"k")]
    records = {5: record(5, None), 6: record(6, None), 7: record(7, b""), 8: record(8, b"k")}
    target = Target(lambda key: key is None)

    done = await repaired(monkeypatch, target, mends, records)

    assert [step.status for step in done.steps] == [
        Status.NOT_THERE,
        Status.NOT_THERE,
        Status.APPENDED,
        Status.APPENDED,
    ]
    assert target.appended == [b"", b"k"]


@pytest.mark.parametrize("bad", [{0}, {299}, {300, 301}, {7, 250, 599}, set(range(100, 120))])
async def test_a_record_that_the_broker_refuses_holds_up_no_other(
    bad: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A batch is refused whole, and for ever: it is halved until the record is known.
    """
    keys = [b"k%d" % at for at in range(600)]
    records = {at: record(at, key) for at, key in enumerate(keys)}
    target = Target(lambda key: key in {keys[at] for at in bad})

    done = await repaired(monkeypatch, target, [missing(at, key) for at, key in enumerate(keys)], records)

    assert [step.mend.key for step in done.steps] == keys
    assert {at for at, step in enumerate(done.steps) if step.status is Status.REFUSED} == bad
    assert {step.why for step in done.steps} == {"", "append to orders-0: INVALID_RECORD"}
    assert target.appended == [key for at, key in enumerate(keys) if at not in bad]
    assert [step.at for step in done.steps if step.at is not None] == [*range(END, target.end)]
    assert not done.why_not
    assert len(target.batches) <= 3 + 30 * len(bad)


async def test_a_broker_that_takes_nothing_is_not_asked_for_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What stands in the way is said of the partition.
    """
    keys = [b"k%d" % at for at in range(600)]
    records = {at: record(at, key) for at, key in enumerate(keys)}
    target = Target(lambda _: True)

    done = await repaired(monkeypatch, target, [missing(at, key) for at, key in enumerate(keys)], records)

    assert done.why_not == "append to orders-0: INVALID_RECORD"
    assert {step.status for step in done.steps} == {Status.REFUSED}
    assert len(done.steps) == len(keys)
    assert len(target.batches) < 120


@pytest.mark.parametrize(
    ("fails", "status"),
    [("behind", Status.APPENDED), ("audit", Status.APPENDED), ("append", Status.BEGUN)],
)
async def test_a_batch_that_stands_is_not_called_refused_though_the_repair_fails_right_after_it(
    fails: str, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One of which nothing was answered may stand; what comes after it was not sent.
    """
    keys = [b"k%d" % at for at in range(300)]
    records = {at: record(at, key) for at, key in enumerate(keys)}
    target = Target(lambda _: False)
    target.fails = fails

    done = await repaired(monkeypatch, target, [missing(at, key) for at, key in enumerate(keys)], records)

    assert done.why_not == f"{fails} fails"
    assert [step.mend.key for step in done.steps] == keys
    assert target.appended == keys[:200]
    assert [step.status for step in done.steps] == [status] * 200 + [Status.REFUSED] * 100
