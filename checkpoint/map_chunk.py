"""Offset maps as bytes, in chunks small enough for one record of a compacted topic.

Chunk ``n`` of a partition holds its runs ``n * 512`` up to, not including, ``(n + 1) * 512``. A map grows at
its end, so only the last chunk is written again; earlier ones change only if runs noted ahead are superseded
across a chunk border. Whole chunks at the beginning may be removed, the first one first: the rest keep their
numbers, and the map begins with the lowest number there is.

A chunk is: version (1 byte), the runs as :func:`checkpoint.runs.pack` encodes them, and the CRC-32C of all
that (4 bytes, big-endian). A run usually takes two bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, islice, takewhile
from typing import NamedTuple

from crc32c import crc32c

from checkpoint.errors import CorruptStateError
from checkpoint.offset_map import OffsetMap
from checkpoint.runs import Run, pack, unpack

CHUNK_RUNS = 512
"""The most runs in one chunk: a new gap writes half a chunk on average, usually a kilobyte at most."""
VERSION = 1
CRC_BYTES = 4


def encode_chunk(runs: Sequence[Run]) -> bytes:
    """Encode one chunk.

    Args:
        runs: 1 to CHUNK_RUNS runs, as an OffsetMap holds them: each begins after the one before ends.

    Raises:
        ValueError: There are none, too many, or they are not in order.
    """
    if not 0 < len(runs) <= CHUNK_RUNS:
        raise ValueError(f"a chunk holds 1 to {CHUNK_RUNS} runs, not {len(runs)}")
    out = bytes((VERSION,)) + pack(runs)
    return out + int(crc32c(out)).to_bytes(CRC_BYTES, "big")


def decode_chunk(data: bytes) -> list[Run]:
    """Decode one chunk.

    Raises:
        CorruptStateError: The CRC does not match, the version is not known, or the content makes no sense.
    """
    body, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
    if len(data) <= CRC_BYTES or crc32c(body) != int.from_bytes(crc, "big"):
        raise CorruptStateError(f"a chunk of an offset map, {len(data)} bytes, does not match its CRC")
    if body[0] != VERSION:
        raise CorruptStateError(
            f"a chunk of an offset map has version {body[0]}, this program reads {VERSION}"
        )
    try:
        runs = unpack(body, 1)
    except (IndexError, ValueError) as error:
        raise CorruptStateError(f"a chunk of an offset map cannot be read: {error}") from error
    if len(runs) > CHUNK_RUNS:
        raise CorruptStateError(f"a chunk of an offset map has {len(runs)} runs, the maximum is {CHUNK_RUNS}")
    return runs


def decode_map(chunks: dict[int, bytes], known: OffsetMap | None = None, *, same: int = 0) -> OffsetMap:
    """Decode a map from all of its chunks.

    Args:
        chunks: By their numbers; at least one.
        known: The map as it was last read, from the first of these chunks on; it is left as it is.
        same: How many of the first chunks have not changed since; they are not decoded again.

    Raises:
        CorruptStateError: A chunk is damaged or missing, or does not continue the one before.
    """
    first = min(chunks)
    whole = OffsetMap(forgotten=first * CHUNK_RUNS) if known is None else known.head(same * CHUNK_RUNS)
    for number in range(first + same, first + len(chunks)):
        if number not in chunks:
            raise CorruptStateError(f"chunk {number} of an offset map of {len(chunks)} chunks is missing")
        _append_chunk(whole, number, decode_chunk(chunks[number]))
    return whole


def _append_chunk(whole: OffsetMap, number: int, runs: Sequence[Run]) -> None:
    try:
        whole.join(runs)
    except ValueError as error:
        raise CorruptStateError(f"chunk {number} of an offset map: {error}") from error
    if whole.forgotten + len(whole) != number * CHUNK_RUNS + len(runs):
        raise CorruptStateError(f"chunk {number} of an offset map does not continue the one before it")


def chunks_of(offsets: OffsetMap) -> range:
    """The numbers of the chunks a map is stored in."""
    end = offsets.forgotten + len(offsets)
    return range(offsets.forgotten // CHUNK_RUNS, -(-end // CHUNK_RUNS))


def from_chunk(offsets: OffsetMap | None, number: int) -> OffsetMap | None:
    """A map from the beginning of chunk ``number`` on; None if it has no runs there."""
    skipped = 0 if offsets is None else number * CHUNK_RUNS - offsets.forgotten
    if offsets is None or not 0 <= skipped < len(offsets):
        return None
    return offsets.tail(skipped) if skipped else offsets


def chunks_below(offsets: OffsetMap, target_log_start: int) -> range:
    """The numbers of the first chunks that cover only records below the target's log start.

    They must be removed in this order, so that a crash leaves the end of the map.
    """
    first = chunks_of(offsets).start
    return range(first, first + offsets.below(target_log_start) // CHUNK_RUNS)


class ChunkChanges(NamedTuple):
    """What to do with stored chunks, in this order, so that a crash leaves the beginning of the map."""

    gone: list[int]
    """Numbers of the chunks to remove first, the last one first."""
    written: dict[int, bytes]
    """Chunks to write after that, by number, in ascending order."""


def changed_chunks(
    before: OffsetMap, runs: Sequence[Run] = (), *, drop_ahead_of: int | None = None
) -> ChunkChanges:
    """The changes to the stored chunks of ``before`` when ``runs`` are added to it; it is left as it is.

    Args:
        runs: Runs to add, as for :meth:`OffsetMap.extend`.
        drop_ahead_of: Before that, drop the runs that begin beyond this target log end.

    Raises:
        ValueError: A run cannot be added, or what comes before the log end was forgotten.
    """
    after = before.head(len(before))
    if drop_ahead_of is not None:
        after.drop_ahead(drop_ahead_of)
    added = list(dropwhile(after.holds, runs))
    kept = min((after.reached(target) for _, target in added), default=len(after))
    after.extend(added)
    same = kept // CHUNK_RUNS
    old, new = _cut(before.tail(same * CHUNK_RUNS)), list(_cut(after.tail(same * CHUNK_RUNS)))
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    numbers = chunks_of(before)
    first = numbers.start + same + equal
    written = {first + n: encode_chunk(chunk) for n, chunk in enumerate(new[equal:])}
    gone = range(first + min(1, len(written)), numbers.stop)
    return ChunkChanges(list(reversed(gone)), written)


def _cut(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """Runs in chunks, produced lazily."""
    left = iter(runs)
    while chunk := list(islice(left, CHUNK_RUNS)):
        yield chunk
