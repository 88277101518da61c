"""What can be repaired of what a comparison has found: a plan for a person to review.

A plan names records by their offsets and holds no values. In a compacted topic one more record puts each key
right: the source's latest one, or a tombstone where the source has none. The middle of an append-only log
cannot be put right in place; an end that is missing or lost is copied by any mirror. Pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding
from spark_jobs.result import Result
from spark_jobs.window import Range, Window

SCHEMA = 1
PLAN = "plan.json"
BEHIND = frozenset({Kind.MISSING, Kind.STALE, Kind.NOT_YET_DELETED})
"""Kinds that say that the source has a record and the target does not have it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """A key of a compacted topic whose latest records differ.

    Attributes:
        key: Its first bytes.
        source_offset: Of its latest record at the source, which is to be appended; None: a tombstone is.
        target_offset: Of its latest record at the target; None where there is none.
    """

    kind: Kind
    key: bytes
    source_offset: int | None
    target_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """A difference in an append-only log, which no further record can put right."""

    kind: Kind
    source_offset: int | None
    target_offset: int | None
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What was found in one partition.

    Attributes:
        name: As at the source.
        topic_id: Of the source's topic.
        is_compacted: It was compared by the latest record of each key.
        target_end: Where the target's log was read to.
        mends: What one more record each puts right.
        beyond_repair: What cannot be put right in place.
        unnamed: Differences that were counted and not named.
        pending: Source offsets that were not copied yet, or have to be copied again.
    """

    name: TopicPartition
    target_topic: str
    topic_id: str
    is_compacted: bool
    target_end: int
    mends: Sequence[Mend]
    beyond_repair: Sequence[Beyond]
    unnamed: int
    pending: Range

    @property
    def target_name(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.name.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What can be repaired, going by one run.

    Attributes:
        run: The comparison it was made by.
        made_at_ms: When that began.
    """

    run: str
    flow: str
    source_cluster_id: str | None
    target_cluster_id: str | None
    made_at_ms: int
    partitions: Sequence[PartitionPlan]


def plan_of(result: Result) -> Plan:
    """The plan for a result; without partitions where files were read.

    Else all partitions are in it: a copy may have stopped though nothing differs.
    """
    return Plan(
        run=result.run,
        flow=result.flow,
        source_cluster_id=result.source_cluster_id,
        target_cluster_id=result.target_cluster_id,
        made_at_ms=result.started_at_ms,
        partitions=[] if result.files else [_partition(one) for one in result.compared],
    )


def _partition(one: Compared) -> PartitionPlan:
    compacted, lost = one.log.is_compacted, one.log.lost
    left = [finding for finding in one.findings if not _comes_again(finding.difference, lost)]
    return PartitionPlan(
        name=one.log.name,
        target_topic=one.log.target_topic,
        topic_id=one.log.topic_id,
        is_compacted=compacted,
        target_end=one.log.target_read.end,
        mends=[_mend(finding) for finding in left if compacted],
        beyond_repair=[_beyond(finding.difference) for finding in left if not compacted],
        unnamed=one.unnamed,
        pending=_to_copy(lost, one.log.window),
    )


def _comes_again(difference: Difference, lost: Range) -> bool:
    """Whether copying again what was lost puts it right."""
    at = difference.source_offset
    return difference.kind in BEHIND and at is not None and lost.holds(at)


def _to_copy(lost: Range, window: Window) -> Range:
    """Source offsets from the first that was lost, never copied or is pending to the last."""
    parts = [part for part in (lost, window.never_copied, window.pending) if part.offsets]
    return Range(parts[0].start, parts[-1].end) if parts else window.pending


def _mend(finding: Finding) -> Mend:
    difference = finding.difference
    return Mend(
        kind=difference.kind,
        key=finding.key or b"",
        source_offset=difference.source_offset,
        target_offset=difference.target_offset,
    )


def _beyond(difference: Difference) -> Beyond:
    return Beyond(
        kind=difference.kind,
        source_offset=difference.source_offset,
        target_offset=difference.target_offset,
        records=difference.records,
    )


# -- documents -----------------------------------------------------------------------------------


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """The plan as it is left in the folder of the run."""
    return {
        "schema": SCHEMA,
        "run": plan.run,
        "flow": plan.flow,
        "source_cluster_id": plan.source_cluster_id,
        "target_cluster_id": plan.target_cluster_id,
        "made_at_ms": plan.made_at_ms,
        "partitions": [
            {
                "topic": one.name.topic,
                "partition": one.name.partition,
                "target_topic": one.target_topic,
                "topic_id": one.topic_id,
                "is_compacted": one.is_compacted,
                "target_end": one.target_end,
                "mends": [
                    [mend.kind.value, b64encode(mend.key).decode(), mend.source_offset, mend.target_offset]
                    for mend in one.mends
                ],
                "beyond_repair": [
                    [beyond.kind.value, beyond.source_offset, beyond.target_offset, beyond.records]
                    for beyond in one.beyond_repair
                ],
                "unnamed": one.unnamed,
                "pending": list(one.pending),
            }
            for one in plan.partitions
        ],
    }


def plan_of_document(document: Any, where: str) -> Plan:
    """The plan of a document.

    Args:
        where: What the document is called in errors.

    Raises:
        UsageError: It is not a plan, or has a version this program does not know.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(
            f"{where} is not a plan this program knows", hint="run `twinsite reconcile`: it leaves one"
        )
    try:
        return Plan(
            run=document["run"],
            flow=document["flow"],
            source_cluster_id=document["source_cluster_id"],
            target_cluster_id=document["target_cluster_id"],
            made_at_ms=document["made_at_ms"],
            partitions=[_partition_of(one) for one in document["partitions"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where} is not a plan: {error!r}", hint="reconcile again") from error


def _partition_of(document: Mapping[str, Any]) -> PartitionPlan:
    return PartitionPlan(
        name=TopicPartition(document["topic"], document["partition"]),
        target_topic=document["target_topic"],
        topic_id=document["topic_id"],
        is_compacted=document["is_compacted"],
        target_end=document["target_end"],
        mends=[
            Mend(kind=Kind(kind), key=b64decode(key), source_offset=source, target_offset=target)
            for kind, key, source, target in document["mends"]
        ],
        beyond_repair=[
            Beyond(kind=Kind(kind), source_offset=source, target_offset=target, records=records)
            for kind, source, target, records in document["beyond_repair"]
        ],
        unnamed=document["unnamed"],
        pending=Range(*document["pending"]),
    )
