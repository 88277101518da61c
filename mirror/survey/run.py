"""Measure the link to each relay, and meanwhile what is produced at the source behind them.

Relays are measured one after the other: two at once would compete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mirror.clusters import connected
from mirror.config import LinkSettings, Settings, TopicsSettings, host_and_port
from mirror.config_limits import periods_of
from mirror.errors import TwinsiteError, UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.security import Security
from mirror.kafka.tcp_info import RECEIVE_BUFFERS, buffer_bytes_max
from mirror.link.advising import Advice, advice
from mirror.link.expecting import Expected, Production, expected
from mirror.link.measuring import Measured, load_for, measured
from mirror.link.probe import RATE_MIN
from mirror.link.probing import observe
from mirror.survey.choosing import PATIENCE_SECONDS, Chosen, choose
from mirror.survey.sampling import Ends, ends, production
from mirror.timetable import lowest, rate_at

NO_LINK = "no link was measured, so production was not measured either"
NO_TOPICS = "no topics are named: use --topics, or --config with the mirror's settings"


@dataclass(frozen=True, slots=True)
class Failed:
    """A relay whose link could not be measured."""

    relay: str
    error: TwinsiteError


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A link as measured, what it means for what is produced, and advice.

    Attributes:
        window_bytes: The window in the settings.
    """

    link: Measured
    expected: Expected
    window_bytes: int
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found out.

    Attributes:
        production: None if it is not known; ``why_no_production`` says why.
        source_error: The error that kept it from being known, if that was the cause.
    """

    relays: tuple[Surveyed | Failed, ...]
    production: Production | None
    why_no_production: str
    source_error: TwinsiteError | None

    @property
    def errors(self) -> list[TwinsiteError]:
        """The errors of relays and of the source."""
        failed = [one.error for one in self.relays if isinstance(one, Failed)]
        return failed if self.source_error is None else [*failed, self.source_error]

    @property
    def too_slow(self) -> bool:
        """Whether one of the links carries less than what is produced."""
        return any(isinstance(one, Surveyed) and one.expected.too_slow for one in self.relays)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a survey is to do.

    Attributes:
        seconds: How long each link is filled.
        rate_max: Bytes a second, at most; None: what the settings allow at this time, or the link carries.
        topics: The topics whose production is measured; None: of no topics.
        flow: Settings whose target tells which of them the flow leaves out; None: no target is asked.
    """

    seconds: float
    rate_max: int | None
    topics: TopicsSettings | None
    flow: Settings | None = None


async def survey(link: LinkSettings, wish: Wish, say: Callable[[str], None]) -> Survey:
    """Measure the links to all relays. One that fails does not keep the others from being measured.

    Args:
        say: Called with what is being done, for people who wait.

    Raises:
        UsageError: Topics were named, and the source has none of them.
    """
    async with contextlib.AsyncExitStack() as stack:
        watch = _Watch(link, wish.topics, wish.flow)
        await watch.begin(stack, say)
        links = [await _measure(relay, link, wish, say) for relay in link.relays]
        await watch.end([one for one in links if isinstance(one, Measured)])
    why = str(watch.error) if watch.error else NO_TOPICS if wish.topics is None else NO_LINK
    relays = tuple(
        _judged(one, link, watch.found, why) if isinstance(one, Measured) else one for one in links
    )
    return Survey(relays, watch.found, "" if watch.found else why, watch.error)


def rate_max_at(link: LinkSettings, wish: Wish, now: datetime) -> int | None:
    """Bytes a second to ask of a link: what was wished for, else what its limits allow now; None: no limit.

    It is never below :data:`mirror.link.probe.RATE_MIN`: no relay sends less.
    """
    allowed = rate_at(periods_of(link.limits), now) if wish.rate_max is None else wish.rate_max
    return None if allowed is None else max(round(allowed), RATE_MIN)


def _judged(one: Measured, link: LinkSettings, made: Production | None, why_none: str) -> Surveyed:
    told = tuple(advice(one, link.window_bytes))
    allowed = lowest(*(period.rate for period in periods_of(link.limits)))
    return Surveyed(one, expected(one, made, why_none, allowed), link.window_bytes, told)


async def _measure(
    relay: str, link: LinkSettings, wish: Wish, say: Callable[[str], None]
) -> Measured | Failed:
    rate_max = rate_max_at(link, wish, datetime.now(UTC))
    full = "full" if rate_max is None else f"given {rate_max} bytes a second"
    say(f"measuring the link to {relay}, which is {full} for {wish.seconds:g} s")
    address = Address(*host_and_port(relay))
    options = ConnectionOptions(
        security=Security.from_settings(link.security),
        client_id=link.client_id,
        connect_timeout_seconds=link.connect_timeout_seconds,
        request_timeout_seconds=link.request_timeout_seconds,
        relays=Relays([address]),
    )
    try:
        observed = await observe(options, lambda idle: load_for(idle, wish.seconds, rate_max))
    except TwinsiteError as error:
        return Failed(relay, error)
    return measured(observed, buffer_bytes_max(RECEIVE_BUFFERS))


@dataclass(slots=True)
class _Watch:
    """Watches what is produced at the source behind the relays; does nothing if no topics were named.

    Attributes:
        found: What is produced; known after :meth:`end`.
        error: What kept it from being known.
    """

    link: LinkSettings
    topics: TopicsSettings | None
    flow: Settings | None
    found: Production | None = None
    error: TwinsiteError | None = None
    _source: Cluster | None = None
    _chosen: Chosen | None = None
    _before: Ends | None = None

    async def begin(self, stack: contextlib.AsyncExitStack, say: Callable[[str], None]) -> None:
        """Look for the first time.

        Raises:
            UsageError: The source has none of the topics.
        """
        if self.topics is None:
            return
        try:
            way = connected("source", self.link, patience_seconds=PATIENCE_SECONDS)
            self._source = await stack.enter_async_context(way)
            self._chosen = await choose(self._source, self.topics, self.flow, say)
            self._source.follow(self._chosen.topics)
            await self._source.refresh()
            self._before = await ends(self._source)
        except UsageError:
            raise
        except TwinsiteError as error:
            self.error = error

    async def end(self, links: Sequence[Measured]) -> None:
        """Look again."""
        if self._source is None or self._chosen is None or self._before is None or not links:
            return
        rates = [one.rate.bytes_per_second for one in links if one.rate]
        recode = self.link.recode == "auto"
        try:
            self.found = await production(
                self._source, self._chosen, self._before, min(rates, default=None), recode=recode
            )
        except TwinsiteError as error:
            self.error = error
