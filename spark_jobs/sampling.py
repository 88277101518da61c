"""Compare one part in so many of every log, another one each time.

Logs are cut into blocks of places. A run compares every ``one_in``-th of them; the next one those beside,
until after ``one_in`` runs, a round, all have been compared. The size of a block is that of the round: it
depends on the longest log, in powers of two, when a round begins, and stays what it is while logs grow. Where
logs are so short that a turn would be nobody's, it is left out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from zlib import crc32

from mirror.errors import UsageError
from spark_jobs.history import Run
from spark_jobs.logs import Log
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import Range

BLOCKS = 16
"""About so many blocks of the longest log are compared in one run; each is a read of its own."""
GROWTH_MAX = 16
"""A log that has become so many times as long in a round begins another one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which blocks are compared: the ``turn``-th of ``one_in``, the first one being 0."""

    one_in: int
    turn: int
    block_places: int = RANGE_PLACES

    def __str__(self) -> str:
        return f"part {self.turn + 1} of {self.one_in}"


def parse_fraction(text: str) -> int:
    """How many parts ``1/64`` speaks of.

    Raises:
        UsageError: It is no such fraction.
    """
    found = re.fullmatch(r"1/([1-9][0-9]{0,5})", text.strip())
    if found is None:
        raise UsageError(f"--sample {text!r}: write a fraction such as 1/64")
    return int(found[1])


def next_sample(one_in: int, known: Iterable[Run], flow: str) -> Sample:
    """The turn after the last one that was completed, with its blocks."""
    done = [
        sample
        for run in known
        if run.flow == flow
        and run.has_ended
        and (sample := run.summary.get("sample"))
        and sample["one_in"] == one_in
    ]
    if not done:
        return Sample(one_in, 0)
    return Sample(one_in, (done[-1]["turn"] + 1) % one_in, done[-1]["block_places"])


def fitting(sample: Sample, logs: Collection[Log], *, may_skip: bool) -> Sample:
    """The sample with blocks that fit the logs where a round begins; within one they stay as they are.

    Where the longest log has outgrown them by far, or all turns that are left hold nothing, another round
    begins.

    Args:
        may_skip: All that the flow has is among the logs: only then a turn that holds nothing is nobody's.
    """
    longest = max((log.target_known.offsets for log in logs), default=0)
    in_a_run = sample.one_in * BLOCKS
    places = RANGE_PLACES
    while places * in_a_run < longest:
        places *= 2
    begun = Sample(sample.one_in, 0, places)
    goes_on = sample.turn and longest <= sample.block_places * in_a_run * GROWTH_MAX
    if not may_skip:
        return sample if goes_on else begun
    if goes_on:
        return _with_something(sample, logs) or _with_something(begun, logs) or begun
    return _with_something(begun, logs) or begun


def _with_something(sample: Sample, logs: Collection[Log]) -> Sample | None:
    """The first turn of the round, from this one on, in which something is compared."""
    turns = (replace(sample, turn=turn) for turn in range(sample.turn, sample.one_in))
    return next((one for one in turns if any(holds_some(log, one) for log in logs)), None)


def holds_some(log: Log, sample: Sample) -> bool:
    """Whether anything of an append-only log is compared."""
    return any(log.source_offsets(block).offsets for block in blocks(log, sample))


def blocks(log: Log, sample: Sample) -> list[Range]:
    """The places of a log that a run compares; none where the turn is another log's.

    Logs begin at different turns, so that small ones are not all compared in the same run.
    """
    whole, size = log.target_known, sample.block_places
    first = (sample.turn - crc32(log.name.topic.encode()) - log.name.partition) % sample.one_in
    start = whole.start // size
    found = (
        Range(block * size, (block + 1) * size).within(whole)
        for block in range(start + (first - start) % sample.one_in, -(-whole.end // size), sample.one_in)
    )
    return [one for one in found if one.offsets]
