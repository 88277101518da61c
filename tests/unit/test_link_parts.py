"""Parts of a frame: one partition's records, between two offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.kafka.fetch import Fetched, Key
from mirror.kafka.record_batch import null_batch
from mirror.link.parts import Part, decode_parts, encode_parts, whole_batches

offsets = st.integers(-1, 2**62)
parts = st.builds(
    lambda offset, more, **fields: Part(offset, offset + more, Fetched(**fields)),
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

    with pytest.raises(AnswerError, match=r"cut off|ends at byte"):
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
    part = Part(10, 9, Fetched(key, 0, 10, 10, 0, None, [], memoryview(b"")))

    with pytest.raises(AnswerError, match="goes from 10 to 9"):
        decode_parts(memoryview(b"".join(encode_parts([part]))))


def test_a_torn_batch_stays_behind() -> None:
    """
    Whole batches go on, with the offset behind them and the last leader epoch.
    """
    records = batch(10, 5, leader_epoch=3) + batch(15, 2, leader_epoch=4)

    assert whole_batches(memoryview(records)) == (len(records), 17, 4, True)
    assert whole_batches(memoryview(records[:-1])) == (len(batch(10, 5)), 15, 3, True)
    assert whole_batches(memoryview(records[:50])) == (0, -1, -1, True)


def test_what_is_no_batch_goes_on_for_the_mirror_to_see() -> None:
    """
    With everything behind it; whoever reads must not take it for the end of the log.
    """
    records = batch(0, 5) + b"\xff" * 200

    whole = whole_batches(memoryview(records))

    assert whole == (len(records), 5, 0, False)
