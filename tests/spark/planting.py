"""Pairs of logs of which one was damaged on purpose, and what a comparison has to say about them.

What is expected follows from what was planted, and from nothing that the program under test does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from spark_jobs.findings import Difference, Kind, Part
from tests.harness.data import Row, load, load_aborted

FIRST_TIMESTAMP_MS = 1_700_000_000_000
APART = 60
"""Records between two plants, at least: closer together they could be told in several ways."""
NOWHERE = "shifted"

PLANTS = (
    "missing", "extra", "duplicated", "doubled_later", "reordered", "aborted",
    "timestamp", "key", "value", "headers", "header_order", "null_value", "null_key", "empty_key",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aborted:
    """Records of a transaction that was given up: offsets that nobody sees."""

    records: int


Entry = Row | Aborted


def size_of(entry: Entry) -> int:
    """How many offsets it takes; an aborted transaction has a marker."""
    return entry.records + 1 if isinstance(entry, Aborted) else 1


@dataclass
class Planted:
    """Two logs, and what differs between them.

    Attributes:
        target: Rows in order, and what takes offsets without being a record.
        last_shift: By how much the last record that both have stands too far behind.
    """

    source: list[Row]
    target: list[Entry] = field(default_factory=list)
    target_end: int = 0
    last_shift: int = 0
    expected: list[Difference] = field(default_factory=list)
    what: list[str] = field(default_factory=list)

    def put(self, row: Entry) -> int:
        """Write it; answers at which offset."""
        at = self.target_end
        self.target.append(row)
        self.target_end += size_of(row)
        return at


def plant(seed: int, records: int = 2500, plants: int = 5, kinds: Sequence[str] = PLANTS) -> Planted:
    """A log with so many mistakes in its copy, at borders of ranges more often than elsewhere."""
    dice = random.Random(seed)
    made = Planted(list(rows(dice, records)))
    chosen = [kinds[(seed * plants + index) % len(kinds)] for index in range(plants)]
    dice.shuffle(chosen)
    at = dict(zip(_places(dice, records, plants), chosen, strict=True))
    _copy(made, at, dice)
    return made


def rows(dice: random.Random, count: int) -> Iterator[Row]:
    """Records of all sorts, of which no two are the same."""
    for number in range(count):
        sort = dice.randrange(20)
        size = 100_000 if sort == 0 and dice.random() < 0.05 else dice.randrange(60)
        yield Row(
            key=None if sort in (1, 2) else b"" if sort == 3 else b"k%d" % dice.randrange(200),
            value=None if sort == 4 else b"" if sort == 5 else b"%d " % number + dice.randbytes(size),
            headers=(("a", b"1"), ("b", b"2"), ("n", None)) if sort in (6, 7) else (),
            timestamp_ms=FIRST_TIMESTAMP_MS + number * 10,
        )


def _places(dice: random.Random, records: int, plants: int) -> list[int]:
    """In order, apart from each other, the first and last and those at borders before others."""
    borders = [0, records - 1, 1023, 1024, 2047, 2048]
    dice.shuffle(borders)
    chosen: list[int] = []
    while len(chosen) < plants:
        place = borders.pop() if borders and dice.random() < 0.5 else dice.randrange(records)
        if all(abs(place - other) > APART for other in chosen):
            chosen.append(place)
    return sorted(chosen)


def _copy(made: Planted, plants: dict[int, str], dice: random.Random) -> None:
    pairs: list[tuple[int, int]] = []
    moves: list[tuple[int, int]] = []
    later: dict[int, tuple[str, int]] = {}
    last = len(made.source) - 1
    for i, row in enumerate(made.source):
        kind = plants.get(i)
        if kind in ("reordered", "doubled_later") and i + 2 > last:
            kind = "value"
        if kind is not None:
            made.what.append(f"{kind} at {i}")
        if kind == "missing":
            made.expected.append(Difference(kind=Kind.MISSING, source_offset=i))
        elif kind == "reordered":
            later[min(last, i + dice.randrange(2, APART // 2))] = ("moved", i)
        else:
            if kind == "extra":
                there = made.put(replace(row, value=b"nobody wrote this", headers=()))
                made.expected.append(Difference(kind=Kind.EXTRA, target_offset=there))
            elif kind == "aborted":
                made.put(Aborted(dice.randrange(1, 4)))
            copied, parts = changed(row, kind)
            there = made.put(copied)
            pairs.append((i, there))
            if parts:
                made.expected.append(
                    Difference(kind=Kind.CHANGED, source_offset=i, target_offset=there, parts=parts)
                )
            if kind == "duplicated":
                made.expected.append(Difference(kind=Kind.DUPLICATED, target_offset=made.put(row)))
            elif kind == "doubled_later":
                later[min(last, i + dice.randrange(2, APART // 2))] = ("doubled", i)
        what, origin = later.get(i, ("", 0))
        if what:
            there = made.put(made.source[origin])
            if what == "moved":
                moves.append((origin, there))
                made.expected.append(
                    Difference(kind=Kind.REORDERED, source_offset=origin, target_offset=there)
                )
            else:
                made.expected.append(Difference(kind=Kind.DUPLICATED, target_offset=there))
    made.expected.extend(_rows(pairs, moves))
    made.last_shift = pairs[-1][1] - pairs[-1][0]


def changed(row: Row, kind: str | None) -> tuple[Row, tuple[Part, ...]]:
    """The record as it arrived, and what of it is another."""
    match kind:
        case "timestamp":
            return replace(row, timestamp_ms=row.timestamp_ms + 1), (Part.TIMESTAMP,)
        case "key":
            return replace(row, key=(row.key or b"") + b"?"), (Part.KEY,)
        case "null_key":
            return replace(row, key=b"" if row.key is None else None), (Part.KEY,)
        case "empty_key":
            return replace(row, key=b"" if row.key != b"" else None), (Part.KEY,)
        case "value":
            return replace(row, value=(row.value or b"") + b"?"), (Part.VALUE,)
        case "null_value":
            return replace(row, value=b"" if row.value is None else None), (Part.VALUE,)
        case "headers":
            return replace(row, headers=(*row.headers, ("h", b""))), (Part.HEADERS,)
        case "header_order":
            if len(row.headers) > 1:
                return replace(row, headers=row.headers[::-1]), (Part.HEADER_ORDER,)
            return replace(row, headers=(("only", None),)), (Part.HEADERS,)
    return row, ()


def _rows(pairs: Sequence[tuple[int, int]], moves: Sequence[tuple[int, int]]) -> Iterator[Difference]:
    """Records in a row that stand elsewhere, but for what somebody else's move explains."""

    def shift(pair: tuple[int, int]) -> int:
        come = sum(there < pair[1] for _, there in moves)
        gone = sum(here < pair[0] for here, _ in moves)
        return pair[1] - pair[0] - come + gone

    for by, row in groupby(pairs, key=shift):
        some = list(row)
        if by:
            yield Difference(
                kind=Kind.SHIFTED,
                source_offset=some[0][0],
                target_offset=some[0][1],
                records=len(some),
                shift=by,
            )


def seen(made: Planted) -> list[Difference]:
    """What of it can be seen where the target's log ends: what the source has beyond is on its way.

    With the same offsets, the copy has reached the offset at which the target ends; a last record that is
    missing would stand there, or behind.
    """
    end = made.target_end
    visible: list[Difference] = []
    for one in made.expected:
        if one.source_offset is not None and one.source_offset >= end:
            continue
        is_last = one.kind is Kind.MISSING and one.source_offset == len(made.source) - 1
        if is_last and len(made.source) - 1 + made.last_shift >= end:
            continue
        if one.kind is Kind.SHIFTED and one.source_offset is not None:
            one = replace(one, records=min(one.records, end - one.source_offset))
        visible.append(one)
    return visible


def write(bootstrap: dict[str, str], topic: str, made: Planted) -> None:
    """Both logs, into topics of one name.

    Args:
        bootstrap: Of ``source`` and ``target``.
    """
    put_in(bootstrap["source"], topic, made.source)
    put_in(bootstrap["target"], topic, made.target)


def put_in(bootstrap: str, topic: str, entries: Sequence[Entry]) -> None:
    """Write a log, into partition 0."""
    for is_aborted, some in groupby(entries, key=lambda entry: isinstance(entry, Aborted)):
        rows = list(some)
        if is_aborted:
            for one in rows:
                assert isinstance(one, Aborted)
                load_aborted(bootstrap, topic, one.records)
        else:
            load(bootstrap, topic, (replace(row, partition=0) for row in rows if isinstance(row, Row)))
