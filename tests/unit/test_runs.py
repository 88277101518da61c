"""Runs, packed and not, against a list of them."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import runs as module
from checkpoint.runs import GROUP_RUNS, Run, Runs, pack, unpack

GROUP = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 300), st.integers(1, 300)),
        st.tuples(st.just("truncate"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("from_index"), st.integers(0, 40), st.just(0)),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True, scope="module")
def _small_groups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GROUP_RUNS", GROUP)
        yield


def begun(count: int) -> tuple[Runs, list[Run]]:
    """So many runs of two records, with a gap of one offset between them; and the same as a list."""
    model = [(n * 3, n * 2) for n in range(count)]
    runs = Runs()
    runs.extend(model)
    return runs, model


@given(count=st.integers(0, 40), steps=STEPS)
def test_they_are_what_a_list_of_them_is(count: int, steps: list[tuple[str, int, int]]) -> None:
    """
    Whatever was appended, cut off at the end, or left out at the beginning.
    """
    runs, model = begun(count)

    for what, one, other in steps:
        if what == "append":
            source, target = model[-1] if model else (0, 0)
            model.append((source + one + other, target + one))
            runs.append(*model[-1])
        elif what == "truncate":
            del model[one:]
            runs.truncate(min(one, len(runs)))
        else:
            model = model[one:]
            runs = runs.from_index(min(one, len(runs)))
        assert list(runs) == model
        assert [runs[index] for index in range(len(runs))] == model


@given(count=st.integers(0, 40), left_out=st.integers(0, 20), asked=st.integers(-1, 130))
def test_an_offset_is_found_among_them(count: int, left_out: int, asked: int) -> None:
    """
    Before, at and between them, in what is packed and what is not.
    """
    runs, model = begun(count)
    runs, model = runs.from_index(min(left_out, count)), model[left_out:]

    assert runs.below(asked) == sum(target < asked for _, target in model)
    assert runs.up_to(asked) == sum(target <= asked for _, target in model)
    assert runs.up_to_source(asked) == sum(source <= asked for source, _ in model)


def test_what_is_left_of_a_copy_is_apart_from_it() -> None:
    """
    One may change without the other.
    """
    runs, model = begun(20)
    rest = runs.from_index(5)

    rest.truncate(3)
    runs.append(100, 50)

    assert list(rest) == model[5:8]
    assert list(runs) == [*model, (100, 50)]


def test_there_is_none_behind_the_last_one() -> None:
    """
    Nor before the first.
    """
    runs, _ = begun(10)

    for index in -1, 10:
        with pytest.raises(IndexError, match=f"run {index} of 10"):
            runs[index]


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(1, 1 << 40)), max_size=30))
def test_what_is_packed_comes_out_as_it_went_in(steps: list[tuple[int, int]]) -> None:
    """
    Runs of any length, before gaps of any length.
    """
    model = list(
        itertools.accumulate(steps, lambda run, by: (run[0] + sum(by), run[1] + by[0]), initial=(7, 3))
    )

    assert unpack(b"before" + pack(model), 6) == model


def test_a_run_for_each_transaction_takes_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Two hundred thousand of a hundred records each: not sixteen bytes for each of them, but less than four.
    """
    monkeypatch.setattr(module, "GROUP_RUNS", GROUP_RUNS)
    count = 200_000

    tracemalloc.start()
    try:
        runs = Runs()
        runs.extend((n * 101, n * 100) for n in range(count))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(runs) == count
    assert kept / count < 4
