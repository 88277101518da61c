"""Pairs of compacted logs that say different things of some keys, and what a comparison has to say of them.

Both logs are written step by step, so that a record of both has the same offset. Where one of them has
nothing to say a filler stands in, which says the same at both ends. What is expected follows from what was
planted, and from nothing that the program under test does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from spark_jobs.digest import KEY_BYTES_MAX
from spark_jobs.findings import Kind, Part
from tests.harness.data import Aborted, Entry, Row, size_of
from tests.spark.planting import FIRST_TIMESTAMP_MS, changed

FILLER = Row(key=b"filler", value=b"", timestamp_ms=FIRST_TIMESTAMP_MS, partition=0)
LARGE_BYTES = 20_000
"""Of so many keys a few fill a bucket."""
LAST = -1

Named = tuple[Kind, bytes | None, int | None, int | None, tuple[Part, ...]]
"""Kind, key, offsets at the source and at the target, parts."""


@dataclass(frozen=True, slots=True)
class Step:
    """What both logs hold at the same offsets; they take as many."""

    here: Sequence[Entry]
    there: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding, in steps of its plant: where it is at the source, and at the target."""

    kind: Kind
    here: int | None = None
    there: int | None = None
    parts: tuple[Part, ...] = ()
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Plant:
    """What happens to one key.

    Attributes:
        beyond: Written at the target behind everything.
    """

    name: str
    key: bytes
    steps: Sequence[Step]
    expected: Sequence[Expected] = ()
    beyond: Row | None = None

    @property
    def ends_with_what_differs(self) -> bool:
        end = len(self.steps) - 1
        is_told = any(end in (one.here, one.there) for one in self.expected)
        return self.beyond is None and is_told and len(self.steps[end].there) == 1


@dataclass
class PlantedKeys:
    """Two compacted logs, and what differs between them."""

    source: list[Entry] = field(default_factory=list)
    target: list[Entry] = field(default_factory=list)
    expected: list[Named] = field(default_factory=list)
    what: list[str] = field(default_factory=list)


CHANGES = (
    "timestamp", "value", "headers", "header_order", "header_value",
    "null_value", "empty_value", "filled_value",
)  # fmt: skip
PLANTS = (
    "missing", "missing_of_several", "stale", "stale_deleted", "not_yet_deleted",
    "resurrected", "resurrected_beyond", "undead", "without_trace",
    "extra", "extra_newer", "extra_deletion", "extra_beyond", "key", *CHANGES,
)  # fmt: skip
FIRST_PLANTS = ("missing", "extra", "without_trace", "key", *CHANGES)
"""What can be planted at the first offset: all that takes no past."""
HARMLESS = (
    "same", "deleted", "compacted_there", "compacted_here", "forgotten_there", "forgotten_here", "elsewhere",
)  # fmt: skip


def plant_keys(seed: int, plants: int = 16, others: int = 60) -> PlantedKeys:
    """Logs of so many keys on which the sites differ among others, one at each end of the log."""
    dice = random.Random(seed)
    names = [PLANTS[(seed * plants + index) % len(PLANTS)] for index in range(plants)]
    first = FIRST_PLANTS[seed % len(FIRST_PLANTS)]
    names += [HARMLESS[index % len(HARMLESS)] for index in range(others)]
    keys = _keys(dice, len(names) + 1)
    made = [_plant(name, key, dice) for name, key in zip([first, *names], keys, strict=True)]
    able = [index for index, plant in enumerate(made) if index and plant.ends_with_what_differs]
    return _written(made, dice, last=able[seed % len(able)])


def _keys(dice: random.Random, count: int) -> list[bytes]:
    """Of all sorts: none at all, and some that begin alike for longer than a name of them is."""
    long = b"long " * 60
    keys = [b"", long, long + b"!", *(b"k%d" % number for number in range(count - 3))]
    dice.shuffle(keys)
    return keys


def _both(row: Row) -> Step:
    return Step([row], [row])


def _here(*rows: Row) -> list[Step]:
    return [Step([row], [FILLER]) for row in rows]


def _there(*rows: Row) -> list[Step]:
    return [Step([FILLER], [row]) for row in rows]


def _plant(name: str, key: bytes, dice: random.Random) -> Plant:
    def value(version: int) -> Row:
        held = dice.randbytes(8) * dice.choice((0, 5, LARGE_BYTES // 8))
        headers = (("a", b"1"), ("b", None)) if dice.random() < 0.5 else ()
        return replace(
            FILLER, key=key, value=held, headers=headers, timestamp_ms=FIRST_TIMESTAMP_MS + version
        )

    one, two, three = value(1), value(2), value(3)
    gone = replace(two, value=None)
    match name:
        case "missing":
            return Plant(name, key, _here(one), [Expected(Kind.MISSING, 0)])
        case "missing_of_several":
            return Plant(name, key, _here(one, two), [Expected(Kind.MISSING, 1)])
        case "stale":
            return Plant(name, key, [_both(one), *_here(two)], [Expected(Kind.STALE, 1, 0)])
        case "stale_deleted":
            steps = [_both(one), _both(gone), *_here(three)]
            return Plant(name, key, steps, [Expected(Kind.STALE, 2, 1)])
        case "not_yet_deleted":
            return Plant(name, key, [_both(one), *_here(gone)], [Expected(Kind.NOT_YET_DELETED, 1, 0)])
        case "resurrected":
            steps = [_both(one), _both(gone), *_there(three)]
            return Plant(name, key, steps, [Expected(Kind.RESURRECTED, 1, 2)])
        case "resurrected_beyond":
            expected = Expected(Kind.RESURRECTED, 1, LAST)
            return Plant(name, key, [_both(one), _both(gone)], [expected], beyond=three)
        case "undead":
            steps = [_both(one), Step([gone], [replace(two, value=b"")])]
            return Plant(name, key, steps, [Expected(Kind.RESURRECTED, 1, 1)])
        case "without_trace":
            steps = [Step([Aborted(1)], [one, FILLER])]
            return Plant(name, key, steps, [Expected(Kind.RESURRECTED, None, 0)])
        case "extra":
            return Plant(name, key, _there(one), [Expected(Kind.EXTRA, None, 0)])
        case "extra_newer":
            return Plant(name, key, [_both(one), *_there(two)], [Expected(Kind.EXTRA, 0, 1)])
        case "extra_deletion":
            return Plant(name, key, [_both(one), *_there(gone)], [Expected(Kind.EXTRA, 0, 1)])
        case "extra_beyond":
            return Plant(name, key, [], [Expected(Kind.EXTRA, None, LAST)], beyond=one)
        case "key":
            other = b"another than " + key
            expected_two = [Expected(Kind.MISSING, 0), Expected(Kind.EXTRA, None, 0, key=other)]
            return Plant(name, key, [Step([one], [replace(one, key=other)])], expected_two)
        case "deleted":
            return Plant(name, key, [_both(one), _both(gone)])
        case "compacted_there":
            return Plant(name, key, [*_here(one), _both(two)])
        case "compacted_here":
            return Plant(name, key, [*_there(one), _both(two)])
        case "forgotten_there":
            return Plant(name, key, _here(one, gone))
        case "forgotten_here":
            return Plant(name, key, _there(one, gone))
        case "elsewhere":
            return Plant(name, key, [*_here(one), *_there(one)])
        case "same":
            return Plant(name, key, [_both(one), _both(two)])
    original = replace(one, value=b"") if name == "filled_value" else one
    copied, parts = changed(original, "value" if name == "filled_value" else name)
    return Plant(name, key, [Step([original], [copied])], [Expected(Kind.CHANGED, 0, 0, parts)])


def _written(plants: Sequence[Plant], dice: random.Random, last: int) -> PlantedKeys:
    """Both logs: the first plant at their start, the last step of another at their end, others between."""
    turns = [index for index, plant in enumerate(plants) for _ in plant.steps if index]
    dice.shuffle(turns)
    turns.remove(last)
    turns.append(last)
    filler = Step([FILLER], [FILLER])
    made = PlantedKeys()
    offsets: dict[int, list[int]] = {index: [] for index in range(len(plants))}
    taken: dict[int, Iterator[Step]] = {index: iter(plant.steps) for index, plant in enumerate(plants)}
    end = 0
    for turn in [0, None, *turns]:
        step = filler if turn is None else next(taken[turn])
        if turn is not None:
            offsets[turn].append(end)
        made.source += step.here
        made.target += step.there
        end += sum(size_of(entry) for entry in step.there)
    for index, plant in enumerate(plants):
        if plant.beyond is not None:
            made.target.append(plant.beyond)
            offsets[index].append(end)
            end += 1
        made.expected += _expected(plant, offsets[index])
        if plant.expected:
            made.what.append(f"{plant.name} at {offsets[index]}")
    return made


def _expected(plant: Plant, offsets: Sequence[int]) -> Iterator[Named]:
    for one in plant.expected:
        key = (plant.key if one.key is None else one.key)[:KEY_BYTES_MAX]
        at = (None if step is None else offsets[step] for step in (one.here, one.there))
        source, target = at
        yield one.kind, key, source, target, one.parts
