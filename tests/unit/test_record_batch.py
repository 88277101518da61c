"""Batches as bytes: walking over them, their CRC, and the few header fields that become ours."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import _crc32c
from kafka.record.default_records import DefaultRecordBatch

from mirror.kafka.codecs import ZSTD, CodecError
from mirror.kafka.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    aborts,
    build,
    crc_matches,
    inflated,
    is_null_batch,
    null_batch,
    seal,
    walk,
)
from tests.unit.batches import (
    CODECS,
    HEADER,
    Codec,
    Entry,
    codecs,
    compress,
    control,
    decompress,
    dense,
    entries,
    gapped,
    old,
    read_v2,
    v2,
    with_header,
)

OURS = (4711, 3, 2**31 - 1)
BROKERS_BITS = LOG_APPEND_TIME | TRANSACTIONAL | DELETE_HORIZON
"""Only a broker may set these, or a transaction."""

bits = st.sampled_from([0, LOG_APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON, BROKERS_BITS])
producers = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


def walked(data: bytes | memoryview) -> list[tuple[BatchHeader, memoryview]]:
    return list(walk(memoryview(bytearray(data))))


def header_of(view: memoryview) -> BatchHeader:
    ((header, _),) = walk(view)
    return header


def joined(*views: memoryview) -> bytes:
    return b"".join(bytes(view) for view in views)


# -- walking -------------------------------------------------------------------------------------


@given(records=gapped(), codec=codecs, attributes=bits, producer=producers, epoch=st.integers(-1, 2**31 - 1))
def test_a_header_is_read_as_kafka_python_reads_it(
    records: list[Entry], codec: Codec, attributes: int, producer: tuple[int, int, int], epoch: int
) -> None:
    """
    Field by field, whatever codec, bits and producer it has.
    """
    view = v2(records, codec=codec, attributes=attributes, producer=producer, leader_epoch=epoch)
    theirs = DefaultRecordBatch(view)

    ((header, seen),) = walk(view)

    assert seen == view
    assert header == HEADER.unpack_from(view)
    assert header.next_offset == theirs.next_offset
    assert (header.leader_epoch, header.magic, header.attributes) == (epoch, 2, theirs.attributes)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert (header.base_timestamp, header.max_timestamp) == (theirs.first_timestamp, theirs.max_timestamp)
    assert header.records == len(records)


@given(batches=st.lists(gapped(), max_size=4), cut=st.integers(0, 2**16))
def test_a_batch_that_is_not_there_as_a_whole_is_left_out(batches: list[list[Entry]], cut: int) -> None:
    """
    A broker cuts its answer where the limit is, in the middle of a header as well.
    """
    views = [v2(records) for records in batches]
    data = joined(*views)
    end = len(data) - cut % (len(data) + 1)

    found = [bytes(view) for _, view in walked(data[:end])]

    whole = [bytes(view) for n, view in enumerate(views) if sum(map(len, views[: n + 1])) <= end]
    assert found == whole


def test_views_are_the_bytes_that_came_and_not_copies_of_them() -> None:
    """
    What is written into a batch later is written into the buffer it came in.
    """
    buffer = bytearray(joined(v2(entries(0, 2)), v2(entries(2, 2))))

    views = [view for _, view in walk(memoryview(buffer))]
    views[1][-1] ^= 0xFF

    assert buffer[-1] == views[1][-1]
    assert sum(map(len, views)) == len(buffer)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "value", [b"", b"a value that makes the message longer than a header of format v2 is"]
)
def test_messages_of_old_formats_are_handed_out_one_by_one(magic: int, value: bytes) -> None:
    """
    Shorter than a v2 header or longer, in front of v2 batches too.
    """
    olds = [old(0 if magic == 0 else 1, [Entry(n, 5, None, value)]) for n in range(3)]
    new = v2(entries(3, 1))

    found = walked(joined(*olds, new))
    alone = walked(joined(*olds))

    assert [(header.magic, header.base_offset) for header, _ in found] == [
        *((magic, n) for n in range(3)),
        (2, 3),
    ]
    assert [bytes(view) for _, view in found] == [bytes(view) for view in (*olds, new)]
    assert [bytes(view) for _, view in alone] == [bytes(view) for view in olds]


def test_an_old_message_that_is_cut_off_is_left_out() -> None:
    """
    Wherever it is cut.
    """
    first, second = old(1, [Entry(0)]), old(1, [Entry(1)])

    for cut in range(1, len(second) + 1):
        assert [bytes(view) for _, view in walked(joined(first, second)[:-cut])] == [bytes(first)]


@pytest.mark.parametrize("magic", [3, 4, 127, 255])
def test_a_format_that_is_not_known_ends_the_walk_and_says_so(magic: int) -> None:
    """
    Nobody may take what follows for the end of the data.
    """
    strange = bytearray(v2(entries(2, 2)))
    strange[16] = magic

    found = walked(joined(v2(entries(0, 2)), memoryview(strange), v2(entries(4, 2))))

    assert [header.magic for header, _ in found] == [2, -1]
    assert found[1][0].base_offset == 2


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_length_that_cannot_be_true_ends_the_walk_and_says_so(length: int, magic: int) -> None:
    """
    It is neither followed backwards nor into the batch itself.
    """
    lying = bytearray(v2(entries(2, 2)) if magic == 2 else old(0 if magic == 0 else 1, entries(2, 1)))
    struct.pack_into(">i", lying, 8, length)

    found = walked(joined(v2(entries(0, 2)), memoryview(lying)))

    assert [header.magic for header, _ in found] == [2, -1]


@given(data=st.binary(max_size=200), batch=gapped(), at=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_walking_over_noise_always_ends(data: bytes, batch: list[Entry], at: int, byte: int) -> None:
    """
    Whatever the bytes are, the views follow each other and lie within them.
    """
    damaged = bytearray(v2(batch)) + v2(batch)
    damaged[at % len(damaged)] = byte

    for noise in (data, bytes(damaged)):
        found = [bytes(view) for _, view in walked(noise)]

        assert noise.startswith(b"".join(found))
        assert all(found)


# -- the CRC -------------------------------------------------------------------------------------


@given(records=dense(), codec=codecs)
def test_a_good_batch_has_the_crc_it_says(records: list[Entry], codec: Codec) -> None:
    """
    The same as by kafka-python's own implementation in plain Python.
    """
    view = v2(records, codec=codec)
    header = header_of(view)

    assert crc_matches(header, view)
    assert header.crc == _crc32c.crc(bytes(view[21:]))


def test_any_flipped_bit_that_the_crc_covers_is_noticed() -> None:
    """
    From the attributes to the last byte of the payload, and in the CRC itself.
    """
    view = v2(entries(7, 3), codec="lz4")

    for at in range(17, len(view)):
        for bit in range(8):
            view[at] ^= 1 << bit
            assert not crc_matches(BatchHeader._make(HEADER.unpack_from(view)), view), f"byte {at}, bit {bit}"
            view[at] ^= 1 << bit
    assert crc_matches(header_of(view), view)


def test_offset_and_leader_epoch_are_not_covered_by_the_crc() -> None:
    """
    A broker writes them into the batch of a producer.
    """
    view = v2(entries(7, 3))
    struct.pack_into(">q", view, 0, 2**40)
    struct.pack_into(">i", view, 12, 99)

    assert crc_matches(header_of(view), view)


# -- sealing -------------------------------------------------------------------------------------


@given(records=dense(), codec=codecs, attributes=bits, producer=producers, ours=producers)
def test_sealing_changes_what_is_ours_and_nothing_else(
    records: list[Entry],
    codec: Codec,
    attributes: int,
    producer: tuple[int, int, int],
    ours: tuple[int, int, int],
) -> None:
    """
    Offset, leader epoch, producer, the broker's bits and the CRC; never a byte of the payload.
    """
    view = v2(records, codec=codec, attributes=attributes, producer=producer, leader_epoch=8)
    before, payload = header_of(view), bytes(view[HEADER_BYTES:])

    seal(view, *ours)

    after = header_of(view)
    assert bytes(view[HEADER_BYTES:]) == payload
    assert after == before._replace(
        base_offset=0,
        leader_epoch=-1,
        crc=after.crc,
        attributes=before.attributes & ~BROKERS_BITS,
        producer_id=ours[0],
        producer_epoch=ours[1],
        base_sequence=ours[2],
    )
    assert crc_matches(after, view)


@given(records=dense(), codec=codecs)
def test_a_sealed_batch_holds_the_records_it_held(records: list[Entry], codec: Codec) -> None:
    """
    An independent reader sees them with their times, keys, values and headers, from offset 0 on.
    """
    view = v2(records, codec=codec, leader_epoch=8)

    seal(view, *OURS)

    first = records[0].offset
    assert read_v2(view) == [record._replace(offset=record.offset - first) for record in records]


def test_sealing_twice_is_as_good_as_once() -> None:
    """
    A batch that is sent again gets the same bytes from the same sequence.
    """
    view = v2(entries(5, 3), attributes=TRANSACTIONAL, producer=(9, 9, 9))
    seal(view, 1, 1, 1)

    seal(view, *OURS)
    once = bytes(view)
    seal(view, *OURS)

    assert bytes(view) == once


@pytest.mark.parametrize("size", [0, 1, 4_000, 4_095, 70_000, 1 << 18, 1 << 20, (1 << 20) + 1, 2_500_000])
def test_the_crc_is_carried_over_a_payload_of_any_size(size: int) -> None:
    """
    It is what it would be if it were computed anew.
    """
    view = build(
        bytes(range(256)) * (size // 256) + bytes(size % 256),
        count=1,
        codec=0,
        base_timestamp=0,
        max_timestamp=0,
    )

    seal(view, *OURS)

    assert crc_matches(header_of(view), view)


def test_a_payload_that_is_damaged_before_it_is_sealed_does_not_match() -> None:
    """
    Whoever checks it next finds what has happened to it in our memory.
    """
    view = v2(entries(0, 3))
    view[-1] ^= 1

    seal(view, *OURS)

    assert not crc_matches(header_of(view), view)


def test_times_stay_right_when_the_delete_horizon_goes() -> None:
    """
    With that bit the base timestamp is the horizon, and what the records say is relative to it.
    """
    records = [Entry(0, 1_000), Entry(1, 2_000, value=None), Entry(2, 1_500)]
    view = v2(records, attributes=DELETE_HORIZON, base_timestamp_ms=900_000)

    seal(view, *OURS)

    assert header_of(view).attributes == 0
    assert read_v2(view) == records


def test_bits_that_are_not_known_stay() -> None:
    """
    What a later version of the format means by them is for the target to say.
    """
    view = v2(entries(0, 1), attributes=0x80 | 0x4000 | BROKERS_BITS)

    seal(view, *OURS)

    assert header_of(view).attributes == 0x80 | 0x4000


@pytest.mark.parametrize("ours", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_a_producer_id_of_minus_one_is_never_used(ours: tuple[int, int, int]) -> None:
    """
    With it the broker would check nothing at all, nor are there such epochs; the batch is left as it was.
    """
    view = v2(entries(0, 1))
    before = bytes(view)

    with pytest.raises(ValueError, match="disable the broker's checks"):
        seal(view, *ours)

    assert bytes(view) == before


# -- building ------------------------------------------------------------------------------------


@given(records=dense(), codec=codecs)
def test_a_built_batch_is_the_one_kafka_python_builds(records: list[Entry], codec: Codec) -> None:
    """
    Around the same payload, byte for byte.
    """
    theirs = v2(records, codec=codec, leader_epoch=4)
    times = [record.timestamp_ms for record in records]

    ours = build(
        bytes(theirs[HEADER_BYTES:]),
        count=len(records),
        codec=CODECS[codec],
        base_timestamp=times[0],
        max_timestamp=max(times),
        base_offset=records[0].offset,
        leader_epoch=4,
    )

    assert ours == theirs
    assert not ours.readonly


@pytest.mark.parametrize("count", [1, 2, 64, 65, 8192, 8193, 20_000])
def test_padding_is_records_of_nothing(count: int) -> None:
    """
    An independent reader finds so many records with neither key nor value.
    """
    view = null_batch(count, timestamp_ms=77)

    seal(view, *OURS)

    assert read_v2(view) == [Entry(number, 77, None, None) for number in range(count)]
    assert header_of(view).attributes == ZSTD


def test_padding_costs_a_tenth_of_a_byte_a_record() -> None:
    """
    A million offsets are far below the limit of a batch on any broker.
    """
    view = null_batch(1_000_000, timestamp_ms=77)

    assert len(view) < 1_000_000
    assert header_of(view).next_offset == 1_000_000


def test_each_padding_batch_has_bytes_of_its_own() -> None:
    """
    Sealing one does not change another that is on its way.
    """
    first, second = null_batch(10, timestamp_ms=1), null_batch(10, timestamp_ms=1)

    seal(first, *OURS)

    assert first != second
    assert crc_matches(header_of(second), second)


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_padding_is_known_again_however_it_is_compressed(codec: Codec) -> None:
    """
    By its first record, which has neither key nor value.
    """
    nulls = [Entry(7 + n, 77, None, None) for n in range(3)]
    keyed = [Entry(7, 77, b"key", None), *nulls[1:]]

    assert is_null_batch(*next(walk(null_batch(5, timestamp_ms=77))))
    assert is_null_batch(*next(walk(v2(nulls, codec=codec))))
    assert not is_null_batch(*next(walk(v2(keyed, codec=codec))))
    assert not is_null_batch(*next(walk(control(7, 1, 1))))


# -- markers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "expected"), [(0, True), (1, False), (2, False), (7, False)])
@pytest.mark.parametrize("offset", [0, 200, 2**40])
def test_a_marker_tells_an_abort_from_all_else(kind: int, expected: bool, offset: int) -> None:
    """
    Only its key says so.
    """
    assert aborts(control(offset, 5, kind)) is expected
    assert header_of(control(offset, 5, kind)).attributes & CONTROL


def test_a_marker_is_understood_whatever_its_varints_look_like() -> None:
    """
    Long timestamps and values make the fields before the key longer.
    """
    marker = Entry(9, 2**41, struct.pack(">hh", 0, 0), bytes(300))
    view = v2([marker], attributes=CONTROL | TRANSACTIONAL, base_offset=1, base_timestamp_ms=0)

    assert aborts(view)


def test_the_builder_of_these_tests_is_sound() -> None:
    """
    What it writes with gaps, bits and codecs is read again by kafka-python, unchanged.
    """
    records = [Entry(10, 5, None, None), Entry(14, 9, b"", b"", (("h", None), ("h", b""))), Entry(15, 7)]

    for codec in CODECS:
        view = v2(records, codec=codec, base_offset=8, last_offset=20)
        assert read_v2(view) == records
        assert DefaultRecordBatch(view).next_offset == 21
        assert decompress(codec, compress(codec, b"abc")) == b"abc"
    assert with_header(b"", 0, 0, (0, 0, 0, 0, -1, -1, -1, 0))[17:21] != bytes(4)
    assert zlib.crc32(old(1, [Entry(0)])[16:]) == struct.unpack_from(">I", old(1, [Entry(0)]), 12)[0]


# -- inflating -----------------------------------------------------------------------------------


@given(records=gapped(), codec=codecs, attributes=bits, producer=producers, epoch=st.integers(-1, 2**31 - 1))
def test_an_inflated_batch_is_what_it_would_be_without_compression(
    records: list[Entry], codec: Codec, attributes: int, producer: tuple[int, int, int], epoch: int
) -> None:
    """
    Byte for byte: only codec, length and CRC are others.
    """
    view = v2(records, codec=codec, attributes=attributes, producer=producer, leader_epoch=epoch)

    plain = inflated(header_of(view), view, 1 << 20)

    assert plain == v2(records, attributes=attributes, producer=producer, leader_epoch=epoch)


def test_no_more_is_inflated_than_is_allowed() -> None:
    """
    What a batch of padding becomes is a thousand times as large.
    """
    view = null_batch(100_000, timestamp_ms=0)

    with pytest.raises(CodecError, match=r"zstd: \d+ bytes decompress to more than 10000 bytes"):
        inflated(header_of(view), view, 10_000)
