"""The steps of a start, each retried for as long as that can help.

A cluster may answer long before all of it is available: after a power cut one broker
tells who leads what while the leader of the state topic, or the coordinator, is still
reading its logs. A mirror that runs for ever waits for them as it waits for the clusters.
What waiting does not help, a missing permission or the state of other clusters, ends it at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from tenacity import RetryCallState

from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import BeforeSleep, retrying
from mirror.logs import Repeats, log_retry

log = structlog.get_logger(__name__)

SAID_EVERY_SECONDS = 10.0
"""Least time between two log lines that say that a step has failed again."""

T = TypeVar("T")


class Patience:
    """Takes steps, and tells what is waited for.

    Args:
        tell: Called with what is waited for and what went wrong last; with nothing when the step is done.
        once: Take each step only once.
    """

    def __init__(self, tell: Callable[[str], None], *, once: bool) -> None:
        self._tell = tell
        self._seconds = 0.0 if once else math.inf
        self._repeats = Repeats(every_seconds=SAID_EVERY_SECONDS)

    async def take(self, what: str, step: Callable[[], Awaitable[T]], *clusters: Cluster) -> T:
        """The result of a step that can be retried as a whole.

        Args:
            what: What it needs, in words.
            clusters: Those it asks; their snapshots are read again before each retry.

        Raises:
            TwinsiteError: Waiting does not help, or each step is taken only once.
        """
        self._tell(what)
        async for attempt in retrying(self._seconds, before_sleep=self._say(what)):
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    for cluster in clusters:
                        await cluster.refresh()
                done = await step()
                self._tell("")
                return done
        raise AssertionError("retrying ends with an answer or an error")

    def _say(self, what: str) -> BeforeSleep:
        logged = log_retry(log, self._repeats, "flow_not_begun", waits_for=what)

        def say(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome is not None else None
            self._tell(f"{what}: {error}")
            logged(state)

        return say
