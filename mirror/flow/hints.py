"""What an operator can do about a partition that is not ACTIVE, and how loudly the log says so.

One sentence for every reason.

Shown in status and on the status page; docs/states.md tells the whole story. Pure,
and complete: a reason without a hint does not pass the tests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from mirror.model import Reason, State

HINTS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.STARTING: "Wait a few seconds; if this stays, find in the log which broker does not answer.",
        Reason.CATCHING_UP: (
            "Wait; if the lag grows, find what limits the mirror, and check that retention at the source "
            "leaves enough time."
        ),
        Reason.RETENTION_NEAR: (
            "Raise retention.ms, or retention.bytes, of the source topic while the records are still there; "
            "then find what limits the mirror."
        ),
        Reason.COMPACTION_NEAR: (
            "Set min.cleanable.dirty.ratio of the source topic to 1 until nothing is missing, find what "
            "limits the mirror (docs/metrics.md), and compare the sites afterwards if deletes may be gone."
        ),
        Reason.OPERATOR: (
            "Resume it when the pause is no longer needed: retention at the source does not wait, and a "
            "restart of the mirror ends the pause."
        ),
        Reason.OPEN_TRANSACTION: (
            "Find the open transaction (kafka-transactions.sh find-hanging) and abort it: until it ends, no "
            "reader of committed records gets past it."
        ),
        Reason.SOURCE_UNAVAILABLE: (
            "Look at the source brokers, or the relay if there is one, and at the network; where a topic is "
            "not listed, at the mirror's rights. Copying continues by itself."
        ),
        Reason.TARGET_UNAVAILABLE: (
            "Look at the target brokers and the network to them; copying continues by itself."
        ),
        Reason.NOT_ENOUGH_REPLICAS: (
            "Bring the missing target brokers back: fewer replicas are in sync than min.insync.replicas "
            "requires."
        ),
        Reason.STORAGE_ERROR: (
            "Look at the disks of the broker that leads the partition: its log directory failed."
        ),
        Reason.SOURCE_BEING_PREPARED: (
            "Wait until the other flow has prepared the topic; if that takes long, look at the other flow."
        ),
        Reason.SOURCE_NOT_AUTHORIZED: (
            "Grant the mirror, or its relay, READ and DESCRIBE on the source topic (docs/permissions.md), or "
            "add the topic to the mirror's role at the relay (listen.roles); exclude it if it was deleted."
        ),
        Reason.TARGET_NOT_AUTHORIZED: "Grant the mirror what docs/permissions.md lists for the target topic.",
        Reason.MARKERS_NOT_AUTHORIZED: (
            "Grant CLUSTER_ACTION on the target cluster, which control markers need, or set offsets to auto."
        ),
        Reason.TARGET_NOT_EMPTY: (
            "Mirror to another name; or set offsets to mapped, to copy after what is there; or, unless the "
            "log says other_flow_not_known, delete the target topic, if nobody needs any of its partitions."
        ),
        Reason.ANOTHER_FLOW: (
            "Exclude the topic from one of the two flows; use the old name again if it is one flow that was "
            "renamed; to copy the topic again, delete the target topic first, or mirror to another name."
        ),
        Reason.TARGET_PARTITIONS: (
            "Give both topics the same number of partitions: otherwise keys land elsewhere."
        ),
        Reason.TARGET_TOPIC_MISSING: (
            "Create the target topic with the source's number of partitions, or let the mirror create it: "
            "topics.create, and the right to CREATE."
        ),
        Reason.NAME_NOT_POSSIBLE: (
            "Exclude the topic, or copy it in a flow of its own, with another prefix: no copy can have this "
            "name."
        ),
        Reason.NAME_COLLISION: (
            "Copy the topic in a flow of its own, with another prefix, or exclude it: Kafka does not "
            "distinguish dots from underscores in topic names."
        ),
        Reason.REPLICATION_FACTOR: (
            "Set topics.replication_factor to what the target's brokers can hold, or "
            "topics.replication_factor_capped to true."
        ),
        Reason.GAP_TOO_LARGE: (
            "Raise offsets.gap_limit, or offsets.padding_limit if the source's log starts too far up, or set "
            "offsets to auto."
        ),
        Reason.PREPARATION_REFUSED: (
            "See what the target refused; DeleteRecords needs the right to DELETE on the topic, and delete "
            "in its cleanup.policy."
        ),
        Reason.CORRUPT_BATCH: (
            "Compare the source's replicas with kafka-dump-log.sh, and move the leadership to an intact one; "
            "nothing corrupt was sent on."
        ),
        Reason.UNREADABLE_BATCH: (
            "Look at the batch with kafka-dump-log.sh on each of the source's replicas: the mirror does not "
            "know its format or codec, or none of them has it intact."
        ),
        Reason.RECORD_TOO_LARGE: (
            "Raise max.message.bytes of the target topic until the record fits; the mirror does not lower it "
            "again."
        ),
        Reason.RECORD_REFUSED: (
            "See what the target broker said of the records, and compare the settings of both topics."
        ),
        Reason.TIMESTAMP_REFUSED: (
            "Raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target topic."
        ),
        Reason.APPEND_TIMES: (
            "Set message.timestamp.type of the target topic to CreateTime, so that records keep their times."
        ),
        Reason.NULL_KEY_REFUSED: (
            "Remove compact from the target topic's cleanup.policy, and put cleanup.policy into "
            "topics.config_exclude so that it stays off: the source holds records without a key."
        ),
        Reason.LOG_START_MOVED: (
            "Save what another copy may have of the records that are gone at the source, then accept the "
            "loss to continue."
        ),
        Reason.SOURCE_TRUNCATED: (
            "Decide which side is right, then copy the topic again: the source has replaced records that "
            "were copied, after an unclean leader election."
        ),
        Reason.TARGET_TRUNCATED: (
            "Find out why the target lost acknowledged records, then run `twinsite resume`, which copies "
            "what is missing; where it cannot, copy the topic again."
        ),
        Reason.FOREIGN_WRITE: (
            "Stop whatever else writes there; then reconcile, repair and resume, or copy the topic again."
        ),
        Reason.OFFSETS_DIFFER: (
            "Stop whatever else writes there; then reconcile, repair and resume, or copy the topic again."
        ),
        Reason.STATE_LOST: (
            "Delete the target topic if all its partitions are in this state, or copy the topic again in a "
            "flow of another name: the flow's state topic was deleted, or has lost its end."
        ),
        Reason.STATE_UNUSABLE: (
            "See what is said of the flow's state topic, and compare its settings with those it was created "
            "with; if it cannot be read, keep what is there and ask for help."
        ),
        Reason.TOPIC_ID_CHANGED: (
            "Delete the old copy, or keep it and give the new one another name; then copy the topic again: "
            "the source topic was deleted and created again."
        ),
        Reason.TOPIC_DELETED: (
            "Do nothing to keep the copy; if nobody needs it, delete it as well, and the flow forgets the "
            "topic, which was deleted at the source."
        ),
        Reason.RELAY_TOO_OLD: (
            "Update the relay, or remove link.limits: an older version knows no streams, and without them no "
            "rate is kept."
        ),
        Reason.NEWER_EPOCH: "Stop this mirror: another one with a newer epoch has taken over.",
        Reason.ANOTHER_MIRROR: (
            "Stop one of the two: another mirror of this flow writes its control markers; no harm was done."
        ),
        Reason.INTERNAL_ERROR: "Keep the log and report this bug in the mirror; a restart is safe.",
    }
)

_IN_STATE: Mapping[tuple[State, Reason], str] = MappingProxyType(
    {
        (State.BLOCKED, Reason.FOREIGN_WRITE): (
            "Stop whatever else writes to the target partition; the mirror looks again by itself."
        ),
        (State.BLOCKED, Reason.LOG_START_MOVED): (
            "Look at the leader of the source partition: it denies that it has an offset that its log has; "
            "the mirror retries by itself."
        ),
        (State.BLOCKED, Reason.NEWER_EPOCH): (
            "Look at the leader of the target partition: it refuses the mirror's epoch but knows no newer "
            "one; the mirror retries by itself."
        ),
        (State.LAGGING, Reason.SOURCE_UNAVAILABLE): (
            "Look at the source brokers, or the relay if there is one, and at the network; the lag counts "
            "from their last answer."
        ),
        (State.STANDBY, Reason.ANOTHER_MIRROR): (
            "Ask the owner how the copy is; this mirror takes over when the owner is gone."
        ),
    }
)


_QUIET = frozenset({State.ACTIVE, State.UNKNOWN, State.STANDBY, State.PAUSED})
_FOR_AN_OPERATOR = frozenset({State.DATA_LOSS, State.DIVERGED, State.TOPIC_RECREATED, State.FENCED})


def severity(state: State, reason: Reason | None) -> int:
    """The level at which a change to this state is logged.

    Returns:
        ``logging.INFO`` for what is in order or was asked for, ``logging.ERROR`` for what only an operator
        can end, or that is a mistake of ours, ``logging.WARNING`` for what may end by itself.
    """
    if state in _QUIET or (state, reason) == (State.LAGGING, Reason.CATCHING_UP):
        return logging.INFO
    if state in _FOR_AN_OPERATOR or reason is Reason.INTERNAL_ERROR:
        return logging.ERROR
    return logging.WARNING


def hint(state: State, reason: Reason | None) -> str:
    """What can be done; empty for a partition that needs nothing.

    Args:
        reason: None only for ACTIVE.
    """
    if reason is None:
        return ""
    return _IN_STATE.get((state, reason), HINTS[reason])
