"""Which topics are copied and what they are called: nothing internal, and every name finds its way back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import UsageError
from mirror.sync.names import HIDDEN, Ignored, NamePolicy, Selection, TopicSelector, nearest
from mirror.topic_names import NAME_CHARACTERS_MAX, is_internal

LEGAL = string.ascii_letters + string.digits + "._-"
names = st.text(LEGAL, min_size=1, max_size=NAME_CHARACTERS_MAX)
prefixes = st.text(string.ascii_lowercase + "._-", max_size=20).filter(
    lambda text: not text.startswith(("__", ".", "mm2-"))
)


@given(prefix=prefixes, name=names)
def test_every_target_name_leads_back_to_its_source_name(prefix: str, name: str) -> None:
    """
    An offset or an ACL found at the target can always be brought home.
    """
    policy = NamePolicy(prefix)

    assert policy.to_source(policy.to_target(name)) == name


@given(prefix=prefixes, one=names, other=names)
def test_two_topics_never_share_a_target_name(prefix: str, one: str, other: str) -> None:
    """
    Copies do not collide.
    """
    policy = NamePolicy(prefix)

    assert (policy.to_target(one) == policy.to_target(other)) == (one == other)


def test_a_target_topic_without_the_prefix_comes_from_nowhere() -> None:
    """
    What the flow did not name is not taken for a copy; nor is the bare prefix.
    """
    policy = NamePolicy("east.")

    assert policy.to_source("orders") is None
    assert policy.to_source("east.") is None
    assert policy.to_source("east.east.orders") == "east.orders"


@pytest.mark.parametrize(
    "name",
    [
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__twinsite_state.east",
        "mm2-offset-syncs.west.internal",
        "mm2-offsets.east.internal",
        "mm2-configs.east.internal",
        "east.checkpoints.internal",
    ],
)
def test_internal_topics_are_never_copied(name: str) -> None:
    """
    Not even when the include list says everything.
    """
    assert is_internal(name)
    assert TopicSelector([".*"]).why_not(name) is Ignored.INTERNAL


@pytest.mark.parametrize(
    "name", ["orders", "team.internal", "a-internal", "_private", "heartbeats", "x__y", "mm2-x"]
)
def test_a_name_that_only_looks_internal_is_a_topic_like_any_other(name: str) -> None:
    """
    Users own names such as ``team.internal``.
    """
    assert not is_internal(name)
    assert TopicSelector([".*"]).why_not(name) is None


def test_patterns_match_whole_names_and_the_exclude_list_wins() -> None:
    """
    ``orders`` is not ``orders-archive``; what is on both lists is not copied.
    """
    selector = TopicSelector(["orders", r"pay.*"], [r"pay\.tmp"])

    selection = selector.select(["orders", "orders-archive", "payments", "pay.tmp", "other"])

    assert selection.chosen == {"orders": "orders", "payments": "payments"}
    assert selection.ignored == {
        "orders-archive": Ignored.NOT_INCLUDED,
        "other": Ignored.NOT_INCLUDED,
        "pay.tmp": Ignored.EXCLUDED,
    }


def test_what_the_source_calls_internal_is_ignored_too() -> None:
    """
    A later Kafka may have internal topics we do not know by name.
    """
    selection = TopicSelector([".*"]).select(
        ["orders", "new-internal-thing"], internal={"new-internal-thing"}
    )

    assert selection.chosen == {"orders": "orders"}
    assert selection.ignored == {"new-internal-thing": Ignored.INTERNAL}


def test_an_empty_include_list_matches_nothing() -> None:
    """
    Copying everything has to be said.
    """
    assert TopicSelector([]).select(["orders"]).chosen == {}


def test_a_topic_whose_copy_cannot_be_called_so_is_not_left_out_in_silence() -> None:
    """
    The lists want it: what becomes of it is for the plan to say, see ``name_not_possible``.
    """
    selector = TopicSelector([".*"], policy=NamePolicy("_"))

    assert selector.select(["_schemas", "x" * 249]) == Selection(
        {"_schemas": "__schemas", "x" * 249: "_" + "x" * 249}, {}
    )


def test_a_flow_within_one_cluster_does_not_read_what_it_writes() -> None:
    """
    Else every copy would be copied again, for ever.
    """
    selector = TopicSelector([".*"], policy=NamePolicy("copy."), same_cluster=True)

    assert selector.select(["orders", "copy.orders"]).ignored == {"copy.orders": Ignored.OWN_COPY}


def test_a_flow_within_one_cluster_without_a_prefix_is_refused() -> None:
    """
    A topic cannot be its own copy.
    """
    with pytest.raises(UsageError, match="copied into itself"):
        TopicSelector([".*"], same_cluster=True)


def test_names_are_told_by_how_much_they_look_like_what_was_asked_for() -> None:
    """
    Among a thousand topics the one that was meant is not the first of the alphabet.
    """
    found = [f"audit-{number}" for number in range(100)] + ["orders", "orders-eu"]

    assert nearest(found, ["odrers"])[0] == "orders"
    assert nearest(found, ["audit-7", "order-eu"], at_most=2) == ["audit-7", "orders-eu"]
    assert nearest(found, ["ORDERS"], at_most=2) == ["orders", "orders-eu"]
    assert nearest([], ["odrers"]) == []


def test_where_nothing_is_copied_it_is_said_whether_anything_matches() -> None:
    """
    A list that leaves out too much is not a name that was mistyped.
    """
    excluding = TopicSelector(["orders.*"], ["orders.*"])
    going_round = TopicSelector(["east.*"], [], NamePolicy("east."), same_cluster=True)
    found = ["audit", "east.audit", *(f"orders-{number}" for number in range(20))]

    left_out = excluding.why_nothing(found)
    copies = going_round.why_nothing(found)
    mistyped = TopicSelector(["odits"]).why_nothing(found)

    assert left_out[0] == "topics.exclude leaves out every topic at the source that matches topics.include"
    assert left_out[1].startswith("topics that match: orders-0, orders-1, orders-10,")
    assert left_out[1].endswith(", ...")
    assert (copies[0].split(":")[0], copies[1]) == (
        "source and target are one cluster",
        "topics that match: east.audit",
    )
    assert mistyped[0] == "no topic at the source matches topics.include"
    assert mistyped[1].startswith("topics there: audit, ")
    assert mistyped[1].endswith(f"; {HIDDEN}")
    assert (
        TopicSelector(["a"]).why_nothing([])[1]
        == f"topics there: none that the mirror may describe; {HIDDEN}"
    )


def test_what_matches_only_a_part_of_a_name_and_what_is_never_copied_is_told_from_a_slip() -> None:
    """
    Nobody would find a slip there.
    """
    found = ["__consumer_offsets", "orders.eu"]

    part = TopicSelector(["orders"]).why_nothing(found)
    internal = TopicSelector(["__consumer_.*", "audit"]).why_nothing(found)

    assert part == (
        "no topic at the source matches topics.include",
        f"topics there: orders.eu; {HIDDEN}; an expression must match the whole name: "
        "add .* where more may follow",
    )
    assert internal == (
        "all that matches topics.include are internal topics, which no mirror copies",
        "topics that match: __consumer_offsets",
    )


def test_of_several_expressions_those_are_known_that_match_nothing() -> None:
    """
    A slip in one of them would leave out a topic, and the others would hide that. What is never copied does
    not count; what is excluded does: somebody meant that.
    """
    selector = TopicSelector(["orders", "ordrs", "__consumer_offsets", "audit.*"], ["audit.*"])

    assert selector.unmatched(["__consumer_offsets", "audit.x", "orders"]) == ["ordrs", "__consumer_offsets"]
