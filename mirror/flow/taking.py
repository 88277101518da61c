"""Into which topic of the target a partition is copied: by its id, written down before it is written to.

A name says nothing of what was there before it was deleted and made again. By the ids
that flows write down it is known, too, which of them a partition belongs to. Pure: no I/O.

Sources: KIP-516 (topic ids).
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.model import PartitionRecord
from mirror.flow.facts import Known, TargetLook
from mirror.flow.position import Decision, Prepare, Proceed, Register
from mirror.model import TopicPartition
from mirror.topic_names import STATE_TOPIC_PREFIX


def to_note(decision: Decision, known: Known | None, target: TargetLook) -> str | None:
    """The id of the topic that a partition goes on in; None where it is written down, or nothing goes on.

    Args:
        known: What is; its topic is another one where the target's was made anew, and none in what was
            written before ids were.
    """
    if not isinstance(decision, Proceed | Prepare) or known is None:
        return None
    return target.topic_id if target.topic_id != known.target_topic_id else None


def takes(decision: Decision, known: Known | None, target: TargetLook) -> bool:
    """Whether it begins to write where nothing of it is yet, its padding included, or in another topic."""
    if isinstance(decision, Register):
        return True
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
            f"flow {self.flow} copies {self.copy_of} into the target partition, or has done so, as "
            f"{STATE_TOPIC_PREFIX}{self.flow} at the target says"
        )


def claim(flow: str, record: PartitionRecord | None, target: TargetLook) -> Claim | None:
    """What another flow has written down of a target partition; None where that is not about this topic.

    Args:
        record: One without an id is about what stands there, if anything does.
    """
    if record is None:
        return None
    if record.target_topic_id is None or target.topic_id is None:
        theirs = not _is_empty(target)
    else:
        theirs = record.target_topic_id == target.topic_id
    return Claim(flow, record.tp) if theirs else None


def yields(flow: str, to: Claim, decision: Decision, known: Known | None, target: TargetLook) -> bool:
    """Whether our flow takes back what it has written down, so that the other one can go on.

    It does where it has copied nothing yet: of flows that begin at once the first one by name goes on.
    """
    if known is None or flow < to.flow:
        return False
    if isinstance(decision, Prepare):
        return _is_empty(target)
    return isinstance(decision, Proceed) and decision.next_offset <= known.start_offset


def _is_empty(target: TargetLook) -> bool:
    return target.target_log_start_offset == target.target_log_end_offset
