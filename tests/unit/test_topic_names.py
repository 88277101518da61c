"""What no copy may be called: said before anything starts where it can be, else of the topic concerned."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mirror.config import TopicsSettings
from mirror.errors import UsageError
from mirror.sync.names import NamePolicy
from mirror.topic_names import collision_key, why_no_copy, why_no_prefix


def settings_with(prefix: str) -> TopicsSettings:
    return TopicsSettings.model_validate({"include": [".*"], "names": "prefix", "prefix": prefix})


@pytest.mark.parametrize(
    "prefix", ["öst.", "a b", "x/", "x" * 249, "__x", "__", ".x", "mm2-offset-syncs.", "mm2-offset-syncs"]
)
def test_a_prefix_under_which_nothing_can_be_copied_is_refused_by_settings_and_mirror_alike(
    prefix: str,
) -> None:
    """
    Better at the start than topic by topic, and better when the settings are checked than at the start.
    """
    with pytest.raises(ValidationError, match="prefix"):
        settings_with(prefix)
    with pytest.raises(UsageError, match="topic prefix"):
        NamePolicy(prefix)


@pytest.mark.parametrize("prefix", ["east.", "east", "_", "mm2-", "heartbeats", "x" * 100, "-"])
def test_a_prefix_under_which_some_topics_can_be_copied_is_taken_by_both(prefix: str) -> None:
    """
    With ``_`` only topics such as ``_schemas`` have no name, and with ``mm2-`` those that end like its own.
    """
    assert why_no_prefix(prefix) is None
    assert settings_with(prefix).prefix == NamePolicy(prefix).prefix == prefix


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x" * 250, "250 characters, Kafka allows 249"),
        ("__schemas", "internal topic"),
        ("mm2-x-internal", "internal topic"),
        ("mm2-offset-syncs", "internal topic"),
    ],
)
def test_a_name_that_no_copy_can_have_is_told_with_the_cause(name: str, words: str) -> None:
    """
    Kafka would not make the first; from the others the way back would not be found.
    """
    why = why_no_copy(name)

    assert why is not None
    assert words in why


@pytest.mark.parametrize("name", ["x" * 249, "_schemas", "east._schemas", "mm2-x", "team.internal"])
def test_a_name_that_a_copy_can_have_is_taken(name: str) -> None:
    """
    As long as Kafka allows, and also where it only looks internal.
    """
    assert why_no_copy(name) is None


def test_names_that_kafka_cannot_tell_apart_share_a_key() -> None:
    """
    Its metrics write dots as underscores.
    """
    assert collision_key("a.b") == collision_key("a_b") != collision_key("a-b")
