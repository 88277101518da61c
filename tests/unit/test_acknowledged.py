"""How far the copy had come, by the word of a mirror."""

from __future__ import annotations

from typing import Any

import pytest

from mirror.acknowledged import Mirror, NotBegunError, Words, words
from mirror.errors import UsageError
from mirror.model import FlowStatus, Reason, State, TopicPartition
from tests.unit.statuses import a_flow, a_partition, an_unknown_partition

ORDERS, AUDIT, FRESH = (TopicPartition(topic, 0) for topic in ("orders", "audit", "fresh"))


def asked(status: FlowStatus) -> Words:
    mirror = Mirror("http://mirror:9640", lambda: status)
    return words(mirror, "east-to-west", "SOURCE", "TARGET")


def test_a_mirror_that_stands_still_for_it_says_what_the_target_had() -> None:
    """
    Its offsets are those before the loss, each by the names of its side.
    """
    truncated = a_partition(
        state=State.DIVERGED, reason=Reason.TARGET_TRUNCATED, next_offset=150, target_log_end_offset=157
    )

    said = asked(a_flow(truncated, a_partition("audit")))

    assert (said.source_offset(ORDERS), said.source_offset(AUDIT)) == (150, 1_000)
    assert said.target_offsets()[TopicPartition("east.orders", 0)] == 157
    assert (said.why_not(ORDERS), said.why_not(AUDIT)) == (None, None)


@pytest.mark.parametrize(
    "partitions",
    [
        [],
        [an_unknown_partition()],
        [a_partition("fresh", state=State.UNKNOWN, reason=Reason.STARTING, target_log_end_offset=None)],
    ],
)
def test_what_a_mirror_does_not_know_is_said(partitions: list[Any]) -> None:
    """
    Not looked at yet, or not since an operator said so; or no partition of its own.
    """
    said = asked(a_flow(a_partition(), *partitions))

    assert said.source_offset(FRESH) is None
    assert TopicPartition("east.fresh", 0) not in said.target_offsets()
    assert "does not know how far the copy is" in str(said.why_not(FRESH))


def test_where_no_mirror_was_asked_nothing_is_missed() -> None:
    assert (Words().why_not(ORDERS), Words().source_offset(ORDERS)) == (None, None)
    assert Words().target_offsets() == {}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (a_flow(flow="west-to-east"), "copies flow west-to-east"),
        (a_flow(target_cluster_id="ANOTHER"), "copies cluster SOURCE to ANOTHER"),
        (a_flow(source_cluster_id="ANOTHER"), "copies cluster ANOTHER to TARGET"),
    ],
)
def test_a_mirror_of_something_else_is_refused(status: FlowStatus, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(status)


def test_a_mirror_that_has_not_begun_knows_nothing() -> None:
    with pytest.raises(NotBegunError, match="waits for the source"):
        asked(a_flow(waits_for="waits for the source", source_cluster_id=None))
