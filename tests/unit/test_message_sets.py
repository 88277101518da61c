"""Plain messages of old formats are written as batches, not as one batch each."""

from __future__ import annotations

import pytest

from mirror.errors import CorruptBatchError
from mirror.flow.intake import Intake, take
from mirror.flow.legacy import SET_BYTES_MAX
from mirror.model import Batch
from tests.unit.batches import Entry, Magic, entries, old, read_v2, v2

NO_LIMIT = 1 << 30


def taken(data: bytes | memoryview, fetch_offset: int = 0) -> Intake:
    records = memoryview(bytearray(data))
    return take(records, fetch_offset=fetch_offset, aborted=(), batch_bytes_max=NO_LIMIT)


def batches(intake: Intake) -> list[Batch]:
    return [item for item in intake.items if isinstance(item, Batch)]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_in_a_row_become_one_batch(magic: Magic) -> None:
    """
    A produce request takes one batch of a partition: one a message would make old logs crawl.
    """
    intake = taken(old(magic, entries(5, 100)), fetch_offset=5)

    [batch] = batches(intake)
    assert (batch.base_offset, batch.next_offset) == (5, 105)
    assert [entry.value for entry in read_v2(batch.view)] == [entry.value for entry in entries(5, 100)]
    assert intake.reencoded == 1


def test_a_row_ends_where_the_format_the_codec_or_the_room_ends() -> None:
    """
    What follows keeps its own batch, and its offsets.
    """
    large = [Entry(30 + number, value=bytes(SET_BYTES_MAX)) for number in range(2)]
    parts = (
        old(0, entries(0, 10)),
        old(1, entries(10, 10)),
        old(1, entries(20, 10), codec="gzip"),
        old(1, large),
        v2(entries(32, 10)),
    )

    intake = taken(b"".join(parts))

    found = [(batch.base_offset, batch.next_offset) for batch in batches(intake)]
    assert found == [(0, 10), (10, 20), (20, 30), (30, 31), (31, 32), (32, 42)]
    assert intake.error is None


def test_a_hole_in_a_row_stays_a_hole() -> None:
    """
    Compaction takes messages away; those around keep their offsets.
    """
    intake = taken(old(1, [*entries(0, 3), *entries(7, 3)]))

    assert [(item.base_offset, item.next_offset) for item in intake.items] == [(0, 3), (3, 7), (7, 10)]


def test_what_stands_in_a_row_before_a_corrupt_message_is_taken() -> None:
    """
    The error names the message itself.
    """
    rotten = bytearray(old(1, entries(4, 1)))
    rotten[-1] ^= 1

    intake = taken(b"".join((old(1, entries(0, 4)), rotten, old(1, entries(5, 3)))))

    assert intake.next_offset == 4
    assert isinstance(intake.error, CorruptBatchError)
    assert intake.error.offset == 4
