"""Copies of one partition, some way on: what tests of them begin with."""

from __future__ import annotations

from mirror.flow.partition import PartitionCopy
from mirror.flow.passage import UNSTEADY_SECONDS, Counters, Sent
from mirror.flow.position import Proceed
from mirror.flow.states import append_refusal
from mirror.model import Batch, Gap, OffsetMode, TopicPartition

ORDERS_0 = TopicPartition("orders", 0)
PASSING = append_refusal(7)
NOW = 1_000.0


def batch(first: int, count: int = 5, epoch: int = 0) -> Batch:
    """Records from an offset on; a byte each, and the last one's offset for a time."""
    return Batch(first, first + count, epoch, first + count - 1, memoryview(bytearray(count)))


def waiting() -> PartitionCopy:
    return PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=5)


def proceeding(
    at: int = 100,
    *,
    target: int | None = None,
    sequence: int = 40,
    epoch: int = 0,
    skip_to: int = 0,
    mode: OffsetMode = OffsetMode.SAME,
) -> PartitionCopy:
    """A partition that was looked at and goes on from here."""
    copy = waiting()
    end = at if target is None else target
    copy.proceed(Proceed(at, end, sequence, 3, max(at, skip_to)), mode, epoch, NOW)
    return copy


def under_way(at: int = 100, *, target: int | None = None, epoch: int = 0) -> PartitionCopy:
    """One that has gone on for so long that batches may follow each other before they are acknowledged."""
    end = at if target is None else target
    copy = proceeding(at - 1, target=end - 1, sequence=39, epoch=epoch)
    (before,) = sent(copy, batch(at - 1, 1, epoch))
    copy.answered(before, appended=True, now=NOW + UNSTEADY_SECONDS)
    copy.counters = Counters()
    return copy


def sent(copy: PartitionCopy, *items: Batch | Gap) -> list[Sent]:
    """Queue these and send all that may be sent."""
    copy.queue.push(items, (), None)
    return [copy.take()[0] for _ in items if copy.batch_ready]
