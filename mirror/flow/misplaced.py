"""Whether batches stand where they say: no CRC covers the offset in front of each.

What is read of a log ascends and does not overlap. What lies between two batches was
compacted away, and nothing tells it from a batch that rotted into another place; but one
that did mostly runs into the next one, or beyond the end of the log.

Pure. The cost is per batch that is looked at closely, and per answer; a batch that begins
where the one before it ends needs no more than that.

Sources: KIP-98 (format v2), docs/design.md.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mirror.errors import EarlyBatchError, MisplacedBatchError
from mirror.kafka.record_batch import MAGIC_V2, BatchHeader

_BASE_OFFSET = struct.Struct(">q")


class Asked(NamedTuple):
    """What an answer is held against.

    Attributes:
        offset: Where it was asked from.
        whole: Whether a batch ends there, so that no other can begin before and end behind it.
        end: Where the answer says that the log ends for a reader; -1 where it does not.
    """

    offset: int
    whole: bool = False
    end: int = -1


def check_place(header: BatchHeader, next_offset: int, reached: int, *, inside: bool, end: int) -> None:
    """
    Args:
        next_offset: Where the batch ends.
        reached: Where the batch before ends, or where the answer was asked from.
        inside: Whether the batch may begin before that, and end behind it.
        end: Where the log ends, as the same answer tells; -1 where it does not.

    Raises:
        MisplacedBatchError: It cannot be there.
        EarlyBatchError: It goes beyond the end.
    """
    base_offset, magic = header.base_offset, header.magic
    # formats v0 and v1 say the last offset only: where they begin is seen when they are decoded
    if next_offset <= reached or (base_offset < reached and magic == MAGIC_V2 and not inside):
        raise MisplacedBatchError(
            reached, f"it says that it holds offsets {base_offset} to {next_offset - 1}"
        )
    if 0 <= end < next_offset:
        raise EarlyBatchError(reached, f"it says that it ends at {next_offset}, and the log ends at {end}")


def check_torn(rest: memoryview, reached: int) -> None:
    """
    Args:
        rest: What follows the last whole batch of an answer: nothing, or the beginning of another.
        reached: Where that last one ends.

    Raises:
        MisplacedBatchError: That cannot be behind it.
    """
    if len(rest) >= _BASE_OFFSET.size:
        base_offset = _BASE_OFFSET.unpack_from(rest)[0]
        if base_offset < reached:
            raise MisplacedBatchError(reached, f"it says that it begins at offset {base_offset}")
