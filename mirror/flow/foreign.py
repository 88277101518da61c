"""Which offsets of a target log other writers have taken. Pure.

Sources: KIP-98 (sequences), KIP-74; docs/decisions/0009-repairs-begin-a-producer-epoch.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint.insertions import Inserted, Insertions
from mirror.errors import ExitCode, TwinsiteError
from mirror.flow.position import SEQUENCES
from mirror.kafka.record_batch import BatchHeader


class AmbiguousError(TwinsiteError):
    """Compaction has emptied offsets, and it cannot be told whose they were."""

    exit_code = ExitCode.REFUSED


def foreign_stretches(
    headers: Iterable[BatchHeader], insertions: Insertions, producer_id: int, start: int, end: int
) -> list[Inserted]:
    """The offsets of a log that other writers have taken, including those that compaction has removed.

    Our own records are counted by their sequences, which tells whose the offsets in a hole were.

    Args:
        headers: Of all batches from ``start`` on.
        end: Where the log ends.

    Raises:
        AmbiguousError: A hole held records of ours and of others.
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
                    f"gone too: copy the topic again"
                )
        reached, seen = header.next_offset, False
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + header.last_offset_delta + 1) % SEQUENCES
    if seen:
        found.append((reached, end))
    return found
