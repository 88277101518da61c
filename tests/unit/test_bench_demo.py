"""What the demo decides: how far a copy is, and what holds it back where there is no link."""

from __future__ import annotations

import pytest

from bench.demo import between, is_copied, limits_of
from tests.harness.far_site import FarSite, next_door

LINK = FarSite("an emulated link of 50 Mbit/s", bytes_per_second=50e6 / 8)
NO_LINK = next_door("only root may make network namespaces")


@pytest.mark.parametrize(
    ("first", "now", "copied"),
    [
        (None, None, False),
        (1000, None, False),
        (1000, 651, False),
        (1000, 650, True),
        (1000, 0, True),
        (0, 0, True),
    ],
)
def test_a_share_of_what_was_missing_is_always_reached(
    first: int | None, now: int | None, copied: bool
) -> None:
    """
    Also by a mirror that is started when next to nothing is left to copy.
    """
    assert is_copied(0.35, first, now) is copied


def test_relays_keep_to_a_rate_where_no_link_does() -> None:
    """
    Otherwise all is copied before anything could be killed. What the demo prints says so.
    """
    limits = limits_of(NO_LINK, 50)

    assert limits == [{"rate": "50 Mbit/s"}]
    assert between(NO_LINK, limits) == f"{NO_LINK.says}, with relays that keep to 50 Mbit/s"


def test_a_link_needs_no_other_limit() -> None:
    """
    The relays send what it carries.
    """
    assert limits_of(LINK, 50) == []
    assert between(LINK, []) == LINK.says
