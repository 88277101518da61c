"""What is carried between sites that cannot reach each other, as JSON: what is compared, and what is asked.

A reader refuses versions it does not know. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mirror.errors import UsageError
from mirror.model import TopicPartition
from mirror.moments import date_of
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.extent import Extent, extent_of_document, extent_to_document
from spark_jobs.logs import Log
from spark_jobs.nothing import Nothing
from spark_jobs.places import Line
from spark_jobs.questions import Buckets, Question, What
from spark_jobs.result import NotCompared
from spark_jobs.window import Range, Window

SCHEMA = 6
LEAVING_TIMES = 3
"""The next comparison leaves out this many times what a log lost during the last one, but never more than
half of what is left."""
WINDOW = (
    "source",
    "target",
    "lost",
    "expired_at_source",
    "expired_at_target",
    "leaving",
    "never_copied",
    "pending",
    "beyond",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a comparison is about, as found where both clusters can be reached.

    Attributes:
        extent: What was asked for.
        hashing: How both sites hash.
        mirror: Address of the mirror that was asked how far it has copied; None: none was asked.
    """

    flow: str
    source_cluster_id: str | None
    target_cluster_id: str | None
    asked_at_ms: int
    extent: Extent
    append_only: Sequence[Log]
    compacted: Sequence[Log]
    hashing: Hashing
    mirror: str | None = None
    not_compared: Sequence[NotCompared] = ()

    @property
    def logs(self) -> list[Log]:
        return [*self.append_only, *self.compacted]


def leaving(scope: Scope, later: Scope) -> dict[TopicPartition, int]:
    """The logs that have lost their start, with the source offset below which they may soon lose more."""
    starts = {log.name: log.window.source.start for log in scope.logs}
    found = {}
    for log in later.logs:
        left = log.window.source
        lost = left.start - starts.get(log.name, left.start)
        if lost > 0:
            found[log.name] = left.start + min(lost * LEAVING_TIMES, left.offsets // 2)
    return found


def scope_to_document(scope: Scope) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "flow": scope.flow,
        "source_cluster_id": scope.source_cluster_id,
        "target_cluster_id": scope.target_cluster_id,
        "asked_at_ms": scope.asked_at_ms,
        **extent_to_document(scope.extent),
        "append_only": [_log(log) for log in scope.append_only],
        "compacted": [_log(log) for log in scope.compacted],
        **_hashing(scope.hashing),
        "mirror": scope.mirror,
        "not_compared": [[one.topic, one.partition, one.why] for one in scope.not_compared],
    }


def scope_of_document(document: Any, where: str) -> Scope:
    """The scope of a document.

    Args:
        where: What the document is called in errors.

    Raises:
        UsageError: It is not a scope, or has a version this program does not know.
    """
    _check(document, where)
    try:
        return Scope(
            flow=document["flow"],
            source_cluster_id=document["source_cluster_id"],
            target_cluster_id=document["target_cluster_id"],
            asked_at_ms=_time(document["asked_at_ms"]),
            extent=extent_of_document(document),
            append_only=[_log_of(log) for log in document["append_only"]],
            compacted=[_log_of(log) for log in document["compacted"]],
            hashing=_hashing_of(document),
            mirror=document["mirror"],
            not_compared=[NotCompared(*one) for one in document["not_compared"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(where, error) from error


def question_to_document(question: Question) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": question.name,
        "what": question.what.value,
        "ranges": _by_partition(question.ranges),
        **_hashing(question.hashing),
        "lines": _by_partition(question.lines),
        "one_in": question.one_in,
        "width": question.width,
        "buckets": [
            [*tp, one.total, [list(some) for some in one.ranges]]
            for tp, one in sorted(question.buckets.items())
        ],
    }


def question_of_document(document: Any, where: str) -> Question:
    """The question of a document.

    Raises:
        UsageError: It is not a question, or has a version this program does not know.
    """
    _check(document, where)
    try:
        return Question(
            name=document["name"],
            what=What(document["what"]),
            ranges={tp: [Range(*one) for one in some] for tp, some in _partitions(document["ranges"])},
            hashing=_hashing_of(document),
            lines={tp: [Line(*one) for one in some] for tp, some in _partitions(document["lines"])},
            one_in=document["one_in"],
            width=document["width"],
            buckets={
                TopicPartition(topic, partition): Buckets(total, tuple(Range(*one) for one in some))
                for topic, partition, total, some in document["buckets"]
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(where, error) from error


def _hashing(hashing: Hashing) -> dict[str, str]:
    return {"digest": hashing.algorithm.value, "salt": hashing.salt}


def _hashing_of(document: Mapping[str, Any]) -> Hashing:
    return Hashing(Algorithm(document["digest"]), document["salt"])


def _log(log: Log) -> dict[str, Any]:
    return {
        "topic": log.name.topic,
        "partition": log.name.partition,
        "target_topic": log.target_topic,
        "topic_id": log.topic_id,
        "target_topic_id": log.target_topic_id,
        "is_compacted": log.is_compacted,
        "window": {name: list(getattr(log.window, name)) for name in WINDOW},
        "begin_place": log.begin_place,
        "source_end_place": log.source_end_place,
        "acknowledged": log.acknowledged,
        "lines": None if log.lines is None else [list(line) for line in log.lines],
        "accepted": [list(some) for some in log.accepted],
        "nothing": log.nothing,
    }


def _log_of(document: Mapping[str, Any]) -> Log:
    lines = document["lines"]
    return Log(
        name=TopicPartition(document["topic"], document["partition"]),
        target_topic=document["target_topic"],
        topic_id=document["topic_id"],
        target_topic_id=document["target_topic_id"],
        is_compacted=document["is_compacted"],
        window=Window(**{name: Range(*document["window"][name]) for name in WINDOW}),
        begin_place=document["begin_place"],
        source_end_place=document["source_end_place"],
        acknowledged=document["acknowledged"],
        lines=None if lines is None else [Line(*line) for line in lines],
        accepted=tuple(Range(*some) for some in document["accepted"]),
        nothing=None if document["nothing"] is None else Nothing(document["nothing"]),
    )


def _time(at_ms: int) -> int:
    """A time that becomes part of a name.

    Raises:
        ValueError: It is before 1970, or beyond the year 9999.
    """
    if date_of(at_ms) is None:
        raise ValueError(f"{at_ms} is not a time")
    return at_ms


def _by_partition(of_each: Mapping[TopicPartition, Sequence[tuple[int, ...]]]) -> list[list[Any]]:
    return [[*tp, [list(one) for one in some]] for tp, some in sorted(of_each.items())]


def _partitions(rows: Iterable[tuple[str, int, T]]) -> Iterable[tuple[TopicPartition, T]]:
    return ((TopicPartition(topic, partition), some) for topic, partition, some in rows)


def _check(document: Any, where: str) -> None:
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise UsageError(
            f"{where} has schema {found!r}, this program reads {SCHEMA}",
            hint="use the same version of twinsite at both sites",
        )


def _unreadable(where: str, error: Exception) -> UsageError:
    return UsageError(f"{where} cannot be read: {error!r}", hint="have it written again")
