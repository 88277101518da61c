"""Into which topic of the target a partition is copied: by its id, written down before it is written to.

A name says nothing of what was there before it was deleted and made again. Pure: no I/O.

Sources: KIP-516 (topic ids).
"""

from __future__ import annotations

from mirror.flow.position import Decision, Known, Prepare, Proceed, TargetLook


def to_note(decision: Decision, known: Known | None, target: TargetLook) -> str | None:
    """The id of the topic that a partition goes on in; None where it is written down, or nothing goes on.

    Args:
        known: What is; its topic is another one where the target's was made anew, and none in what was
            written before ids were.
    """
    if not isinstance(decision, Proceed | Prepare) or known is None:
        return None
    return target.topic_id if target.topic_id != known.target_topic_id else None
