"""Words from outside, made safe for a terminal. Pure, and quick to import."""

from __future__ import annotations


def clean(words: object) -> str:
    r"""Words from outside, with ``\n`` or ``\x1b`` written out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(words))
