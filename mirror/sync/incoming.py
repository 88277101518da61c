"""Which topics of the source are copies of the target's own: copied back, they would go round for ever.

With prefix ``a.`` one way and ``b.`` the other, t becomes a.t, b.a.t, a.b.a.t. Names do
not decide this; the state does that flows keep at the cluster they write to. A copy is a
topic that a flow from our target has recorded as its own. A flow records it before it
writes records, so a topic that holds records and is not recorded is somebody else's.

Where that state may not be read, a name that has gone round twice is the sign. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from uuid import UUID

from checkpoint.model import PartitionRecord
from mirror.flow.other_flows import OtherFlow
from mirror.kafka.cluster_info import TopicInfo
from mirror.model import TopicPartition
from mirror.sync.names import Ignored


def original_of(flow: OtherFlow, topic: str) -> str | None:
    """The topic whose copy by this flow it is, or by its name would be; None if it cannot be one."""
    known = flow.originals.get(topic)
    if known is not None or flow.prefix is None or not topic.startswith(flow.prefix):
        return known
    return topic[len(flow.prefix) :] or None


def judge(
    flow: OtherFlow,
    topic: TopicInfo,
    *,
    copy_name: str,
    there: UUID | None = None,
    written: Collection[int] = (),
) -> Ignored | None:
    """Whether a topic of the source is a copy that a flow from the target has made.

    Args:
        copy_name: Its name at the target, if it were copied. A copy that goes home, under the name of its
            original, creates no further copy. If the original is gone, that is how a site is brought back;
            if it still exists, the two would copy each other.
        there: The id of the target's topic of that name; None if there is none.
        written: Partitions that were known to hold records before this flow's state was read.

    Returns:
        COPY_OF_TARGET if it is such a copy; UNDECIDED while it may become one, and none of its partitions is
        known to hold anything else; None otherwise.
    """
    original = original_of(flow, topic.name)
    goes_home = original == copy_name
    if original is None or (goes_home and there is None):
        return None
    copies = {number: _copy(flow, topic, number) for number in topic.partitions}
    known = {number: record for number, record in copies.items() if record is not None}
    if goes_home and any(record.topic_id == str(there) for record in known.values()):
        return Ignored.COPY_OF_TARGET
    if any(record.shared or goes_home for record in known.values()) or not known.keys() >= set(written):
        return None
    return Ignored.COPY_OF_TARGET if known.keys() == copies.keys() else Ignored.UNDECIDED


def _copy(flow: OtherFlow, topic: TopicInfo, partition: int) -> PartitionRecord | None:
    """What a flow has recorded of a partition; None if nothing, or only of an earlier topic of that name."""
    record = flow.copies.get(TopicPartition(topic.name, partition))
    if record is None or record.target_topic_id in {None, str(topic.topic_id)}:
        return record
    return None


def has_gone_round(topic: str, topics: Collection[str], prefix: str) -> bool:
    """Whether a topic has gone round twice: its name begins with the same text twice, ending in our prefix.

    Args:
        topics: All topics of the source. The two that it would be a copy of must be among them.
    """
    if not prefix:
        return False
    found = re.fullmatch(rf"(.*{re.escape(prefix)})\1(.+)", topic)
    return found is not None and {found[1] + found[2], found[2]} <= set(topics)
