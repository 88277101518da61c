"""Which topics of the source are copies of what the target has: copied back they would go round for ever.

With ``a.`` one way and ``b.`` the other, t becomes a.t, b.a.t, a.b.a.t. What a topic is
follows from what flows remember at the cluster they write to, not from its name: a copy
is what a flow from our target has written down as its own. It does so before it writes
records, so a topic that holds some and is not written down is somebody else's.

Where what they remember may not be read, a name that has gone round twice is the sign. Pure: no I/O.
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
    """Of which topic it is, or would be, the copy that this flow makes; None if it cannot be one."""
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
        copy_name: What it would be called at the target. A copy that goes home under the name of its
            original makes no further one, and where the original is gone that is how a site is brought back;
            where it is still there both would copy each other.
        there: The id of the topic that the target has of that name; None where it has none.
        written: Those partitions of which it was known that they held records, before this flow's memory was
            read.

    Returns:
        None when it holds anything else; UNDECIDED while it may become a copy and holds nothing.
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
    """What a flow has written down of a partition, and not of one of an earlier topic of that name."""
    record = flow.copies.get(TopicPartition(topic.name, partition))
    if record is None or record.target_topic_id in {None, str(topic.topic_id)}:
        return record
    return None


def has_gone_round(topic: str, topics: Collection[str], prefix: str) -> bool:
    """Whether a name has been here twice already: it begins with the same twice, our prefix at its end.

    Args:
        topics: All of the source: those it was made of are among them.
    """
    if not prefix:
        return False
    found = re.fullmatch(rf"(.*{re.escape(prefix)})\1(.+)", topic)
    return found is not None and {found[1] + found[2], found[2]} <= set(topics)
