"""Whose the offsets of a target log are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from checkpoint.insertions import Inserted, Insertions
from mirror.flow.foreign import AmbiguousError, foreign_stretches
from mirror.kafka.record_batch import BatchHeader

OURS, THEIRS = 7, 9


def _batch(offset: int, records: int, sequence: int, producer: int = OURS) -> BatchHeader:
    return BatchHeader(offset, 60, 0, 2, 0, 0, records - 1, 0, 0, producer, 0, sequence, records)


def _foreign(
    *headers: BatchHeader, end: int, start: int = 0, inserted: Sequence[Inserted] = ()
) -> list[Inserted]:
    return foreign_stretches(headers, Insertions(inserted), OURS, start, end)


def test_log_of_our_own_batches_holds_nothing_foreign() -> None:
    assert _foreign(_batch(0, 10, 0), _batch(10, 5, 10), end=15) == []


def test_foreign_batches_between_ours_and_at_the_end_are_found() -> None:
    headers = [_batch(0, 10, 0), _batch(10, 2, -1, THEIRS), _batch(12, 5, 10), _batch(17, 1, 0, THEIRS)]
    assert _foreign(*headers, end=18) == [(10, 12), (17, 18)]


def test_what_compaction_removed_beside_a_foreign_batch_belongs_to_it() -> None:
    """Our sequence goes on without a hole, so all offsets in between were theirs."""
    headers = [_batch(0, 10, 0), _batch(14, 1, -1, THEIRS), _batch(20, 5, 10)]
    assert _foreign(*headers, end=25) == [(10, 20)]


def test_hole_with_records_of_both_is_refused() -> None:
    headers = [_batch(0, 10, 0), _batch(14, 1, -1, THEIRS), _batch(20, 5, 13)]
    with pytest.raises(AmbiguousError, match="between target offsets 10 and 20"):
        _foreign(*headers, end=25)


def test_hole_without_a_foreign_batch_is_our_own_compaction() -> None:
    assert _foreign(_batch(0, 10, 0), _batch(20, 5, 20), end=25) == []


def test_producer_epoch_that_begins_behind_foreign_records_begins_its_sequences_anew() -> None:
    """A repair's batch has sequence 0, and a marker has none."""
    headers = [_batch(0, 10, 0), _batch(10, 1, -1, THEIRS), _batch(11, 1, -1), _batch(12, 3, 0)]
    assert _foreign(*headers, end=15) == [(10, 11)]


def test_what_is_known_as_inserted_is_not_found_again() -> None:
    headers = [_batch(0, 10, 0), _batch(10, 2, -1, THEIRS), _batch(12, 5, 10)]
    assert _foreign(*headers, end=17, inserted=[(10, 12)]) == []


def test_sequences_wrap_around() -> None:
    last = (1 << 31) - 5
    headers = [_batch(0, 5, last), _batch(5, 1, -1, THEIRS), _batch(6, 2, 0)]
    assert _foreign(*headers, end=8) == [(5, 6)]


def test_log_that_begins_with_a_foreign_batch() -> None:
    assert _foreign(_batch(3, 1, -1, THEIRS), _batch(4, 2, 0), start=2, end=6) == [(2, 4)]
