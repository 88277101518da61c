"""When one that stands by takes the owner's place.

No I/O. Whoever stands by takes the right from an owner that has moved nothing for a while, though there is
something to copy, or a state to write again that was deleted, from one that does not say where it runs, and
from one that has taken its word back. Of several that wait one comes first, and the others' patience would be
at its end before it can begin. So each new owner is given a time of its own, and a longer one with each that
came and moved nothing: else two that are slow take the right from each other for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror.kafka.transactions import Token

Span = tuple[float, float]
"""From when to when, in monotonic seconds."""
TAKE_OVER_AFTER_SECONDS = 5.0
"""So long without progress, or without a word, and the owner is taken for gone."""
DOUBLINGS_MAX = 4
"""A minute and a half is the longest that a dead owner is waited for, and only after others had no luck."""
STANDBY_LOOKS_PER_SECOND = 200
STANDBY_LOOK_SECONDS_MIN, STANDBY_LOOK_SECONDS_MAX = 1.0, 5.0
UNSEEN_SECONDS = 3 * STANDBY_LOOK_SECONDS_MAX


def standby_look_seconds(partitions: int) -> float:
    """How long to wait before one that stands by looks at its partitions again: a look at many is dear."""
    pause = partitions / STANDBY_LOOKS_PER_SECOND
    return min(max(pause, STANDBY_LOOK_SECONDS_MIN), STANDBY_LOOK_SECONDS_MAX)


class Succession:
    """Of one flow, as one of those sees it who wait."""

    def __init__(self) -> None:
        self._holder: Token | None = None
        self._came_at: float | None = None
        self._asked_at = 0.0
        self._without_progress = 0
        self._announced = False
        self._silent_since: float | None = None

    def due(self, holder: Token | None, word: int | None, stood: Span | None, now: float) -> bool:
        """Whether the owner is to be taken for gone.

        Args:
            holder: Who holds the right now, as the coordinator says; None for nobody.
            word: The epoch of who left word last where the owner runs; None when nobody has, or it was taken
                back.
            stood: From which look to which nothing of the flow has moved, though there was something to copy
                (monotonic seconds, like ``now``); None when there was nothing. Looks may be as far apart as
                the patience is long, and one finds an owner between two records.
        """
        if self._came_at is None:
            self._begin(holder, stood[0] if stood else now)
        elif holder != self._holder:
            self._begin(holder, now)
            self._without_progress += 1
        elif now - self._asked_at > UNSEEN_SECONDS:
            self._begin(holder, now)  # it is we who stood still: what the owner did meanwhile is not known
        self._asked_at = now
        if self._announced and word is None:
            return True
        self._listen(holder, word, now)
        silent = () if self._silent_since is None else ((self._silent_since, now),)
        return self._is_over([*silent, *(() if stood is None else (stood,))])

    def _begin(self, holder: Token | None, at: float) -> None:
        self._holder, self._came_at = holder, at
        self._announced, self._silent_since = False, None

    def _listen(self, holder: Token | None, word: int | None, now: float) -> None:
        if holder is not None and word == holder.epoch:
            self._announced, self._silent_since = True, None
        elif self._silent_since is None:
            self._silent_since = now

    def _is_over(self, spans: Sequence[Span]) -> bool:
        """Whether one of these has been too long since the owner came."""
        assert self._came_at is not None
        began = min((since for since, _ in spans), default=self._came_at)
        if began > self._came_at:
            self._came_at, self._without_progress = began, 0
        patience = TAKE_OVER_AFTER_SECONDS * (1 << min(self._without_progress, DOUBLINGS_MAX))
        return any(until - max(since, self._came_at) > patience for since, until in spans)
