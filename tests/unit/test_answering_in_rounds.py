"""How far a site is that answers round by round, at full speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.model import TopicPartition
from spark_jobs import sites
from spark_jobs.algorithms import Hashing
from spark_jobs.questions import Question, Ranges, What, ended
from spark_jobs.sites import KafkaSite, Records, give_answer
from spark_jobs.watching import Tell
from spark_jobs.window import ALL, Range


class Growing:
    """A log that is longer each time its end is asked for."""

    name = "source"

    def __init__(self, *ends: int) -> None:
        self._ends = iter(ends)

    def bounded(self, _: object, ranges: Ranges) -> Ranges:
        return ended(ranges, lambda *_: next(self._ends))


def test_the_share_that_is_told_counts_what_was_read_in_rounds_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    It becomes smaller only because more is known to be wanted.
    """

    @contextmanager
    def watched(_: object, tell: Tell) -> Iterator[None]:
        yield
        tell(0.5)
        tell(1.0)

    def keep(_: object, path: Path) -> None:
        path.mkdir(parents=True)

    monkeypatch.setattr(sites, "watched", watched)
    monkeypatch.setattr(sites, "keep", keep)
    monkeypatch.setattr(sites, "_answer", lambda *_: None)
    monkeypatch.setattr(sites, "together", lambda *_: None)
    monkeypatch.setattr(sites, "SLICE_OFFSETS", 100)
    told: list[float] = []
    spark = cast(Any, SimpleNamespace(read=SimpleNamespace(parquet=lambda _: None)))
    log = cast(Records, Growing(600, 900, 1_000))
    site = KafkaSite(spark, log, {"t": "t"}, tmp_path, tmp_path, told.append)
    ranges = {TopicPartition("t", 0): [Range(0, ALL.end)]}
    question = Question(name="keys", what=What.KEYS_WRITTEN, ranges=ranges, hashing=Hashing())

    give_answer(site, question, tmp_path / "answer")

    assert told == [300 / 600, 1.0, 750 / 900, 1.0, 950 / 1_000, 1.0]
