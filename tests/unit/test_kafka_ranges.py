"""What is asked of Spark's Kafka source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror.model import TopicPartition
from spark_jobs.kafka_ranges import pieces
from spark_jobs.stretches import joined
from spark_jobs.window import Range

TP = TopicPartition("t", 0)
some_ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 90)), max_size=6).map(
    lambda some: joined(Range(start, start + length) for start, length in some)
)


@given(some_ranges, st.integers(1, 40))
def test_exactly_what_is_wanted_is_read_and_no_task_too_much(wanted: list[Range], task: int) -> None:
    """
    However many ranges there are, and however far apart.
    """
    found = [one for _, one in pieces({TP: wanted}, task)]

    assert joined(found) == wanted
    assert sum(one.offsets for one in found) == sum(one.offsets for one in wanted)
    assert all(0 < one.offsets <= task for one in found)
    assert len(found) <= len(wanted) + sum(one.offsets for one in wanted) // task
