"""Every mistake that may befall a copy is named by whoever knows both logs whole."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from spark_jobs.align import Record, differences
from spark_jobs.findings import Difference
from tests.harness.data import Row, size_of
from tests.spark.planting import LAST, PLANTS, SORTS, WHERE, Planted, Spot, made_of, matrix, plant, seen

PLACES = {"first": 0, "amid": 70, "last": LAST}


@pytest.mark.parametrize("mapped", [False, True], ids=["same", "mapped"])
@pytest.mark.parametrize("kind", PLANTS)
def test_every_mistake_is_told_for_every_sort_of_record_wherever_it_is(kind: str, mapped: bool) -> None:
    for sort in SORTS:
        for where, place in PLACES.items():
            made = made_of({place: Spot(kind, sort)}, random.Random(f"{sort} {where}"), 140, mapped)

            assert said(made) == in_order(made.expected), (sort, where)


@pytest.mark.parametrize("mapped", [False, True], ids=["same", "mapped"])
@pytest.mark.parametrize("seed", range(60))
def test_several_mistakes_in_a_log_are_told_apart(seed: int, mapped: bool) -> None:
    made = plant(seed, mapped=mapped)

    assert said(made) == in_order(made.expected), made.what


@pytest.mark.parametrize("mapped", [False, True], ids=["same", "mapped"])
def test_in_the_logs_that_brokers_hold_all_of_them_occur(mapped: bool) -> None:
    """
    Else that none was overlooked would mean nothing. Only that the very last is missing cannot be seen: it
    may be on its way.
    """
    made = matrix(mapped)
    planted = Counter(what.split(" at ")[0] for one in made for what in one.what)

    kinds = Counter(name.split(" of ")[0] for name in planted.elements())
    assert mapped or planted.keys() >= {f"{kind} of {sort}" for kind in PLANTS for sort in SORTS}
    assert all(kinds[kind] >= (len(WHERE) if mapped else len(SORTS)) for kind in PLANTS)
    unseen = [one.what[-1] for one in made for _ in range(len(one.expected) - len(seen(one)))]
    assert [what.split(" of ")[0] for what in unseen] == ["missing"]


def said(made: Planted) -> list[Difference]:
    return in_order(differences(list(source_of(made)), list(target_of(made))))


def in_order(found: list[Difference]) -> list[Difference]:
    return sorted(found, key=repr)


def source_of(made: Planted) -> Iterator[Record]:
    offset = 0
    for entry in made.source:
        if isinstance(entry, Row):
            yield record(entry, offset, made.places[offset])
        offset += size_of(entry)


def target_of(made: Planted) -> Iterator[Record]:
    offset = 0
    for entry in made.target:
        if isinstance(entry, Row):
            yield record(entry, offset, offset)
        offset += size_of(entry)


def record(row: Row, offset: int, place: int) -> Record:
    held = hash(("key", row.key)), hash(("value", row.value)), hash(row.headers)
    return Record(offset, place, row.timestamp_ms, *held, header_set=hash(frozenset(row.headers)))
