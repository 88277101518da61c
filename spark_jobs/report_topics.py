"""The part of a page about topics that differ: pictures of their partitions, and some differences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding
from spark_jobs.markup import counted, dot, folded, number, table, text
from spark_jobs.picture import PARTS, drawn_offsets, picture, source_offset_of
from spark_jobs.result import key_text, some_of_each
from spark_jobs.sampling import Sample, blocks
from spark_jobs.window import Range

TOPICS_WHOLE = 60
"""Topics that are shown in full, those with the most differences first; the others only have pictures."""
STRIPS_BRIEF = 4
"""Differing partitions that are drawn of each of those others."""
OVERVIEW_OPEN = 20
"""Topics are listed openly up to this number; more are folded."""
STRIPS_MAX = 64
"""Differing partitions of a topic that are drawn."""
SAME_STRIPS_MAX = 16
"""Partitions that are the same are drawn too where the topic has no more partitions than this."""
DENSE = 12
"""Where more partitions than this are drawn, each is drawn lower."""
EXAMPLES_MAX = 50
"""Differences of a topic that are listed; each kind gets an equal share, as far as it needs it."""

Topics = Mapping[str, Sequence[Compared]]


def differences(compared: Iterable[Compared]) -> int:
    """How many there are, named or not."""
    return sum(len(one.findings) + one.unnamed for one in compared)


def differing_topics(topics: Topics, sample: Sample | None) -> Iterator[str]:
    """The markup of topics that differ, those with the most differences first.

    Args:
        topics: All their partitions.
        sample: What was compared of partitions that are the same; None: all of them.
    """
    if not topics:
        return
    names = sorted(topics, key=lambda name: (-differences(topics[name]), name))
    yield "<h2>Where it differs</h2>"
    yield from _overview(topics, names)
    yield _legend(chain.from_iterable(topics.values()))
    for at, name in enumerate(names):
        yield _topic(_anchor(at), name, topics[name], sample, whole=at < TOPICS_WHOLE)


def _overview(topics: Topics, names: Sequence[str]) -> Iterator[str]:
    """All of them in one table; a single topic needs none."""
    if len(names) == 1:
        return
    rows = [
        (
            f'<a href="#{_anchor(at)}">{text(name)}</a>',
            f"{number(sum(not one.is_match for one in topics[name]))} of {number(len(topics[name]))}",
            number(differences(topics[name])),
        )
        for at, name in enumerate(names)
    ]
    body = table(("topic", "partitions that differ", "differences"), rows, words={0}, right={1, 2})
    yield body if len(rows) <= OVERVIEW_OPEN else folded(counted(len(rows), "topic"), body)


def _anchor(at: int) -> str:
    return f"topic-{at}"


def _legend(compared: Iterable[Compared]) -> str:
    """The colors of the parts of logs that occur, and what they mean."""
    some = list(compared)
    windows = [one.log.window for one in some]
    there = {
        "pending": any(one.pending.offsets for one in windows),
        "beyond": any(one.beyond.offsets for one in windows),
        "accepted": any(one.log.accepted for one in some),
        "unnamed": any(one.unread for one in some),
    }
    parts = (
        f"<span>{dot(color)}{text(words)}</span>" for color, words in PARTS.items() if there.get(color, True)
    )
    said = (
        "Each line is a partition, from the first offset that a side still has to the last. Differences have "
        "the colors of their kinds; records that are shifted are underlined."
    )
    return f'<p class="dim">{said}</p><div class="kinds dim">{"".join(parts)}</div>'


# -- one topic -----------------------------------------------------------------------------------


def _topic(
    anchor: str, name: str, partitions: Sequence[Compared], sample: Sample | None, *, whole: bool
) -> str:
    differing = [one for one in partitions if not one.is_match]
    same = [one for one in partitions if one.is_match]
    drawn = sorted(
        [
            *differing[: STRIPS_MAX if whole else STRIPS_BRIEF],
            *(same if whole and len(partitions) <= SAME_STRIPS_MAX else ()),
        ],
        key=lambda one: one.log.name,
    )
    strips = _STRIP_HEADINGS + "".join(_strip(one, sample) for one in drawn)
    return (
        f'<section class="card topic" id="{anchor}"><h3>{text(name)} {_said(partitions, differing)}</h3>'
        f"{_kinds(differing)}"
        f'<div class="{"dense" if len(drawn) > DENSE else "loose"}">{strips}</div>'
        f"{_not_drawn(partitions, drawn)}{_examples(differing) if whole else ''}</section>"
    )


_STRIP_HEADINGS = (
    '<div class="strip dim"><span class="right">part.</span><span class="right offset">first offset</span>'
    '<span></span><span class="offset">end</span><span></span></div>'
)


def _said(partitions: Sequence[Compared], differing: Sequence[Compared]) -> str:
    log = partitions[0].log
    words = [
        f"{number(len(differing))} of {number(len(partitions))} partitions differ",
        *(["compacted: the latest record of each key is compared"] if log.is_compacted else []),
        *([f"called {log.target_topic} at the target"] if log.target_topic != log.name.topic else []),
        *_not_compared(partitions),
    ]
    return f'<span class="dim">{text(", ".join(words))}</span>'


def _not_compared(partitions: Sequence[Compared]) -> Iterator[str]:
    counts = {
        "not copied yet": sum(one.pending for one in partitions),
        "expired on one side": sum(one.expired for one in partitions),
        "deleted before they were copied": sum(one.never_copied for one in partitions),
        "about to expire": sum(one.leaving for one in partitions),
    }
    return (f"{counted(count, 'offset')} {words}" for words, count in counts.items() if count)


def _kinds(differing: Sequence[Compared]) -> str:
    counts = Counter(finding.difference.kind for one in differing for finding in one.findings)
    said = [
        f"<span>{dot(kind.value)}{number(counts[kind])} {kind.value}</span>" for kind in Kind if counts[kind]
    ]
    unnamed = sum(one.unnamed for one in differing)
    said += [f"<span>{number(unnamed)} not named</span>"] if unnamed else []
    return f'<div class="kinds">{"".join(said)}</div>'


def _strip(one: Compared, sample: Sample | None) -> str:
    parts = _sampled(one, sample)
    whole = drawn_offsets(one.log.window)
    same = "the same" if parts is None else "sample the same"
    said = same if one.is_match else f"{number(differences([one]))} differ"
    return (
        f'<div class="strip"><span class="right">{one.log.name.partition}</span>'
        f'<span class="right dim offset">{whole.start}</span>{picture(one, parts)}'
        f'<span class="dim offset">{whole.end}</span><span>{said}</span></div>'
    )


def _sampled(one: Compared, sample: Sample | None) -> list[Range] | None:
    """What was compared of a partition that is the same within a sample; None where everything was."""
    if sample is None or one.log.is_compacted or not one.is_match:
        return None
    return [one.log.source_offsets(block) for block in blocks(one.log, sample)]


def _not_drawn(partitions: Sequence[Compared], drawn: Sequence[Compared]) -> str:
    names = {one.log.name for one in drawn}
    left = [one for one in partitions if one.log.name not in names]
    differing = sum(not one.is_match for one in left)
    words = [
        *([f"{number(differing)} more differ, and are not drawn"] if differing else []),
        *([f"{number(len(left) - differing)} more are the same"] if len(left) > differing else []),
    ]
    return f'<p class="dim">{"; ".join(words)}</p>' if words else ""


# -- examples ------------------------------------------------------------------------------------


def _examples(differing: Sequence[Compared]) -> str:
    findings = [(one, finding) for one in differing for finding in one.findings]
    if not findings:
        return ""
    chosen = some_of_each(sorted(findings, key=_place), lambda one: one[1].difference.kind, EXAMPLES_MAX)
    rows = [
        (
            str(one.log.name.partition),
            dot(finding.difference.kind.value) + finding.difference.kind.value,
            _offset(finding.difference.named_source_offset),
            _offset(finding.difference.target_offset),
            _key(finding),
            text(_more(finding.difference)),
        )
        for one, finding in chosen
    ]
    headings = ("partition", "kind", "source offset", "target offset", "key", "what")
    listed = table(headings, rows, words={4}, right={0, 2, 3})
    if len(rows) == len(findings):
        return listed
    words = f"{len(rows)} of {number(len(findings))}, the first of each kind; the Parquet files name all"
    return f'{listed}<p class="dim">{words}</p>'


def _place(one: tuple[Compared, Finding]) -> tuple[int, int, int]:
    compared, difference = one[0], one[1].difference
    target = -1 if difference.target_offset is None else difference.target_offset
    at = source_offset_of(difference, compared.log.window)
    return compared.log.name.partition, at, target


def _key(finding: Finding) -> str:
    if finding.difference.kind is Kind.SHIFTED:
        return ""
    key = key_text(finding.key)
    return '<span class="dim">null</span>' if key is None else f"<code>“{text(key)}”</code>"


def _more(difference: Difference) -> str:
    if difference.kind is Kind.SHIFTED:
        return f"{counted(difference.records, 'record')}, by {difference.shift:+d}"
    return ", ".join(part.value.replace("_", " ") for part in difference.parts)


def _offset(offset: int | None) -> str:
    return '<span class="dim">none</span>' if offset is None else str(offset)
