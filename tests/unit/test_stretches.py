"""Which places are in both of two lists of ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.stretches import common, joined
from spark_jobs.window import Range

RANGES = st.lists(
    st.builds(lambda start, size: Range(start, start + size), st.integers(0, 60), st.integers(0, 9))
)


def places(ranges: list[Range]) -> list[int]:
    return [at for one in ranges for at in range(*one)]


@given(RANGES.map(joined), RANGES.map(joined))
def test_what_is_common_is_in_both_and_in_order(ones: list[Range], others: list[Range]) -> None:
    found = common(ones, others)

    assert places(found) == sorted(set(places(ones)) & set(places(others)))
    assert all(one.offsets for one in found)
