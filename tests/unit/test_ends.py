"""What is held against the source before a partition goes on: which record, and what is kept of its batch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given

from checkpoint.errors import UntranslatableError
from checkpoint.offset_map import OffsetMap
from mirror.flow import ends
from mirror.flow.context import Flow
from mirror.flow.ends import End, compare_ends, end_of, tail_of
from mirror.flow.position import Known, Stop, Tail, TargetLook
from mirror.kafka.fetch import Fetched, Key
from mirror.kafka.peek import AT_ONCE
from mirror.kafka.record_batch import seal, walk
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.batches import Codec, Entry, codecs, control, dense, v2

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
    copied = v2(records, codec=codec, leader_epoch=3, producer=(9, 9, 9))
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


@pytest.mark.parametrize(
    ("value", "stops"), [pytest.param(b"later", True, id="another"), pytest.param(b"aborted", False, id="it")]
)
async def test_a_record_where_the_source_has_an_aborted_one_is_that_or_another_one(
    monkeypatch: pytest.MonkeyPatch, value: bytes, stops: bool
) -> None:
    """
    It was copied if uncommitted records were read then; else the offset map has lost where it belongs.
    """
    aborted = v2(
        [Entry(7, value=b"aborted"), Entry(8, value=b"aborted")], attributes=0x10, producer=(9, 0, 0)
    )
    copy = v2([Entry(7, value=value)])
    source, target = (SimpleNamespace(info=SimpleNamespace(partition=lambda _: None)) for _ in range(2))
    limits = SimpleNamespace(fetch=AT_ONCE)
    flow = cast(Flow, SimpleNamespace(source=source, target=target, limits=limits))
    held = {id(source): fetched(aborted, aborted=[(9, 7)]), id(target): fetched(copy)}

    async def peek_at(cluster: object, *_: object) -> dict[TopicPartition, Fetched]:
        return {ORDERS_0: held[id(cluster)]}

    monkeypatch.setattr(ends, "peek_at", peek_at)

    found = await compare_ends(flow, {ORDERS_0: End(ORDERS_0, 7, 7, -1, tail(copy))})

    stop = found[ORDERS_0]
    assert isinstance(stop, Stop) == stops
    if isinstance(stop, Stop):
        assert (stop.state, stop.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)


def fetched(view: memoryview, aborted: list[tuple[int, int]] | None = None) -> Fetched:
    """What a broker says of a partition with one batch."""
    return Fetched(Key(bytes(16), 0), 0, 100, 100, 0, None, aborted or [], view)


def test_a_marker_is_told_from_a_record() -> None:
    """
    It stands where the source has none.
    """
    assert tail(control(5, 4711, 1)).control
    assert not tail(v2([Entry(5)])).control
