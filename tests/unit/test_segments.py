"""Segment files are read as a consumer would read their broker, or not at all."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kafka.record.util import calc_crc32c

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.segments.columns import PIECE_BYTES
from spark_jobs.segments.logs import SegmentsError, find, open_log
from spark_jobs.segments.plan import near, tasks
from spark_jobs.segments.reading import read_records
from spark_jobs.segments.source import SegmentFiles
from spark_jobs.segments.transactions import stable_end
from spark_jobs.stretches import joined
from spark_jobs.window import Range
from tests.unit import batches
from tests.unit.batches import OLD_CODECS, Codec, Entry, Magic, control, entries, old, v2

Buffer = bytes | bytearray | memoryview
ORDERS_0 = TopicPartition("orders", 0)


def transactional(first: int, count: int, producer_id: int) -> memoryview:
    return v2(entries(first, count), attributes=0x10, producer=(producer_id, 0, first))


def write(folder: Path, files: Mapping[int, Iterable[Buffer]], topic: str = "orders-0") -> Path:
    """Files of a partition, each by the offset that it is called after."""
    path = folder / topic
    path.mkdir(parents=True, exist_ok=True)
    for base_offset, content in files.items():
        (path / f"{base_offset:020}.log").write_bytes(b"".join(content))
    return path


def read(path: Path, *wanted: Range, has_gaps: bool = False) -> list[Entry]:
    log = open_log(path, has_gaps=has_gaps)
    return [
        Entry(
            row["offset"],
            row["timestamp_ms"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for batch in read_records(log, wanted)
        for row in batch.to_pylist()
    ]


def whole(records: Sequence[Entry]) -> Range:
    return Range(records[0].offset, records[-1].offset + 1)


def offsets(records: Iterable[Entry]) -> list[int]:
    return [record.offset for record in records]


# -- records -------------------------------------------------------------------------------------


@given(records=batches.gapped(count_max=12), codec=batches.codecs, cut=st.integers(0, 12))
def test_records_are_what_was_written(records: list[Entry], codec: Codec, cut: int) -> None:
    """
    Of every codec, in one batch or in two, with whatever the cleaner has left.
    """
    parts = [part for part in (records[:cut], records[cut:]) if part]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {0: [v2(part, codec=codec) for part in parts]})

        assert read(path, whole(records), has_gaps=True) == records


@given(records=batches.gapped(count_max=12), data=st.data())
def test_only_what_is_wanted_is_there(records: list[Entry], data: st.DataObject) -> None:
    within = st.integers(records[0].offset, records[-1].offset)
    drawn = data.draw(st.lists(st.tuples(within, st.integers(1, 4)), min_size=1, max_size=4))
    wanted = joined(Range(at, min(at + size, records[-1].offset + 1)) for at, size in drawn)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {0: [v2(records)]})

        found = read(path, *wanted, has_gaps=True)

    assert found == [record for record in records if any(one.holds(record.offset) for one in wanted)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_old_formats_are_read_with_their_offsets_and_times(
    tmp_path: Path, magic: Magic, codec: Codec
) -> None:
    """
    The header of a compressed set has the offset of its last record.
    """
    sets = [[record._replace(value=None) for record in entries(first, 5)] for first in (0, 5, 10)]
    path = write(tmp_path, {0: [old(magic, some, codec=codec) for some in sets]})

    found = read(path, Range(3, 12))

    times = -1 if magic == 0 else None
    expected = [record for some in sets for record in some][3:12]
    assert found == [record._replace(timestamp_ms=times or record.timestamp_ms) for record in expected]


def test_the_time_of_appending_is_that_of_all_records_of_a_batch(tmp_path: Path) -> None:
    records = entries(0, 3)
    path = write(tmp_path, {0: [v2(records, attributes=0x08, max_timestamp_ms=77)]})

    assert {record.timestamp_ms for record in read(path, Range(0, 3))} == {77}


def test_many_and_large_records_come_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    """
    One batch that holds many pieces, and batches that together make one.
    """
    large = [Entry(number, value=bytes(100_000)) for number in range(200)]
    small = entries(200, 3000)
    parts = [v2(large, codec="zstd"), *(v2(small[at : at + 10]) for at in range(0, 3000, 10))]
    log = open_log(write(tmp_path, {0: parts}), has_gaps=False)

    found = list(read_records(log, [Range(0, 3200)]))

    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(3200))
    assert max(batch.nbytes for batch in found) < 2 * PIECE_BYTES
    assert len(found) < 10


def test_a_header_whose_name_is_no_text_is_read_as_kafkas_consumer_does(tmp_path: Path) -> None:
    batch = bytearray(v2([Entry(0, headers=(("aa", b"1"), ("b", None)))]))
    at = batch.index(b"aa")
    payload = bytes(batch[61:at]) + b"\xffa" + bytes(batch[at + 2 :])
    fields = batches.HEADER.unpack_from(batch)[5:]
    path = write(tmp_path, {0: [batches.with_header(payload, 0, 0, fields)]})

    (record,) = read(path, Range(0, 1))

    assert record.headers == (("\ufffda", b"1"), ("b", None))


# -- transactions --------------------------------------------------------------------------------

TRANSACTIONS = [
    transactional(0, 3, producer_id=1),
    transactional(3, 2, producer_id=2),
    v2(entries(5, 1)),
    control(6, 1, 0),
    transactional(7, 2, producer_id=1),
    control(9, 2, 1),
    transactional(10, 1, producer_id=2),
    control(11, 1, 1),
    control(12, 2, 0),
]
"""Producer 1 aborts, then commits; producer 2 commits, then aborts."""
VISIBLE = [3, 4, 5, 7, 8]


@pytest.mark.parametrize("files", [1, 2, 9])
@pytest.mark.parametrize("start", range(13))
def test_aborted_transactions_and_markers_are_left_out_wherever_a_range_begins(
    tmp_path: Path, files: int, start: int
) -> None:
    """
    In the middle of a transaction, and with its marker behind the range and in a later file.
    """
    firsts = [0, 3, 5, 6, 7, 9, 10, 11, 12]
    each = -(-len(firsts) // files)
    path = write(tmp_path, {firsts[at]: TRANSACTIONS[at : at + each] for at in range(0, len(firsts), each)})

    for end in range(start + 1, 14):
        found = offsets(read(path, Range(start, end)))
        assert found == [offset for offset in VISIBLE if start <= offset < end]


def test_a_marker_without_records_ends_no_later_transaction(tmp_path: Path) -> None:
    """
    Of a transaction that wrote nothing to this partition.
    """
    parts = [
        transactional(0, 1, 1),
        control(1, 1, 1),
        control(2, 1, 0),
        transactional(3, 1, 1),
        control(4, 1, 1),
    ]
    path = write(tmp_path, {0: parts})

    assert offsets(read(path, Range(0, 5))) == [0, 3]


def test_a_transaction_without_an_end_is_not_guessed_about(tmp_path: Path) -> None:
    path = write(tmp_path, {0: [*TRANSACTIONS, transactional(13, 2, producer_id=1), v2(entries(15, 2))]})
    log = open_log(path, has_gaps=False)

    assert offsets(read(path, Range(5, 13))) == [5, 7, 8]
    with pytest.raises(
        SegmentsError, match=r"orders-0: the transaction at offset 13 has no end in .*orders-0"
    ):
        read(path, Range(5, 17))
    assert stable_end(log, 5) == 13


def snapshot(begun: Mapping[int, int]) -> bytes:
    """A producer snapshot as brokers write it.

    Args:
        begun: Where the open transaction of each producer begins; -1 where it has none.
    """
    each = [
        struct.pack(">qhiqiqiq", name, 0, 5, 7, 0, 1_700_000_000_000, 0, at) for name, at in begun.items()
    ]
    entries = struct.pack(">i", len(each)) + b"".join(each)
    return struct.pack(">hI", 1, calc_crc32c(entries)) + entries


UNDECIDED = {
    0: [v2(entries(0, 2)), transactional(2, 3, producer_id=1), transactional(5, 1, producer_id=2)],
    6: [control(6, 2, 1), transactional(7, 1, producer_id=1), transactional(8, 1, producer_id=2)],
}
"""Producer 1 has begun in the first file and has not ended; producer 2 has ended and begun again."""


def test_a_log_ends_at_an_open_transaction_that_began_in_an_earlier_file(tmp_path: Path) -> None:
    """
    The broker's snapshot at the start of the last file says so. Nothing before that file is read.
    """
    path = write(tmp_path, UNDECIDED)
    (path / f"{6:020}.snapshot").write_bytes(snapshot({1: 2, 2: 5, 3: -1}))
    (path / f"{0:020}.log").write_bytes(b"not read")
    files = SegmentFiles("source", [tmp_path], set())

    assert files.ends([ORDERS_0]) == {ORDERS_0: 2}
    (path / f"{6:020}.log").write_bytes(b"".join([*UNDECIDED[6], control(9, 1, 1)]))
    assert files.ends([ORDERS_0]) == {ORDERS_0: 8}
    (path / f"{6:020}.log").write_bytes(b"".join([*UNDECIDED[6], control(9, 1, 1), control(10, 2, 0)]))
    assert files.ends([ORDERS_0]) == {ORDERS_0: 11}


def test_a_log_does_not_end_before_it_starts(tmp_path: Path) -> None:
    """
    Though a transaction is open that began before the start.
    """
    path = write(tmp_path, UNDECIDED)
    (path / f"{6:020}.snapshot").write_bytes(snapshot({1: 2}))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 4\n")

    assert SegmentFiles("source", [tmp_path], set()).ends([ORDERS_0]) == {ORDERS_0: 4}


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        snapshot({1: 2})[:-1],
        snapshot({1: 2}) + b"1",
        snapshot({1: 2})[:-1] + b"\3",
        b"\0\2" + snapshot({1: 2})[2:],
    ],
    ids=["none", "empty", "cut off", "too long", "damaged", "a later version"],
)
def test_a_snapshot_that_cannot_be_used_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    """
    What the files alone say is then too far, and reading up to there is an error, not a guess.
    """
    path = write(tmp_path, UNDECIDED)
    if content is not None:
        (path / f"{6:020}.snapshot").write_bytes(content)

    assert SegmentFiles("source", [tmp_path], set()).ends([ORDERS_0]) == {ORDERS_0: 7}
    with pytest.raises(SegmentsError, match="the transaction at offset 2 has no end in"):
        read(path, Range(0, 7))


def test_a_file_that_is_missing_decides_no_transaction(tmp_path: Path) -> None:
    """
    The next marker of the producer is another transaction's.
    """
    first = {0: [transactional(0, 3, producer_id=1)]}
    last = {6: [transactional(6, 1, producer_id=1), control(7, 1, 1)]}
    path = write(tmp_path, first | last)

    with pytest.raises(SegmentsError, match=r"offsets \[3, 6\) are missing"):
        read(path, Range(0, 3))


# -- what is not there ---------------------------------------------------------------------------

FILES = {at: [v2(entries(first, 5)) for first in range(at, at + 20, 5)] for at in (100, 120, 140)}
RECORDS = [record for first in range(100, 160, 5) for record in entries(first, 5)]


def test_ranges_across_files_come_whole(tmp_path: Path) -> None:
    path = write(tmp_path, FILES)

    assert offsets(read(path, Range(103, 158))) == list(range(103, 158))
    assert offsets(read(path, Range(100, 101), Range(119, 121), Range(159, 160))) == [100, 119, 120, 159]


@pytest.mark.parametrize(("start", "end"), [(99, 110), (0, 50), (150, 161), (200, 201)])
def test_what_a_log_does_not_hold_is_an_error_that_says_what_it_holds(
    tmp_path: Path, start: int, end: int
) -> None:
    path = write(tmp_path, FILES)

    with pytest.raises(SegmentsError) as refused:
        read(path, Range(start, end))

    assert f"orders-0: of its offsets [{start}, {end}) are wanted" in str(refused.value)
    assert f"{path} holds [100, 160)" in str(refused.value)


def test_deleted_records_are_gone_though_the_file_has_them(tmp_path: Path) -> None:
    """
    DeleteRecords moves the start of a log into a file.
    """
    path = write(tmp_path, FILES)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n2\nother 0 5\norders 0 107\n")

    assert offsets(read(path, Range(107, 112))) == list(range(107, 112))
    with pytest.raises(SegmentsError, match=r"holds \[107, 160\)"):
        read(path, Range(106, 112))


def test_a_missing_file_is_an_error_that_names_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, {at: FILES[at] for at in (100, 140)})

    assert offsets(read(path, Range(110, 120))) == list(range(110, 120))
    with pytest.raises(
        SegmentsError, match=r"offsets \[120, 140\) are missing at .*00100\.log, position \d+"
    ):
        read(path, Range(110, 150))
    with pytest.raises(SegmentsError, match=r"offsets \[125, 140\) are missing"):
        read(path, Range(125, 150))


def test_a_file_that_is_removed_while_the_log_is_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, FILES)
    log = open_log(path, has_gaps=True)
    (path / f"{120:020}.log").unlink()

    with pytest.raises(SegmentsError, match=r"orders-0: .*00120\.log cannot be read: No such file"):
        list(read_records(log, [Range(110, 150)]))


def test_offsets_of_a_compacted_log_may_be_gone_between_files_too(tmp_path: Path) -> None:
    path = write(tmp_path, {at: FILES[at] for at in (100, 140)})

    assert offsets(read(path, Range(110, 145), has_gaps=True)) == [*range(110, 120), *range(140, 145)]
    with pytest.raises(SegmentsError, match=r"holds \[100, 160\)"):
        read(path, Range(110, 161), has_gaps=True)


@pytest.mark.parametrize("tail", [b"\1", bytes(30), bytes(5000), bytes(v2(entries(160, 5)))[:-1]])
def test_what_is_cut_off_at_the_end_is_not_in_the_log_yet(tmp_path: Path, tail: bytes) -> None:
    """
    Zeros are what a power cut leaves, or a broker that reserves space.
    """
    path = write(tmp_path, {**FILES, 140: [*FILES[140], tail]})

    assert offsets(read(path, Range(140, 160))) == list(range(140, 160))
    assert stable_end(open_log(path, has_gaps=False), 150) == 160
    with pytest.raises(SegmentsError, match=r"holds \[100, 160\)"):
        read(path, Range(140, 161))


def test_a_file_that_is_cut_off_in_the_middle_of_a_log_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, {**FILES, 120: [*FILES[120], b"torn"]})

    with pytest.raises(SegmentsError, match=r"00120\.log is cut off at position \d+"):
        read(path, Range(110, 150), has_gaps=True)


@given(at=st.integers(0, 100_000), bit=st.integers(0, 7), has_gaps=st.booleans())
def test_no_flipped_bit_makes_other_records(at: int, bit: int, has_gaps: bool) -> None:
    """
    Either they are the same, as where only the epoch of the leader is another, or it is an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), FILES)
        file = path / f"{120:020}.log"
        content = bytearray(file.read_bytes())
        content[at % len(content)] ^= 1 << bit
        file.write_bytes(content)
        try:
            found = read(path, Range(103, 158), has_gaps=has_gaps)
        except SegmentsError:
            return
        assert found == RECORDS[3:58]


def test_a_flipped_bit_is_named_with_its_file_position_and_offset(tmp_path: Path) -> None:
    first, second = FILES[120][:2]
    damaged = bytearray(second)
    damaged[-1] ^= 1
    path = write(tmp_path, {120: [first, damaged, *FILES[120][2:]]})

    with pytest.raises(SegmentsError) as refused:
        read(path, Range(121, 140))

    assert f"orders-0: {path}/{120:020}.log, position {len(first)}: batch at offset 125" in str(refused.value)


@pytest.mark.parametrize(("last", "count"), [(3, 4), (2, 4), (2, -1), (-2, -1), (1, 3), (2, 2)])
def test_a_batch_that_does_not_hold_what_it_counts_is_an_error(tmp_path: Path, last: int, count: int) -> None:
    payload = bytes(v2(entries(0, 3)))[61:]
    batch = batches.with_header(payload, 0, 0, (0, last, 1, 1, *batches.NOBODY, count))
    path = write(tmp_path, {0: [batch]})

    with pytest.raises(SegmentsError, match=r"position 0: batch at offset 0: its "):
        read(path, Range(0, 1), has_gaps=True)


@given(records=batches.dense(), at=st.integers(0), bits=st.integers(1, 127))
def test_records_that_contradict_each_other_are_an_error(records: list[Entry], at: int, bits: int) -> None:
    """
    Behind a CRC that is right: what is read is what another reader finds there.
    """
    batch = bytearray(v2(records))
    batch[61 + at % (len(batch) - 61)] ^= bits
    fields = batches.HEADER.unpack_from(batch)[5:]
    changed = batches.with_header(bytes(batch[61:]), records[0].offset, 0, fields)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {0: [changed]})
        try:
            found = read(path, whole(records), has_gaps=True)
        except SegmentsError:
            return
    assume(all("\ufffd" not in name for record in found for name, _ in record.headers))
    assert found == batches.read_v2(changed)


def test_offsets_that_go_back_are_an_error(tmp_path: Path) -> None:
    """
    The CRC does not cover the offset of a batch.
    """
    path = write(tmp_path, {0: [v2(entries(0, 5)), v2(entries(3, 5)), v2(entries(10, 5))]})

    with pytest.raises(SegmentsError, match=r"batch at offset 3: its offset does not fit"):
        read(path, Range(0, 15), has_gaps=True)


# -- the index -----------------------------------------------------------------------------------


BATCHES = [part for some in FILES.values() for part in some]
POSITIONS = st.sampled_from([sum(map(len, BATCHES[:count])) for count in range(len(BATCHES))])


@given(
    entry=st.lists(st.tuples(st.integers(-5, 70), POSITIONS | st.integers(-5, 2000)), max_size=8),
    at=st.integers(0, 59),
)
def test_an_index_makes_no_difference_whatever_it_says(entry: list[tuple[int, int]], at: int) -> None:
    """
    One that leads to where no batch begins is an error, or is not believed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {100: BATCHES})
        index = b"".join(struct.pack(">ii", *one) for one in entry)
        (path / f"{100:020}.index").write_bytes(index + bytes(64))
        wanted = Range(100 + at, 160)
        try:
            found = offsets(read(path, wanted, has_gaps=True))
        except SegmentsError:
            return
        assert found == list(range(*wanted))


def test_an_index_saves_reading_what_stands_before(tmp_path: Path) -> None:
    """
    What is damaged there is not seen.
    """
    parts = [bytearray(part) for part in BATCHES]
    position = sum(map(len, parts[:6]))
    parts[0][-1] ^= 1
    path = write(tmp_path, {100: parts})
    (path / f"{100:020}.index").write_bytes(struct.pack(">ii", 34, position) + bytes(64))

    assert offsets(read(path, Range(135, 160))) == list(range(135, 160))
    with pytest.raises(SegmentsError, match="position 0"):
        read(path, Range(129, 160))


# -- directories and tasks -----------------------------------------------------------------------


def test_partitions_are_found_in_all_directories_the_first_one_that_has_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, FILES, "orders-0")
    write(here, FILES, "orders-1.5f1c-delete")
    write(there, FILES, "orders-0")
    write(there, FILES, "orders-1")

    found = find([here, there], [TopicPartition("orders", 0), TopicPartition("orders", 1)])

    assert list(found.values()) == [here / "orders-0", there / "orders-1"]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere", "cannot be read"),
        ("empty", "holds no partition's segment files"),
        ("logs/orders-0", "holds no partition's segment files"),
        ("logs", "payments-0: in none of "),
    ],
)
def test_a_directory_that_cannot_be_meant_is_named(tmp_path: Path, named: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "logs", FILES)

    with pytest.raises(UsageError) as refused:
        find([tmp_path / named], [TopicPartition("payments", 0)])

    assert str(tmp_path / named) in str(refused.value)
    assert said in str(refused.value)
    assert refused.value.hint


@given(
    sizes=st.lists(st.integers(0, 3 << 30), min_size=1, max_size=5),
    drawn=st.lists(st.tuples(st.integers(0, 12_000), st.integers(1, 5000)), max_size=6),
    indexed=st.booleans(),
    cores=st.integers(1, 64),
)
@example(sizes=[(16 << 20) + 1], drawn=[(0, 1001)], indexed=True, cores=64)
def test_tasks_have_all_that_is_wanted_once(
    sizes: list[int], drawn: list[tuple[int, int]], indexed: bool, cores: int
) -> None:
    wanted = joined(Range(at, at + size) for at, size in drawn)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {1000 + 2000 * number: [] for number in range(len(sizes))})
        log = open_log(path, has_gaps=False)
    segments = [
        segment._replace(size_bytes=size, is_indexed=indexed)
        for segment, size in zip(log.segments, sizes, strict=True)
    ]
    log = type(log)(log.name, log.folder, log.start, segments, log.has_gaps)

    planned = tasks([(log, wanted)], cores)

    parts = [one for task in planned for part in task for one in part.wanted]
    assert all(one.offsets > 0 for one in parts)
    assert sum(one.offsets for one in parts) == sum(one.offsets for one in wanted)
    assert joined(parts) == wanted
    assert [one for some in near(wanted) for one in some] == wanted
