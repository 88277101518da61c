"""What a run says, in its documents and on its page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.cli.comparisons import show
from mirror.model import TopicPartition
from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import Algorithm
from spark_jobs.extent import Extent
from spark_jobs.findings import Difference, Kind, Part
from spark_jobs.history import Run, last_to_continue, runs
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.nothing import Nothing
from spark_jobs.places import Line
from spark_jobs.plan import plan_of
from spark_jobs.report import failure_page
from spark_jobs.report import page as page_in
from spark_jobs.result import NotCompared, Outcome, Result, failure, key_text, rows, summary
from spark_jobs.sampling import Sample, blocks
from spark_jobs.window import Range, SameOffsets, window

SAME = SameOffsets()
BEGAN_MS = 1_700_000_000_000
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
        target_topic_id="id-there",
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
        started_at_ms=BEGAN_MS,
        seconds=1.5,
        extent=Extent(),
        compared=compared,
        algorithm=Algorithm.SHA256,
        not_compared=not_compared,
    )


def page(one: Result) -> str:
    return page_in(one, "reconcile/r1")


SAME_LOG = Compared(log=log("orders"), source_records=85, target_records=85, ranges=1)
BAD_LOG = Compared(log=log("audit", 3), findings=FINDINGS, source_records=85, target_records=86)


HIT = next(Sample(64, turn) for turn in range(64) if blocks(SAME_LOG.log, Sample(64, turn)))
MISSED = replace(HIT, turn=(HIT.turn + 1) % 64)


def test_only_what_was_compared_whole_and_is_the_same_is_a_match() -> None:
    unknown = NotCompared("new", 0, "nobody has begun to copy it")

    assert result(SAME_LOG).outcome is Outcome.MATCH
    assert result(SAME_LOG, BAD_LOG).outcome is Outcome.MISMATCH
    assert result(SAME_LOG, not_compared=(unknown,)).outcome is Outcome.INCOMPLETE
    assert result(BAD_LOG, not_compared=(unknown,)).outcome is Outcome.MISMATCH
    assert result().outcome is Outcome.INCOMPLETE
    assert result(Compared(log=log("t"), keys_unnamed=1)).outcome is Outcome.MISMATCH


def test_what_was_not_compared_is_no_match_however_few_differences_there_are() -> None:
    """
    The target has deleted all of a partition; nothing of a topic lies within what was asked for; the turn of
    a sample holds nothing.
    """
    gone = Compared(log=replace(log("orders", 1), nothing=Nothing.DELETED_AT_TARGET))
    outside = Compared(log=log_of("late", Range(40, 40), nothing=Nothing.OUTSIDE))
    sampled = replace(result(SAME_LOG), extent=Extent(sample=MISSED))

    for one, why in (
        (result(SAME_LOG, gone), "the target has deleted"),
        (result(SAME_LOG, outside), "nothing of it lies within"),
        (sampled, f"{MISSED} holds nothing of append-only topics"),
    ):
        assert one.outcome is Outcome.INCOMPLETE
        assert why in summary(one)["not_compared"][0]["why"]
        assert why in page(one)
    assert "Nothing was compared" in page(sampled)
    assert replace(sampled, extent=Extent(sample=HIT)).outcome is Outcome.MATCH


def test_of_a_topic_some_partitions_may_lie_outside_and_empty_logs_are_the_same() -> None:
    outside = Compared(log=log_of("orders", Range(40, 40), partition=1, nothing=Nothing.OUTSIDE))
    empty = Compared(log=log_of("new", Range(0, 0)))

    assert result(SAME_LOG, outside).outcome is Outcome.MATCH
    assert result(empty).outcome is Outcome.MATCH
    assert replace(result(empty), extent=Extent(sample=MISSED)).outcome is Outcome.MATCH


def log_of(topic: str, both: Range, partition: int = 0, nothing: Nothing | None = None) -> Log:
    return replace(log(topic, partition), window=window(both, both, SAME), nothing=nothing)


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


def test_the_page_shows_what_differs_and_is_complete_in_itself() -> None:
    text = page(result(SAME_LOG, BAD_LOG))

    assert text.index("audit") < text.index("orders"), "what differs comes first"
    assert "40 records, by -1" in text
    assert "4 differences in 1 of 2 topics" in text
    assert text.count("or the topic was compacted once") == 2, "not every extra record has a foreign writer"
    assert "SHA-256" in text
    assert "&lt;b&gt;" in text
    assert "<b>&" not in text
    assert text.count("<svg") == 1, "what is the same needs no picture"
    assert re.findall(r'(?:src|href|url)\s*[=(]\s*"?(?!#)', text) == []
    assert "default-src 'none'" in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(), None),
        (Wanted(continues=Run("r0")), None),
        (Wanted(sample=HIT), f"of append-only topics {HIT}"),
        (Wanted(topics=("orders",)), "topics orders"),
        (Wanted(continues=Run("r0"), since_ms=0), "since 1970-01-01T00:00:00+00:00, after run r0"),
        (Wanted(end=90), "source offsets below 90"),
    ],
    ids=["all", "behind", "sample", "topic", "since", "end"],
)
def test_page_and_terminal_say_of_what_a_match_speaks(
    wanted: Wanted, words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What lies before the run that one goes on from was compared by that.
    """
    found = replace(result(SAME_LOG), extent=wanted.extent)

    show(found, Path("reconcile/r1"))

    shown, text = " ".join(capsys.readouterr().out.split()), page(found)
    if words is None:
        assert "match: the copy is the original (85 records" in shown
        assert ">The copy is the original<" in text
    else:
        assert f"match: the same, in the part that was compared: {words} (85 records" in shown
        assert "The copy is the original, in the part that was compared" in text
        assert f"is the same: {words}." in text


def test_the_page_says_what_was_not_compared_before_anything_else() -> None:
    """
    Partitions of one topic that have the same reason are one line.
    """
    why = "nobody has <begun>"
    unknown = [NotCompared("new", at, why) for at in (0, 1, 2, 7)] + [NotCompared("gone", None, "deleted")]

    text = page(result(BAD_LOG, not_compared=tuple(unknown)))

    assert "<td>0 to 2, 7</td>" in text
    assert "nobody has &lt;begun&gt;" in text
    assert text.index("Not compared") < text.index("What differs")
    assert "This says nothing about what was not compared" in text
    assert "Nothing was compared" in page(result(not_compared=tuple(unknown)))


def test_a_rare_kind_is_among_the_examples_of_many() -> None:
    many = [
        Finding(difference=Difference(kind=Kind.CHANGED, source_offset=at, target_offset=at), key=b"k")
        for at in range(60)
    ]
    last = Finding(difference=Difference(kind=Kind.MISSING, source_offset=80), key=b"the one")

    text = page(result(Compared(log=log("orders"), findings=[*many, last])))

    assert "“the one”" in text
    assert "50 of 61, the first of each kind" in text


def test_of_each_partition_and_kind_the_first_are_shown_however_much_differs_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Else one partition takes all lines of the terminal, and all examples of the summary.
    """
    many = [
        Finding(difference=Difference(kind=Kind.CHANGED, source_offset=at, target_offset=at), key=b"many")
        for at in range(85)
    ]
    last = Finding(difference=Difference(kind=Kind.EXTRA, target_offset=89), key=b"rare")
    few = Finding(difference=Difference(kind=Kind.MISSING, source_offset=80), key=b"elsewhere")
    found = result(
        Compared(log=log("orders"), findings=[*many, last]),
        Compared(log=log("orders", 1), findings=many),
        Compared(log=log("users"), findings=[few]),
    )

    show(found, Path("reconcile/r1"))

    shown = capsys.readouterr().out
    assert "rare" in shown
    assert "elsewhere" in shown
    assert "orders-1" in shown
    assert shown.count("many") == 18
    assert "and 152 more" in shown
    keys = [one["key"] for one in summary(found)["examples"]]
    assert (len(keys), keys.count("rare"), keys[-1]) == (100, 1, "elsewhere")


def test_of_many_partitions_those_that_differ_are_drawn() -> None:
    """
    In the order of their numbers; of the others it is said how many they are.
    """
    found = FINDINGS[:1]
    partitions = [Compared(log=log("orders", at), findings=found if at % 4 == 1 else ()) for at in range(400)]

    text = page(result(*partitions))

    labels = [int(label) for label in re.findall(r'aria-label="partition (\d+)"', text)]
    assert labels == list(range(1, 256, 4))
    assert "36 more differ, and are not drawn; 300 more are the same" in text


def test_every_topic_that_differs_has_its_picture() -> None:
    """
    Of hundreds the worst are told of at length; the page does not grow with the examples of all of them.
    """
    topics = [
        Compared(log=log(f"topic-{at:03}", part), findings=FINDINGS[:1])
        for at in range(300)
        for part in range(8)
    ]

    text = page(result(*topics))

    sections = re.split(r'<section class="card topic"', text)[1:]
    drawn = [len(re.findall(r'aria-label="partition', section)) for section in sections]
    assert drawn == [8] * 60 + [4] * 240
    assert len(re.findall(r'<a href="#topic-\d+">', text)) == 300
    assert len(text) < 3_000_000


def test_the_page_of_a_run_that_failed_says_why_and_promises_nothing() -> None:
    said = "no <broker> answers", "start one"
    text = failure_page(failure("r1", "east", 1, Extent(), Algorithm.SHA256, *said, {}))

    assert "The comparison was not completed" in text
    assert "no &lt;broker&gt; answers" in text
    assert "This says nothing about the copy" in text


def test_the_next_step_is_a_command_that_finds_the_run() -> None:
    bad = result(BAD_LOG)

    assert "twinsite repair --config flow.yaml &#x27;/my runs/r1&#x27;<" in page_in(bad, "/my runs/r1")
    assert "twinsite repair" not in page(replace(bad, files={"target": ["/backup"]}))
    assert "twinsite repair" not in page(result(SAME_LOG))


def test_a_run_over_files_says_so_and_nothing_of_the_cluster_they_are_from() -> None:
    live = result(SAME_LOG, BAD_LOG)
    files = replace(live, files={"target": ["/backup/logs"]})

    assert plan_of(live).partitions
    assert not plan_of(files).partitions
    assert [Run("r", summary(one)).is_of_clusters for one in (live, files)] == [True, False]
    assert "/backup/logs" in page(files)


def test_history_has_every_run_those_without_an_end_too(tmp_path: Path) -> None:
    documents = {
        "r1": summary(result(SAME_LOG)),
        "r2": failure(
            "r2", "east", BEGAN_MS, Extent(), Algorithm.XXHASH64, "no broker answers", "start one", {}
        ),
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


def test_runs_are_in_the_order_in_which_they_began_whatever_their_folders_are_called(tmp_path: Path) -> None:
    """
    Those that left no word too, as far as their names tell.
    """
    began = {
        "proof": "2026-11-22T12:00:00+00:00",
        "20261122T110000Z-ffff": "2026-11-22T11:00:00+00:00",
        "20261122T130000Z-aaaa": "2026-11-22T13:00:00+00:00",
    }
    for name, at in began.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"started_at": at}))
    (tmp_path / "20261122T123000Z-0000").mkdir()

    assert [run.name for run in runs(tmp_path)] == [
        "20261122T110000Z-ffff",
        "proof",
        "20261122T123000Z-0000",
        "20261122T130000Z-aaaa",
    ]


def test_a_run_is_worth_as_much_as_its_digest() -> None:
    """
    What it goes on from has to be as strong; a run that does not say what it did is worth nothing.
    """
    document = summary(result(SAME_LOG))
    strong, weak = Run("r1", document), Run("r2", document | {"digest": "xxhash64"})

    assert [run.is_as_strong_as(Algorithm.SHA256) for run in (strong, weak, Run("r3"))] == [
        True,
        False,
        False,
    ]
    assert [run.is_as_strong_as(Algorithm.XXHASH64) for run in (strong, weak, Run("r3"))] == [
        True,
        True,
        False,
    ]


def test_a_run_says_nothing_of_a_log_that_is_not_the_one_it_was() -> None:
    """
    A topic made anew, or cut off, is compared from its start.
    """
    orders = TopicPartition("orders", 0)
    run = Run("r1", json.loads(json.dumps(summary(result(SAME_LOG)))))

    assert run.seen_to(orders, "id", 100) == 90
    assert run.seen_to(orders, "another", 100) == 0
    assert run.seen_to(orders, "id", 80) == 0
    assert run.seen_to(TopicPartition("orders", 1), "id", 100) == 0


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert runs(tmp_path / "nothing") == []


def test_digests_that_differ_where_records_do_not_are_no_match() -> None:
    """
    Nothing is known then, and the page says of which partition.
    """
    one = result(SAME_LOG, replace(SAME_LOG, log=log("audit", 3), contradicts=True))

    assert one.outcome is Outcome.INCOMPLETE
    assert [(left.topic, left.partition) for left in one.left_out] == [("audit", 3)]
    assert "its digests differ, but its records, read again, do not" in page(one)


def test_records_in_the_last_gap_of_a_map_are_no_matter_of_brokers_alone() -> None:
    """
    Their place is where the target's log ends: they cannot be named before something stands there.
    """
    gap = (Line(5, 80, 1, 0), Line(80, 90, 0, 80))

    in_gap, behind = (
        result(Compared(log=replace(log("audit"), lines=lines), contradicts=True)) for lines in (gap, gap[:1])
    )

    ((one,), (other,)) = (found.left_out for found in (in_gap, behind))
    assert "has none there by the flow's offset map: they are named once more is copied" in one.why
    assert "offset map" not in other.why
