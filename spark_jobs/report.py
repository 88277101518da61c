"""The result of a run as one page: what differs and where along the log, what was compared and what was not.

What an operator needs first comes first: the verdict, what is not known, what differs, then where it differs,
topic by topic. The page loads nothing from elsewhere and runs no script. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from mirror.moments import moment
from spark_jobs.algorithms import Algorithm
from spark_jobs.findings import Kind
from spark_jobs.logs import Compared
from spark_jobs.markup import (
    banner,
    counted,
    dot,
    duration,
    figure,
    folded,
    framed,
    number,
    numbers,
    size,
    table,
    text,
)
from spark_jobs.report_topics import differences, differing_topics
from spark_jobs.result import Outcome, Result, said_of_ends

SAME_OPEN = 20
"""Topics that are the same are listed openly up to this number; more are folded."""

DIGESTS = {
    Algorithm.XXHASH64: "xxHash64, 128 bits: finds damage",
    Algorithm.SHA256: "SHA-256, 256 bits: also finds what was made to look the same",
}
MEANINGS = {
    Kind.MISSING: (
        "the source has it, the target does not",
        "the target lost its end, or somebody deleted records; or the topic was compacted once",
    ),
    Kind.EXTRA: (
        "the target has it, the source does not",
        "somebody else writes to the target, or the source lost its end; or the topic was compacted once",
    ),
    Kind.CHANGED: ("both have it, and some part of it differs", "a disk, or somebody's repair"),
    Kind.DUPLICATED: ("the target has it once more than the source", "a producer without idempotence"),
    Kind.REORDERED: (
        "both have it, between other records",
        "several requests in flight without idempotence",
    ),
    Kind.SHIFTED: (
        "a run of records is displaced by the same distance",
        "something before it is missing or extra",
    ),
    Kind.STALE: ("the key's value at the target is an older one", "the update is missing"),
    Kind.RESURRECTED: (
        "the key was deleted at the source, and has a value at the target",
        "written again after its deletion",
    ),
    Kind.NOT_YET_DELETED: (
        "the key was deleted at the source, and its tombstone is not at the target",
        "the tombstone is missing",
    ),
}
"""What a kind means, and its usual cause."""


def page(result: Result, folder: str) -> str:
    """The page of a run that was completed.

    Args:
        folder: The folder of the run, as an argument of a command.
    """
    return framed(f"{result.flow}: {result.outcome.value}", _parts(result, folder))


def failure_page(document: Mapping[str, Any]) -> str:
    """The page of a run that was not completed, from its summary."""
    rows = [
        (text(words), text(str(document[name])))
        for name, words in (("flow", "flow"), ("started_at", "began"), ("wanted", "asked for"))
    ]
    said = "This says nothing about the copy: it may or may not be the original."
    return framed(
        f"{document['flow']}: {document['outcome']}",
        (
            _header(document["flow"], document["run"]),
            banner("bad", "The comparison was not completed", document["error"], document["hint"], said),
            "<h2>What was asked for</h2>" + table((), rows, words={1}),
        ),
    )


def _parts(result: Result, folder: str) -> Iterator[str]:
    topics = _topics(result.compared)
    unknown = {one.topic for one in result.left_out}
    match = {name: some for name, some in topics.items() if all(one.is_match for one in some)}
    same = {name: some for name, some in match.items() if name not in unknown}
    partly = {name: some for name, some in match.items() if name in unknown}
    differing = {name: some for name, some in topics.items() if name not in match}
    yield _header(result.flow, f"run {result.run}")
    yield _verdict(result, len(differing), len(topics))
    yield from _next_step(result, folder)
    yield _figures(result)
    yield from _not_compared(result)
    yield from _kinds(result)
    yield from differing_topics(differing, result.extent.sample)
    yield from _same(partly, "The same, as far as it was compared")
    yield from _same(same, "The same" if result.extent.sample is None else "The same, in the sample")
    yield "<h2>What was compared</h2>" + _scope(result)


def _topics(compared: Iterable[Compared]) -> dict[str, list[Compared]]:
    topics: defaultdict[str, list[Compared]] = defaultdict(list)
    for one in sorted(compared, key=lambda one: one.log.name):
        topics[one.log.name.topic].append(one)
    return topics


def _header(flow: str, words: str) -> str:
    return (
        f"<header><h1>Flow {text(flow)}: source and target compared</h1>"
        f'<span class="dim">{text(words)}</span></header>'
    )


# -- at a glance ---------------------------------------------------------------------------------


def _verdict(result: Result, differing: int, topics: int) -> str:
    rest = "This says nothing about what was not compared." if result.left_out else ""
    match result.outcome:
        case Outcome.MATCH if result.extent.is_all:
            words = "Every record that was compared is the same."
            return banner("good", "The copy is the original", words)
        case Outcome.MATCH:
            words = f"Every record that was compared is the same: {result.extent.words}."
            return banner("good", "The copy is the original, in the part that was compared", words)
        case Outcome.MISMATCH:
            found = counted(differences(result.compared), "difference")
            words = f"{found} in {number(differing)} of {counted(topics, 'topic')}. {_named(result)}"
            return banner("bad", "The sites differ", words, rest)
        case _ if result.has_compared:
            return banner("warn", "Not everything was compared", "What was compared is the same.", rest)
        case _:
            return banner("warn", "Nothing was compared", "This says nothing about the copy.", rest)


def _named(result: Result) -> str:
    if not result.unnamed:
        return "Each is named in the Parquet files next to this page."
    return f"All but {number(result.unnamed)} are named in the Parquet files next to this page."


def _next_step(result: Result, folder: str) -> Iterator[str]:
    """The command that shows what can be repaired. A run over files leaves no plan, so it has none."""
    if result.outcome is Outcome.MISMATCH and not result.files:
        yield (
            '<div class="card next"><p>This shows what can be repaired, and writes nothing yet:</p>'
            f'<code class="command">twinsite repair --config flow.yaml {text(quote(folder))}</code></div>'
        )


def _figures(result: Result) -> str:
    compared = result.compared
    records = number(sum(one.source_records for one in compared))
    there = number(sum(one.target_records for one in compared))
    some = sum(one.log.nothing is None for one in compared)
    left_out = len(result.not_compared) + len(compared) - some
    partitions = f"partitions compared, {number(left_out)} not" if left_out else "partitions compared, all"
    read = sum(cost.read_bytes for cost in result.costs)
    rate = f"{size(read / max(result.seconds, 0.1))} a second"
    if result.answer_seconds is not None:
        rate = "without the time that the sites took to answer: see below"
    return (
        '<div class="figures">'
        + figure(number(differences(compared)), "differences")
        + figure(records, f"records of the source, with {there} of the target")
        + figure(number(some), partitions)
        + figure(size(read), "of keys and values read, both sides together")
        + figure(duration(result.seconds), rate)
        + "</div>"
    )


def _not_compared(result: Result) -> Iterator[str]:
    found: defaultdict[tuple[str, str], list[int | None]] = defaultdict(list)
    for one in result.left_out:
        found[one.topic, one.why].append(one.partition)
    if found:
        rows = [
            (text(topic), _partitions(partitions), text(why))
            for (topic, why), partitions in sorted(found.items(), key=lambda item: item[0])
        ]
        yield "<h2>Not compared</h2>" + table(("topic", "partitions", "why"), rows, words={2})


def _partitions(some: Sequence[int | None]) -> str:
    return "all" if None in some else numbers(one for one in some if one is not None)


def _kinds(result: Result) -> Iterator[str]:
    if not result.kinds and not result.unnamed:
        return
    rows = [
        (dot(kind.value) + kind.value, number(count), *map(text, MEANINGS[kind]))
        for kind, count in result.kinds.items()
    ]
    if result.unnamed:
        words = "places or keys that differ, too many to be read one by one"
        rows.append(("not named", number(result.unnamed), words, ""))
    headings = ("kind", "how many", "means", "usual cause")
    yield "<h2>What differs</h2>" + table(headings, rows, words={2, 3}, right={1})


def _same(topics: Mapping[str, Sequence[Compared]], heading: str) -> Iterator[str]:
    if not topics:
        return
    rows = [
        (
            text(name),
            number(len(some)),
            number(sum(one.source_records for one in some)),
            size(sum(one.source_bytes for one in some)),
            number(sum(one.pending for one in some)),
            number(sum(one.expired for one in some)),
        )
        for name, some in topics.items()
    ]
    headings = ("topic", "partitions", "records", "keys and values", "not copied yet", "expired on one side")
    body = table(headings, rows, words={0}, right={1, 2, 3, 4, 5})
    yield f"<h2>{heading}</h2>" + (body if len(rows) <= SAME_OPEN else folded(f"{len(rows)} topics", body))


def _scope(result: Result) -> str:
    compared = result.compared
    again = sum(one.read_again for one in compared)
    rows = [
        ("asked for", text(result.extent.words)),
        ("began", moment(result.started_at_ms)),
        ("took", duration(result.seconds)),
        *_costs(result),
        ("source cluster", text(result.source_cluster_id or "unknown")),
        ("target cluster", text(result.target_cluster_id or "unknown")),
        ("digests", DIGESTS[result.algorithm]),
        ("digests compared", number(sum(one.ranges for one in compared))),
        ("read again", f"{counted(again, 'offset')} of both sites, to name what differs"),
        ("not copied yet", counted(sum(one.pending for one in compared), "offset")),
        ("in flight", counted(sum(one.in_flight for one in compared), "key") + " of compacted topics"),
        ("not compacted yet", _superseded(compared)),
        ("deleted before it was copied", counted(sum(one.never_copied for one in compared), "offset")),
        ("lost at the end", counted(sum(one.log.lost.offsets for one in compared), "offset")),
        ("how far the copy had come", text(said_of_ends(result))),
        ("expired on one side", counted(sum(one.expired for one in compared), "offset")),
        ("about to expire", counted(sum(one.leaving for one in compared), "offset")),
        *((f"files of the {site}", text(", ".join(places))) for site, places in result.files.items()),
        ("accepted before", counted(sum(_accepted(one) for one in compared), "offset") + " of the target"),
    ]
    return table((), rows, words={1})


def _costs(result: Result) -> Iterator[tuple[str, str]]:
    source, target = result.costs
    yield (
        "read",
        f"{size(source.read_bytes)} of the source, {size(target.read_bytes)} of the target, all steps",
    )
    if result.answer_seconds is not None:
        here, there = result.answer_seconds
        yield "answering took", f"{duration(here)} at the source, {duration(there)} at the target, all steps"
    answers = f"{size(source.answer_bytes)} of the source, {size(target.answer_bytes)} of the target"
    yield "answers", f"{answers}: nothing else of a site that answers for itself crosses the link"


def _superseded(compared: Sequence[Compared]) -> str:
    here, there = (sum(one.superseded[side] for one in compared) for side in (0, 1))
    return f"{counted(here, 'record')} of the source, {number(there)} of the target, with a later one"


def _accepted(one: Compared) -> int:
    return sum(some.offsets for some in one.log.accepted)
