"""What a key on which the sites differ is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from spark_jobs.compacted import Latest, kind_of
from spark_jobs.findings import Kind
from tests.harness.data import Entry, Row, size_of
from tests.spark.planting_keys import PLANTS, PlantedKeys, plant_keys


def value(place: int) -> Latest:
    return Latest(offset=place, place=place, alive=True)


def tombstone(place: int) -> Latest:
    return Latest(offset=place, place=place, alive=False)


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        (value(5), None, Kind.MISSING),
        (value(5), value(5), Kind.CHANGED),
        (value(5), tombstone(5), Kind.CHANGED),
        (value(5), value(4), Kind.STALE),
        (value(5), tombstone(4), Kind.STALE),
        (value(5), value(6), Kind.EXTRA),
        (value(5), tombstone(100), Kind.EXTRA),
        (tombstone(5), value(4), Kind.NOT_YET_DELETED),
        (tombstone(5), value(6), Kind.RESURRECTED),
        (tombstone(5), value(100), Kind.RESURRECTED),
        (None, value(5), Kind.RESURRECTED),
    ],
)
def test_a_key_is_called_by_what_each_site_says_and_who_said_it_later(
    source: Latest | None, target: Latest | None, kind: Kind
) -> None:
    assert kind_of(source, target, is_foreign=False) is kind


def test_a_key_that_never_was_at_the_source_is_extra() -> None:
    """
    Whoever wrote it, the source cannot have deleted it.
    """
    assert kind_of(None, value(5), is_foreign=True) is Kind.EXTRA


@pytest.mark.parametrize("seed", range(100))
def test_what_was_planted_is_called_what_it_is(seed: int) -> None:
    """
    By whoever knows all of both logs.
    """
    made = plant_keys(seed)

    expected = [(kind, here, there) for kind, _, here, there, _ in made.expected]
    assert sorted(seen(made), key=repr) == sorted(expected, key=repr), made.what


def test_every_kind_is_planted_and_at_both_ends_of_a_log() -> None:
    """
    Else that none was overlooked would mean nothing.
    """
    made = [plant_keys(seed) for seed in range(4)]

    assert {what.split()[0] for one in made for what in one.what} == {*PLANTS}
    for one in made:
        offsets = {offset for _, _, *both, _ in one.expected for offset in both}
        assert offsets >= {0, sum(map(size_of, one.source)) - 1}, one.what


def seen(made: PlantedKeys) -> Iterator[tuple[Kind, int | None, int | None]]:
    rows, copies = dict(placed(made.source)), dict(placed(made.target))
    here, there = last_of(made.source), last_of(made.target)
    end = sum(map(size_of, made.source))
    for key in here.keys() | there.keys():
        original, copy = here.get(key), there.get(key)
        if said(rows, original) == said(copies, copy):
            continue
        is_foreign = copy is not None and (copy.place >= end or copy.place in rows)
        kind = kind_of(original, copy, is_foreign=is_foreign)
        yield kind, original.offset if original else None, copy.offset if copy else None


def placed(log: Sequence[Entry]) -> Iterator[tuple[int, Row]]:
    at = 0
    for entry in log:
        if isinstance(entry, Row):
            yield at, entry
        at += size_of(entry)


def last_of(log: Sequence[Entry]) -> dict[bytes | None, Latest]:
    return {row.key: Latest(offset=at, place=at, alive=row.value is not None) for at, row in placed(log)}


def said(rows: dict[int, Row], latest: Latest | None) -> Row | None:
    return rows[latest.place] if latest and latest.alive else None
