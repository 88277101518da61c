"""What differs between two stretches of a log, record by record.

Two stretches that should be the same are aligned by what their records hold, as a diff tool aligns lines:
first what is equal at the start and at the end of both, then what occurs once on both (patience diff), then
what is left between two such records. What cannot be aligned is missing, extra, changed, duplicated or moved.
What is aligned but has another place is shifted, and a row of records shifted by the same distance is one
difference.

Pure. The cost grows with the number of records, and, up to :data:`RELATED_MAX`, with the square of those that
have changed in a row.

Sources: Bram Cohen, "Patience Diff Advantages"; docs/reconcile.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from spark_jobs.findings import Difference, Kind, Part
from spark_jobs.telling import Row, explained, told


class Record(NamedTuple):
    """One record, of which only digests are known.

    Attributes:
        offset: In its own log.
        place: The target offset at which it stands, or should stand.
        key, value, headers: Digests; that of the headers depends on their order.
        header_set: A digest of the headers whatever their order.
    """

    offset: int
    place: int
    timestamp_ms: int
    key: int
    value: int
    headers: int
    header_set: int

    @property
    def content(self) -> Content:
        """What makes it the same record wherever it stands."""
        return self.timestamp_ms, self.key, self.value, self.headers


Content = tuple[int, int, int, int]
Pair = tuple[int, int]
"""Indexes of two records that belong together, at the source and at the target."""
Turn = tuple[int, int]
"""The position of a difference: at or after which record of the source, and in which order there."""
RELATED_MAX = 250_000
"""The most comparisons to find out which changed record was which; beyond it their places decide."""


def differences(source: Sequence[Record], target: Sequence[Record]) -> list[Difference]:
    """All that differs between two stretches taken by themselves; see :func:`aligned`."""
    return told(aligned(source, target))


def aligned(source: Sequence[Record], target: Sequence[Record]) -> list[Difference | Row]:
    """What differs, and the rows of records that belong together, in the order of the source's records. A
    record that only the target has comes after the pair that precedes it there.

    Args:
        source: Records of a stretch, in offset order.
        target: Records of the same stretch.
    """
    alignment = _Alignment(source, target)
    found: list[tuple[Turn, Difference | Row]] = [*alignment.unlike(), *alignment.rows()]
    found.sort(key=itemgetter(0))
    return [item for _, item in found]


# -- which belong together -----------------------------------------------------------------------


class _Alignment:
    """Pairs of records that belong together, and what became of the other records of both sides."""

    def __init__(self, source: Sequence[Record], target: Sequence[Record]) -> None:
        self._source, self._target = source, target
        same = _same(source, target)
        self._moved = _moved(source, target, same)
        self._doubled = _doubled(source, target, same, self._moved)
        self._changed = _changed(source, target, same, self._moved, self._doubled)
        self._pairs = sorted([*same, *self._changed])
        there = {i for i, _ in (*self._pairs, *self._moved)}
        here = {j for _, j in (*self._pairs, *self._moved)} | {*self._doubled}
        self._missing = [i for i in range(len(source)) if i not in there]
        self._extra = [j for j in range(len(target)) if j not in here]

    def unlike(self) -> Iterator[tuple[Turn, Difference]]:
        """The records without a counterpart, or with one that has changed or moved."""
        source, target = self._source, self._target
        for i in self._missing:
            yield (i, 0), Difference(kind=Kind.MISSING, source_offset=source[i].offset)
        for j in self._extra:
            yield self._behind(j), Difference(kind=Kind.EXTRA, target_offset=target[j].offset)
        for j in sorted(self._doubled):
            here, there = source[self._doubled[j]].offset, target[j].offset
            yield self._behind(j), Difference(kind=Kind.DUPLICATED, target_offset=there, original=here)
        for kind, pairs in ((Kind.REORDERED, self._moved), (Kind.CHANGED, self._changed)):
            for i, j in pairs:
                unlike = parts(source[i], target[j])
                here, there = source[i].offset, target[j].offset
                yield (
                    (i, 0),
                    Difference(kind=kind, source_offset=here, target_offset=there, parts=unlike),
                )

    def _behind(self, j: int) -> Turn:
        """The position after the pair that precedes this record of the target."""
        before = bisect_left(self._pairs, j, key=itemgetter(1))
        return (self._pairs[before - 1][0], j + 1) if before else (-1, j)

    def rows(self) -> Iterator[tuple[Turn, Row]]:
        """Rows of pairs that are equally far apart, apart from what moved records explain."""
        for by, row in groupby(self._distances(), key=itemgetter(1)):
            pairs = [pair for pair, _ in row]
            i, j = pairs[0]
            first = self._source[i].offset, self._target[j].offset
            yield (i, 0), Row(*first, records=len(pairs), shift=by)

    def _distances(self) -> Iterator[tuple[Pair, int]]:
        """How far apart each pair stands, without what records that have moved explain."""
        gone = [i for i, _ in self._moved]
        come = sorted(j for _, j in self._moved)
        gone.sort()
        before = 0
        for i, j in self._pairs:
            distance = self._target[j].place - self._source[i].place
            before = explained(distance, bisect_left(come, j) - bisect_left(gone, i), before)
            yield (i, j), before


def parts(one: Record, other: Record) -> tuple[Part, ...]:
    """The parts in which two records differ."""
    parts = []
    if one.timestamp_ms != other.timestamp_ms:
        parts.append(Part.TIMESTAMP)
    if one.key != other.key:
        parts.append(Part.KEY)
    if one.value != other.value:
        parts.append(Part.VALUE)
    if one.headers != other.headers:
        parts.append(Part.HEADER_ORDER if one.header_set == other.header_set else Part.HEADERS)
    return tuple(parts)


# -- the same content in the same order ----------------------------------------------------------


def _same(source: Sequence[Record], target: Sequence[Record]) -> list[Pair]:
    """Pairs with the same content, ascending on both sides: the longest such list, or nearly."""
    contents = [record.content for record in source], [record.content for record in target]
    pairs: list[Pair] = []
    todo = [(0, len(source), 0, len(target))]
    while todo:
        i, i_end, j, j_end = todo.pop()
        while i < i_end and j < j_end and contents[0][i] == contents[1][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        while i < i_end and j < j_end and contents[0][i_end - 1] == contents[1][j_end - 1]:
            i_end, j_end = i_end - 1, j_end - 1
            pairs.append((i_end, j_end))
        if i == i_end or j == j_end:
            continue
        anchors = _forward(_unique(contents[0], contents[1], (i, i_end), (j, j_end)))
        if not anchors:
            pairs.extend(_forward(_in_turn(contents[0], contents[1], (i, i_end), (j, j_end))))
            continue
        pairs.extend(anchors)
        borders = [(i - 1, j - 1), *anchors, (i_end, j_end)]
        for (a, b), (c, d) in pairwise(borders):
            todo.append((a + 1, c, b + 1, d))
    return _slid(sorted(pairs), source, target)


def _slid(pairs: Sequence[Pair], source: Sequence[Record], target: Sequence[Record]) -> list[Pair]:
    """The same pairs, with the first of several equal records taken: the later one is then the duplicate.

    A pair that stands as far apart as the one before it stays.
    """
    slid: list[Pair] = []
    before = -1, -1
    for pair in pairs:
        before = _first_equal(before, pair, source, target)
        slid.append(before)
    return slid


def _first_equal(before: Pair, pair: Pair, source: Sequence[Record], target: Sequence[Record]) -> Pair:
    (i, j), first = pair, (before[0] + 1, before[1] + 1)
    if (i == first[0]) == (j == first[1]):
        return pair
    distance = target[j].place - source[i].place
    if before[0] >= 0 and distance == target[before[1]].place - source[before[0]].place:
        return pair
    return first if source[first[0]].content == target[first[1]].content else pair


def _unique(one: Sequence[Content], other: Sequence[Content], i: Pair, j: Pair) -> list[Pair]:
    """Pairs of what occurs once in both ranges, in the order of the first."""
    here, there = Counter(one[slice(*i)]), Counter(other[slice(*j)])
    at = {content: index for index, content in enumerate(other[slice(*j)], j[0])}
    return [
        (index, at[content])
        for index, content in enumerate(one[slice(*i)], i[0])
        if here[content] == 1 and there[content] == 1
    ]


def _in_turn(one: Sequence[Content], other: Sequence[Content], i: Pair, j: Pair) -> list[Pair]:
    """Pairs of what occurs several times: the first with the first, the second with the second."""
    places: defaultdict[Content, deque[int]] = defaultdict(deque)
    for index, content in enumerate(other[slice(*j)], j[0]):
        places[content].append(index)
    found = []
    for index, content in enumerate(one[slice(*i)], i[0]):
        if places[content]:
            found.append((index, places[content].popleft()))
    return found


def _forward(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence of pairs, which ascend at the source, that also ascends at the target."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(j)
            last.append(index)
        else:
            ends[length], last[length] = j, index
    chain = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


# -- the rest ------------------------------------------------------------------------------------


def _rest(count: int, taken: Iterable[int]) -> list[int]:
    known = set(taken)
    return [index for index in range(count) if index not in known]


def _moved(source: Sequence[Record], target: Sequence[Record], same: Sequence[Pair]) -> list[Pair]:
    """Pairs of what has no partner in the same order, but one elsewhere."""
    homeless: defaultdict[Content, deque[int]] = defaultdict(deque)
    for j in _rest(len(target), (j for _, j in same)):
        homeless[target[j].content].append(j)
    found = []
    for i in _rest(len(source), (i for i, _ in same)):
        waiting = homeless[source[i].content]
        if waiting:
            found.append((i, waiting.popleft()))
    return found


def _doubled(
    source: Sequence[Record], target: Sequence[Record], same: Sequence[Pair], moved: Sequence[Pair]
) -> dict[int, int]:
    """Records that the target has again: the source has such a record, which is paired already.

    Returns:
        For each of them, the first such record of the source.
    """
    paired = [*same, *moved]
    known = {source[i].content: i for i, _ in sorted(paired, reverse=True)}
    left = _rest(len(target), (j for _, j in paired))
    return {j: known[target[j].content] for j in left if target[j].content in known}


def _changed(
    source: Sequence[Record],
    target: Sequence[Record],
    same: Sequence[Pair],
    moved: Sequence[Pair],
    doubled: Iterable[int],
) -> list[Pair]:
    """Pairs of changed records, found between two records that are the same: in order, where both sides have
    as many, else by what they have in common.
    """
    free_here = _rest(len(source), [*(i for i, _ in same), *(i for i, _ in moved)])
    free_there = _rest(len(target), [*(j for _, j in same), *(j for _, j in moved), *doubled])
    pairs: list[Pair] = []
    for here, there in _blocks(same, free_here, free_there):
        if len(here) == len(there):
            pairs.extend(zip(here, there, strict=True))
        else:
            pairs.extend(_related(source, target, here, there))
    return pairs


def _blocks(
    same: Sequence[Pair], here: Sequence[int], there: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """What is left of both sides between two pairs that are the same, for each gap with both."""
    blocks: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    borders = [i for i, _ in same], [j for _, j in same]
    for side, left in enumerate((here, there)):
        for index in left:
            blocks[bisect_left(borders[side], index)][side].append(index)
    for gap in sorted(blocks):
        if blocks[gap][0] and blocks[gap][1]:
            yield blocks[gap]


def _related(
    source: Sequence[Record], target: Sequence[Record], here: Sequence[int], there: Sequence[int]
) -> list[Pair]:
    """Pairs of unequal numbers of records: those in order on both sides that have most in common in all."""
    if len(here) * len(there) > RELATED_MAX:
        at = {target[j].place: j for j in there}
        return _forward([(i, at[source[i].place]) for i in here if source[i].place in at])
    best = [[0] * (len(there) + 1) for _ in range(len(here) + 1)]
    for a, i in enumerate(here, 1):
        for b, j in enumerate(there, 1):
            together = best[a - 1][b - 1] + _likeness(source[i], target[j])
            best[a][b] = max(together, best[a - 1][b], best[a][b - 1])
    pairs: list[Pair] = []
    a, b = len(here), len(there)
    while a and b:
        if best[a][b] == best[a - 1][b]:
            a -= 1
        elif best[a][b] == best[a][b - 1]:
            b -= 1
        else:
            a, b = a - 1, b - 1
            pairs.append((here[a], there[b]))
    return pairs[::-1]


def _likeness(one: Record, other: Record) -> int:
    """How alike two records are: key, value and time count twice as much as the place."""
    shared = (one.key == other.key) + (one.value == other.value) + (one.timestamp_ms == other.timestamp_ms)
    return 2 * shared + (one.place == other.place)
