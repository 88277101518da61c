"""Which topic of the target a partition is copied into, by topic id, noted before the topic is written to.

A name does not tell a topic from one that was deleted and created again. The ids that flows note also tell
which flow a target partition belongs to. Pure: no I/O.

Sources: KIP-516 (topic ids).
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.model import PartitionRecord
from mirror.flow.facts import Known, TargetLook
from mirror.flow.position import Decision, Prepare, Proceed, Register, Stop
from mirror.model import Reason, TopicPartition
from mirror.topic_names import STATE_TOPIC_PREFIX


def to_note(decision: Decision, known: Known | None, target: TargetLook) -> str | None:
    """The target topic id to note before the partition goes on; None if it is noted, or nothing goes on.

    Args:
        known: What the state says. It names another id if the target topic was created again, and none if it
            was written before ids were.
    """
    if not isinstance(decision, Proceed | Prepare) or known is None:
        return None
    return target.topic_id if target.topic_id != known.target_topic_id else None


def takes(decision: Decision, known: Known | None, target: TargetLook) -> bool:
    """Whether the partition is about to write where nothing of it is yet, not even padding, or into another
    topic than before; or would do so if others had not filled the target partition.
    """
    if isinstance(decision, Register):
        return True
    if isinstance(decision, Stop):
        return decision.reason is Reason.TARGET_NOT_EMPTY
    if not isinstance(decision, Proceed | Prepare) or known is None:
        return False
    if known.target_topic_id not in {None, target.topic_id}:
        return True
    return _is_empty(target) if isinstance(decision, Prepare) else decision.next_offset <= known.start_offset


@dataclass(frozen=True, slots=True)
class Claim:
    """Another flow copies into a target partition, or has done so.

    Attributes:
        copy_of: The source partition it copies there.
    """

    flow: str
    copy_of: TopicPartition

    def __str__(self) -> str:
        return (
            f"flow {self.flow} copies {self.copy_of} into the target partition, or has done so, according to "
            f"{STATE_TOPIC_PREFIX}{self.flow} at the target"
        )


def claim(flow: str, record: PartitionRecord | None, target: TargetLook) -> Claim | None:
    """Another flow's claim to a target partition; None if it has none, or its record is about another topic.

    Args:
        record: What that flow has noted of the partition. Without a topic id it counts if the partition is
            not empty.
    """
    if record is None:
        return None
    if record.target_topic_id is None or target.topic_id is None:
        theirs = not _is_empty(target)
    else:
        theirs = record.target_topic_id == target.topic_id
    return Claim(flow, record.tp) if theirs else None


def yields(flow: str, to: Claim, decision: Decision, known: Known | None, target: TargetLook) -> bool:
    """Whether our flow takes back its own record, so that the other flow can go on.

    It does if it has copied nothing yet and its name comes later: of flows that begin at once the first by
    name goes on.
    """
    if known is None or flow < to.flow:
        return False
    if isinstance(decision, Prepare):
        return _is_empty(target)
    return isinstance(decision, Proceed) and decision.next_offset <= known.start_offset


def _is_empty(target: TargetLook) -> bool:
    return target.target_log_start_offset == target.target_log_end_offset
