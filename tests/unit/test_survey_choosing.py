"""Which topics a link test counts: those that a mirror with the same settings would copy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from mirror.cli.link_report import document, report
from mirror.config import Settings, parse
from mirror.errors import ConnectionFailedError, UsageError
from mirror.kafka.cluster_info import ClusterInfo
from mirror.model import TopicPartition
from mirror.offline import NoStateError
from mirror.survey import choosing
from mirror.survey.choosing import NO_TARGET, Chosen, choose
from tests.unit.links import a_link
from tests.unit.test_cli_link import a_survey, surveyed
from tests.unit.test_incoming import ORIGINAL, STATE, Source, state
from tests.unit.test_link_expecting import PRODUCTION


class Site(Source):
    """The source, and the target's answers beside it.

    Attributes:
        begun: Topics that the flow copies already.
        target_error: Why the target does not answer.
        cluster_id: Of the source.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: str, prefix: str = "a.") -> None:
        super().__init__(monkeypatch, *topics, prefix=prefix)
        self.begun: tuple[str, ...] = ()
        self.target_error: Exception | None = None
        self.target = SimpleNamespace(info=self.info, describe_topics=self.describe_topics)
        self.info = replace(self.info, cluster_id="source-id")
        self.said: list[str] = []
        monkeypatch.setattr(choosing, "connected", self._connected)
        monkeypatch.setattr(choosing, "flow_state", self._flow_state)

    @contextlib.asynccontextmanager
    async def _connected(self, name: str, _: object, **__: object) -> AsyncIterator[Any]:
        assert name == "target"
        if self.target_error is not None:
            raise self.target_error
        yield self.target

    async def _flow_state(self, _: object, flow: str) -> Any:
        if not self.begun:
            raise NoStateError(f"flow {flow} has no state")
        records = {TopicPartition(topic, 0): SimpleNamespace(topic_id=str(ORIGINAL)) for topic in self.begun}
        return SimpleNamespace(partitions=records)

    async def describe_topics(self, names: Collection[str] | None) -> ClusterInfo:
        if names is None:
            return replace(self.info, topics=self.topics)
        return await super().describe_topics(names)

    async def chosen(self, *include: str, config: bool = True) -> Chosen:
        settings = self.settings(*include)
        return await choose(self, settings.topics, settings if config else None, self.said.append)  # type: ignore[arg-type]

    def settings(self, *include: str) -> Settings:
        names = {"names": "prefix", "prefix": self.prefix} if self.prefix else {}
        return parse(
            {
                "link": {"relays": ["east:9650"]},
                "target": {"bootstrap_servers": "west:9092"},
                "topics": {"include": list(include or (".*",)), **names},
            }
        )


async def test_copies_of_what_the_target_has_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With both ways over one link half of what the lists want is produced by the other flow.
    """
    site = Site(monkeypatch, "b.orders", "audit")
    site.stored, site.ends = state("orders"), {"b.orders": 3, "audit": 3}

    assert await site.chosen() == Chosen(("audit",), left_out=1)
    assert await site.chosen("b.*") == Chosen((), left_out=1)
    assert site.said == []


async def test_what_the_flow_has_begun_counts_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is copied on.
    """
    site = Site(monkeypatch, "b.orders", "audit")
    site.stored, site.begun = state("orders"), ("b.orders",)

    assert await site.chosen() == Chosen(("audit", "b.orders"), left_out=0)


async def test_a_topic_of_which_it_is_not_known_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A link is not called fast enough because a state could not be read just now.
    """
    site = Site(monkeypatch, "orders", prefix="")
    site.stored, site.hidden = state("orders", prefix=""), {"orders"}

    assert await site.chosen() == Chosen(("orders",), left_out=0)

    site.hidden, site.there = set(), {"orders": ORIGINAL}
    assert await site.chosen() == Chosen((), left_out=1)


async def test_what_a_flow_within_one_cluster_writes_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its copies match its own lists.
    """
    site = Site(monkeypatch, "orders", "a.orders")
    del site.topics[STATE]
    site.target.info = site.info

    assert await site.chosen() == Chosen(("orders",), left_out=1)


async def test_where_no_target_answers_the_lists_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    That is said where one was named. The link is measured all the same.
    """
    site = Site(monkeypatch, "b.orders", "audit")
    site.stored = state("orders")
    everything = "audit", "b.orders"

    assert await site.chosen(config=False) == Chosen(everything, NO_TARGET)
    assert site.said == []

    site.target_error = ConnectionFailedError("target: west:9092 does not answer")
    assert await site.chosen() == Chosen(everything, "target: west:9092 does not answer")
    [words] = site.said
    assert words.startswith("warning: topics that are copies of what the target has are also counted: target")


async def test_lists_that_want_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before the link is filled; most likely one of them is mistaken.
    """
    site = Site(monkeypatch, "audit")

    with pytest.raises(UsageError, match="none of the 2 topics at the source matches odits"):
        await site.chosen("odits")


def test_the_report_says_how_many_were_left_out() -> None:
    """
    Where there are none nothing is said of them.
    """
    made = replace(PRODUCTION, topics_left_out=3)
    nobody_knows = replace(PRODUCTION, topics_left_out=None, unknown={"topics_left_out": NO_TARGET})
    out = StringIO()

    for one in (made, PRODUCTION, nobody_knows):
        found = a_survey(surveyed(a_link(), one), made=one)
        Console(file=out, width=100, no_color=True).print(report(found))

    assert out.getvalue().count("left out") == 2
    assert "left out       3 topics, as copies of what the target has" in out.getvalue()
    assert f"left out       ? ({NO_TARGET})" in out.getvalue()
    assert document(a_survey(made=made))["production"]["topics_left_out"] == 3
