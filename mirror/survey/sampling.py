"""What is produced to the topics of a flow: where they end, twice, and some of the batches in between.

Sources: KIP-79 (ListOffsets), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Want
from mirror.kafka.offsets import LATEST, by_leader, list_offsets
from mirror.kafka.peek import AT_ONCE, peek_at
from mirror.kafka.record_batch import MAGIC_V2, walk
from mirror.link.expecting import Production, Sample, growth, produced
from mirror.link.frames import Compression, Sealer
from mirror.link.parts import RECODED_BYTES_MAX
from mirror.link.recoding import recoded
from mirror.model import TopicPartition
from mirror.survey.choosing import Chosen

PARTITIONS_MAX = 16
"""How many partitions are sampled: those that have grown most."""
PARTITION_BYTES_MAX = 256 << 10
SAMPLE_SECONDS_MAX = 5.0
SAMPLE_BYTES_MIN, SAMPLE_BYTES_MAX = 64 << 10, 4 << 20
"""A sample crosses the link, too: it takes a few seconds of it at most."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where partitions ended, and when: monotonic seconds, halfway between question and answer."""

    at: float
    offsets: Mapping[TopicPartition, int | None]


async def ends(source: Cluster) -> Ends:
    """Where all partitions of the snapshot end; None if a broker does not say."""
    tps = [
        TopicPartition(topic.name, number)
        for topic in source.info.topics.values()
        for number in topic.partitions
    ]
    began = time.monotonic()
    answers = await list_offsets(source, tps, LATEST)
    at = (began + time.monotonic()) / 2
    told = {tp: None if isinstance(answer, TwinsiteError) else answer for tp, answer in answers.items()}
    return Ends(at, told)


async def production(
    source: Cluster, chosen: Chosen, before: Ends, rate: float | None, *, recode: bool
) -> Production:
    """What was produced since a first look.

    Args:
        rate: Bytes a second that the link carries, if known: a sample must not take long.
        recode: Whether lz4, gzip and snappy batches are decompressed before they cross the link.
    """
    after = await ends(source)
    wanted = wants(before.offsets, after.offsets)
    records = await _read(source, wanted, sample_bytes(rate))
    samples = {tp: sample_of(one) for tp, one in records.items()}
    share = await asyncio.to_thread(wire_share, list(records.values()), recode=recode)
    seconds = after.at - before.at
    return produced(
        chosen.topics, before.offsets, after.offsets, seconds, samples, share, topics_left_out=chosen.left_out
    )


def sample_bytes(rate: float | None) -> int:
    """How many bytes of batches a sample may bring over a link of this rate."""
    fitting = SAMPLE_BYTES_MIN if rate is None else int(rate * SAMPLE_SECONDS_MAX)
    return min(max(fitting, SAMPLE_BYTES_MIN), SAMPLE_BYTES_MAX)


def wants(
    before: Mapping[TopicPartition, int | None], after: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, Want]:
    """What to read of what came in between: from the partitions that have grown most, of none if none has."""
    grown = growth(before, after)
    most = sorted((tp for tp in grown if grown[tp]), key=lambda tp: -grown[tp])[:PARTITIONS_MAX]
    return {tp: Want(begin, -1, -1, PARTITION_BYTES_MAX) for tp in most if (begin := before[tp]) is not None}


async def _read(
    source: Cluster, wanted: Mapping[TopicPartition, Want], bytes_max: int
) -> dict[TopicPartition, memoryview]:
    """Whole batches of each partition, without those that cannot be read for now."""
    found: dict[TopicPartition, memoryview] = {}
    for node, tps in by_leader(source, wanted).items():
        limits = replace(AT_ONCE, bytes_max=max(bytes_max // len(wanted) * len(tps), 1))
        try:
            came = await peek_at(source, node, {tp: wanted[tp] for tp in tps}, limits)
        except TwinsiteError:
            continue  # others tell how long a record is; if none does, the survey says so
        found |= {tp: one.records for tp, one in came.items() if not one.error_code}
    return found


def sample_of(records: memoryview) -> Sample:
    """How many bytes batches have, and how many offsets they span. Old formats do not tell: left out."""
    whole = [(header, view) for header, view in walk(records) if header.magic == MAGIC_V2]
    offsets = sum(header.next_offset - header.base_offset for header, _ in whole)
    return Sample(sum(len(view) for _, view in whole), offsets)


def wire_share(each: Sequence[memoryview], *, recode: bool) -> float | None:
    """The share of the bytes of batches that is left when a relay sends them; None if there are none."""
    views = [view for records in each for header, view in walk(records) if header.magic >= 0]
    if not views:
        return None
    pieces: list[bytes | memoryview] = []
    for view in views:
        inflated = recoded(view, RECODED_BYTES_MAX) if recode else None
        pieces += [view] if inflated is None else inflated.pieces
    wire = Sealer(Compression()).seal(-1, 0, pieces)
    return sum(map(len, wire)) / sum(map(len, views))
