"""What a run says, in its documents and on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.findings import Difference, Kind, Part
from spark_jobs.history import Run, last_to_continue, runs
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.report import page
from spark_jobs.result import NotCompared, Outcome, Result, failure, key_text, rows, summary
from spark_jobs.window import Range, SameOffsets, window

SAME = SameOffsets()
SHIFTED = Difference(kind=Kind.SHIFTED, source_offset=8, target_offset=7, records=40, shift=-1)
CHANGED = Difference(kind=Kind.CHANGED, source_offset=50, target_offset=49, parts=(Part.VALUE, Part.KEY))
FINDINGS = [
    Finding(difference=Difference(kind=Kind.MISSING, source_offset=7), key=b"k7"),
    Finding(difference=SHIFTED, key=None),
    Finding(difference=CHANGED, key=b"\xff<b>"),
    Finding(difference=Difference(kind=Kind.EXTRA, target_offset=90), key=None),
]


def log(topic: str, partition: int = 0) -> Log:
    compared = window(Range(0, 100), Range(5, 90), SAME)
    return Log(
        name=TopicPartition(topic, partition),
        target_topic=topic,
        window=compared,
        topic_id="id",
        is_compacted=False,
        begin_place=0,
        source_end_place=100,
    )


def result(*compared: Compared, not_compared: tuple[NotCompared, ...] = ()) -> Result:
    return Result(
        run="r1",
        flow="east",
        source_cluster_id="a",
        target_cluster_id=None,
        started_at_ms=1_700_000_000_000,
        seconds=1.5,
        wanted="all there is",
        reaches_back=True,
        compared=compared,
        not_compared=not_compared,
    )


SAME_LOG = Compared(log=log("orders"), source_records=85, target_records=85, ranges=1)
BAD_LOG = Compared(log=log("audit", 3), findings=FINDINGS, source_records=85, target_records=86)


def test_only_what_was_compared_whole_and_is_the_same_is_a_match() -> None:
    unknown = NotCompared("new", 0, "nobody has begun to copy it")

    assert result(SAME_LOG).outcome is Outcome.MATCH
    assert result(SAME_LOG, BAD_LOG).outcome is Outcome.MISMATCH
    assert result(SAME_LOG, not_compared=(unknown,)).outcome is Outcome.INCOMPLETE
    assert result(BAD_LOG, not_compared=(unknown,)).outcome is Outcome.MISMATCH
    assert result().outcome is Outcome.INCOMPLETE
    assert result(Compared(log=log("t"), unnamed=1)).outcome is Outcome.MISMATCH


def test_each_outcome_has_its_exit_code() -> None:
    assert {outcome.value: outcome.exit_code for outcome in Outcome} == {
        "match": 0,
        "mismatch": 10,
        "incomplete": 1,
        "failed": 1,
    }


def test_the_summary_counts_kinds_and_names_what_was_not_compared() -> None:
    document = json.loads(json.dumps(summary(result(SAME_LOG, BAD_LOG))))

    assert document["differences"] == {"missing": 1, "extra": 1, "changed": 1, "offset_shifted": 1}
    assert document["source"] == {"records": 170, "bytes": 0}
    (bad,) = [one for one in document["partitions"] if not one["is_match"]]
    assert (bad["topic"], bad["partition"]) == ("audit", 3)
    assert (bad["source_offsets"], bad["expired_at_target"], bad["pending"]) == ([5, 90], [0, 5], [90, 100])
    assert [one["key"] for one in document["examples"]] == ["k7", None, "\\xff<b>", None]


def test_every_difference_has_a_row() -> None:
    found = list(rows(result(BAD_LOG)))

    assert [row[3] for row in found] == ["missing", "offset_shifted", "changed", "extra"]
    assert found[2][:3] == ("audit", 3, "audit")
    assert found[2][6] == ["value", "key"]


def test_keys_are_shown_as_text_where_they_are_some() -> None:
    assert key_text("größe".encode()) == "größe"
    assert key_text(b"a\nb\x1b") == "a\\nb\\x1b"
    assert key_text(b"\xff\x00") == "\\xff\x00"
    assert key_text(b"") == ""
    assert key_text(None) is None


def test_the_page_shows_where_along_the_log_the_differences_lie() -> None:
    text = page(result(SAME_LOG, BAD_LOG))

    assert text.index("audit") < text.index("orders"), "what differs comes first"
    assert "40 records, by -1" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert text.count("<svg") == 2
    assert "src=" not in text
    assert "http" not in text
    assert "<script" not in text


def test_the_page_of_a_match_says_so() -> None:
    assert "The copy is the original" in page(result(SAME_LOG))


def test_history_has_every_run_those_without_an_end_too(tmp_path: Path) -> None:
    documents = {
        "r1": summary(result(SAME_LOG)),
        "r2": failure("r2", "east", 1, "all there is", "no broker answers", "start one"),
        "r3": summary(result(SAME_LOG)) | {"flow": "west"},
    }
    for name, document in documents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(document))
    (tmp_path / "r4").mkdir()

    known = runs(tmp_path)

    assert [run.outcome for run in known] == ["match", "failed", "match", "unfinished"]
    continued = last_to_continue(known, "east")
    assert continued is not None
    assert (continued.name, continued.clusters) == ("r1", ("a", None))
    assert last_to_continue(known, "north") is None


def test_a_run_says_nothing_of_a_log_that_is_not_the_one_it_was() -> None:
    """
    A topic made anew, or cut off, is compared from its start.
    """
    orders = TopicPartition("orders", 0)
    run = Run("r1", json.loads(json.dumps(summary(result(SAME_LOG)))))

    assert run.end(orders, "id", 100) == 90
    assert run.end(orders, "another", 100) == 0
    assert run.end(orders, "id", 80) == 0
    assert run.end(TopicPartition("orders", 1), "id", 100) == 0


def test_a_summary_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "summary.json").write_text("{")

    with pytest.raises(UsageError, match=r"r1/summary\.json"):
        runs(tmp_path)


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert runs(tmp_path / "nothing") == []
