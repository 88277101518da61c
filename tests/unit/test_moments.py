"""Moments that came from outside, as dates."""

from __future__ import annotations

import pytest

from mirror.moments import date_of, moment


@pytest.mark.parametrize(
    ("at_ms", "words"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (1_700_000_000_999, "2023-11-14 22:13:20 UTC"),
        (253_402_300_799_000, "9999-12-31 23:59:59 UTC"),
    ],
)
def test_a_moment_is_said_in_utc(at_ms: int, words: str) -> None:
    assert moment(at_ms) == words


@pytest.mark.parametrize(
    "at_ms", [-1, 253_402_300_800_000, 1_516_000_000_000_000, 2**63 - 1, 10**400, float("nan"), float("inf")]
)
def test_what_no_clock_says_is_unknown(at_ms: float) -> None:
    """
    Records, tokens and other mirrors may say anything; nobody who reads them ends for it.
    """
    assert date_of(at_ms) is None
    assert moment(at_ms) == "an unknown time"
