"""The result of a run as one page: what differs and where along the log, what was compared and what not.

Nothing is fetched from elsewhere and no script runs; words from outside are escaped. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import islice

from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding
from spark_jobs.result import Outcome, Result, key_text
from spark_jobs.window import Range, Window

BINS = 250
"""Parts of a strip; what falls into one is one mark."""
STRIPS_MAX = 64
"""Partitions of a topic that are drawn, those that differ first."""
EXAMPLES_MAX = 50
"""Differences of a topic that are listed."""

COLORS = {
    Kind.MISSING: "#c0392b",
    Kind.EXTRA: "#8e44ad",
    Kind.CHANGED: "#d35400",
    Kind.DUPLICATED: "#b7950b",
    Kind.REORDERED: "#2471a3",
    Kind.SHIFTED: "#7f8c8d",
    Kind.STALE: "#117a65",
    Kind.RESURRECTED: "#6c3483",
    Kind.NOT_YET_DELETED: "#1e8449",
}
MEANINGS = {
    Kind.MISSING: "the source has it, the target does not",
    Kind.EXTRA: "the target has it, the source does not",
    Kind.CHANGED: "both have it, and something of it is another",
    Kind.DUPLICATED: "the target has it once more than the source",
    Kind.REORDERED: "both have it, between other records",
    Kind.SHIFTED: "both have it, in order, at another offset than it should have",
    Kind.STALE: "the key's value at the target is an older one",
    Kind.RESURRECTED: "the key was deleted at the source, and has a value at the target",
    Kind.NOT_YET_DELETED: "the key was deleted at the source, and its tombstone is not at the target",
}
_SAID = {
    Outcome.MATCH: ("good", "The copy is the original", "Every record that was compared is the same."),
    Outcome.MISMATCH: ("bad", "The sites differ", "What differs is listed below, and in the Parquet files."),
    Outcome.INCOMPLETE: (
        "warn",
        "Not everything was compared",
        "What was compared is the same. Of the rest nothing is said.",
    ),
}

_STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --line: #d9dde3; --text: #16191d;
  --dim: #5b6470; --log: #cfd8e3; --gone: #eceff3; --good: #14713a; --bad: #a8161b; --warn: #8a5300; }
@media (prefers-color-scheme: dark) { :root { --back: #101316; --card: #191d22; --line: #323840;
  --text: #e8eaed; --dim: #9aa4b0; --log: #37424f; --gone: #21262c; --good: #6fd893; --bad: #ff9088;
  --warn: #f2bd5c; } }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
.dim { color: var(--dim); font-size: .9rem; }
.banner { border: 1px solid; border-left-width: .5rem; border-radius: .5rem; padding: .8rem 1rem;
  font-size: 1.2rem; font-weight: 600; background: var(--card); }
.banner p { margin: .15rem 0 0; font-size: .95rem; font-weight: 400; color: var(--text); }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .8rem; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-size: .82rem; } tr:last-child td { border-bottom: 0; }
td.name { overflow-wrap: anywhere; } .right { text-align: right; white-space: nowrap; }
.strip { display: grid; grid-template-columns: 4rem 1fr 7rem; gap: .75rem; align-items: center;
  margin: .2rem 0; font-size: .85rem; } .strip svg { width: 100%; height: 1.5rem; display: block; }
.dot { display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin-right: .4rem; }
"""


def page(result: Result) -> str:
    """The page, whole."""
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(result.flow)}: {result.outcome.value}</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            *_parts(result),
            "</main></body></html>\n",
        )
    )


def _parts(result: Result) -> Iterator[str]:
    kind, heading, words = _SAID[result.outcome]
    yield f"<h1>Flow {_text(result.flow)}: source and target compared</h1>"
    yield f'<div class="banner {kind}">{heading}<p>{words}</p></div>'
    yield from _kinds(result)
    yield from _scope(result)
    topics: defaultdict[str, list[Compared]] = defaultdict(list)
    for one in result.compared:
        topics[one.log.name.topic].append(one)
    for topic in sorted(topics, key=lambda name: (all(one.is_match for one in topics[name]), name)):
        yield from _topic(topic, topics[topic])
    yield from _not_compared(result)


def _kinds(result: Result) -> Iterator[str]:
    if not result.kinds:
        return
    rows = [
        (_dot(kind) + kind.value, _number(count), _text(MEANINGS[kind]))
        for kind, count in result.kinds.items()
    ]
    if result.unnamed:
        rows.append(
            ("not named", _number(result.unnamed), "places or keys that differ and were too many to look at")
        )
    yield "<h2>What differs</h2>" + _table(("kind", "how many", ""), rows, right={1})


def _scope(result: Result) -> Iterator[str]:
    compared = result.compared
    windows = [one.log.window for one in compared]
    read = sum(one.source_bytes + one.target_bytes for one in compared)
    here = _number(sum(one.source_records for one in compared))
    there = _number(sum(one.target_records for one in compared))
    pending = _number(sum(one.pending.offsets for one in windows))
    in_flight = _number(sum(one.in_flight for one in compared))
    expired = sum(one.expired_at_source.offsets + one.expired_at_target.offsets for one in windows)
    rows = [
        ("began", _time(result.started_at_ms)),
        ("took", f"{result.seconds:.0f} s"),
        ("source cluster", _text(result.source_cluster_id or "unknown")),
        ("target cluster", _text(result.target_cluster_id or "unknown")),
        ("compared", f"{here} records of the source with {there} of the target"),
        ("read", f"{read / 1e6:,.1f} MB of keys and values, both sides together"),
        ("read again", f"{_number(sum(one.read_again for one in compared))} records, to name what differs"),
        ("on its way", f"{pending} offsets of the source, and {in_flight} keys"),
        ("expired on one side", f"{_number(expired)} offsets"),
        ("asked for", _text(result.wanted)),
    ]
    yield "<h2>What was compared</h2>" + _table((), rows)


# -- one topic -----------------------------------------------------------------------------------


def _topic(topic: str, partitions: Sequence[Compared]) -> Iterator[str]:
    differing = [one for one in partitions if not one.is_match]
    said = f"{len(differing)} of {len(partitions)} partitions differ" if differing else "all the same"
    yield f'<h2>{_text(topic)} <span class="dim">{said}</span></h2>'
    drawn = [*differing, *(one for one in partitions if one.is_match)][:STRIPS_MAX]
    for one in drawn:
        count = sum(finding.difference.records for finding in one.findings) + one.unnamed
        yield f'<div class="strip"><span class="right">{one.log.name.partition}</span>{_strip(one)}'
        yield f"<span>{_number(count) + ' differ' if count else 'the same'}</span></div>"
    if len(partitions) > len(drawn):
        yield f'<p class="dim">and {len(partitions) - len(drawn)} more partitions, not drawn</p>'
    findings = [(one, finding) for one in differing for finding in one.findings]
    if findings:
        yield _examples(findings)


def _strip(one: Compared) -> str:
    """The log from left to right: what was compared, what one side has not, and where it differs."""
    window = one.log.window
    whole = _whole(window)
    marks: defaultdict[int, Counter[Kind]] = defaultdict(Counter)
    drawn = [_bar(whole, window.source, "log", "compared")]
    drawn += [_bar(whole, gone, "gone", "expired on one side, or on its way") for gone in _unseen(window)]
    for finding in one.findings:
        difference = finding.difference
        at = _at(difference, window)
        if difference.kind is Kind.SHIFTED:
            drawn.append(_band(whole, Range(at, at + difference.records), difference))
        else:
            marks[(at - whole.start) * BINS // max(1, whole.offsets)][difference.kind] += 1
    drawn += [_mark(at, kinds) for at, kinds in sorted(marks.items())]
    return (
        f'<svg viewBox="0 0 {BINS} 12" preserveAspectRatio="none" role="img" '
        f'aria-label="partition {one.log.name.partition}">{"".join(drawn)}</svg>'
    )


def _whole(window: Window) -> Range:
    ranges = [window.source, *_unseen(window)]
    end = max(one.end for one in ranges) + window.beyond.offsets
    return Range(min(one.start for one in ranges), end)


def _unseen(window: Window) -> list[Range]:
    return [
        one for one in (window.expired_at_source, window.expired_at_target, window.pending) if one.offsets
    ]


def _at(difference: Difference, window: Window) -> int:
    """The source offset, or of what only the target has about where that would be."""
    if difference.source_offset is not None:
        return difference.source_offset
    return (difference.target_offset or 0) - window.target.start + window.source.start


def _x(whole: Range, offset: int) -> float:
    return min(BINS, max(0.0, (offset - whole.start) * BINS / max(1, whole.offsets)))


def _bar(whole: Range, part: Range, color: str, words: str) -> str:
    start, end = _x(whole, part.start), _x(whole, part.end)
    return (
        f'<rect x="{start:.2f}" y="1" width="{end - start:.2f}" height="8" fill="var(--{color})">'
        f"<title>{words}: source offsets {part.start} to {part.end}</title></rect>"
    )


def _band(whole: Range, part: Range, difference: Difference) -> str:
    start, end = _x(whole, part.start), _x(whole, part.end)
    return (
        f'<rect x="{start:.2f}" y="10" width="{max(0.6, end - start):.2f}" height="2" '
        f'fill="{COLORS[Kind.SHIFTED]}"><title>{difference.records} records shifted by {difference.shift:+d}'
        "</title></rect>"
    )


def _mark(at: int, kinds: Counter[Kind]) -> str:
    (kind, _), words = kinds.most_common(1)[0], ", ".join(f"{n} {kind.value}" for kind, n in kinds.items())
    return f'<rect x="{at}" y="0" width="1.2" height="10" fill="{COLORS[kind]}"><title>{words}</title></rect>'


def _examples(findings: Sequence[tuple[Compared, Finding]]) -> str:
    rows = [
        (
            str(one.log.name.partition),
            _dot(finding.difference.kind) + finding.difference.kind.value,
            _offset(finding.difference.source_offset),
            _offset(finding.difference.target_offset),
            _text(_key(finding)),
            _text(_more(finding.difference)),
        )
        for one, finding in islice(findings, EXAMPLES_MAX)
    ]
    headings = ("partition", "kind", "source offset", "target offset", "key", "")
    more = len(findings) - len(rows)
    note = f'<p class="dim">and {_number(more)} more, in the Parquet files</p>' if more > 0 else ""
    return _table(headings, rows, right={0, 2, 3}) + note


def _key(finding: Finding) -> str:
    if finding.difference.kind is Kind.SHIFTED:
        return ""
    text = key_text(finding.key)
    return "null" if text is None else f"“{text}”"


def _more(difference: Difference) -> str:
    if difference.kind is Kind.SHIFTED:
        return f"{difference.records} records, by {difference.shift:+d}"
    return ", ".join(part.value.replace("_", " ") for part in difference.parts)


def _not_compared(result: Result) -> Iterator[str]:
    if not result.not_compared:
        return
    rows = [
        (_text(one.topic), "all" if one.partition is None else str(one.partition), _text(one.why))
        for one in result.not_compared
    ]
    yield "<h2>Not compared</h2>" + _table(("topic", "partition", "why"), rows)


# -- small pieces --------------------------------------------------------------------------------


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int] | set[int] = frozenset()
) -> str:
    """Cells are markup already."""
    head = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{"right" if at in right else "name"}">{cell}</td>' for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def _dot(kind: Kind) -> str:
    return f'<span class="dot" style="background:{COLORS[kind]}"></span>'


def _text(words: str) -> str:
    return escape(words, quote=True)


def _number(count: int) -> str:
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")


def _offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
