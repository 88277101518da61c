"""Which names topics may have, and which names have a meaning of their own.

Settings and topics are judged by the same rules. Pure.

A leaf: it imports nothing of the project.

Sources: Kafka's ``Topic`` class (legal names, colliding names), KIP-690 and KIP-1074
(names of MirrorMaker 2's internal topics).
"""

from __future__ import annotations

import re

NAME_CHARACTERS_MAX = 249
STATE_TOPIC_PREFIX = "__twinsite_state."

_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_INTERNAL = re.compile(
    r"__.*"  # Kafka's own, and ours
    r"|mm2-.*[.-]internal|mm2-offset-syncs.*"
    r"|.*\.checkpoints\.internal"
)


def is_internal(name: str) -> bool:
    """Whether a topic is Kafka's, MirrorMaker 2's or our own."""
    return _INTERNAL.fullmatch(name) is not None


def collision_key(name: str) -> str:
    """Two topics of one cluster may not share this: Kafka's metrics cannot tell ``.`` from ``_``."""
    return name.replace(".", "_")


def why_no_prefix(prefix: str) -> str | None:
    """Why no name of a copy can begin with this, whatever the topic is called; None if some can."""
    if _LEGAL.fullmatch(prefix) is None:
        return "Kafka allows only letters, digits, dot, hyphen and underscore"
    if len(prefix) >= NAME_CHARACTERS_MAX:
        return "it leaves no room for the name of a topic"
    if prefix.startswith(".") or is_internal(f"{prefix}x"):
        return "every name that begins with it counts as an internal topic"
    return None


def why_no_copy(name: str) -> str | None:
    """Why a copy cannot be called so, as the end of a sentence; None if it can.

    Args:
        name: A prefix that is possible, or none, and the name of a topic that is not internal.
    """
    if len(name) > NAME_CHARACTERS_MAX:
        return f"would have a name of {len(name)} characters, Kafka allows {NAME_CHARACTERS_MAX}"
    if is_internal(name):
        return "would be mistaken for an internal topic, which no mirror copies"
    return None
