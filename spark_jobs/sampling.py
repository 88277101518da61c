"""Compare one part in so many of every log, another one each time.

Logs are cut into blocks of places. A run compares every ``one_in``-th of them; the next one those beside,
until after ``one_in`` runs all have been compared. The size of a block depends on that of the log, in powers
of two: a log that has doubled meanwhile may have to wait for a few more runs. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirror.errors import UsageError
from spark_jobs.history import Run
from spark_jobs.logs import Log
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import Range

BLOCKS = 16
"""About so many blocks of a log are compared in one run; each is a read of its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Which blocks are compared: the ``turn``-th of ``one_in``, the first one being 0."""

    one_in: int
    turn: int

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
    """The turn after the last one that was completed."""
    turns = [
        done["turn"]
        for run in known
        if run.flow == flow and (done := run.summary.get("sample")) and done["one_in"] == one_in
    ]
    return Sample(one_in, (turns[-1] + 1) % one_in if turns else 0)


def blocks(log: Log, sample: Sample) -> list[Range]:
    """The places of a log that a run compares; none where the turn is another log's.

    Logs begin at different turns, so that small ones are not all compared in the same run.
    """
    whole = log.target_known
    size = RANGE_PLACES
    while size * sample.one_in * BLOCKS < whole.offsets:
        size *= 2
    first = (sample.turn - log.name.partition) % sample.one_in
    start = whole.start // size
    found = (
        Range(block * size, (block + 1) * size).within(whole)
        for block in range(start + (first - start) % sample.one_in, -(-whole.end // size), sample.one_in)
    )
    return [one for one in found if one.offsets]
