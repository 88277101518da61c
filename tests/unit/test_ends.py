"""What is held against the source before a partition goes on: which record, what is kept of its batch, and
what the source has there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given

from checkpoint.errors import UntranslatableError
from checkpoint.offset_map import OffsetMap
from mirror.errors import TwinsiteError
from mirror.flow import ends
from mirror.flow.context import Flow
from mirror.flow.ends import End, compare_ends, end_of, tail_of
from mirror.flow.position import Known, Stop, Tail, TargetLook
from mirror.kafka.fetch import Fetched, FetchLimits, Key, Want
from mirror.kafka.record_batch import TRANSACTIONAL, seal, walk
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.batches import Codec, Entry, codecs, control, dense, entries, v2

ORDERS_0 = TopicPartition("orders", 0)
TAIL = Tail(4711, 490, 10, 0, 7, control=False)
LOOK = TargetLook(100, 500, 399, 0, 0, 4711, TAIL)
SAME = Known("id", OffsetMode.SAME, 100, prepared=True, to_source=lambda end: end, target_start_offset=100)


def tail(view: memoryview) -> Tail:
    ((header, seen),) = walk(view)
    return tail_of(header, seen)


def test_the_last_record_is_looked_for_where_the_source_should_have_it() -> None:
    """
    With the same offsets at the same; with mapped ones where the map says.
    """
    runs = OffsetMap([(100, 0), (300, 150), (900, 499)])
    mapped = replace(SAME, mode=OffsetMode.MAPPED, to_source=runs.position, target_start_offset=0)

    assert end_of(SAME, LOOK, ORDERS_0, 6) == End(ORDERS_0, 499, 499, 6, TAIL)
    assert end_of(replace(mapped, target_start_offset=0), LOOK, ORDERS_0, 6) == End(
        ORDERS_0, 499, 900, 6, TAIL
    )


@pytest.mark.parametrize(
    ("known", "look"),
    [
        pytest.param(SAME, replace(LOOK, tail=None), id="retention has taken the last batch"),
        pytest.param(SAME, replace(LOOK, target_log_end_offset=100), id="nothing was copied yet"),
        pytest.param(replace(SAME, target_start_offset=500), LOOK, id="what is there is of others"),
    ],
)
def test_where_nothing_of_ours_is_nothing_is_compared(known: Known, look: TargetLook) -> None:
    """
    The log end alone says where to go on.
    """
    assert end_of(known, look, ORDERS_0, 6) is None


def test_a_map_that_cannot_say_where_is_not_asked_to_guess() -> None:
    """
    The refusal reaches whoever asks.
    """
    late = replace(SAME, to_source=OffsetMap([(100, 600)]).position, target_start_offset=0)

    with pytest.raises(UntranslatableError):
        end_of(late, LOOK, ORDERS_0, 6)


@given(records=dense(), codec=codecs)
def test_a_copied_batch_has_the_tail_of_its_source(records: list[Entry], codec: Codec) -> None:
    """
    Count, time and CRC of the records are those of the batch that was copied; only the producer is ours.
    """
    source = v2(records, codec=codec, leader_epoch=3, producer=(9, 9, 9))
    copied = memoryview(bytearray(source))
    seal(copied, 4711, 0, 70)

    theirs, ours = tail(source), tail(copied)

    assert ours == replace(theirs, producer_id=4711, base_offset=0)
    assert (theirs.records, theirs.base_offset) == (len(records), records[0].offset)


@given(records=dense())
def test_one_other_byte_is_another_tail(records: list[Entry]) -> None:
    """
    Whatever it is that differs: key, value, header or time.
    """
    first = records[0]
    others = [
        first._replace(value=(first.value or b"") + b"x"),
        first._replace(key=(first.key or b"") + b"x"),
        first._replace(headers=(*first.headers, ("x", None))),
        first._replace(timestamp_ms=first.timestamp_ms + 1),
    ]

    tails = [tail(v2([other, *records[1:]])) for other in others]

    assert tail(v2(records)) not in tails


def test_a_marker_is_told_from_a_record() -> None:
    """
    It stands where the source has none.
    """
    assert tail(control(5, 4711, 1)).control
    assert not tail(v2([Entry(5)])).control


# -- held against the source ---------------------------------------------------------------------


class Clusters:
    """A source and a target that hold one batch each.

    Attributes:
        diverging: What the source says of a log that is not what was copied, (epoch, end offset).
        asked: What each was asked for.
    """

    def __init__(
        self, source: memoryview | None, target: memoryview, aborted: Sequence[tuple[int, int]]
    ) -> None:
        info = SimpleNamespace(partition=lambda _: SimpleNamespace(leader_epoch=4), leader=lambda _: 1)
        self.source = SimpleNamespace(name="source", info=info)
        self.target = SimpleNamespace(name="target", info=info)
        self.limits = SimpleNamespace(fetch=FetchLimits())
        self.comparing = asyncio.Lock()
        self.diverging: tuple[int, int] | None = None
        self.asked: dict[str, Want] = {}
        self._held = {"source": source, "target": target}
        self._aborted = list(aborted)

    async def peek_at(
        self, cluster: Any, _node: int, wants: Mapping[TopicPartition, Want], *_: object
    ) -> dict[TopicPartition, Fetched]:
        [(tp, want)] = wants.items()
        self.asked[cluster.name] = want
        held = self._held[cluster.name]
        if held is None and self.diverging is None:
            return {}
        aborted, diverging = (self._aborted, self.diverging) if cluster is self.source else ([], None)
        records = memoryview(b"") if held is None or diverging else held
        return {tp: Fetched(Key(b"t" * 16, 0), 0, 500, 500, 0, diverging, aborted, records)}


Held = Callable[..., Awaitable[Stop | TwinsiteError | None]]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """The last record of a target's batch against what the source has there."""

    async def compared(
        target: memoryview,
        source: memoryview | None,
        *,
        at: int = 19,
        epoch: int = 1,
        aborted: Sequence[tuple[int, int]] = (),
        diverging: tuple[int, int] | None = None,
    ) -> Stop | TwinsiteError | None:
        clusters = Clusters(source, target, aborted)
        clusters.diverging = diverging
        monkeypatch.setattr(ends, "peek_at", clusters.peek_at)
        end = End(ORDERS_0, at, at, epoch, tail(target))
        answers = await compare_ends(cast(Flow, clusters), {ORDERS_0: end})
        assert clusters.asked["source"] == Want(at, 4, epoch, ends.PARTITION_BYTES_MAX)
        return answers[ORDERS_0]

    return compared


ABORTED = [(77, 10)]


def transactional(records: Sequence[Entry]) -> memoryview:
    """A batch of the transaction that ``ABORTED`` names."""
    return v2(records, attributes=TRANSACTIONAL, producer=(77, 0, 0))


@pytest.mark.parametrize("at", [15, 19])
async def test_a_record_where_the_source_has_an_aborted_one_is_found(held: Held, at: int) -> None:
    """
    A reader is given nothing there; the target can only have it where what is before it is shifted.
    """
    target = v2(entries(10, 10, b"shifted")[: at - 9])

    seen = await held(target, transactional(entries(10, 10)), at=at, aborted=ABORTED)

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert f"target offset {at} holds a record where the source has an aborted one" in seen.detail


async def test_an_aborted_record_that_was_copied_before_the_isolation_was_changed_passes(held: Held) -> None:
    """
    With ``read_uncommitted`` it was to be copied, and it is the same one.
    """
    same = entries(10, 5)

    assert await held(v2(same), transactional(entries(10, 10)), at=14, aborted=ABORTED) is None
    assert await held(transactional(same), transactional(same), at=14, aborted=ABORTED) is None


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(None, id="all of it"),
        pytest.param(transactional(entries(10, 3)[:2]), id="the last records of the log"),
        pytest.param(
            v2([], attributes=TRANSACTIONAL, producer=(77, 0, 0), base_offset=10, last_offset=19),
            id="a batch",
        ),
        pytest.param(transactional([*entries(10, 3), Entry(25)]), id="records within a batch"),
    ],
)
async def test_what_compaction_has_taken_away_of_an_aborted_transaction_passes(
    held: Held, source: memoryview | None
) -> None:
    """
    It was copied with ``read_uncommitted``, or was none; nobody can tell any more.
    """
    assert await held(v2(entries(10, 10)), source, aborted=ABORTED) is None


async def test_a_marker_stands_for_an_aborted_record(held: Held) -> None:
    """
    That is how a gap is filled; where a reader gets a record it came too late.
    """
    marker, aborted = control(15, 4711, 1), transactional(entries(10, 10))

    filled = await held(marker, aborted, at=15, aborted=ABORTED)
    late = await held(marker, aborted, at=15)

    assert filled is None
    assert isinstance(late, Stop)
    assert "a control marker where the source has a record" in late.detail


async def test_a_source_that_has_replaced_what_was_copied_says_so_when_it_is_asked(held: Held) -> None:
    """
    It does not answer with the record then: of the epoch under which that was copied it has nothing there.
    """
    seen = await held(v2(entries(10, 10)), None, diverging=(1, 15))

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.SOURCE_TRUNCATED)
    assert "copied up to 20, but the source's leader epoch 1 ends at 15" in seen.detail
