"""What decides a position: what both sides say of a partition, and what the flow's state says.

Values only, no I/O. Offsets are source offsets unless named ``target_*``.

Sources: docs/design.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint.insertions import Insertions
from checkpoint.model import Insertion
from mirror.model import OffsetMode


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What the source says of a partition.

    Attributes:
        leader_epoch: Of the partition's leader; -1 when not known.
    """

    topic_id: str
    log_start_offset: int
    high_watermark: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Tail:
    """The last batch of a target log, without its records.

    Attributes:
        records_crc: CRC-32C of the records as stored, compressed or not.
        control: True for a control marker.
    """

    producer_id: int
    base_offset: int
    records: int
    base_timestamp: int
    records_crc: int
    control: bool


@dataclass(frozen=True, slots=True)
class TargetLook:
    """What the target says of a partition, read at one stable moment.

    Attributes:
        target_log_end_offset: Where the next batch would be appended; batches before it need not be
            acknowledged.
        last_sequence: Of our producer id; None when the broker remembers nothing of it.
        producer_epoch: Of our producer id; None likewise.
        coordinator_epoch: Of the flow's last control marker; -1 when the broker remembers none.
        last_producer_id: Who wrote the last batch of the log; None when there is no batch to look at, or no
            in-sync replica that can be asked has it intact. Where something was inserted at the end of the
            log, the batch before it counts as the last.
        tail: That batch, to be compared with the source's; None likewise.
        unreplicated: How many offsets at the end are not on all in-sync replicas yet: they may vanish again.
        topic_id: Of the topic looked at; None where the metadata does not have the topic just now.
    """

    target_log_start_offset: int
    target_log_end_offset: int
    last_sequence: int | None
    producer_epoch: int | None
    coordinator_epoch: int
    last_producer_id: int | None
    tail: Tail | None = None
    unreplicated: int = 0
    topic_id: str | None = None


NO_INSERTIONS = Insertions()


@dataclass(frozen=True, slots=True)
class Known:
    """What the flow's durable state says of a partition.

    Attributes:
        start_offset: Source offset of the first record copied.
        prepared: False while the target partition is being made to start there.
        to_source: The source offset to go on with for a target log end; raises UntranslatableError.
        loss_accepted: Source offsets [from, to) that an operator allowed to leave out.
        target_start_offset: Where the first record copied is at the target; what is below is not ours.
        target_topic: Where it is copied to.
        target_topic_id: Of that topic, as last written down; None when it never was.
        shared: The target partition held records of others when the copy began.
        insertions: Target offsets that hold something other than a copy.
        insertion: What is about to be appended, is no copy, and may be there already.
        producer_epoch: The epoch with which the target partition is written to.
        epoch_before: The source's leader epoch of the last record below a source offset, as noted when that
            was copied; -1 when not known.
    """

    topic_id: str
    mode: OffsetMode
    start_offset: int
    prepared: bool
    to_source: Callable[[int], int]
    loss_accepted: tuple[int, int] = (0, 0)
    target_start_offset: int = 0
    target_topic: str = ""
    target_topic_id: str | None = None
    shared: bool = False
    insertions: Insertions = NO_INSERTIONS
    insertion: Insertion | None = None
    producer_epoch: int = 0
    epoch_before: Callable[[int], int] = lambda _: -1

    def may_lose(self, begin: int, end: int) -> bool:
        """Whether an operator allowed to leave out all of the source offsets ``[begin, end)``."""
        accepted_from, accepted_to = self.loss_accepted
        return accepted_from <= begin and end <= accepted_to
