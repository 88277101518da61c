"""A log from left to right, as an SVG: what was compared, what was not, and where along it sites differ.

The log is cut into ``BINS`` parts of equal width; each kind of difference in a part is one mark there,
however many there are. A row of shifted records is a band below. Positions are source offsets; what only the
target has is drawn about where it would be at the source. Everything lies inside ``WIDTH`` and ``HEIGHT``.
Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Log
from spark_jobs.markup import number, text
from spark_jobs.window import Range, Window

BINS = 250
BIN_WIDTH = 4
WIDTH = BINS * BIN_WIDTH
HEIGHT = 24
LOG_TOP, LOG_HEIGHT = 2, 16
MARK_HEIGHT = 20
BAND_TOP = 21

PARTS = {
    "log": "compared, and the same where nothing is marked",
    "gone": "only one side still has it, or it was not in the sample",
    "pending": "not copied yet",
    "beyond": "the target has it after the source's end",
    "accepted": "not compared: its differences were accepted",
    "unnamed": "differs, and was too much to read record by record",
}
"""Colors of a log's parts, and what they mean."""


@dataclass(frozen=True, slots=True)
class Rect:
    """One rectangle.

    Attributes:
        color: One of :data:`spark_jobs.markup.COLORS`.
        words: Its tooltip.
    """

    x: float
    y: float
    width: float
    height: float
    color: str
    words: str

    def __str__(self) -> str:
        place = f'x="{self.x:.2f}" y="{self.y:.2f}" width="{self.width:.2f}" height="{self.height:.2f}"'
        return f'<rect {place} class="{self.color}"><title>{text(self.words)}</title></rect>'


def picture(one: Compared, parts: Sequence[Range] | None = None) -> str:
    """The picture of a partition.

    Args:
        parts: Source offsets that were compared; None where all of the window was.
    """
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="partition {one.log.name.partition}">{"".join(map(str, rects(one, parts)))}</svg>'
    )


def rects(one: Compared, parts: Sequence[Range] | None = None) -> list[Rect]:
    """What is drawn, from the back to the front."""
    whole = drawn_offsets(one.log.window)
    window = one.log.window
    compared = [window.source] if parts is None else parts
    behind = Range(whole.end - window.beyond.offsets, whole.end)
    bars = [
        _bar(whole, whole, "gone", "not compared"),
        *(_bar(whole, some, "log", "compared") for some in compared),
        _bar(whole, window.expired_at_source, "gone", "the source has deleted it"),
        _bar(whole, window.expired_at_target, "gone", "the target has deleted it"),
        _bar(whole, window.leaving, "gone", "one side is about to delete it"),
        _bar(whole, window.pending, "pending", PARTS["pending"]),
        _bar(whole, behind, "beyond", PARTS["beyond"]),
        *(_bar(whole, some, "accepted", PARTS["accepted"]) for some in _accepted(one.log)),
        *(_bar(whole, _drawn(some, window), "unnamed", PARTS["unnamed"]) for some in one.unread),
    ]
    differences = [finding.difference for finding in one.findings]
    shifted = [one for one in differences if one.kind is Kind.SHIFTED]
    others = [one for one in differences if one.kind is not Kind.SHIFTED]
    return [
        *(bar for bar in bars if bar.width),
        *_bands(whole, shifted, window),
        *_marks(whole, others, window),
    ]


def drawn_offsets(window: Window) -> Range:
    """From the first offset that is drawn to the last; what lies beyond the source's end is drawn last."""
    expired = window.expired_at_source, window.expired_at_target, window.leaving
    ranges = (window.source, *expired, window.pending)
    some = [one for one in ranges if one.offsets] or [window.source]
    return Range(min(one.start for one in some), max(one.end for one in some) + window.beyond.offsets)


def source_offset_of(difference: Difference, window: Window) -> int:
    """Where a difference is drawn."""
    if difference.source_offset is not None:
        return difference.source_offset
    return _beside(difference.target_offset or 0, window)


def _drawn(places: Range, window: Window) -> Range:
    """Where target offsets are drawn."""
    return Range(_beside(places.start, window), _beside(places.end, window))


def _beside(offset: int, window: Window) -> int:
    """Where at the source a target offset would be."""
    if window.beyond.offsets and offset >= window.beyond.start:
        return drawn_offsets(window).end - window.beyond.end + offset
    ahead = (offset - window.target.start) * window.source.offsets // max(1, window.target.offsets)
    return window.source.start + ahead


def _accepted(log: Log) -> list[Range]:
    return [log.source_offsets(some) for some in log.accepted]


def _bar(whole: Range, part: Range, color: str, words: str) -> Rect:
    start, end = _x(whole, part.start), _x(whole, part.end)
    said = f"{words}: source offsets {part.start} to {part.end}"
    return Rect(start, LOG_TOP, end - start, LOG_HEIGHT, color, said)


def _x(whole: Range, offset: int) -> float:
    return min(WIDTH, max(0, (offset - whole.start) * WIDTH / max(1, whole.offsets)))


def _bin(whole: Range, offset: int) -> int:
    return min(BINS - 1, max(0, (offset - whole.start) * BINS // max(1, whole.offsets)))


def _marks(whole: Range, differences: Iterable[Difference], window: Window) -> Iterator[Rect]:
    """One mark for each kind in each part, stacked, so that a rare kind is not hidden by a frequent one."""
    found: defaultdict[int, Counter[Kind]] = defaultdict(Counter)
    for difference in differences:
        found[_bin(whole, source_offset_of(difference, window))][difference.kind] += 1
    for at, kinds in sorted(found.items()):
        first, last = (whole.start + whole.offsets * edge // BINS for edge in (at, at + 1))
        height = MARK_HEIGHT / len(kinds)
        for level, kind in enumerate(one for one in Kind if one in kinds):
            words = f"{number(kinds[kind])} {kind.value}, about source offsets {first} to {last}"
            yield Rect(at * BIN_WIDTH, level * height, BIN_WIDTH, height, kind.value, words)


def _bands(whole: Range, rows: Sequence[Difference], window: Window) -> Iterator[Rect]:
    """Bands of shifted records; rows that touch in the picture are one band."""
    bands: list[tuple[int, int, list[Difference]]] = []
    for row in sorted(rows, key=lambda row: source_offset_of(row, window)):
        start = source_offset_of(row, window)
        first, last = _bin(whole, start), _bin(whole, start + row.records - 1)
        if bands and first <= bands[-1][1] + 1:
            known_first, known_last, known = bands.pop()
            bands.append((known_first, max(known_last, last), [*known, row]))
        else:
            bands.append((first, last, [row]))
    for first, last, some in bands:
        width = (last - first + 1) * BIN_WIDTH
        place = first * BIN_WIDTH, BAND_TOP, width, HEIGHT - BAND_TOP
        yield Rect(*place, Kind.SHIFTED.value, _shifts(some))


def _shifts(rows: Sequence[Difference]) -> str:
    least, most = min(row.shift for row in rows), max(row.shift for row in rows)
    by = f"{least:+d}" if least == most else f"{least:+d} to {most:+d}"
    return f"{number(sum(row.records for row in rows))} records are displaced by {by}"
