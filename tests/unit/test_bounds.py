"""What goes into a batch of a repair, and how long its plan is good for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.flow.encode import encode
from mirror.flow.records import Record
from mirror.kafka.codecs import NONE
from mirror.kafka.record_batch import HEADER_BYTES
from mirror.repairing.bounds import BATCH_BYTES_MAX, RECORD_BYTES_MAX, Bounds, bounds_of, bytes_alone, fitting

HOUR_MS = 3_600_000
ANY = Bounds(1 << 20, HOUR_MS)


def record(size: int, timestamp: int = 0) -> Record:
    return Record(0, timestamp, bytes(size))


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([11], 1), ([10, 1], 1), ([9, 1, 1], 2), ([1, 2, 3], 3), ([11, 1], 1)]
)
def test_as_many_fit_as_there_is_room_for_and_one_at_least(sizes: list[int], count: int) -> None:
    assert fitting(sizes, 10) == count


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 1 << 61)), min_size=1, max_size=200),
    st.integers(500, 40_000),
)
def test_a_batch_is_never_larger_than_the_target_takes(shapes: list[tuple[int, int]], limit: int) -> None:
    """
    However far apart the times of its records are.
    """
    records = [record(*shape) for shape in shapes]

    some = records[: Bounds(limit, 0).fitting([*records])]
    batch = encode([one._replace(offset=at) for at, one in enumerate(some)], NONE).view

    assert len(batch) <= limit
    assert len(some) == len(records) or len(batch) > limit - HEADER_BYTES - 450 - 20 * len(some)


@given(st.integers(1, 70_000))
def test_the_size_of_a_record_alone_is_that_of_its_batch(size: int) -> None:
    assert bytes_alone(record(size, 1_700_000_000_000)) == len(encode([record(size)], NONE).view)


def test_a_record_that_is_too_large_alone_is_told_with_the_limit() -> None:
    fits = record(1000)
    exact = Bounds(bytes_alone(fits), HOUR_MS)

    assert exact.too_large(fits) == ""
    assert "accepts 1066 (max.message.bytes)" in exact.too_large(record(1001))
    assert f"a repair writes {RECORD_BYTES_MAX} at most" in ANY.too_large(record(RECORD_BYTES_MAX))
    assert ANY.fitting([record(BATCH_BYTES_MAX), fits]) == 1


def test_a_plan_is_good_as_long_as_a_tombstone_is_kept() -> None:
    bounds = bounds_of({"max.message.bytes": "1048588", "delete.retention.ms": "60000", "other": None})

    assert bounds == Bounds(1048588, 60_000)
    assert bounds.outlived(60_000) == ""
    assert "delete.retention.ms" in bounds.outlived(60_001)
