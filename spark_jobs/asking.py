"""The first questions of a comparison, and how to ask the source, which knows nothing of places, about them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mirror.model import TopicPartition
from spark_jobs.algorithms import Hashing
from spark_jobs.logs import Log
from spark_jobs.questions import Buckets, Question, Ranges, What
from spark_jobs.sampling import Sample, blocks
from spark_jobs.stretches import RANGE_PLACES, without
from spark_jobs.window import ALL, Range

ByLog = Mapping[TopicPartition, Log]
ByBuckets = Mapping[TopicPartition, Buckets]
Both = tuple[Question, Question]
"""A question to the source and one to the target."""


def about_ranges(logs: Sequence[Log], hashing: Hashing) -> Both:
    """Ask for digests of all that is compared of append-only logs."""
    return _about(logs, "digests", What.DIGESTS, hashing)


def about_blocks(logs: Sequence[Log], sample: Sample, hashing: Hashing) -> Both:
    """Ask for digests of a sample of append-only logs."""
    by_name = {log.name: log for log in logs}
    there = {log.name: blocks(log, sample) for log in logs}
    here = {name: [by_name[name].source_offsets(one) for one in some] for name, some in there.items()}
    name, what = "sampled-digests", What.DIGESTS
    return (
        at_source(name, what, here, by_name, hashing),
        Question(name=name, what=what, ranges=there, hashing=hashing),
    )


def first_questions(
    append_only: Sequence[Log], compacted: Sequence[Log], sample: Sample | None, hashing: Hashing
) -> list[Both]:
    """The questions that need no answers to others."""
    if sample is None:
        ranges = about_ranges(append_only, hashing)
    else:
        ranges = about_blocks(append_only, sample, hashing)
    return [askable(ranges, append_only), askable(about_buckets(compacted, hashing), compacted)]


def askable(both: Both, logs: Iterable[Log]) -> Both:
    """The questions without differences that were accepted and, at the target, without what its log has lost
    at its end.
    """
    here, there = both
    by_name = {log.name: log for log in logs}
    at_source = {
        name: [log.source_offsets(one) for one in log.accepted if one.offsets]
        for name, log in by_name.items()
    }
    at_target = {
        name: [one for one in (*log.accepted, log.window.lost) if one.offsets]
        for name, log in by_name.items()
    }
    return _without(here, at_source), _without(there, at_target)


def _without(question: Question, gone: Ranges) -> Question:
    left = {tp: without(some, gone.get(tp, ())) for tp, some in question.ranges.items()}
    return replace(question, ranges=left)


def about_buckets(logs: Sequence[Log], hashing: Hashing) -> Both:
    """Ask for digests of the keys of compacted logs."""
    return _about(logs, "buckets", What.BUCKETS, hashing)


def about_keys(logs: Sequence[Log], hashing: Hashing, buckets: ByBuckets) -> Both:
    """Ask for the latest records of the keys in some buckets; ``logs`` are only those with such buckets."""
    here, there = _about(logs, "keys", What.KEYS, hashing)
    return replace(here, buckets=buckets), replace(there, buckets=buckets)


def about_keys_behind(logs: Sequence[Log], hashing: Hashing, buckets: ByBuckets) -> Both:
    """Ask which keys in some buckets were written to after what is compared.

    Ask after the logs were read: a record that was compacted away until then has a newer one after them.
    After a log of the target that has lost its end there is nothing.
    """
    name, what = "keys-behind", What.KEYS_WRITTEN
    here = {log.name: _behind(log) for log in logs}
    whole = [log for log in logs if not log.window.lost.offsets]
    there = {log.name: [Range(log.target_read.end, ALL.end)] for log in whole}
    return (
        Question(name=name, what=what, ranges=here, hashing=hashing, buckets=buckets),
        Question(name=name, what=what, ranges=there, hashing=hashing, buckets=buckets),
    )


def _behind(log: Log) -> list[Range]:
    """All source offsets after the window: the known ones, which can be cut into slices, and all others."""
    start, pending = log.window.source.end, log.window.pending
    known = Range(start, pending.end if pending.offsets else start)
    return [known, Range(known.end, ALL.end)]


def _about(logs: Sequence[Log], name: str, what: What, hashing: Hashing) -> Both:
    by_name = {log.name: log for log in logs}
    here = {log.name: [log.window.source] for log in logs}
    there = {log.name: [log.target_known] for log in logs}
    return (
        at_source(name, what, here, by_name, hashing),
        Question(name=name, what=what, ranges=there, hashing=hashing),
    )


def at_source(
    name: str,
    what: What,
    ranges: Ranges,
    logs: ByLog,
    hashing: Hashing,
    *,
    one_in: int = 1,
    width: int = RANGE_PLACES,
) -> Question:
    """A question to the source, with the lines of partitions whose places are not their offsets."""
    known = ((tp, logs[tp].lines) for tp in ranges)
    lines = {tp: lines for tp, lines in known if lines is not None}
    return Question(
        name=name, what=what, ranges=ranges, hashing=hashing, lines=lines, one_in=one_in, width=width
    )
