"""Which topics are copied and what they are called: nothing internal, and every name finds its way back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import UsageError
from mirror.sync.names import (
    NAME_CHARACTERS_MAX,
    Ignored,
    NamePolicy,
    TopicSelector,
    collision_key,
    is_internal,
    is_legal,
    nearest,
)

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
    "prefix", ["öst.", "a b", "x/", "x" * NAME_CHARACTERS_MAX, "__x", ".x", "mm2-offset-syncs."]
)
def test_a_prefix_that_makes_illegal_or_internal_names_is_refused(prefix: str) -> None:
    """
    Better at the start than topic by topic.
    """
    with pytest.raises(UsageError, match="topic prefix"):
        NamePolicy(prefix)


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


def test_a_name_too_long_with_its_prefix_is_ignored_with_that_reason() -> None:
    """
    Kafka ends at 249 characters.
    """
    selector = TopicSelector([".*"], policy=NamePolicy("east."))

    assert selector.why_not("x" * 245) is Ignored.NAME_TOO_LONG
    assert selector.why_not("x" * 244) is None


def test_a_copy_that_would_look_internal_is_ignored_with_that_reason() -> None:
    """
    Else the way back, or the next mirror, would lose sight of it.
    """
    selector = TopicSelector([".*"], policy=NamePolicy("mm2-"))

    assert selector.why_not("x-internal") is Ignored.COPY_INTERNAL


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


def test_kafkas_rules_of_names() -> None:
    """
    Legal characters, length, and the pair of characters its metrics cannot tell apart.
    """
    assert is_legal("a.B_c-9")
    assert not any(is_legal(name) for name in ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\n"])
    assert collision_key("a.b") == collision_key("a_b") != collision_key("a-b")


def test_names_are_told_by_how_much_they_look_like_what_was_asked_for() -> None:
    """
    Among a thousand topics the one that was meant is not the first of the alphabet.
    """
    found = [f"audit-{number}" for number in range(100)] + ["orders", "orders-eu"]

    assert nearest(found, ["odrers"])[0] == "orders"
    assert nearest(found, ["audit-7", "order-eu"], at_most=2) == ["audit-7", "orders-eu"]
    assert nearest([], ["odrers"]) == []
