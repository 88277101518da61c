"""Whether batches are where they say they are: no CRC covers a batch's base offset.

The batches of a log ascend and do not overlap. Offsets missing between two batches were compacted away; a
batch whose base offset was corrupted can look the same. Mostly, though, such a batch overlaps the next one
or reaches beyond the end of the log.

Pure. The cost is one check for each batch that is looked at closely, and one for each answer. A batch that
passes as it is begins where the one before it ends, and needs no more than that comparison.

Sources: KIP-98 (format v2), docs/design.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mirror.errors import CorruptBatchError, EarlyBatchError, MisplacedBatchError
from mirror.kafka.record_batch import MAGIC_V2, BatchHeader, walk

_BASE_OFFSET = struct.Struct(">q")


class Asked(NamedTuple):
    """What an answer is checked against.

    Attributes:
        offset: The offset that was asked for.
        batch_end: An offset at which a batch is known to end, so that no other can span it; -1 if none is.
        end: Where the log ends for a reader, according to the answer; -1 if it does not say.
    """

    offset: int
    batch_end: int = -1
    end: int = -1


def check_place(header: BatchHeader, next_offset: int, reached: int, *, batch_end: int, end: int) -> None:
    """Check that a batch can be where its header says.

    Args:
        next_offset: Where the batch ends.
        reached: Where the batch before ends; for the first one, the offset that was asked for.
        batch_end: An offset that the batch cannot span, because another one ends there; -1 if none is known.
        end: Where the log ends, according to the same answer; -1 if it does not say.

    Raises:
        MisplacedBatchError: The batch cannot be there.
        EarlyBatchError: The batch goes beyond the end of the log.
    """
    base_offset, magic = header.base_offset, header.magic
    # formats v0 and v1 say the last offset only: where they begin is seen when they are decoded
    if next_offset <= reached or (base_offset < batch_end < next_offset and magic == MAGIC_V2):
        raise MisplacedBatchError(reached, f"it claims to hold offsets {base_offset} to {next_offset - 1}")
    if 0 <= end < next_offset:
        raise EarlyBatchError(reached, f"it claims to end at {next_offset}, but the log ends at {end}")


def check_torn(rest: memoryview, reached: int) -> None:
    """Check where a batch that the answer cut off says that it begins.

    Args:
        rest: What follows the last whole batch of the answer; perhaps nothing.
        reached: Where that last batch ends.

    Raises:
        MisplacedBatchError: The batch cannot follow there.
    """
    if len(rest) >= _BASE_OFFSET.size:
        base_offset = _BASE_OFFSET.unpack_from(rest)[0]
        if base_offset < reached:
            raise MisplacedBatchError(reached, f"it claims to begin at offset {base_offset}")


def check_answer(records: memoryview, asked: Asked, high_watermark: int) -> None:
    """Check whether a broker may have given, for an offset, the batch that holds it.

    Where compaction has removed that batch, a broker gives the next one, or nothing if none may be read. It
    also does so if the batch is there and its header gives a lower offset. The two can be told apart only
    where the batch is the log's last: the cleaner leaves the last segment alone. Elsewhere nothing may come
    of a healthy log, too: a broker may leave out what it has to read from remote storage.

    Args:
        high_watermark: According to the answer. Where ``asked.end`` is below it, a transaction is open there,
            and the cleaner may have removed what is before it.

    Raises:
        MisplacedBatchError: The first batch cannot be there, or the next one cannot follow it.
        EarlyBatchError: The first batch goes beyond the end of the log.
        CorruptBatchError: There is nothing, though the offset is the log's last.
    """
    first = next(walk(records), None)
    if first is None:
        if asked.offset + 1 == asked.end == high_watermark:
            raise CorruptBatchError(asked.offset, f"nothing is read there, but the log ends at {asked.end}")
        return
    header, view = first
    if header.magic < 0:
        return
    check_place(header, header.next_offset, asked.offset, batch_end=asked.batch_end, end=asked.end)
    check_torn(records[len(view) :], header.next_offset)
