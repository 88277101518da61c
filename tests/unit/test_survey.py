"""What a survey asks of a link, by the settings and by what was wished for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from mirror.config import LinkSettings, parse
from mirror.link.probe import Echo, Load, Observed
from mirror.survey import run
from mirror.survey.choosing import Chosen
from mirror.survey.run import Surveyed, Wish, survey
from mirror.survey.sampling import Ends
from tests.unit.links import observed
from tests.unit.test_link_expecting import PRODUCTION

LIMIT = {"rate": "400 kbit/s"}


async def test_what_is_produced_is_that_of_the_topics_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Those alone are followed: what the flow leaves out, by the target of its settings, is not watched.
    """
    document = {
        "link": {"relays": ["relay.east:9650"]},
        "target": {"bootstrap_servers": "west:9092"},
        "topics": {"include": [".*"]},
    }
    flow, chosen, source = parse(document), Chosen(("audit",), left_out=1), AsyncMock(follow=Mock())
    choose, production = AsyncMock(return_value=chosen), AsyncMock(return_value=PRODUCTION)
    ends = Ends(0.0, {})

    @contextlib.asynccontextmanager
    async def connected(*_: object, **__: object) -> AsyncIterator[object]:
        yield source

    monkeypatch.setattr(run, "connected", connected)
    monkeypatch.setattr(run, "choose", choose)
    monkeypatch.setattr(run, "ends", AsyncMock(return_value=ends))
    monkeypatch.setattr(run, "production", production)
    monkeypatch.setattr(run, "observe", AsyncMock(return_value=observed()))
    assert flow.link is not None

    found = await survey(flow.link, Wish(3.0, None, flow.topics, flow), lambda _: None)

    assert choose.call_args.args[:3] == (source, flow.topics, flow)
    source.follow.assert_called_once_with(("audit",))
    assert production.call_args.args[:3] == (source, chosen, ends)
    assert found.production == PRODUCTION


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
