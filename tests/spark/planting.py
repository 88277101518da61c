"""Pairs of logs of which one was damaged on purpose, and what a comparison has to say about them.

What is expected follows from what was planted, and from nothing that the program under test does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, zip_longest

from spark_jobs.findings import Difference, Kind, Part
from tests.harness.data import Aborted, Edge, Entry, Row, size_of
from tests.harness.loading import load_log

FIRST_TIMESTAMP_MS = 1_700_000_000_000
RANGE = 1024
"""Places of one digest."""
APART = 60
"""Records between two plants, at least: closer together they could be told in several ways."""
FAR = 5, 30
"""How far a record moves, in entries."""
TRANSACTION = 4
"""Records of a transaction before a plant in it, and behind."""
TRANSACTIONS = 10
"""In a log, about, beside those that a plant is in."""
HUGE_BYTES = 900_000
"""Of a value that fills a batch."""

PLANTS = (
    "missing", "extra", "duplicated", "doubled_elsewhere", "reordered", "aborted",
    "timestamp", "key", "null_key", "empty_key", "value", "null_value", "empty_value",
    "headers", "header_order", "header_value",
)  # fmt: skip
SORTS = ("plain", "no_key", "empty_key", "tombstone", "empty_value", "headers", "huge", "transactional")
"""What kind of record a mistake befalls."""
WHERE = ("first", "before_border", "amid", "at_border", "last")
LAST = -1
"""The place of the last record, wherever that is."""


@dataclass(frozen=True, slots=True)
class Spot:
    """What happens to one record, and of which sort it is; any when None."""

    kind: str
    sort: str | None = None


@dataclass(frozen=True, slots=True)
class Mate:
    """A record that both logs have: at which offsets, and where its copy should be at the target."""

    here: int
    there: int
    place: int


@dataclass
class Planted:
    """Two logs, and what differs between them.

    Attributes:
        mapped: The copy holds no transactions: places are numbers of records.
        source, target: Entries in order.
        places: Of each record of the source, by its offset.
        expected: All that differs, were both logs known to their ends.
    """

    mapped: bool
    source: list[Entry] = field(default_factory=list)
    target: list[Entry] = field(default_factory=list)
    target_end: int = 0
    places: dict[int, int] = field(default_factory=dict)
    mates: list[Mate] = field(default_factory=list)
    expected: list[Difference] = field(default_factory=list)
    what: list[str] = field(default_factory=list)

    def put(self, entry: Entry) -> int:
        """Write it into the copy; answers at which offset."""
        at = self.target_end
        self.target.append(entry)
        self.target_end += size_of(entry)
        return at


def plant(
    seed: int, records: int = 2500, plants: int = 5, kinds: Sequence[str] = PLANTS, mapped: bool = False
) -> Planted:
    """A log with so many mistakes in its copy, at borders of ranges more often than elsewhere."""
    dice = random.Random(seed)
    chosen = [Spot(kinds[(seed * plants + index) % len(kinds)]) for index in range(plants)]
    dice.shuffle(chosen)
    return made_of(dict(zip(_places(dice, records, plants), chosen, strict=True)), dice, records, mapped)


def matrix(mapped: bool = False) -> list[Planted]:
    """Logs in which every kind of mistake befalls every sort of record and occurs at every place.

    In a mapped copy, in which it makes no other difference, every kind at every place.
    """
    combinations = (
        [
            (WHERE[(k + s) % len(WHERE)], Spot(kind, sort))
            for k, kind in enumerate(PLANTS)
            for s, sort in enumerate(SORTS)
        ]
        if not mapped
        else [
            (where, Spot(kind, SORTS[(k + w) % len(SORTS)]))
            for k, kind in enumerate(PLANTS)
            for w, where in enumerate(WHERE)
        ]
    )
    dice = random.Random(len(combinations))
    dice.shuffle(combinations)
    dealt = ([spot for where, spot in combinations if where == one] for one in WHERE)
    return [_dealt(number, spots, mapped) for number, spots in enumerate(zip_longest(*dealt))]


def _dealt(number: int, spots: Sequence[Spot | None], mapped: bool) -> Planted:
    """A log with a mistake at each sort of place; it does not become shorter before the last one."""
    at = [0, (2 if number % 2 else 1) * RANGE - 1, 1500, (1 if number % 2 else 2) * RANGE, LAST]
    chosen = {place: spot for place, spot in zip(at, spots, strict=True) if spot is not None}
    if any(spot.kind == "missing" for place, spot in chosen.items() if place != LAST):
        chosen[300] = Spot("aborted", "plain")
    return made_of(chosen, random.Random(number), 2500, mapped)


def made_of(spots: Mapping[int, Spot], dice: random.Random, records: int, mapped: bool = False) -> Planted:
    """A log of so many records and its damaged copy.

    Args:
        spots: By place.
    """
    made = Planted(mapped)
    found: dict[int, Spot] = {}
    for row, place, is_last in _laid(made, spots, dice, records):
        spot = spots.get(LAST) if is_last and LAST in spots else spots.get(place)
        if spot is not None:
            found[len(made.source)] = spot
            row = _of_sort(row, spot.sort)
        made.source.append(row)
    _copy(made, found, dice)
    return made


# -- the source ----------------------------------------------------------------------------------


def _laid(
    made: Planted, spots: Mapping[int, Spot], dice: random.Random, records: int
) -> Iterator[tuple[Row, int, bool]]:
    """Records with their places, for the caller to append; here and there in transactions."""
    inside = {place + near for place, spot in spots.items() if place >= 0 and spot.sort == "transactional"
              for near in range(-TRANSACTION, TRANSACTION)}  # fmt: skip
    at_end = LAST in spots and spots[LAST].sort == "transactional"
    offset = 0
    opened: int | None = None
    for number, row in enumerate(rows(dice, records)):
        place = number if made.mapped else offset
        wanted = place in inside or (at_end and number >= records - TRANSACTION)
        if opened is not None and number - opened > TRANSACTION and not wanted and place not in spots:
            made.source.append(Edge.COMMIT)
            opened = None
            offset += 1
            place = number if made.mapped else offset
            wanted = place in inside
        if opened is None and (wanted or dice.random() < TRANSACTIONS / records):
            made.source.append(Edge.BEGIN)
            opened = number
        made.places[offset] = place
        yield row, place, number == records - 1
        offset += 1
    if opened is not None:
        made.source.append(Edge.COMMIT)


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


def _of_sort(row: Row, sort: str | None) -> Row:
    match sort:
        case "plain":
            return replace(row, key=b"k", value=b"v", headers=())
        case "no_key":
            return replace(row, key=None)
        case "empty_key":
            return replace(row, key=b"")
        case "tombstone":
            return replace(row, key=b"k", value=None)
        case "empty_value":
            return replace(row, value=b"")
        case "headers":
            return replace(row, headers=(("a", b"1"), ("a", None), ("c", b"")))
        case "huge":
            return replace(row, value=b"huge" * (HUGE_BYTES // 4))
    return row


def _places(dice: random.Random, records: int, plants: int) -> list[int]:
    """In order, apart from each other; the first and last and those at borders before others."""
    borders = [0, LAST, RANGE - 1, RANGE, 2 * RANGE - 1, 2 * RANGE]
    dice.shuffle(borders)
    chosen: list[int] = []
    while len(chosen) < plants:
        place = borders.pop() if borders and dice.random() < 0.5 else dice.randrange(records - APART)
        if all(place != other and (LAST in (place, other) or abs(place - other) > APART) for other in chosen):
            chosen.append(place)
    return sorted(chosen)


# -- the copy ------------------------------------------------------------------------------------


def _copy(made: Planted, spots: Mapping[int, Spot], dice: random.Random) -> None:
    """Both logs say the same, but for what befalls the entries at these indexes."""
    away = {
        index: _elsewhere(index, len(made.source), dice)
        for index, spot in spots.items()
        if spot.kind in ("reordered", "doubled_elsewhere")
    }
    offsets = list(_offsets(made.source))
    moves: list[tuple[int, int]] = []
    for index, entry in enumerate(made.source):
        if isinstance(entry, Row):
            spot = spots.get(index)
            if spot is not None:
                made.what.append(f"{spot.kind} of {spot.sort} at {offsets[index]}")
            _befallen(made, entry, offsets[index], spot.kind if spot is not None else None, dice)
        elif not made.mapped:
            made.put(entry)
        for origin, to in away.items():
            if to == index:
                one = made.source[origin]
                there = made.put(one)
                if spots[origin].kind == "reordered":
                    moves.append((offsets[origin], there))
                else:
                    made.expected.append(_doubled(offsets[origin], there))
    for here, there in moves:
        made.expected.append(Difference(kind=Kind.REORDERED, source_offset=here, target_offset=there))
    made.expected.extend(_rows(made.mates, moves))


def _elsewhere(index: int, entries: int, dice: random.Random) -> int:
    """Behind which entry a record comes that is not where it should be."""
    far = dice.randrange(*FAR)
    return index + far if index + far < entries else index - far


def _offsets(entries: Iterable[Entry]) -> Iterator[int]:
    offset = 0
    for entry in entries:
        yield offset
        offset += size_of(entry)


def _befallen(made: Planted, row: Row, here: int, kind: str | None, dice: random.Random) -> None:
    """What becomes of a record in the copy, there where it should be."""
    if kind == "reordered":
        return
    if kind == "missing":
        made.expected.append(Difference(kind=Kind.MISSING, source_offset=here))
        return
    if kind == "extra":
        there = made.put(replace(row, value=b"nobody wrote this", headers=()))
        made.expected.append(Difference(kind=Kind.EXTRA, target_offset=there))
    elif kind == "aborted":
        made.put(Aborted(dice.randrange(4, 7)))
    copied, parts = changed(row, kind)
    there = made.put(copied)
    made.mates.append(Mate(here, there, made.places[here]))
    if parts:
        made.expected.append(
            Difference(kind=Kind.CHANGED, source_offset=here, target_offset=there, parts=parts)
        )
    if kind == "duplicated":
        made.expected.append(_doubled(here, made.put(row)))


def _doubled(here: int, there: int) -> Difference:
    return Difference(kind=Kind.DUPLICATED, target_offset=there, original=here)


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
        case "empty_value":
            return replace(row, value=b"" if row.value != b"" else None), (Part.VALUE,)
        case "headers":
            return replace(row, headers=(*row.headers, ("h", b""))), (Part.HEADERS,)
        case "header_order":
            if len(row.headers) > 1:
                return replace(row, headers=row.headers[::-1]), (Part.HEADER_ORDER,)
            return replace(row, headers=(("only", None),)), (Part.HEADERS,)
        case "header_value":
            *others, (name, value) = row.headers or (("h", None),)
            return replace(row, headers=(*others, (name, b"" if value is None else None))), (Part.HEADERS,)
    return row, ()


def _rows(mates: Iterable[Mate], moves: Sequence[tuple[int, int]]) -> Iterator[Difference]:
    """Records in a row that stand elsewhere, but for what somebody else's move explains."""

    def shift(one: Mate) -> int:
        come = sum(there < one.there for _, there in moves)
        gone = sum(here < one.here for here, _ in moves)
        return one.there - one.place - come + gone

    for by, row in groupby(mates, key=shift):
        some = list(row)
        if by:
            yield Difference(
                kind=Kind.SHIFTED,
                source_offset=some[0].here,
                target_offset=some[0].there,
                records=len(some),
                shift=by,
            )


# -- what can be seen ----------------------------------------------------------------------------


def seen(made: Planted) -> list[Difference]:
    """What of it can be seen where the target's log ends: what the source has beyond is on its way.

    The copy has reached the place at which the target ends; a last record that is missing would stand there,
    or behind.
    """
    end = made.target_end
    last = max(made.places)
    shift = made.mates[-1].there - made.mates[-1].place
    visible: list[Difference] = []
    for one in made.expected:
        here = one.source_offset
        if here is not None:
            if made.places[here] >= end:
                continue
            if one.kind is Kind.MISSING and here == last and made.places[here] + shift >= end:
                continue
            if one.kind is Kind.SHIFTED:
                row = islice((mate for mate in made.mates if mate.here >= here), one.records)
                one = replace(one, records=sum(mate.place < end for mate in row))
        visible.append(one)
    return visible


def write(bootstrap: Mapping[str, str], topic: str, made: Planted) -> None:
    """Both logs, into topics of one name.

    Args:
        bootstrap: Of ``source`` and ``target``.
    """
    load_log(bootstrap["source"], topic, made.source)
    load_log(bootstrap["target"], topic, made.target)
