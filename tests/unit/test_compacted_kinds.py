"""What a key on which the sites differ is called."""

from __future__ import annotations

import pytest

from spark_jobs.compacted import Latest, kind_of
from spark_jobs.findings import Kind

END = 100


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
        (None, value(100), Kind.EXTRA),
    ],
)
def test_a_key_is_called_by_what_each_site_says_and_who_said_it_later(
    source: Latest | None, target: Latest | None, kind: Kind
) -> None:
    assert kind_of(source, target, END) is kind
