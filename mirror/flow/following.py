"""What a standby sees of partitions: how far the owner is, and what there is to copy.

Nothing is judged here, so the answers need not be of one stable moment, and a question costs a broker next
to nothing. The source is asked only for its ends: its records cross the link once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoint.errors import UntranslatableError
from mirror.errors import TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.facts import Known
from mirror.flow.partition import PartitionCopy
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation
from mirror.kafka.offsets import LATEST, list_offsets


class SideError(TwinsiteError):
    """One side could not be asked.

    Attributes:
        cluster: The side that was asked.
        cause: Why it could not be.
    """

    def __init__(self, cluster: Cluster, cause: TwinsiteError) -> None:
        super().__init__(str(cause))
        self.cluster = cluster
        self.cause = cause


@contextmanager
def side(cluster: Cluster) -> Iterator[None]:
    """What is raised in the block, and does not name its side, is this side's: it becomes a SideError."""
    try:
        yield
    except SideError:
        raise
    except TwinsiteError as error:
        raise SideError(cluster, error) from error


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the two logs of a partition end.

    Attributes:
        readable_end: How far the mirror may read at the source.
        target_end: How far the target has acknowledged.
    """

    high_watermark: int
    readable_end: int
    target_end: int

    def position(self, known: Known | None) -> int | None:
        """Up to which source offset the owner has copied; None where that cannot be told yet."""
        if known is None or not known.prepared:
            return None
        try:
            return known.to_source(self.target_end)
        except UntranslatableError:
            return None


async def look_at_ends(
    flow: Flow, partitions: Collection[PartitionCopy]
) -> dict[PartitionCopy, Ends | SideError]:
    """Where the two logs of each partition end, or why one side could not be asked."""
    tps = [p.tp for p in partitions]
    high_watermarks, readable, targets = await asyncio.gather(
        list_offsets(flow.source, tps, LATEST, isolation=Isolation.READ_UNCOMMITTED),
        list_offsets(flow.source, tps, LATEST, isolation=flow.limits.fetch.isolation),
        list_offsets(flow.target, [p.target for p in partitions], LATEST),
    )
    found: dict[PartitionCopy, Ends | SideError] = {}
    for p in partitions:
        high_watermark, end, target_end = high_watermarks[p.tp], readable[p.tp], targets[p.target]
        if isinstance(high_watermark, TwinsiteError):
            found[p] = SideError(flow.source, high_watermark)
        elif isinstance(end, TwinsiteError):
            found[p] = SideError(flow.source, end)
        elif isinstance(target_end, TwinsiteError):
            found[p] = SideError(flow.target, target_end)
        else:
            found[p] = Ends(high_watermark, end, target_end)
    return found
