"""Which offsets of a target log somebody else has taken. Pure.

Sources: KIP-98 (sequences), KIP-74; docs/decisions/0009-repairs-begin-a-producer-epoch.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint.insertions import Inserted, Insertions
from mirror.errors import ExitCode, TwinsiteError
from mirror.flow.position import SEQUENCES
from mirror.kafka.record_batch import BatchHeader


class AmbiguousError(TwinsiteError):
    """Nobody can tell whose the offsets are that compaction has emptied."""

    exit_code = ExitCode.REFUSED


def foreign_stretches(
    headers: Iterable[BatchHeader], insertions: Insertions, producer_id: int, start: int, end: int
) -> list[Inserted]:
    """The offsets of a log that somebody else has taken, what compaction has removed of them included.

    Our own records are counted by their sequences, so that it is known whose the offsets in a hole are.

    Args:
        headers: Of all batches from ``start`` on.

    Raises:
        AmbiguousError: In a hole there were records of both.
    """
    found: list[Inserted] = []
    reached, sequence, seen = start, None, False
    for header in headers:
        if header.producer_id != producer_id:
            seen = seen or not insertions.holds(header.base_offset)
            continue
        if seen:
            found.append((reached, header.base_offset))
            if sequence is not None and header.base_sequence not in {-1, 0, sequence}:
                raise AmbiguousError(
                    f"between target offsets {reached} and {header.base_offset} records of this flow are "
                    f"gone too: copy the topic anew"
                )
        reached, seen = header.next_offset, False
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + header.last_offset_delta + 1) % SEQUENCES
    if seen:
        found.append((reached, end))
    return found
