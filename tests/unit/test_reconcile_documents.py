"""What is carried between sites comes out as it went in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.asking import first_questions
from spark_jobs.documents import (
    Scope,
    question_of_document,
    question_to_document,
    scope_of_document,
    scope_to_document,
)
from spark_jobs.extent import Extent
from spark_jobs.logs import Log
from spark_jobs.places import Line, lines_of_runs
from spark_jobs.questions import Buckets, Question, What
from spark_jobs.result import NotCompared
from spark_jobs.sampling import Sample
from spark_jobs.window import Range, SameOffsets, window

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c"]), st.integers(0, 9))
offsets = st.builds(Range, st.integers(0, 9), st.integers(10, 99))
ranges = st.lists(offsets, max_size=3)
lines = st.lists(st.builds(Line, *[st.integers(0, 99)] * 4), max_size=3)
questions = st.builds(
    Question,
    name=st.sampled_from(["digests", "keys"]),
    what=st.sampled_from(What),
    ranges=st.dictionaries(partitions, ranges, max_size=3),
    hashing=st.builds(Hashing, st.sampled_from(Algorithm), st.text()),
    lines=st.dictionaries(partitions, lines, max_size=3),
    one_in=st.integers(1, 99),
    buckets=st.dictionaries(
        partitions,
        st.builds(Buckets, st.integers(1, 99), st.lists(offsets, max_size=3).map(tuple)),
        max_size=3,
    ),
)


def log(topic: str, runs: list[tuple[int, int]] | None = None) -> Log:
    same = window(Range(0, 100), Range(5, 90), SameOffsets())
    return Log(
        name=TopicPartition(topic, 0),
        target_topic=f"east.{topic}",
        window=same,
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        begin_place=0,
        source_end_place=100,
        lines=None if runs is None else lines_of_runs(runs, same.source),
    )


SCOPE = Scope(
    flow="east",
    source_cluster_id="a",
    target_cluster_id=None,
    asked_at_ms=5,
    extent=Extent("some", ("orders", "users"), ("since", "until"), Sample(64, 3, 2048)),
    append_only=[log("orders"), log("audit", [(0, 0), (50, 40)])],
    compacted=[log("users")],
    hashing=Hashing(Algorithm.SHA256, "salt"),
    not_compared=[NotCompared("new", None, "nobody knows")],
)


def through_a_file(document: object) -> object:
    return json.loads(json.dumps(document))


@given(questions)
def test_a_question_is_the_same_on_the_other_side(question: Question) -> None:
    assert question_of_document(through_a_file(question_to_document(question)), "here") == question


def test_a_scope_is_the_same_on_the_other_side() -> None:
    read = scope_of_document(through_a_file(scope_to_document(SCOPE)), "here")

    assert read == SCOPE
    assert first_questions(read.append_only, read.compacted, None, read.hashing) == first_questions(
        SCOPE.append_only, SCOPE.compacted, None, SCOPE.hashing
    )


@pytest.mark.parametrize("asked_at_ms", [-1, 10**18])
def test_a_comparison_that_was_asked_for_at_no_time_is_refused(asked_at_ms: int) -> None:
    """
    Its folder is called by it.
    """
    document = scope_to_document(SCOPE) | {"asked_at_ms": asked_at_ms}

    with pytest.raises(UsageError, match=r"proof/scope\.json.*is not a time"):
        scope_of_document(document, "proof/scope.json")


@pytest.mark.parametrize("document", [None, [], {}, {"schema": 1}, {"schema": 6}])
def test_what_cannot_be_read_is_named(document: object) -> None:
    with pytest.raises(UsageError, match=r"proof/scope\.json"):
        scope_of_document(document, "proof/scope.json")
    with pytest.raises(UsageError, match=r"ask\.json"):
        question_of_document(document, "ask.json")
