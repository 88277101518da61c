"""Compare one part in ``one_in`` of every log, another part in each run.

Logs are cut into blocks of places. A run compares every ``one_in``-th block, and the next run the blocks
after those. A round of ``one_in`` runs compares all blocks. When a round begins, the longest log decides the
size of a block, in powers of two; the size stays the same for the round, while logs grow. A turn in which no
log has a block, because logs are short, is skipped. Pure.
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
"""Blocks of the longest log that a run compares, about; each is a read of its own."""
GROWTH_MAX = 16
"""A new round begins once the longest log is this many times as long as its blocks were chosen for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which blocks are compared: those of turn ``turn``, counted from 0, of ``one_in``."""

    one_in: int
    turn: int
    block_places: int = RANGE_PLACES

    def __str__(self) -> str:
        return f"part {self.turn + 1} of {self.one_in}"


def parse_fraction(text: str) -> int:
    """The denominator of a fraction such as ``1/64``.

    Raises:
        UsageError: It is no such fraction.
    """
    found = re.fullmatch(r"1/([1-9][0-9]{0,5})", text.strip())
    if found is None:
        raise UsageError(f"--sample {text!r}: write a fraction such as 1/64")
    return int(found[1])


def next_sample(one_in: int, known: Iterable[Run], flow: str) -> Sample:
    """The turn after the last completed one of the flow, with the same blocks; else the first turn."""
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
    """The sample to compare. At the start of a round its blocks are chosen to fit the logs; within a round
    they stay the same.

    A new round begins early where the longest log has far outgrown the blocks, or where no turn that is left
    compares anything.

    Args:
        may_skip: The logs are all that the flow has. Only then may turns that compare nothing be skipped.
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
    """The first turn of the round, from this one on, that compares something; None if none does."""
    turns = (replace(sample, turn=turn) for turn in range(sample.turn, sample.one_in))
    return next((one for one in turns if any(holds_some(log, one) for log in logs)), None)


def holds_some(log: Log, sample: Sample) -> bool:
    """Whether a sample compares anything of an append-only log."""
    return any(log.source_offsets(block).offsets for block in blocks(log, sample))


def blocks(log: Log, sample: Sample) -> list[Range]:
    """The places of a log that a run compares; none where the log has no block in this turn.

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
