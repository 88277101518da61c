"""The result of a comparison, and its documents: the summary, and one row for each difference.

A result is a match only where everything that was asked for was compared. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import Any

from mirror.errors import ExitCode
from spark_jobs.algorithms import Algorithm
from spark_jobs.extent import Extent, extent_to_document
from spark_jobs.findings import Kind
from spark_jobs.history import UNFINISHED
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.nothing import Nothing
from spark_jobs.sampling import Sample, holds_some
from spark_jobs.window import Range, Window

Found = tuple[Compared, Finding]
"""A difference, and the partition it is in."""

SCHEMA = 1
SITES = ("source", "target")
EXAMPLES = 100
"""Differences that the summary names; the Parquet files name all."""
CONTRADICTION = (
    "its digests differ, but its records, read again, do not: a site does not always return the same; "
    "compare again, and check the brokers that hold it"
)
UNMAPPED = (
    "its digests differ, but its records, read again, do not: either the source has records right before "
    "the point where the copy continues, and has none there by the flow's offset map: they are named once "
    "more is copied; or a site does not always return the same; compare again, and check the brokers that "
    "hold it"
)

DIFFERENCE_SCHEMA = (
    "topic string, partition int, target_topic string, kind string, source_offset long, target_offset long, "
    "parts array<string>, records long, shift long, key binary"
)


Files = Mapping[str, Sequence[str]]
"""Directories, by ``source`` or ``target``."""


class Outcome(StrEnum):
    """What a run has concluded."""

    MATCH = "match"
    MISMATCH = "mismatch"
    INCOMPLETE = "incomplete"
    """Nothing differs in what was compared, and not everything could be compared."""
    FAILED = "failed"
    """The comparison was not completed: nothing is concluded."""

    @property
    def exit_code(self) -> ExitCode:
        known = {Outcome.MATCH: ExitCode.DONE, Outcome.MISMATCH: ExitCode.DIFFERENT}
        return known.get(self, ExitCode.FAULT)


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A partition (None: a whole topic) about which nothing can be said, and why."""

    topic: str
    partition: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What a comparison has cost a site.

    Attributes:
        read_bytes: Keys and values that were read, counted each time.
        answer_bytes: Size of the answers, as Parquet.
    """

    read_bytes: int = 0
    answer_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.read_bytes + other.read_bytes, self.answer_bytes + other.answer_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run has found.

    Attributes:
        started_at_ms: When it began; its windows end there.
        extent: What was asked for. Nothing is said about what a sample left out, unless the sample differs.
        algorithm: How records were hashed.
        mirror: Address of the mirror that was asked how far it has copied; None: none was asked.
        files: Sites of which log directories were read, and which: nothing is said about those clusters.
        costs: Of the source and of the target.
        answer_seconds: How long the source and the target took to answer in jobs of their own; None: they
            were asked in this one.
    """

    run: str
    flow: str
    source_cluster_id: str | None
    target_cluster_id: str | None
    started_at_ms: int
    seconds: float
    extent: Extent
    compared: Sequence[Compared]
    algorithm: Algorithm
    mirror: str | None = None
    not_compared: Sequence[NotCompared] = ()
    files: Files = field(default_factory=dict)
    costs: tuple[Cost, Cost] = (Cost(), Cost())
    answer_seconds: tuple[float, float] | None = None

    @property
    def outcome(self) -> Outcome:
        if any(not one.is_match for one in self.compared):
            return Outcome.MISMATCH
        complete = self.compared and not self.left_out
        return Outcome.MATCH if complete else Outcome.INCOMPLETE

    @property
    def left_out(self) -> Sequence[NotCompared]:
        """All about which nothing can be said: what could not be compared, and logs of which nothing was."""
        return [*self.not_compared, *_nothing_known(self.compared, self.extent.sample)]

    @property
    def has_compared(self) -> bool:
        """Whether there was anything to compare."""
        return any(_holds_some(one.log, self.extent.sample) for one in self.compared)

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """How many differences of each kind there are."""
        return _kinds(finding for one in self.compared for finding in one.findings)

    @property
    def unnamed(self) -> int:
        """Places or keys that differ and were too many to be looked at."""
        return sum(one.unnamed for one in self.compared)


def said_of_ends(result: Result) -> str:
    """How it is known how far the copy had come, in words."""
    if result.mirror is None:
        return "no mirror was asked: what the target has lost at its end counts as not copied yet"
    known = sum(one.log.acknowledged is not None for one in result.compared)
    return f"known from the mirror at {result.mirror} for {known} of {len(result.compared)} partitions"


def _nothing_known(compared: Sequence[Compared], sample: Sample | None) -> Iterator[NotCompared]:
    """Logs about which nothing is known though they hold something, and why.

    Partitions of a topic that lie outside of what was asked for, or have no block in this turn of a sample,
    do not count while others are compared.
    """
    touched = {one.log.name.topic for one in compared if one.log.window.source.offsets}
    for one in compared:
        why = one.log.nothing
        if why is not None and not (why is Nothing.OUTSIDE and one.log.name.topic in touched):
            yield NotCompared(*one.log.name, why.value)
    for one in compared:
        if one.contradicts:
            yield NotCompared(*one.log.name, UNMAPPED if one.log.ends_in_gap else CONTRADICTION)
    logs = [one.log for one in compared if not one.log.is_compacted and one.log.window.source.offsets]
    if sample is not None and logs and not any(_holds_some(log, sample) for log in logs):
        why_not = f"{sample} holds nothing of append-only topics"
        yield from (NotCompared(topic, None, why_not) for topic in sorted({log.name.topic for log in logs}))


def _holds_some(log: Log, sample: Sample | None) -> bool:
    """Whether anything of a log is compared."""
    if sample is None or log.is_compacted:
        return log.window.source.offsets > 0
    return holds_some(log, sample)


def _kinds(findings: Iterable[Finding]) -> Mapping[Kind, int]:
    counted = Counter(finding.difference.kind for finding in findings)
    return {kind: counted[kind] for kind in Kind if counted[kind]}


# -- documents -----------------------------------------------------------------------------------


def summary(result: Result) -> dict[str, Any]:
    """The summary as a JSON document."""
    return {
        "schema": SCHEMA,
        "run": result.run,
        "outcome": result.outcome.value,
        "flow": result.flow,
        "source_cluster_id": result.source_cluster_id,
        "target_cluster_id": result.target_cluster_id,
        "started_at": time_text(result.started_at_ms),
        "seconds": round(result.seconds, 1),
        **extent_to_document(result.extent),
        "digest": result.algorithm.value,
        "mirror": result.mirror,
        "differences": {kind.value: count for kind, count in result.kinds.items()},
        "unnamed": result.unnamed,
        "source": _side(result, "source"),
        "target": _side(result, "target"),
        "read_bytes": {site: cost.read_bytes for site, cost in _costs(result)},
        "answer_bytes": {site: cost.answer_bytes for site, cost in _costs(result)},
        "answer_seconds": _answer_seconds(result),
        "records_read_again": sum(one.read_again for one in result.compared),
        "partitions": [_partition(one) for one in result.compared],
        "files": dict(result.files),
        "not_compared": [
            {"topic": one.topic, "partition": one.partition, "why": one.why} for one in result.left_out
        ],
        "examples": [_example(*one) for one in examples(result, EXAMPLES)],
    }


def begun(run: str, flow: str, began_at_ms: int, extent: Extent, algorithm: Algorithm) -> dict[str, Any]:
    """What is known of a run that has not ended."""
    return {
        "schema": SCHEMA,
        "run": run,
        "outcome": UNFINISHED,
        "flow": flow,
        "started_at": time_text(began_at_ms),
        **extent_to_document(extent),
        "digest": algorithm.value,
    }


def failure(
    run: str,
    flow: str,
    began_at_ms: int,
    extent: Extent,
    algorithm: Algorithm,
    error: str,
    hint: str,
    files: Files,
) -> dict[str, Any]:
    """The summary of a run that was not completed."""
    said = {"outcome": Outcome.FAILED.value, "error": error, "hint": hint, "files": dict(files)}
    return begun(run, flow, began_at_ms, extent, algorithm) | said


def _costs(result: Result) -> Iterable[tuple[str, Cost]]:
    return zip(SITES, result.costs, strict=True)


def _side(result: Result, side: str) -> dict[str, int]:
    return {
        "records": sum(getattr(one, f"{side}_records") for one in result.compared),
        "bytes": sum(getattr(one, f"{side}_bytes") for one in result.compared),
    }


def _partition(one: Compared) -> dict[str, Any]:
    return {
        "topic": one.log.name.topic,
        "partition": one.log.name.partition,
        "target_topic": one.log.target_topic,
        "topic_id": one.log.topic_id,
        "target_topic_id": one.log.target_topic_id,
        "is_match": one.is_match,
        "differences": {kind.value: count for kind, count in _kinds(one.findings).items()},
        "unnamed": one.unnamed,
        "source_records": one.source_records,
        "target_records": one.target_records,
        "ranges": one.ranges,
        "ranges_differing": one.ranges_differing,
        "keys_in_flight": one.in_flight,
        "superseded": list(one.superseded) if one.log.is_compacted else None,
        "accepted": [list(some) for some in one.log.accepted],
        "acknowledged": one.log.acknowledged,
        "lost": _some(one.log.lost),
        **_window(one.log.window),
    }


def _window(window: Window) -> dict[str, Any]:
    """What was compared and what not, in offsets; the end is not included."""
    return {
        "source_offsets": list(window.source),
        "target_offsets": list(window.target),
        "expired_at_source": _some(window.expired_at_source),
        "expired_at_target": _some(window.expired_at_target),
        "leaving": _some(window.leaving),
        "never_copied": _some(window.never_copied),
        "pending": _some(window.pending),
    }


def _answer_seconds(result: Result) -> dict[str, float] | None:
    if result.answer_seconds is None:
        return None
    return {site: round(some, 1) for site, some in zip(SITES, result.answer_seconds, strict=True)}


def _some(offsets: Range) -> list[int] | None:
    return list(offsets) if offsets.offsets else None


def examples(result: Result, most: int) -> list[Found]:
    """Differences in their order, at most so many: the first of each kind of each partition before others."""
    found = [(one, finding) for one in result.compared for finding in one.findings]
    return some_of_each(found, lambda one: (one[0].log.name, one[1].difference.kind), most)


def some_of_each(found: Sequence[Found], group: Callable[[Found], Hashable], most: int) -> list[Found]:
    """At most so many, in their order, from all groups in turn: none is crowded out by the others."""
    groups: defaultdict[Hashable, list[tuple[int, Found]]] = defaultdict(list)
    for at, one in enumerate(found):
        groups[group(one)].append((at, one))
    turns = chain.from_iterable(zip_longest(*groups.values()))
    chosen = islice((one for one in turns if one is not None), most)
    return [one for _, one in sorted(chosen, key=itemgetter(0))]


def _example(compared: Compared, finding: Finding) -> dict[str, Any]:
    difference = finding.difference
    return {
        "topic": compared.log.name.topic,
        "partition": compared.log.name.partition,
        "kind": difference.kind.value,
        "source_offset": difference.named_source_offset,
        "target_offset": difference.target_offset,
        "parts": [part.value for part in difference.parts],
        "records": difference.records,
        "shift": difference.shift,
        "key": key_text(finding.key),
    }


def rows(result: Result) -> Iterator[tuple[Any, ...]]:
    """One row a difference; see ``DIFFERENCE_SCHEMA``."""
    for one in result.compared:
        for finding in one.findings:
            difference = finding.difference
            yield (
                *one.log.name,
                one.log.target_topic,
                difference.kind.value,
                difference.named_source_offset,
                difference.target_offset,
                [part.value for part in difference.parts],
                difference.records,
                difference.shift,
                None if finding.key is None else bytearray(finding.key),
            )


def key_text(key: bytes | None) -> str | None:
    r"""A key for people: text where it is UTF-8, else with ``\x`` escapes; None stays None."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.decode("ascii", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def time_text(at_ms: int) -> str:
    """A moment for people and programs: ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
