"""Records of batches as Arrow columns.

Where records begin is found one by one, as each begins where the one before ends. Everything else is done for
thousands of records at once: NumPy reads their variable-length integers, Arrow copies keys and values.

Sources: KIP-98 (format v2), KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirror.errors import CorruptBatchError
from mirror.flow.records import Record
from mirror.kafka.varint import encode_varint
from mirror.model import TopicPartition
from spark_jobs.window import Range

PIECE_BYTES = 4 << 20
"""Bytes of records that go to Spark together, about."""
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_PADDING = bytes(16)
"""Follows all records: an integer that is cut off is read into it, and then detected."""
_VARINT_BITS = 64

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class Encoded(NamedTuple):
    """Records of a batch as encoded in format v2, decompressed.

    Attributes:
        timestamp_ms: The base of their timestamps; without ``own_times`` the timestamp of all of them.
        own_times: Whether each has a timestamp of its own.
    """

    payload: bytes
    records: int
    base_offset: int
    next_offset: int
    timestamp_ms: int
    own_times: bool = True


def encoded(records: Sequence[Record]) -> Encoded:
    """Records of an old format, at least one, as encoded in format v2."""
    first, last = records[0], records[-1]
    payload = bytearray()
    for record in records:
        time_delta, offset_delta = record.timestamp - first.timestamp, record.offset - first.offset
        body = b"\0" + encode_varint(time_delta) + encode_varint(offset_delta) + record.tail
        payload += encode_varint(len(body)) + body
    return Encoded(bytes(payload), len(records), first.offset, last.offset + 1, first.timestamp)


def columns(
    name: TopicPartition, batches: Sequence[Encoded], wanted: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """The records of batches whose offsets are wanted, in pieces.

    Args:
        batches: In offset order.
        wanted: In order, none touching the next.

    Raises:
        CorruptBatchError: A batch does not hold what its header says.
    """
    table = _table(batches)
    data = pa.py_buffer(table.data)
    inside = np.searchsorted(list(chain.from_iterable(wanted)), table.offset, side="right") % 2 == 1
    rows = np.flatnonzero(inside)
    sizes = np.cumsum(table.size[rows])
    total = int(sizes[-1]) if rows.size else 0
    steps = np.arange(PIECE_BYTES, total - PIECE_BYTES // 2, PIECE_BYTES)
    borders = [0, *np.searchsorted(sizes, steps, side="right").tolist(), rows.size]
    for first, last in pairwise(borders):
        if first < last:
            yield _record_batch(name, table, data, rows[first:last])


def _record_batch(name: TopicPartition, table: _Table, data: pa.Buffer, rows: Numbers) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(name.topic), rows.size),
            pa.repeat(pa.scalar(name.partition, pa.int32()), rows.size),
            pa.array(table.offset[rows]),
            pa.array(table.timestamp_ms[rows]),
            _binary(data, table.key.of(rows)),
            _binary(data, table.value.of(rows)),
            _header_lists(data, table.headers, rows),
        ],
        schema=SCHEMA,
    )


# -- where everything is -------------------------------------------------------------------------


class _Fields(NamedTuple):
    """Positions and sizes of some byte fields in the data; those of negative size are null."""

    at: Numbers
    size: Numbers

    @property
    def end(self) -> Numbers:
        return self.at + np.maximum(self.size, 0)

    def of(self, rows: Numbers) -> _Fields:
        return _Fields(self.at[rows], self.size[rows])


class _Headers(NamedTuple):
    """The headers of all records, in order.

    Attributes:
        counts: How many each record has.
    """

    counts: Numbers
    names: _Fields
    values: _Fields


class _Table(NamedTuple):
    """The records of some batches.

    Attributes:
        size: Bytes of each record, without its length field.
    """

    data: bytes
    size: Numbers
    offset: Numbers
    timestamp_ms: Numbers
    key: _Fields
    value: _Fields
    headers: _Headers


def _table(batches: Sequence[Encoded]) -> _Table:
    data = b"".join([*(batch.payload for batch in batches), _PADDING])
    raw = np.frombuffer(data, np.uint8)
    start, end = _borders(batches)
    time_delta, at = _integers(raw, start + 1)
    offset_delta, at = _integers(raw, at)
    key = _fields(raw, at)
    value = _fields(raw, key.end)
    counts, at = _integers(raw, value.end)
    headers, at = _headers(raw, counts, at, end)
    each = [batch.records for batch in batches]
    offset = offset_delta + np.repeat([batch.base_offset for batch in batches], each)
    next_offset = np.repeat([batch.next_offset for batch in batches], each)
    fits = (at == end) & (counts == headers.counts) & (offset < next_offset)
    fits &= (offset_delta >= 0) & (np.diff(offset, prepend=-1) > 0)
    if not fits.all():
        number = np.searchsorted(np.cumsum(each), np.argmin(fits), side="right")
        raise _unreadable(batches[int(number)])
    own_times = np.repeat([batch.own_times for batch in batches], each)
    timestamp_ms = time_delta * own_times + np.repeat([batch.timestamp_ms for batch in batches], each)
    return _Table(data, end - start, offset, timestamp_ms, key, value, headers)


def _borders(batches: Sequence[Encoded]) -> tuple[Numbers, Numbers]:
    """Where each record begins, after its length field, and where it ends.

    Raises:
        CorruptBatchError: A batch does not hold as many records as its header says.
    """
    starts: list[int] = []
    ends: list[int] = []
    before = 0
    for batch in batches:
        try:
            _walk_over(batch.payload, batch.records, before, starts, ends)
        except IndexError as error:
            raise _unreadable(batch) from error
        before += len(batch.payload)
        if ends[-1] != before:
            raise _unreadable(batch)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _walk_over(payload: bytes, records: int, before: int, starts: list[int], ends: list[int]) -> None:
    """Append the borders of the records of a batch; the only thing that is done record by record.

    Lengths are decoded inline: a call for each would cost as much as all the rest of a small record.

    Raises:
        IndexError: The batch ends too early.
    """
    at = 0
    for _ in range(records):
        byte = payload[at]
        at += 1
        length, shift = byte & 0x7F, 7
        while byte >= 0x80 and shift < _VARINT_BITS:
            byte = payload[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
        starts.append(before + at)
        at += (length >> 1) ^ -(length & 1)
        ends.append(before + at)


def _unreadable(batch: Encoded) -> CorruptBatchError:
    return CorruptBatchError(batch.base_offset, "its records are not what its header says")


def _headers(raw: Bytes, counts: Numbers, at: Numbers, end: Numbers) -> tuple[_Headers, Numbers]:
    """All headers, and where those of each record end. They are read in turns: the first header of every
    record, then the second ones, and so on.
    """
    rows = np.flatnonzero(counts > 0)
    found: list[tuple[Numbers, _Fields, _Fields]] = []
    at = at.copy()
    for turn in count(1):
        names = _fields(raw, at[rows])
        values = _fields(raw, names.end)
        at[rows] = values.end
        found.append((rows[names.size >= 0], names, values))
        rows = rows[(counts[rows] > turn) & (at[rows] < end[rows])]
        if not rows.size:
            break
    row = np.concatenate([some for some, _, _ in found])
    order = np.argsort(row, kind="stable")
    names, values = (
        _Fields(*(np.concatenate(parts)[order] for parts in zip(*(one[which] for one in found), strict=True)))
        for which in (1, 2)
    )
    return _Headers(np.bincount(row, minlength=at.size), names, values), at


def _fields(raw: Bytes, at: Numbers) -> _Fields:
    size, at = _integers(raw, at)
    return _Fields(at, np.clip(size, -1, raw.size))


def _integers(raw: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The integers at some places, and where each ends; places outside the data are moved inside."""
    at = np.clip(at, 0, raw.size - len(_PADDING))
    byte = raw[at]
    value = (byte & 0x7F).astype(np.uint64)
    at += 1
    more = np.flatnonzero(byte & 0x80)
    for shift in range(7, _VARINT_BITS, 7):
        if not more.size:
            break
        byte = raw[at[more]]
        at[more] += 1
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        more = more[byte >= 0x80]
    one = np.uint64(1)
    return ((value >> one) ^ (np.uint64(0) - (value & one))).view(np.int64), at


# -- Arrow ---------------------------------------------------------------------------------------


def _binary(data: pa.Buffer, fields: _Fields) -> pa.Array:
    """Copy fields that follow each other: the data is cut into fields and the gaps between them."""
    cuts = np.empty(2 * fields.at.size + 1, np.int32)
    cuts[0:-1:2], cuts[1::2], cuts[-1] = fields.at, fields.end, data.size
    all_of_it = pa.Array.from_buffers(pa.binary(), cuts.size - 1, [None, pa.py_buffer(cuts), data])
    return all_of_it.take(pa.array(np.arange(0, cuts.size - 1, 2), mask=fields.size < 0))


def _header_lists(data: pa.Buffer, headers: _Headers, rows: Numbers) -> pa.Array:
    """A list of headers for each record that has some, null for the others."""
    chosen = np.zeros(headers.counts.size, np.bool_)
    chosen[rows] = True
    at = np.flatnonzero(np.repeat(chosen, headers.counts))
    names, values = _text(_binary(data, headers.names.of(at))), _binary(data, headers.values.of(at))
    each = headers.counts[rows]
    ends = np.cumsum(each, dtype=np.int32)
    return pa.ListArray.from_arrays(
        pa.array(np.insert(ends, 0, 0)),
        pa.StructArray.from_arrays([names, values], ["key", "value"]),
        mask=pa.array(each == 0),
    )


def _text(names: pa.Array) -> pa.Array:
    """Names as text; what is not UTF-8 is replaced, as Kafka's consumer does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.as_py().decode(errors="replace") for name in names], pa.string())
