"""What is known of logs when closer digests have told where they differ, and were cut off somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.model import TopicPartition
from spark_jobs import closer
from spark_jobs.algorithms import Hashing
from spark_jobs.naming import Plan
from spark_jobs.places import lines_of_pieces
from spark_jobs.questions import Question
from spark_jobs.shifts import Piece
from spark_jobs.window import Range
from tests.unit.reading_again import log_of

MUCH, LITTLE, LAST = (TopicPartition(name, 0) for name in ("much", "little", "last"))
ASKED = Range(0, 2048)


def looked_at(rows: Sequence[tuple[TopicPartition, int, int, int]]) -> dict[TopicPartition, Plan]:
    """The plans of three logs, of each of which the same was digested closer.

    Args:
        rows: Those that were told: of which log, from which range to which, and how many rows it has.
    """
    log = log_of(Range(0, 4096), Range(0, 4096))
    logs = [replace(log, name=name) for name in (MUCH, LITTLE, LAST)]
    asked = [Plan(one, [Piece(0, 4096, 0)], [ASKED]) for one in logs]
    told = [SimpleNamespace(topic=n[0], partition=n[1], first=a, last=b, rows=all) for n, a, b, all in rows]
    found = closer._closer(asked, cast(Any, SimpleNamespace(collect=lambda: told)))
    return {plan.log.name: plan for plan in found}


def test_a_log_that_is_shifted_is_digested_closer_as_if_it_were_not() -> None:
    """
    Else all behind the shift would differ, and be read.
    """
    log = log_of(Range(0, 4096), Range(0, 4095))
    shifted, straight = replace(log, name=MUCH), replace(log, name=LITTLE)
    pieces = [Piece(0, 1000, 0), Piece(1000, 4095, -1)]
    asked = [Plan(shifted, pieces, [ASKED]), Plan(straight, [Piece(0, 4095, 0)], [ASKED])]
    questions: list[Question] = []
    sites = SimpleNamespace(hashing=Hashing(), ask_closer=lambda *some: questions.extend(some))

    closer._closer_digests(cast(Any, sites), asked)

    here, there = questions
    assert here.ranges == {MUCH: [ASKED], LITTLE: [ASKED]}
    assert there.ranges == {MUCH: [Range(0, 2047)], LITTLE: [ASKED]}
    assert (here.lines, there.lines) == ({}, {MUCH: lines_of_pieces(pieces)})
    assert {one.width for one in questions} == {closer.CLOSER_PLACES}


def test_behind_the_last_row_that_was_told_of_a_log_nothing_is_known_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nor of a log of which none was told, where there was no room for more: that is counted, and not taken for
    the same.
    """
    monkeypatch.setattr(closer, "ISLANDS_MAX", 3)

    found = looked_at([(MUCH, 0, 0, 4), (LITTLE, 5, 5, 1), (MUCH, 10, 11, 4)])

    assert (found[MUCH].reads, found[MUCH].unread) == ([Range(0, 16), Range(72, 96)], [Range(96, 2048)])
    assert (found[LITTLE].reads, found[LITTLE].unread) == ([Range(32, 56)], ())
    assert (found[LAST].reads, found[LAST].unread) == ([], [ASKED])


def test_where_all_was_told_the_rest_is_the_same() -> None:
    found = looked_at([(MUCH, 0, 0, 2), (LITTLE, 5, 5, 1), (MUCH, 10, 11, 2)])

    assert [one.reads for one in found.values()] == [[Range(0, 16), Range(72, 104)], [Range(32, 56)], []]
    assert [one.unread for one in found.values()] == [(), (), ()]


def test_of_more_than_may_be_named_each_log_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By ranges of a closer digest, and without what is beside them: four here, for three logs.
    """
    monkeypatch.setattr(closer, "NAMED_MAX", 4 * closer.CLOSER_PLACES)
    scattered = (0, 10, 20, 30)

    found = looked_at([(name, at, at, 4) for name in (MUCH, LAST) for at in scattered] + [(LITTLE, 5, 5, 1)])

    assert found[MUCH].reads == [Range(0, 8)]
    assert found[MUCH].unread == [Range(80, 88), Range(160, 168), Range(240, 248)]
    assert (found[LITTLE].reads, found[LITTLE].unread) == ([Range(40, 48)], [])
    assert found[LAST].reads == [Range(0, 8), Range(80, 88)]
    assert found[LAST].unread == [Range(160, 168), Range(240, 248)]
