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
        Reason.STARTING: "Nothing: it is looked at within seconds of the start.",
        Reason.CATCHING_UP: (
            "Nothing, unless the lag grows: then see what limits the mirror, and whether retention at "
            "the source leaves enough time."
        ),
        Reason.RETENTION_NEAR: (
            "Raise retention.ms, or retention.bytes, of the source topic while the records are still there; "
            "then see what limits the mirror."
        ),
        Reason.COMPACTION_NEAR: (
            "Set min.cleanable.dirty.ratio of the source topic to 1 until nothing is missing, and see what "
            "limits the mirror (docs/metrics.md). Where deletes may be gone, compare the sites afterwards."
        ),
        Reason.OPERATOR: (
            "Resume it when the pause has served its purpose: retention at the source does not wait, and a "
            "restart of the mirror forgets the pause."
        ),
        Reason.OPEN_TRANSACTION: (
            "Find the producer that has left a transaction open (kafka-transactions.sh find-hanging) "
            "and end it; records behind it cannot be read by anybody."
        ),
        Reason.SOURCE_UNAVAILABLE: (
            "Look at the source brokers and the network to them; it goes on by itself."
        ),
        Reason.TARGET_UNAVAILABLE: (
            "Look at the target brokers and the network to them; it goes on by itself."
        ),
        Reason.NOT_ENOUGH_REPLICAS: (
            "Bring the missing target brokers back: fewer replicas are in sync than min.insync.replicas "
            "asks for."
        ),
        Reason.STORAGE_ERROR: (
            "Look at the disks of the broker that leads the partition: its log directory failed."
        ),
        Reason.SOURCE_BEING_PREPARED: (
            "Nothing: it is copied once the other flow has it ready. See how that one is if it takes long."
        ),
        Reason.SOURCE_NOT_AUTHORIZED: (
            "Grant the mirror, or its relay, READ and DESCRIBE on the source topic (docs/permissions.md), or "
            "add the topic to the mirror's role there (listen.roles); exclude it if it was deleted."
        ),
        Reason.TARGET_NOT_AUTHORIZED: (
            "Grant the mirror what docs/permissions.md lists for the target topic."
        ),
        Reason.MARKERS_NOT_AUTHORIZED: (
            "Grant CLUSTER_ACTION on the target cluster, which control markers need, or set offsets to auto."
        ),
        Reason.TARGET_NOT_EMPTY: (
            "Mirror to another name, set offsets to mapped: then the copy follows behind what is there; or "
            "delete the target topic, if nobody needs any of its partitions."
        ),
        Reason.ANOTHER_FLOW: (
            "Exclude the topic from one of the two flows; if it is one under another name, use the old name "
            "again. To copy the topic anew delete the target topic first, or mirror to another name."
        ),
        Reason.TARGET_PARTITIONS: (
            "Give both topics the same number of partitions: keys would land elsewhere."
        ),
        Reason.TARGET_TOPIC_MISSING: (
            "Create the target topic with the source's number of partitions, or see to it that the mirror "
            "may: topics.create, and the right to CREATE."
        ),
        Reason.NAME_NOT_POSSIBLE: (
            "Exclude the topic, or copy it in a flow of its own, with another prefix: no copy may have "
            "this name."
        ),
        Reason.NAME_COLLISION: (
            "Copy the topic in a flow of its own, with another prefix, or exclude it: on one cluster dots "
            "and underscores make no difference in names."
        ),
        Reason.REPLICATION_FACTOR: (
            "Set topics.replication_factor to what the target's brokers can hold, or "
            "topics.replication_factor_capped to true."
        ),
        Reason.GAP_TOO_LARGE: (
            "Raise offsets.gap_limit, or offsets.padding_limit where the source's log starts late, or set "
            "offsets to auto."
        ),
        Reason.PREPARATION_REFUSED: (
            "See what the target refused; records can only be deleted on request if the mirror may "
            "DELETE and the topic's cleanup.policy holds delete."
        ),
        Reason.CORRUPT_BATCH: (
            "Compare the source's replicas with kafka-dump-log.sh and move the leadership to a sound "
            "one; nothing corrupt was sent on."
        ),
        Reason.UNREADABLE_BATCH: (
            "Look at the batch with kafka-dump-log.sh on each of the source's replicas: its format or codec "
            "is unknown here, or none of them has it whole."
        ),
        Reason.RECORD_TOO_LARGE: (
            "Raise max.message.bytes of the target topic until the record fits: it is not lowered again."
        ),
        Reason.RECORD_REFUSED: (
            "See what the target broker said of the records, and compare the settings of both topics."
        ),
        Reason.TIMESTAMP_REFUSED: (
            "Raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target topic."
        ),
        Reason.APPEND_TIMES: (
            "Set message.timestamp.type of the target topic to CreateTime: records are to keep their times."
        ),
        Reason.NULL_KEY_REFUSED: (
            "Take compact off the target topic's cleanup.policy, and put cleanup.policy into "
            "topics.config_exclude so that it stays off: the source holds records without a key."
        ),
        Reason.LOG_START_MOVED: (
            "The records are gone at the source: save what another copy may have, then accept the loss "
            "to go on."
        ),
        Reason.SOURCE_TRUNCATED: (
            "The source has replaced records that were copied, after an unclean leader election: decide "
            "which side is right, then copy the topic anew."
        ),
        Reason.TARGET_TRUNCATED: (
            "The target has lost records it had acknowledged: find out why. `twinsite resume` then copies "
            "again what is missing; where it cannot, copy the topic anew."
        ),
        Reason.FOREIGN_WRITE: (
            "Stop whatever else writes there; then reconcile, repair and resume, or copy the topic anew."
        ),
        Reason.OFFSETS_DIFFER: (
            "Something else writes there: stop it; then reconcile, repair and resume, or copy the topic anew."
        ),
        Reason.STATE_LOST: (
            "The flow's state topic was deleted, or has lost its end: delete the target topic as well if all "
            "its partitions are so, or copy the topic anew in a flow of another name."
        ),
        Reason.STATE_UNUSABLE: (
            "See what is said of the flow's state topic, and compare its settings with those it was made "
            "with; where it cannot be read, keep what is there and ask for help."
        ),
        Reason.TOPIC_ID_CHANGED: (
            "The source topic was deleted and made again: keep the old copy under another name or "
            "delete it, then copy the topic anew."
        ),
        Reason.TOPIC_DELETED: (
            "The source topic was deleted: the copy is kept. When nobody needs it delete it as well, and the "
            "flow forgets the topic."
        ),
        Reason.RELAY_TOO_OLD: (
            "Update the relay, or take link.limits away: an older version knows no streams, and without "
            "them no rate is kept."
        ),
        Reason.NEWER_EPOCH: "Another mirror of a newer epoch has taken over: stop this one.",
        Reason.ANOTHER_MIRROR: (
            "Another mirror of this flow writes its control markers: stop one of them, no harm was done."
        ),
        Reason.INTERNAL_ERROR: "A mistake of the mirror: keep the log and report it; a restart is safe.",
    }
)

_IN_STATE: Mapping[tuple[State, Reason], str] = MappingProxyType(
    {
        (State.BLOCKED, Reason.FOREIGN_WRITE): (
            "Stop whatever else writes to the target partition; it is looked at again by itself."
        ),
        (State.BLOCKED, Reason.LOG_START_MOVED): (
            "Look at the leader of the source partition: it says of an offset that its log has that it has "
            "not. Tried again by itself."
        ),
        (State.BLOCKED, Reason.NEWER_EPOCH): (
            "Look at the leader of the target partition: it refuses the mirror's epoch and knows no newer "
            "one. Tried again by itself."
        ),
        (State.LAGGING, Reason.SOURCE_UNAVAILABLE): (
            "Look at the source brokers and the network to them; the lag is counted from their last answer."
        ),
        (State.STANDBY, Reason.ANOTHER_MIRROR): (
            "Nothing: ask the other one how the copy is; this one goes on when that is gone."
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
