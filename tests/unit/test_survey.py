"""What a survey asks of a link, by the settings and by what was wished for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirror.config import LinkSettings
from mirror.link.probe import Echo, Load, Observed
from mirror.survey import run
from mirror.survey.run import Surveyed, Wish, survey
from tests.unit.links import observed

LIMIT = {"rate": "400 kbit/s"}


@pytest.mark.parametrize(
    ("limits", "wished", "asked", "lowest"),
    [
        ([], None, None, None),
        ([LIMIT], None, 50_000, 50_000),
        ([LIMIT], 20_000, 20_000, 50_000),
        ([LIMIT], 1_000_000, 1_000_000, 50_000),
        ([{"rate": "8 kbit/s"}], None, 10_000, 1_000),
        ([{"rate": None}, LIMIT], None, None, 50_000),
    ],
)
async def test_no_more_is_asked_of_a_link_than_its_limits_allow(
    monkeypatch: pytest.MonkeyPatch,
    limits: list[Any],
    wished: int | None,
    asked: int | None,
    lowest: int | None,
) -> None:
    """
    Unless somebody wished for more or for less; a relay takes no wish for less than 10 000 bytes a second.
    """
    loads: list[Load] = []

    async def observe(_: object, load_for: Callable[[tuple[Echo, ...]], Load]) -> Observed:
        loads.append(load_for((Echo(0.1, 0.0),)))
        return observed()

    monkeypatch.setattr(run, "observe", observe)
    link = LinkSettings.model_validate({"relays": ["relay.east:9650"], "limits": limits})

    found = await survey(link, Wish(3.0, wished, None), lambda _: None)

    assert [load.rate_max for load in loads] == [asked]
    [one] = found.relays
    assert isinstance(one, Surveyed)
    assert one.expected.limit_bytes_per_second == lowest
