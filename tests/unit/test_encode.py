"""The slow path: batches are taken apart and written again, dense, with nothing else changed."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import BatchError, CorruptBatchError, RecordTooLargeError, UnreadableBatchError
from mirror.flow.encode import DECODED_BYTES_MAX, decode, encode, reencode
from mirror.flow.records import Record
from mirror.kafka.record_batch import (
    CODEC_BITS,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    crc_matches,
    walk,
)
from mirror.kafka.varint import encode_varint
from mirror.model import Batch
from tests.unit.batches import (
    CODECS,
    Codec,
    Entry,
    codecs,
    compress,
    dense,
    entries,
    gapped,
    old,
    read_v2,
    v2,
    with_header,
)

NO_LIMIT = 1 << 30
int64 = st.integers(-(2**63), 2**63 - 1)


def header_of(view: memoryview) -> BatchHeader:
    ((header, _),) = walk(view)
    return header


def rewritten(view: memoryview, start_offset: int = 0, batch_bytes_max: int = NO_LIMIT) -> list[Batch]:
    return reencode(header_of(view), view, start_offset=start_offset, batch_bytes_max=batch_bytes_max)


def content(batches: list[Batch]) -> list[Entry]:
    """All records of batches, as kafka-python reads them."""
    return [record for batch in batches for record in read_v2(batch.view)]


def check(batch: Batch, codec: Codec, leader_epoch: int) -> None:
    """What is true of every batch that was written anew: the target takes it as it is."""
    header = header_of(batch.view)
    offsets = [record.offset for record in read_v2(batch.view)]
    assert crc_matches(header, batch.view)
    assert offsets == list(range(batch.base_offset, batch.next_offset))
    assert header.records == header.last_offset_delta + 1 == batch.records > 0
    assert header.attributes == CODECS[codec]
    assert (header.base_offset, header.leader_epoch) == (batch.base_offset, batch.leader_epoch)
    assert header.max_timestamp == batch.max_timestamp_ms
    assert batch.max_timestamp_ms == max(record.timestamp_ms for record in read_v2(batch.view))
    assert batch.leader_epoch == leader_epoch
    assert not batch.view.readonly


# -- nothing is lost or changed ------------------------------------------------------------------


@given(records=gapped(), codec=codecs, start=st.integers(-3, 20), bits=st.sampled_from([0, TRANSACTIONAL]))
def test_records_come_out_as_they_went_in(records: list[Entry], codec: Codec, start: int, bits: int) -> None:
    """
    Offset, time, key, value and headers of each from the start offset on; a batch ends where a gap begins.
    """
    start_offset = records[0].offset + start
    view = v2(records, codec=codec, attributes=bits, leader_epoch=6, producer=(5, 0, 9))

    batches = rewritten(view, start_offset)

    assert content(batches) == [record for record in records if record.offset >= start_offset]
    assert all(earlier.next_offset < later.base_offset for earlier, later in pairwise(batches))
    for batch in batches:
        check(batch, codec, 6)


@given(records=dense(), codec=codecs, room=st.integers(70, 400))
def test_what_is_too_large_is_split(records: list[Entry], codec: Codec, room: int) -> None:
    """
    Into batches that fit; one record that does not fit by itself is named.
    """
    view = v2(records, codec=codec)

    try:
        batches = rewritten(view, batch_bytes_max=room)
    except RecordTooLargeError as refused:
        alone = [r for r in records if r.offset == refused.offset]
        batches = rewritten(v2(alone, codec=codec))
        assert len(batches[0].view) > room
        return

    assert content(batches) == records
    assert all(len(batch.view) <= room for batch in batches)
    for batch in batches:
        check(batch, codec, 0)


def test_the_whole_batch_is_refused_for_one_record_that_is_too_large() -> None:
    """
    Its offset and both sizes are in the message: an operator sees which limit to raise.
    """
    records = [*entries(10, 2), Entry(12, value=bytes(5_000)), *entries(13, 2)]

    with pytest.raises(
        RecordTooLargeError, match=r"one record takes 50\d\d bytes, the target accepts 1000"
    ) as refused:
        rewritten(v2(records), batch_bytes_max=1_000)

    assert refused.value.offset == 12


@pytest.mark.parametrize(
    ("codec", "harder"),
    [
        ("gzip", lambda data: zlib.compress(data, 9, wbits=31)),
        ("lz4", partial(lz4.frame.compress, compression_level=9, block_size=4, block_linked=False)),
        ("zstd", zstandard.ZstdCompressor(level=19).compress),
    ],
)
def test_a_record_of_a_producer_that_compresses_harder_fits_where_it_did(
    codec: Codec, harder: Callable[[bytes], bytes]
) -> None:
    """
    The target's limit may be the source's, and as good as reached there.
    """
    words = random.Random(7)
    value = b" ".join(b"word-%d" % words.randrange(2_000) for _ in range(60_000))
    plain = v2([Entry(40, value=value)])
    view = lying(
        harder(bytes(plain[HEADER_BYTES:])), attributes=CODECS[codec] | LOG_APPEND_TIME, max_timestamp=7
    )

    (batch,) = rewritten(view, batch_bytes_max=len(view))

    check(batch, codec, 0)
    assert content([batch]) == [Entry(40, 7, value=value)]
    assert len(rewritten(v2([Entry(40, value=value)], codec=codec))[0].view) > len(view)


def test_a_huge_record_goes_through() -> None:
    """
    Eight megabytes of value, compressed away and back.
    """
    records = [Entry(0, value=b"x" * (8 << 20)), Entry(3, key=bytes(1 << 20))]

    assert content(rewritten(v2(records, codec="lz4"))) == records


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_become_the_new_one(magic: int) -> None:
    """
    With the codec they had; format v0 has no times.
    """
    records = [
        Entry(7, -1 if magic == 0 else 99),
        Entry(8, -1 if magic == 0 else 88, None, b""),
        Entry(11, -1),
    ]
    view = old(0 if magic == 0 else 1, records, codec="gzip")

    batches = rewritten(view, start_offset=8)

    assert content(batches) == records[1:]
    assert [batch.base_offset for batch in batches] == [8, 11]
    for batch in batches:
        check(batch, "gzip", -1)


# -- times ---------------------------------------------------------------------------------------


@given(records=gapped(), codec=codecs, appended_ms=st.integers(0, 2**41))
def test_records_have_the_time_the_broker_appended_them(
    records: list[Entry], codec: Codec, appended_ms: int
) -> None:
    """
    What consumers of a LogAppendTime topic saw is what consumers of the copy see.
    """
    view = v2(records, codec=codec, attributes=LOG_APPEND_TIME, max_timestamp_ms=appended_ms)

    batches = rewritten(view)

    assert content(batches) == [record._replace(timestamp_ms=appended_ms) for record in records]
    assert content(batches) == read_v2(view)


@given(records=gapped(), horizon_ms=st.integers(0, 2**41))
def test_the_delete_horizon_is_no_time_of_a_record(records: list[Entry], horizon_ms: int) -> None:
    """
    Deltas are relative to it; the batch written anew begins at its first record.
    """
    view = v2(records, attributes=DELETE_HORIZON, base_timestamp_ms=horizon_ms)

    batches = rewritten(view)

    assert content(batches) == records
    assert header_of(batches[0].view).base_timestamp == records[0].timestamp_ms


@given(first=dense(2), second=dense(2))
def test_times_may_go_backwards(first: list[Entry], second: list[Entry]) -> None:
    """
    The largest is the batch's, wherever it stands.
    """
    records = [record._replace(offset=n) for n, record in enumerate([*first, *second])]

    (batch,) = rewritten(v2(records))

    assert content([batch]) == records
    assert batch.max_timestamp_ms == max(record.timestamp_ms for record in records)


@pytest.mark.parametrize("time_ms", [2**63 - 1, 1 << 62, -(2**63) + 1])
def test_a_time_may_be_as_far_away_as_brokers_take_it(time_ms: int) -> None:
    """
    By their defaults they take any: some producers write the largest number for "never".
    """
    records = [Entry(0, time_ms), Entry(2, time_ms)]

    assert content(rewritten(v2(records))) == records


@given(times=st.lists(int64, min_size=1, max_size=4))
def test_times_further_apart_than_a_delta_can_tell_wrap_around(times: list[int]) -> None:
    """
    As Java's clients and brokers write and read them.
    """
    batch = encode([Record(offset, time_ms, b"\1\1\0") for offset, time_ms in enumerate(times)], 0)

    ((header, view),) = walk(batch.view)
    records, _ = decode(header, view, DECODED_BYTES_MAX)

    assert [record.timestamp for record in records] == times
    assert header.max_timestamp == max(times)


def test_a_delta_that_goes_beyond_the_last_time_wraps_around() -> None:
    """
    To a consumer in Java the record has that time.
    """
    (batch,) = rewritten(lying(whole(0, 2**63 - 1), base_timestamp=1))

    assert header_of(batch.view).base_timestamp == -(2**63)


# -- batches that contradict themselves ----------------------------------------------------------


def lying(payload: bytes, **changed: int) -> memoryview:
    """A batch with the right CRC around a payload, and a header that says what it is told to."""
    said = {
        "attributes": 0,
        "last_offset_delta": 0,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "records": 1,
    } | changed
    return with_header(payload, 40, 0, tuple(said.values()))


def whole(offset_delta: int, timestamp_delta: int = 0, tail: bytes = b"\1\1\0") -> bytes:
    """A record with the right length."""
    size = len(encode_varint(offset_delta)) + len(encode_varint(timestamp_delta)) + 1 + len(tail)
    return raw(size, offset_delta, timestamp_delta, tail)


def raw(length: int, offset_delta: int, timestamp_delta: int = 0, tail: bytes = b"\1\1\0") -> bytes:
    """A record with lengths and deltas as told."""
    return encode_varint(length) + b"\0" + encode_varint(timestamp_delta) + encode_varint(offset_delta) + tail


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lying(b""), "cannot be read"),
        (lying(raw(6, 0), records=2), "cannot be read"),
        (lying(raw(6, 0) * 2), "bytes follow its last record"),
        (lying(raw(6, 0) + b"x"), "bytes follow its last record"),
        (lying(raw(60, 0)), "does not fit"),
        (lying(raw(1, 0)), "does not fit"),
        (lying(raw(-1, 0)), "does not fit"),
        (lying(raw(-(2**31), 0)), "does not fit"),
        (lying(raw(6, 0) + raw(6, 0), records=2), "not in offset order"),
        (lying(raw(6, 5) + raw(6, 4), records=2, last_offset_delta=5), "not in offset order"),
        (lying(b"\xff" * 30), "cannot be read"),
        (lying(raw(6, 0), records=2**31 - 1), "cannot be read"),
        (lying(raw(6, 0), records=-1), "bytes follow its last record"),
        (lying(whole(2**31)), "covers offsets"),
        (lying(whole(-1)), "covers offsets"),
        (lying(whole(0) + whole(1), records=2), "covers offsets"),
    ],
)
def test_lengths_and_counts_that_lie_are_named(view: memoryview, words: str) -> None:
    """
    The batch is corrupt at its own offset; nothing of it is sent on.
    """
    with pytest.raises(CorruptBatchError, match=words) as refused:
        rewritten(view)

    assert refused.value.offset == 40


@given(
    payload=st.binary(max_size=60)
    | st.builds(raw, st.integers(-5, 70), int64, int64, st.binary(max_size=60)),
    codec=codecs,
    attributes=st.integers(-(2**15), 2**15 - 1),
    times=st.tuples(int64, int64),
    count=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
)
def test_whatever_a_batch_holds_it_is_read_or_refused_by_name(
    payload: bytes, codec: Codec, attributes: int, times: tuple[int, int], count: int
) -> None:
    """
    A right CRC around anything at all: no other error than those that block a partition with a reason.
    """
    view = lying(
        compress(codec, payload),
        attributes=(attributes & ~CODEC_BITS) | CODECS[codec],
        base_timestamp=times[0],
        max_timestamp=times[1],
        records=count,
    )

    try:
        batches = rewritten(view)
    except BatchError:
        return

    assert all(header_of(batch.view).records == batch.records for batch in batches)


@given(records=dense(), codec=codecs, at=st.integers(0, 2**16), bit=st.integers(0, 7))
def test_a_payload_with_one_bit_wrong_is_read_or_refused_by_name(
    records: list[Entry], codec: Codec, at: int, bit: int
) -> None:
    """
    The CRC is checked elsewhere; here nothing else may go wrong.
    """
    view = v2(records, codec=codec)
    view[61 + at % (len(view) - 61)] ^= 1 << bit

    try:
        batches = rewritten(view, batch_bytes_max=NO_LIMIT)
    except BatchError:
        return

    assert sum(batch.records for batch in batches) <= len(records)


def test_old_messages_inside_a_set_do_not_reach_beyond_it() -> None:
    """
    With absolute offsets (v0) the outer one is that of the last: what lies behind it belongs to the next set.
    """
    view = old(0, entries(10, 3), codec="gzip")
    view[7] -= 1

    with pytest.raises(CorruptBatchError, match="offsets 0 to 11, its records have offsets 10 to 12"):
        rewritten(view)


def test_an_unknown_codec_is_named() -> None:
    """
    The batch is intact, we cannot read it.
    """
    with pytest.raises(UnreadableBatchError, match="unknown compression codec 7") as refused:
        rewritten(lying(b"x", attributes=7))

    assert refused.value.offset == 40


def test_a_bomb_is_unreadable() -> None:
    """
    More than the bound never comes out; the bound itself leaves room for what brokers take.
    """
    view = v2([Entry(0, value=bytes(1 << 20))], codec="zstd")

    with pytest.raises(UnreadableBatchError, match="more than 1000 bytes"):
        reencode(header_of(view), view, start_offset=0, batch_bytes_max=NO_LIMIT, decoded_bytes_max=1_000)
    assert DECODED_BYTES_MAX >= 128 << 20


# -- records -------------------------------------------------------------------------------------


@given(records=gapped(), codec=codecs)
def test_a_decoded_record_keeps_key_value_and_headers_as_the_bytes_they_are(
    records: list[Entry], codec: Codec
) -> None:
    """
    They are never looked into: two batches of the same records decode to the same, whatever their codec.
    """
    view = v2(records, codec=codec)

    found, was = decode(header_of(view), view, NO_LIMIT)

    plain, _ = decode(header_of(v2(records)), v2(records), NO_LIMIT)
    assert (found, was) == (plain, CODECS[codec])
    assert [(r.offset, r.timestamp) for r in found] == [(r.offset, r.timestamp_ms) for r in records]


@given(records=dense(), codec=codecs)
def test_what_was_decoded_is_encoded_to_the_same_batch_again(records: list[Entry], codec: Codec) -> None:
    """
    A batch without gaps and without a codec is the same byte for byte.
    """
    view = v2(records, codec=codec, leader_epoch=3)
    found, was = decode(header_of(view), view, NO_LIMIT)

    batch = encode(found, was, leader_epoch=3)

    assert read_v2(batch.view) == records
    if codec == "none":
        assert batch.view == view


def test_one_batch_is_made_of_records_given_by_hand() -> None:
    """
    The tail of a record is what stands behind its deltas.
    """
    batch = encode([Record(5, 70, b"\2k\2v\0"), Record(6, 60, b"\1\1\0")], CODECS["none"])

    assert (batch.base_offset, batch.next_offset, batch.max_timestamp_ms) == (5, 7, 70)
    assert read_v2(batch.view) == [Entry(5, 70, b"k", b"v"), Entry(6, 60, None, None)]
