"""Which topics of the source are copies of what the target has: copied back they would go round for ever.

With ``a.`` one way and ``b.`` the other, t becomes a.t, b.a.t, a.b.a.t. What a topic is
follows from what flows remember at the cluster they write to, not from its name: a copy
is what a flow from our target has written down as its own. It does so before it writes
records, so a topic that holds some and is not written down is somebody else's.

Where what they remember may not be read, a name that has gone round twice is the sign. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from checkpoint.model import FLOW_KEY, PARTITION_PREFIX, FlowRecord, PartitionRecord
from mirror.model import TopicPartition
from mirror.sync.names import Ignored


@dataclass(frozen=True, slots=True)
class Incoming:
    """A flow that copies into our source, as it remembers it there.

    Attributes:
        source_cluster_id: From where it copies.
        prefix: What it puts in front of names; None when that is not known.
        originals: What its copies are called, and the topics they are of.
        partitions: Those it copies into; False for one that held records of others before.
    """

    flow: str
    source_cluster_id: str
    prefix: str | None
    originals: Mapping[str, str]
    partitions: Mapping[TopicPartition, bool]

    @classmethod
    def of(cls, flow: str, items: Mapping[str, bytes]) -> Self | None:
        """Read what a flow remembers; None when it has not begun.

        Raises:
            CorruptStateError: It is of a version this program does not know.
        """
        if FLOW_KEY not in items:
            return None
        own = FlowRecord.from_bytes(items[FLOW_KEY])
        stored = [value for key, value in items.items() if key.startswith(PARTITION_PREFIX)]
        records = [PartitionRecord.from_bytes(value) for value in stored]
        return cls(
            flow,
            own.source_cluster_id,
            records[0].target_topic.removesuffix(records[0].topic) if records else own.topic_prefix,
            {record.target_topic: record.topic for record in records},
            {TopicPartition(r.target_topic, r.partition): not r.shared for r in records},
        )

    def original(self, topic: str) -> str | None:
        """Of which topic it is a copy, or would be the copy if it is one; None if it cannot be one."""
        known = self.originals.get(topic)
        if known is not None or self.prefix is None or not topic.startswith(self.prefix):
            return known
        return topic[len(self.prefix) :] or None

    def judge(
        self, topic: str, partitions: Collection[int], *, copy_name: str, written: Collection[int] = ()
    ) -> Ignored | None:
        """Whether a topic of the source is a copy that this flow has made.

        Args:
            partitions: All it has.
            copy_name: What it would be called at the target. A copy that goes home under the name of its
                original makes no further one: that is how a site is brought back.
            written: Those of which it was known that they held records, before this flow's memory was read.

        Returns:
            None when it holds anything else; UNDECIDED while it may become a copy and holds nothing.
        """
        if self.original(topic) in {None, copy_name}:
            return None
        alone = {number: self.partitions.get(TopicPartition(topic, number)) for number in partitions}
        if False in alone.values() or any(alone[number] is None for number in written):
            return None
        return Ignored.UNDECIDED if None in alone.values() else Ignored.COPY_OF_TARGET


def has_gone_round(topic: str, topics: Collection[str], prefix: str) -> bool:
    """Whether a name has been here twice already: it begins with the same twice, our prefix at its end.

    Args:
        topics: All of the source: those it was made of are among them.
    """
    if not prefix:
        return False
    found = re.fullmatch(rf"(.*{re.escape(prefix)})\1(.+)", topic)
    return found is not None and {found[1] + found[2], found[2]} <= set(topics)
