"""Parts of a frame: one partition's records, between two offsets."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.flow.intake import take
from mirror.flow.misplaced import Asked
from mirror.kafka.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, deflate
from mirror.kafka.fetch import Fetched, Key
from mirror.kafka.record_batch import build, null_batch
from mirror.link import parts as parts_module
from mirror.link.parts import (
    Part,
    decode_parts,
    encode_parts,
    ends_here,
    goes_on,
    restored,
    whole_batches,
)
from mirror.link.recoding import restore

WORDS = b"".join(b'{"id": %d, "note": "some words %d"}' % (n, n * 7919 % 1000) for n in range(3_000))
offsets = st.integers(-1, 2**62)
parts = st.builds(
    lambda number, offset, more, **fields: Part(number, offset, offset + more, Fetched(**fields)),
    number=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**60),
    more=st.integers(0, 1000),
    key=st.builds(Key, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1)),
    error_code=st.integers(-1, 200),
    high_watermark=offsets,
    last_stable_offset=offsets,
    log_start_offset=offsets,
    diverging=st.none() | st.tuples(st.integers(0, 1000), offsets),
    aborted=st.lists(st.tuples(offsets, offsets), max_size=3),
    records=st.binary(max_size=100).map(memoryview),
)


def batch(base_offset: int, records: int, leader_epoch: int = 0) -> bytes:
    view = bytearray(null_batch(records, timestamp_ms=0))
    view[:8] = base_offset.to_bytes(8, "big")
    view[12:16] = leader_epoch.to_bytes(4, "big")
    return bytes(view)


@given(st.lists(parts, max_size=4))
def test_parts_come_out_as_they_went_in(sent: list[Part]) -> None:
    """
    Every field.
    """
    assert decode_parts(memoryview(b"".join(encode_parts(sent)))) == sent


@given(st.lists(parts, min_size=1, max_size=2), st.data())
def test_what_is_cut_off_is_refused(sent: list[Part], data: st.DataObject) -> None:
    """
    At any byte that is no end of a part.
    """
    body = b"".join(encode_parts(sent))
    ends = {len(b"".join(encode_parts(sent[:count]))) for count in range(len(sent) + 1)}
    at = data.draw(st.integers(1, len(body) - 1).filter(lambda at: at not in ends))

    with pytest.raises(AnswerError, match=r"truncated|ends at byte"):
        decode_parts(memoryview(body[:at]))


@given(st.binary(max_size=300))
def test_nothing_else_is_taken_for_parts_unseen(body: bytes) -> None:
    """
    Random bytes are refused, or are parts whose fields are in range.
    """
    try:
        found = decode_parts(memoryview(body))
    except AnswerError:
        return
    assert all(0 <= part.offset <= part.next_offset and part.fetched.key.partition >= 0 for part in found)


def test_offsets_that_go_back_are_refused() -> None:
    """
    A range that ends before it begins.
    """
    key = Key(bytes(16), 0)
    part = Part(1, 10, 9, Fetched(key, 0, 10, 10, 0, None, [], memoryview(b"")))

    with pytest.raises(AnswerError, match="goes from 10 to 9"):
        decode_parts(memoryview(b"".join(encode_parts([part]))))


@pytest.mark.parametrize("aborted", [[], [(7, 8)] * 99], ids=["parts", "aborted transactions"])
def test_so_many_parts_of_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, aborted: list[tuple[int, int]]
) -> None:
    """
    A hundred megabytes of them cross the link as kilobytes, and would be a gigabyte here.
    """
    monkeypatch.setattr(parts_module, "ENTRIES_MAX", 300)
    one = Part(1, 0, 0, Fetched(Key(bytes(16), 0), 0, 0, 0, 0, None, aborted, memoryview(b"")))
    most = 300 // (1 + len(aborted))
    body = b"".join(encode_parts([one] * (most + 1)))

    assert len(decode_parts(memoryview(body[: len(body) // (most + 1) * most]))) == most
    with pytest.raises(AnswerError, match="more than 300 parts"):
        decode_parts(memoryview(body))


def test_a_torn_batch_stays_behind() -> None:
    """
    Whole batches go on, with the offset behind them and the last leader epoch.
    """
    records = batch(10, 5, leader_epoch=3) + batch(15, 2, leader_epoch=4)

    assert whole_batches(memoryview(records)) == (len(records), len(batch(10, 5)), 17, 4, True)
    assert whole_batches(memoryview(records[:-1])) == (*[len(batch(10, 5))] * 2, 15, 3, True)
    assert whole_batches(memoryview(records[:50])) == (0, 0, -1, -1, True)


def test_a_relay_reads_on_unless_it_has_sent_what_nobody_can_take() -> None:
    """
    That nothing is new is no end; an error is, and what is no batch.
    """
    no_news = Part(1, 7, 7, Fetched(Key(bytes(16), 0), 0, 99, 99, 0, None, [], memoryview(b"")))
    some = no_news._replace(next_offset=9, fetched=no_news.fetched._replace(records=memoryview(batch(7, 2))))
    no_batch = no_news._replace(fetched=no_news.fetched._replace(records=memoryview(b"\xff" * 200)))
    refused = no_news._replace(fetched=no_news.fetched._replace(error_code=1))
    diverging = no_news._replace(fetched=no_news.fetched._replace(diverging=(3, 5)))

    assert [ends_here(part) for part in (no_news, some)] == [False, False]
    assert [ends_here(part) for part in (no_batch, refused, diverging)] == [True] * 3


def test_what_is_no_batch_is_not_taken_for_the_end() -> None:
    """
    What stands before it goes on first.
    """
    records = batch(0, 5) + b"\xff" * 200

    whole = whole_batches(memoryview(records))

    assert whole == (*[len(batch(0, 5))] * 2, 5, 0, False)


def placed(records: bytes, offset: int, next_offset: int) -> Part:
    fetched = Fetched(Key(bytes(16), 0), 0, 99, 99, 0, None, [], memoryview(records))
    return Part(1, offset, next_offset, fetched)


@pytest.mark.parametrize(
    ("records", "offset", "next_offset"),
    [
        (b"", 7, 7),
        (batch(10, 5) + batch(15, 2), 10, 17),
        (batch(10, 5) + batch(15, 2), 13, 17),
        (batch(10, 5) + batch(20, 2), 3, 22),
        (b"\xff" * 200, 7, 7),
    ],
    ids=["nothing", "in a row", "from the middle of a batch", "with gaps", "no batch at all"],
)
def test_batches_that_follow_one_another_go_on(records: bytes, offset: int, next_offset: int) -> None:
    """
    Whatever compaction has taken away; and what is no batch is for others to tell.
    """
    assert goes_on(placed(records, offset, next_offset))


@pytest.mark.parametrize(
    ("records", "offset", "next_offset"),
    [
        (b"", 7, 8),
        (batch(10, 5) + batch(16, 2), 10, 17),
        (batch(10, 5), 10, 17),
        ((batch(10, 5) + batch(15, 2))[:-1], 10, 17),
    ],
    ids=["nothing", "another end", "an end is missing", "torn"],
)
def test_batches_that_end_in_another_place_do_not(records: bytes, offset: int, next_offset: int) -> None:
    """
    Each of them is as sound as it was: their CRC does not say where they belong.
    """
    assert not goes_on(placed(records, offset, next_offset))


@pytest.mark.parametrize(
    "records",
    [batch(5, 5) + batch(15, 2), batch(10, 5) + batch(14, 3), batch(15, 2) + batch(10, 5)],
    ids=["before", "overlap", "backwards"],
)
def test_batches_that_do_not_follow_one_another_are_refused_by_who_takes_them(records: bytes) -> None:
    """
    What stands before them is taken.
    """
    part = placed(records, 10, 17)

    assert goes_on(part)
    assert refuses(part)


def test_where_the_last_batches_are_cut_off_the_end_is_another() -> None:
    """
    As where a batch did not come out as it was.
    """
    assert goes_on(placed(batch(10, 5), 10, 17), cut=True)
    assert not goes_on(placed(batch(10, 9), 10, 17), cut=True)


@given(st.integers(0, 63), st.integers(0, 2))
def test_one_bit_of_where_a_batch_belongs_does_not_flip_unseen(bit: int, number: int) -> None:
    """
    Of none of its batches.
    """
    records = bytearray(batch(1_000, 5) + batch(1_005, 5) + batch(1_010, 5))
    records[number * (len(records) // 3) + bit // 8] ^= 1 << bit % 8

    part = placed(bytes(records), 1_000, 1_015)
    assert refuses(part) or not goes_on(part)


@pytest.mark.parametrize("seen", [8, 61, 1 << 20])
@pytest.mark.parametrize("other", [0, 12])
def test_two_batches_that_do_not_follow_one_another_are_not_sent_on(seen: int, other: int) -> None:
    """
    Also where the second one is torn off; what stands before both is sent, and then they come first.
    """
    before, first, second = batch(5, 5), batch(10, 5), batch(other, 2)

    late = whole_batches(memoryview(before + first + second[:seen]))
    at_once = whole_batches(memoryview(first + second[:seen]))

    assert late == (*[len(before)] * 2, 10, 0, False)
    assert at_once == (0, 0, -1, -1, False)


def refuses(part: Part) -> bool:
    """Whether a mirror refuses some of a part, of which it has what is before."""
    asked = Asked(part.offset, batch_end=part.offset, end=part.next_offset)
    records = part.fetched.records
    intake = take(records, fetch_offset=part.offset, aborted=(), batch_bytes_max=1 << 20, asked=asked)
    return intake.error is not None


def harder(payload: bytes) -> bytes:
    """As librdkafka does it at a higher level: the same frame, and other bytes in it."""
    blocks = lz4.frame.BLOCKSIZE_MAX64KB
    packed: bytes = lz4.frame.compress(
        payload, compression_level=9, block_size=blocks, block_linked=False, store_size=False
    )
    return packed


def lz4_batch(base_offset: int, payload: bytes, encode: Callable[[bytes], bytes] | None = None) -> bytes:
    """Of one record as far as the header goes; compressed as clients do, or otherwise."""
    packed = encode(payload) if encode else deflate(LZ4, payload)
    return bytes(
        build(packed, count=1, codec=LZ4, base_timestamp=0, max_timestamp=0, base_offset=base_offset)
    )


def gzip_of(level: int, head: str) -> Callable[[bytes], bytes]:
    """As zlib does it, behind a header of our choice."""

    def encode(payload: bytes) -> bytes:
        writer = zlib.compressobj(level, wbits=31)
        return bytes.fromhex(head) + (writer.compress(payload) + writer.flush())[10:]

    return encode


def harder_snappy(payload: bytes) -> bytes:
    """In smaller blocks than any client makes."""
    blocks = [deflate(SNAPPY, payload[at : at + 1000]) for at in range(0, len(payload), 1000)]
    return b"".join((blocks[0], *(block[16:] for block in blocks[1:])))


def packed_batch(codec: int, encode: Callable[[bytes], bytes]) -> bytes:
    """Of one record as far as the header goes."""
    return bytes(build(encode(WORDS), count=1, codec=codec, base_timestamp=0, max_timestamp=0, base_offset=0))


JAVA_8, JAVA_17, LIBRDKAFKA = "1f8b0800000000000000", "1f8b08000000000000ff", "1f8b0800000000000003"


@pytest.mark.parametrize(
    ("codec", "encode"),
    [
        (GZIP, gzip_of(6, JAVA_8)),
        (GZIP, gzip_of(6, JAVA_17)),
        (GZIP, gzip_of(6, LIBRDKAFKA)),
        (GZIP, gzip_of(9, "1f8b0800000000000203")),
        (GZIP, gzip_of(1, "1f8b0800000000000403")),
        (SNAPPY, partial(deflate, SNAPPY)),
    ],
    ids=["gzip of Java 8", "of Java 17", "of librdkafka", "level 9", "level 1", "snappy-java"],
)
def test_what_clients_have_compressed_comes_out_as_it_was(
    codec: int, encode: Callable[[bytes], bytes]
) -> None:
    """
    Their headers differ, and travel as they are.
    """
    mixed = part_of(0, packed_batch(codec, encode), lz4_batch(1, WORDS))

    came, others, size = sent([mixed], {mixed.fetched.key})

    assert (came, others) == ([mixed], {})
    assert size > 2 * len(WORDS)


@pytest.mark.parametrize(
    ("codec", "encode"),
    [
        (GZIP, gzip_of(6, "1f8b0808000000000003")),
        (GZIP, lambda _: bytes.fromhex(JAVA_17)),
        (SNAPPY, lambda payload: bytes(cramjam.snappy.compress_raw(payload))),
        (SNAPPY, harder_snappy),
        (ZSTD, partial(deflate, ZSTD)),
    ],
    ids=[
        "a file name",
        "nothing behind the header",
        "snappy without blocks",
        "snappy of another encoder",
        "zstd",
    ],
)
def test_what_begins_otherwise_travels_as_it_is(codec: int, encode: Callable[[bytes], bytes]) -> None:
    """
    Nothing has to be asked for again.
    """
    other = part_of(0, packed_batch(codec, encode), lz4_batch(1, WORDS))

    came, others, size = sent([other], {other.fetched.key})

    assert (came, others) == ([other], {})
    assert size < 2 * len(WORDS)


def test_of_another_level_that_no_header_tells_it_is_named() -> None:
    """
    Java writes the same header for each.
    """
    odd = part_of(0, packed_batch(GZIP, gzip_of(2, JAVA_17)))

    assert sent([odd], {odd.fetched.key})[1] == {odd.fetched.key: 1}


def part_of(number: int, *batches: bytes) -> Part:
    records = memoryview(b"".join(batches))
    return Part(1, 0, len(batches), Fetched(Key(bytes(16), number), 0, 9, 9, 0, None, [], records))


def sent(parts: list[Part], recode: set[Key]) -> tuple[list[Part], dict[Key, int], int]:
    """As they arrive; where something did not come out the same, the offset behind it; and the bytes of the
    body.
    """
    body = memoryview(bytearray(b"".join(encode_parts(parts, recode))))
    came = decode_parts(body)
    room = memoryview(bytearray(sum(part.recoded_bytes for part in came)))
    return *restored(came, room), len(body)


def test_lz4_travels_inflated_and_arrives_as_it_was() -> None:
    """
    Between batches of other codecs, and beside partitions without any of lz4.
    """
    text = os.urandom(500) * 1000
    mixed = part_of(0, lz4_batch(0, text), batch(1, 1), lz4_batch(2, os.urandom(70_000)))
    plain = part_of(1, batch(0, 1))

    came, others, size = sent([mixed, plain], {mixed.fetched.key, plain.fetched.key})

    assert came == [mixed, plain]
    assert others == {}
    assert size > len(text) > 10 * len(mixed.fetched.records) - 10 * 80_000


def test_what_travels_inflated_of_several_partitions_arrives_each_in_its_place() -> None:
    """
    One behind the other, in whatever codec; what is as it was between them takes no room.
    """
    parts = [
        part_of(0, lz4_batch(0, WORDS), lz4_batch(1, WORDS[::-1])),
        part_of(1, batch(0, 1)),
        part_of(2, packed_batch(SNAPPY, partial(deflate, SNAPPY))),
        part_of(3, lz4_batch(0, WORDS[1_000:])),
    ]

    came, others, size = sent(parts, {part.fetched.key for part in parts})

    assert (came, others) == (parts, {})
    assert size > 3 * len(WORDS)


def test_what_would_not_come_out_the_same_is_named() -> None:
    """
    What stands before it arrives; it is for the mirror to ask for the rest as it is.
    """
    first = lz4_batch(0, b"a" * 1000)
    odd = part_of(0, first, lz4_batch(1, WORDS, harder), lz4_batch(2, b"c" * 1000))

    came, others, _ = sent([odd], {odd.fetched.key})

    assert bytes(came[0].fetched.records) == first
    assert others == {odd.fetched.key: 2}
    assert sent([odd], set())[0] == [odd]


@pytest.mark.parametrize(
    "frame",
    [
        {"store_size": True},
        {"store_size": False, "content_checksum": True},
        {"store_size": False, "block_size": lz4.frame.BLOCKSIZE_MAX4MB, "block_linked": False},
    ],
    ids=["content size", "content checksum", "larger blocks"],
)
def test_what_another_encoder_has_begun_otherwise_travels_as_it_is(frame: dict[str, Any]) -> None:
    """
    And what stands beside it inflated: the mirror has nothing to ask for again.
    """
    other = lz4_batch(1, WORDS, lambda payload: bytes(lz4.frame.compress(payload, **frame)))
    mixed = part_of(0, lz4_batch(0, WORDS), other, lz4_batch(2, WORDS))

    came, others, size = sent([mixed], {mixed.fetched.key})

    assert (came, others) == ([mixed], {})
    assert 2 * len(WORDS) < size < 3 * len(WORDS)


def test_what_inflates_to_too_much_travels_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    All parts of a frame together.
    """
    monkeypatch.setattr(parts_module, "RECODED_BYTES_MAX", 150_000)
    parts = [part_of(number, lz4_batch(0, b"a" * 100_000)) for number in range(3)]

    came, others, size = sent(parts, {part.fetched.key for part in parts})

    assert (came, others) == (parts, {})
    assert 100_000 < size < 150_000


def test_what_travels_as_it_is_leaves_the_bound_to_what_inflates(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Other batches of the same part, and the heads of all of them.
    """
    monkeypatch.setattr(parts_module, "RECODED_BYTES_MAX", 200_000)
    plain = build(bytes(200_000), count=1, codec=NONE, base_timestamp=0, max_timestamp=0, base_offset=1)
    first = part_of(0, lz4_batch(0, b"a" * 100_000), bytes(plain))
    second = part_of(1, lz4_batch(0, b"b" * 100_000))

    came, others, size = sent([first, second], {first.fetched.key, second.fetched.key})

    assert (came, others) == ([first, second], {})
    assert 400_000 < size < 410_000


def test_where_other_batches_have_used_up_the_bound_nothing_more_inflates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What comes after them may be a bomb.
    """
    monkeypatch.setattr(parts_module, "RECODED_BYTES_MAX", 150_000)
    plain = build(bytes(200_000), count=1, codec=NONE, base_timestamp=0, max_timestamp=0, base_offset=1)
    first = part_of(0, lz4_batch(0, b"a" * 100_000), bytes(plain))
    bomb = part_of(1, lz4_batch(0, bytes(16 << 20)))

    tracemalloc.start()
    came, others, size = sent([first, bomb], {first.fetched.key, bomb.fetched.key})
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (came, others) == ([first, bomb], {})
    assert 300_000 < size < 400_000
    assert peak_bytes < 2_000_000


@given(st.binary(max_size=200), st.integers(0, 300))
def test_recoded_records_that_make_no_sense_are_refused(entries: bytes, room: int) -> None:
    """
    Random bytes: no more comes out of them than there is room for.
    """
    try:
        filled, _ = restore(memoryview(entries), memoryview(bytearray(room)))
    except AnswerError:
        return
    assert filled <= room
