"""What a fetched record set means for the target, held against what a consumer of the source sees."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import calc_crc32c

from mirror.errors import CorruptBatchError, RecordTooLargeError, UnreadableBatchError
from mirror.flow.intake import _OF_PLAIN, Intake, take
from mirror.flow.misplaced import Asked
from mirror.kafka.record_batch import LOG_APPEND_TIME, TRANSACTIONAL
from mirror.model import Batch, Gap
from tests.unit.batches import (
    HEADER,
    OLD_CODECS,
    Codec,
    Entry,
    codecs,
    control,
    entries,
    old,
    read_v2,
    v2,
    with_header,
)

NO_LIMIT = 1 << 30
APPENDED_MS = 1_600_000_000_000


# -- a log and what consumers see of it ----------------------------------------------------------


@dataclass
class Log:
    """A source partition as it lies on disk, and beside it what a read_committed consumer gets.

    Attributes:
        stored: Each batch with the offset after it, and its leader epoch; -1 where the format has none.
        visible: The records of transactions that were not aborted, by offset.
        aborted: (producer id, first offset, offset of the marker) of those that were.
    """

    start: int = 0
    end: int = 0
    epoch: int = 0
    stored: list[tuple[memoryview, int, int]] = field(default_factory=list)
    visible: dict[int, Entry] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    open: dict[int, list[Entry]] = field(default_factory=dict)

    def store(
        self, view: memoryview, records: Sequence[Entry], offsets: int, epoch: int | None = None
    ) -> None:
        self.visible.update({record.offset: record for record in records})
        self.end += offsets
        self.stored.append((view, self.end, self.epoch if epoch is None else epoch))

    def transact(self, producer_id: int, records: list[Entry], view: memoryview) -> None:
        self.open.setdefault(producer_id, []).extend(records)
        self.store(view, (), len(records))

    def finish(self, producer_id: int, *, abort: bool) -> None:
        records = self.open.pop(producer_id, [])
        if abort and records:
            self.aborted.append((producer_id, records[0].offset, self.end))
        kept = () if abort else records
        self.store(control(self.end, producer_id, 0 if abort else 1, self.epoch), kept, 1)

    def fetch(self, offset: int, bytes_max: int = NO_LIMIT) -> tuple[memoryview, list[tuple[int, int]]]:
        """As a broker answers: from the batch that holds the offset on, cut anywhere, at least one whole."""
        views = [view for view, end, _ in self.stored if end > offset]
        whole = b"".join(bytes(view) for view in views)
        data = whole[: max(bytes_max, len(views[0]) if views else 0)]
        aborted = [(who, first) for who, first, marker in self.aborted if marker >= offset]
        return memoryview(bytearray(data)), aborted

    def seen(self, offset: int) -> list[Entry]:
        return [record for at, record in sorted(self.visible.items()) if at >= offset]


producer_ids = st.sampled_from([7, 8, 9])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Up to a dozen batches of every kind that a broker may have on disk, old ones first."""
    log = Log()
    log.start = log.end = draw(st.integers(0, 500))
    for _ in range(draw(st.integers(0, 3))):
        _store_old(draw, log)
    for _ in range(draw(st.integers(0, 8))):
        log.epoch += draw(st.sampled_from([0, 0, 0, 1, 3]))
        draw(
            st.sampled_from(
                [_store_plain, _store_compacted, _store_append_time, _transact, _transact, _finish]
            )
        )(draw, log)
    for producer_id in list(log.open):
        log.finish(producer_id, abort=draw(st.booleans()))
    return log


def _store_old(draw: st.DrawFn, log: Log) -> None:
    magic, codec = draw(st.sampled_from([0, 1])), draw(st.sampled_from(OLD_CODECS))
    records = entries(log.end, draw(st.integers(1, 3)))
    known = [r._replace(timestamp_ms=-1) for r in records] if magic == 0 else records
    log.store(old(0 if magic == 0 else 1, records, codec=codec), known, len(records), epoch=-1)


def _store_plain(draw: st.DrawFn, log: Log) -> None:
    records = entries(log.end, draw(st.integers(1, 4)))
    log.store(v2(records, codec=draw(codecs), leader_epoch=log.epoch), records, len(records))


def _store_compacted(draw: st.DrawFn, log: Log) -> None:
    """Any of the records may be gone, all of them too."""
    records = entries(log.end, draw(st.integers(1, 6)))
    left = [record for record in records if draw(st.booleans())]
    first, last = records[0].offset, records[-1].offset
    view = v2(left, codec=draw(codecs), leader_epoch=log.epoch, base_offset=first, last_offset=last)
    log.store(view, left, len(records))


def _store_append_time(draw: st.DrawFn, log: Log) -> None:
    records = entries(log.end, draw(st.integers(1, 3)))
    view = v2(records, attributes=LOG_APPEND_TIME, max_timestamp_ms=APPENDED_MS, leader_epoch=log.epoch)
    log.store(view, [record._replace(timestamp_ms=APPENDED_MS) for record in records], len(records))


def _transact(draw: st.DrawFn, log: Log) -> None:
    who = draw(producer_ids)
    records = entries(log.end, draw(st.integers(1, 3)))
    log.transact(
        who, records, v2(records, attributes=TRANSACTIONAL, producer=(who, 0, 0), leader_epoch=log.epoch)
    )


def _finish(draw: st.DrawFn, log: Log) -> None:
    log.finish(draw(producer_ids), abort=draw(st.booleans()))


def taken(log: Log, offset: int, bytes_max: int = NO_LIMIT, batch_bytes_max: int = NO_LIMIT) -> Intake:
    data, aborted = log.fetch(offset, bytes_max)
    return take(data, fetch_offset=offset, aborted=aborted, batch_bytes_max=batch_bytes_max)


def content(items: Sequence[Batch | Gap]) -> list[Entry]:
    """All records of the batches, as kafka-python reads them."""
    return [record for item in items if isinstance(item, Batch) for record in read_v2(item.view)]


def check_cover(intake: Intake, offset: int) -> None:
    """The items follow each other without a hole, and gaps stand alone."""
    at = offset
    for item in intake.items:
        assert item.base_offset == at < item.next_offset
        at = item.next_offset
    assert at == intake.next_offset
    kinds = [type(item) for item in intake.items]
    assert (Gap, Gap) not in pairwise(kinds)


# -- the copy is what a consumer sees ------------------------------------------------------------


@given(log=logs(), share=st.floats(0, 1))
def test_what_is_appended_is_what_a_consumer_of_the_source_sees(log: Log, share: float) -> None:
    """
    From any offset on, whatever lies there: records with their offsets, all else as gaps, nothing uncovered.
    """
    offset = log.start + int((log.end - log.start) * share)

    intake = taken(log, offset)

    assert intake.error is None
    check_cover(intake, offset)
    assert intake.next_offset == (log.end if log.stored else offset)
    assert content(intake.items) == log.seen(offset)


@given(log=logs(), sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_it_does_not_matter_where_answers_are_cut(log: Log, sizes: list[int]) -> None:
    """
    Fetched piece by piece, each answer torn somewhere, the records are those of one answer.
    """
    offset, found, rounds = log.start, [], 0

    while offset < log.end:
        intake = taken(log, offset, bytes_max=sizes[rounds % len(sizes)])
        check_cover(intake, offset)
        assert intake.next_offset > offset
        found += content(intake.items)
        offset, rounds = intake.next_offset, rounds + 1

    assert found == log.seen(log.start)


@given(log=logs(), room=st.integers(100, 300))
def test_no_batch_is_larger_than_the_target_takes(log: Log, room: int) -> None:
    """
    Split ones hold the same records; where one record alone is too large it is named, what came before kept.
    """
    intake = taken(log, log.start, batch_bytes_max=room)

    check_cover(intake, log.start)
    assert all(len(item.view) <= room for item in intake.items if isinstance(item, Batch))
    seen = log.seen(log.start)
    assert content(intake.items) == [record for record in seen if record.offset < intake.next_offset]
    if intake.error is None:
        assert intake.next_offset == log.end
    else:
        assert isinstance(intake.error, RecordTooLargeError)
        assert intake.error.offset >= intake.next_offset


@given(log=logs())
def test_leader_epochs_are_told_with_where_they_begin(log: Log) -> None:
    """
    Each once, the first as far as seen; old formats have none.
    """
    expected: list[tuple[int, int]] = []
    start = log.start
    for _, end, epoch in log.stored:
        if epoch >= 0 and (not expected or epoch > expected[-1][0]):
            expected.append((epoch, start))
        start = end

    assert taken(log, log.start).leader_epochs == expected


def test_every_leader_epoch_of_batches_that_pass_as_they_are_is_told() -> None:
    """
    Not the first one of an answer alone: after a restart the source would be asked about that, and say that
    it ends before what was copied.
    """
    batches = [
        v2(entries(first, 5), leader_epoch=epoch) for first, epoch in ((0, 1), (5, 1), (10, 3), (15, 4))
    ]

    seen = take(
        memoryview(bytearray(b"".join(map(bytes, batches)))),
        fetch_offset=0,
        aborted=(),
        batch_bytes_max=NO_LIMIT,
    )

    assert (seen.leader_epochs, seen.next_offset) == ([(1, 0), (3, 10), (4, 15)], 20)


@pytest.mark.parametrize("taken_away", [20, 25, 29])
def test_a_leader_epoch_begins_behind_the_batch_before_it(taken_away: int) -> None:
    """
    The source says of an older one that it ends before what compaction took away: whoever has come as far as
    the gap's end, and was asked of that one, would be told that its records were replaced.
    """
    before, behind = v2(entries(0, 10), leader_epoch=0), v2(entries(taken_away, 10), leader_epoch=2)

    together = take(
        memoryview(bytearray(bytes(before) + bytes(behind))),
        fetch_offset=0,
        aborted=(),
        batch_bytes_max=NO_LIMIT,
    )
    alone = take(behind, fetch_offset=10, aborted=(), batch_bytes_max=NO_LIMIT)
    inside = take(behind, fetch_offset=taken_away + 3, aborted=(), batch_bytes_max=NO_LIMIT)

    assert together.leader_epochs == [(0, 0), (2, 10)]
    assert alone.leader_epochs == [(2, 10)]
    assert inside.leader_epochs == [(2, taken_away)]


def test_an_epoch_begins_with_a_batch_that_can_be_taken() -> None:
    """
    What is asked for with the batch before, which is gone, is still to begin where it is wanted.
    """
    rest = v2(entries(20, 10), leader_epoch=2)

    seen = take(rest, fetch_offset=10, aborted=(), batch_bytes_max=NO_LIMIT, asked=Asked(9))

    assert (seen.leader_epochs, seen.next_offset) == ([(2, 10)], 30)


# -- the fast path -------------------------------------------------------------------------------


@given(codec=codecs, transactional=st.booleans(), first=st.integers(0, 2**40), count=st.integers(1, 5))
def test_a_batch_without_gaps_passes_as_the_bytes_it_is(
    codec: Codec, transactional: bool, first: int, count: int
) -> None:
    """
    The item is a view into what was fetched, not a copy, and says what the header says.
    """
    records = entries(first, count)
    bits = TRANSACTIONAL if transactional else 0
    data = v2(records, codec=codec, attributes=bits, leader_epoch=5)
    before = bytes(data)

    intake = take(data, fetch_offset=first, aborted=(), batch_bytes_max=len(data))

    assert intake.items == [Batch(first, first + count, 5, records[-1].timestamp_ms, data)]
    assert isinstance(intake.items[0], Batch)
    intake.items[0].view[-1] ^= 1
    assert bytes(data) != before
    assert intake.reencoded == 0


def test_only_what_must_be_is_written_anew() -> None:
    """
    Of a large answer the batch with a hole goes the slow path, its neighbours do not.
    """
    views = [v2(entries(0, 5)), v2([Entry(5), Entry(7)]), v2(entries(8, 5))]
    data = memoryview(bytearray(b"".join(views)))

    intake = take(data, fetch_offset=0, aborted=(), batch_bytes_max=NO_LIMIT)

    assert [(item.base_offset, item.next_offset) for item in intake.items] == [
        (0, 5),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 13),
    ]
    assert [type(item) for item in intake.items] == [Batch, Batch, Gap, Batch, Batch]
    assert intake.reencoded == 1
    assert [bytes(i.view) for i in intake.items[::4] if isinstance(i, Batch)] == [
        bytes(v) for v in views[::2]
    ]


def test_a_read_that_begins_in_the_middle_of_a_batch_leaves_out_what_lies_before() -> None:
    """
    The broker hands out the whole batch; the target already has its first records.
    """
    intake = take(v2(entries(10, 6)), fetch_offset=13, aborted=(), batch_bytes_max=NO_LIMIT)

    assert content(intake.items) == entries(10, 6)[3:]
    assert (intake.items[0].base_offset, intake.next_offset) == (13, 16)


def test_batches_before_the_offset_asked_for_are_nothing() -> None:
    """
    Not even a gap, where what was asked for begins before what is wanted.
    """
    data = memoryview(bytearray(b"".join([v2(entries(0, 4)), v2(entries(4, 2))])))

    intake = take(data, fetch_offset=4, aborted=(), batch_bytes_max=NO_LIMIT, asked=Asked(0))

    assert [(item.base_offset, item.next_offset) for item in intake.items] == [(4, 6)]


def test_an_answer_that_begins_behind_the_offset_asked_for_leaves_a_gap_before() -> None:
    """
    Compaction has removed whole batches; what they held is nobody's any more.
    """
    intake = take(v2(entries(20, 2)), fetch_offset=15, aborted=(), batch_bytes_max=NO_LIMIT)

    assert intake.items[0] == Gap(15, 20, aborted=0, markers=0)
    assert intake.next_offset == 22


# -- transactions --------------------------------------------------------------------------------


def test_interleaved_transactions_are_told_apart_by_their_producers() -> None:
    """
    Of three at once the two aborted ones vanish, with all markers, in one gap each.
    """
    log = Log()
    for who in (7, 8, 9, 7):
        records = entries(log.end, 2)
        log.transact(who, records, v2(records, attributes=TRANSACTIONAL, producer=(who, 0, 0)))
    log.finish(7, abort=True)
    log.finish(8, abort=False)
    log.finish(9, abort=True)

    intake = taken(log, 0)

    assert [(type(i), i.base_offset, i.next_offset) for i in intake.items] == [
        (Gap, 0, 2),
        (Batch, 2, 4),
        (Gap, 4, 11),
    ]
    assert intake.items[0] == Gap(0, 2, aborted=2)
    assert intake.items[-1] == Gap(4, 11, aborted=4, markers=3)


def test_of_a_dropped_batch_only_what_was_asked_for_counts() -> None:
    """
    A read that begins in the middle of an aborted batch, and what compaction has removed between two of them.
    """
    first = v2(entries(0, 5), attributes=TRANSACTIONAL, producer=(7, 0, 0))
    second = v2(entries(8, 2), attributes=TRANSACTIONAL, producer=(7, 0, 5))
    data = memoryview(bytearray(b"".join([first, second, control(10, 7, 0)])))

    intake = take(data, fetch_offset=3, aborted=[(7, 0)], batch_bytes_max=NO_LIMIT)

    assert intake.items == [Gap(3, 11, aborted=4, markers=1)]


def test_a_producer_whose_transaction_was_aborted_may_commit_the_next() -> None:
    """
    The abort's marker ends it: what follows from the same producer counts.
    """
    log = Log()
    for abort in (True, False, True, False):
        records = entries(log.end, 1)
        log.transact(7, records, v2(records, attributes=TRANSACTIONAL, producer=(7, 0, 0)))
        log.finish(7, abort=abort)

    assert [record.offset for record in content(taken(log, 0).items)] == [2, 6]
    assert [record.offset for record in content(taken(log, 5).items)] == [6]


def test_a_marker_before_the_offset_asked_for_ends_its_transaction_too() -> None:
    """
    What the same producer has committed behind it is copied, also where the answer begins further up.
    """
    aborted = v2(entries(0, 5), attributes=TRANSACTIONAL, producer=(7, 0, 0))
    committed = v2(entries(6, 4), attributes=TRANSACTIONAL, producer=(7, 0, 5))
    log = bytes(aborted) + bytes(control(5, 7, 0)) + bytes(committed) + bytes(control(10, 7, 1))

    intake = take(
        memoryview(bytearray(log)), fetch_offset=6, aborted=[(7, 0)], batch_bytes_max=1 << 20, asked=Asked(0)
    )

    assert [(item.base_offset, item.next_offset, isinstance(item, Gap)) for item in intake.items] == [
        (6, 10, False),
        (10, 11, True),
    ]


def test_a_commit_does_not_end_an_abort_that_is_still_to_come() -> None:
    """
    A marker of another kind leaves the list of the aborted alone.
    """
    batch = v2(entries(1, 2), attributes=TRANSACTIONAL, producer=(7, 0, 0))
    data = memoryview(bytearray(b"".join([control(0, 7, 1), batch, control(3, 7, 0)])))

    intake = take(data, fetch_offset=0, aborted=[(7, 1)], batch_bytes_max=NO_LIMIT)

    assert intake.items == [Gap(0, 4, aborted=2, markers=2)]


def test_a_batch_outside_transactions_counts_whoever_wrote_it() -> None:
    """
    An idempotent producer may have had the id of an aborted transaction.
    """
    data = v2(entries(5, 2), producer=(7, 0, 0))

    intake = take(data, fetch_offset=5, aborted=[(7, 0)], batch_bytes_max=NO_LIMIT)

    assert len(content(intake.items)) == 2


# -- what cannot be taken ------------------------------------------------------------------------


@pytest.mark.parametrize("at", [17, 21, 43, 61, -1])
def test_a_corrupt_batch_stops_the_intake_and_what_came_before_is_kept(at: int) -> None:
    """
    Nothing behind it is taken either: the next read begins at the corrupt batch again.
    """
    bad = v2(entries(3, 2))
    bad[at] ^= 0x01
    data = memoryview(bytearray(b"".join([v2(entries(0, 3)), bad, v2(entries(5, 2))])))

    intake = take(data, fetch_offset=0, aborted=(), batch_bytes_max=NO_LIMIT)

    assert isinstance(intake.error, CorruptBatchError)
    assert intake.error.offset == 3
    assert "CRC-32C" in str(intake.error)
    assert (len(intake.items), intake.next_offset) == (1, 3)


@pytest.mark.parametrize("magic", [3, 0x7F, 0xFF])
def test_a_format_of_years_to_come_is_unreadable(magic: int) -> None:
    """
    It is never taken for the end of the data.
    """
    strange = v2(entries(3, 2))
    strange[16] = magic
    data = memoryview(bytearray(b"".join([v2(entries(0, 3)), strange])))

    intake = take(data, fetch_offset=0, aborted=(), batch_bytes_max=NO_LIMIT)

    assert isinstance(intake.error, UnreadableBatchError)
    assert (intake.error.offset, intake.next_offset) == (3, 3)


def with_fields(
    payload: bytes, *, attributes: int = 0, last_offset_delta: int = 0, records: int = 1
) -> memoryview:
    """A batch at offset 3 with the right CRC and a header that says what it is told to."""
    return with_header(payload, 3, 0, (attributes, last_offset_delta, 0, 0, -1, -1, -1, records))


def cut_short(length: int) -> memoryview:
    """A batch at offset 3 that says it is shorter than its own header, and whose CRC agrees."""
    data = with_fields(b"")[: 12 + length]
    struct.pack_into(">i", data, 8, length)
    struct.pack_into(">I", data, 17, calc_crc32c(data[21:]))
    return data


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(with_fields(b"", last_offset_delta=-1, records=0), id="no offsets at all"),
        pytest.param(with_fields(b"", last_offset_delta=-3, records=-2), id="fewer records than none"),
        pytest.param(with_fields(b"x", last_offset_delta=-5), id="it ends before it begins"),
        pytest.param(with_fields(b"", attributes=0x20), id="a marker of nothing"),
        pytest.param(with_fields(b"\xff" * 9, attributes=0x20), id="a marker without an end"),
        pytest.param(
            with_fields(b"\x00", attributes=0x30, last_offset_delta=2, records=3), id="cut-off marker"
        ),
        *(pytest.param(cut_short(length), id=f"{length} bytes") for length in (14, 20, 31, 48)),
    ],
)
def test_a_batch_that_contradicts_itself_is_an_error_and_no_item(bad: memoryview) -> None:
    """
    Its CRC is right; still nothing is made of it, and what came before is kept.
    """
    data = memoryview(bytearray(b"".join([v2(entries(0, 3)), bad, v2(entries(4, 2))])))

    intake = take(data, fetch_offset=0, aborted=(), batch_bytes_max=NO_LIMIT)

    assert intake.error is not None
    assert intake.next_offset == 3
    assert content(intake.items) == entries(0, 3)


@given(data=st.binary(max_size=150), log=logs(), at=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_whatever_comes_is_taken_or_refused_by_name(data: bytes, log: Log, at: int, byte: int) -> None:
    """
    Noise, or a good answer with one wrong byte: the items cover what they say, and no more.
    """
    good, aborted = log.fetch(log.start)
    if len(good):
        good[at % len(good)] = byte

    for records in (memoryview(bytearray(data)), good):
        intake = take(records, fetch_offset=log.start, aborted=aborted, batch_bytes_max=NO_LIMIT)
        check_cover(intake, log.start)


@given(header=st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_what_a_batch_passes_by_is_read_from_where_a_header_has_it(header: bytes) -> None:
    """
    The base timestamp and the three fields of the producer are passed over, byte by byte.
    """
    fields = HEADER.unpack(header)

    assert _OF_PLAIN.unpack(header) == (*fields[:7], fields[8], fields[12])


def test_nothing_fetched_is_nothing() -> None:
    """
    A torn batch alone as well: the position stays, and somebody asks for more bytes.
    """
    for records in (b"", bytes(v2(entries(3, 1)))[:-1]):
        intake = take(memoryview(bytearray(records)), fetch_offset=3, aborted=(), batch_bytes_max=NO_LIMIT)

        assert intake == Intake(3)
