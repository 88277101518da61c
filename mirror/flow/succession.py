"""When a mirror that stands by takes the owner's place.

No I/O. A standby takes the right from an owner that

- has moved nothing for a while, although there is something to copy or a deleted state to write again;
- has not said for a while where it runs;
- has withdrawn its word where it runs;
- gives no sign of life any more, and would have repeated its word by now.

Of several standbys one comes first, and the others' patience would end before it can begin. So each new
owner gets a time of its own, and a longer one after each owner that came and moved nothing; otherwise two
slow mirrors would take the right from each other for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirror.kafka.transactions import Token

Span = tuple[float, float]
"""Begin and end, in monotonic seconds."""
TAKE_OVER_AFTER_SECONDS = 5.0
"""An owner without progress, or without a word where it runs, for longer than this is taken to be gone."""
WORD_COUNTS_SECONDS = 90.0
"""For so long after the owner's last sign of life its word counts: three times as long as until it repeats it
(:mod:`mirror.flow.announcing`).
"""
DOUBLINGS_MAX = 4
"""So the patience is 80 seconds at most, and that only after several owners that moved nothing."""
STANDBY_LOOKS_PER_SECOND = 200
STANDBY_LOOK_SECONDS_MIN, STANDBY_LOOK_SECONDS_MAX = 1.0, 5.0
UNSEEN_SECONDS = 3 * STANDBY_LOOK_SECONDS_MAX


def standby_look_seconds(partitions: int) -> float:
    """How long a standby waits before it looks at its partitions again: looking at many is expensive."""
    pause = partitions / STANDBY_LOOKS_PER_SECOND
    return min(max(pause, STANDBY_LOOK_SECONDS_MIN), STANDBY_LOOK_SECONDS_MAX)


class Word(NamedTuple):
    """Where the owner runs, as it has last said.

    Attributes:
        epoch: Of the right under which it said so.
        heard_at: When it was last seen to write to the flow's state, or to move anything (monotonic seconds).
    """

    epoch: int
    heard_at: float


class Succession:
    """The owners of one flow, as one standby sees them."""

    def __init__(self) -> None:
        self._holder: Token | None = None
        self._came_at: float | None = None
        self._watched_since = 0.0
        self._asked_at = 0.0
        self._without_progress = 0
        self._announced = False
        self._silent_since: float | None = None

    def due(self, holder: Token | None, word: Word | None, stood: Span | None, now: float) -> bool:
        """Whether the owner is to be taken as gone.

        Args:
            holder: Who holds the right now, according to the coordinator; None for nobody.
            word: The last word where the owner runs; None if there is none, or it was withdrawn.
            stood: From the first to the last look between which nothing of the flow has moved, although there
                was something to copy (monotonic seconds, like ``now``); None if there was nothing. It ends at
                a look and not now, as looks may be as far apart as the patience is long, and a single one may
                find an owner between two records.
            now: Monotonic seconds.
        """
        if self._came_at is None:
            self._begin(holder, stood[0] if stood else now)
        elif holder != self._holder:
            self._begin(holder, now)
            self._without_progress += 1
        elif now - self._asked_at > UNSEEN_SECONDS:
            self._begin(holder, now)  # we stood still ourselves: what the owner did meanwhile is not known
        self._asked_at = now
        if self._announced and word is None:
            return True
        self._listen(holder, word, now)
        silent = () if self._silent_since is None else ((self._silent_since, now),)
        return self._is_over([*silent, *(() if stood is None else (stood,))])

    def _begin(self, holder: Token | None, at: float) -> None:
        self._holder, self._came_at, self._watched_since = holder, at, at
        self._announced, self._silent_since = False, None

    def _listen(self, holder: Token | None, word: Word | None, now: float) -> None:
        if word is not None and holder is not None and word.epoch == holder.epoch and self._lives(word, now):
            self._announced, self._silent_since = True, None
        elif self._silent_since is None:
            self._silent_since = now

    def _lives(self, word: Word, now: float) -> bool:
        """Whether the owner has given a sign of life of late; while we stood still we could see none."""
        return now - max(word.heard_at, self._watched_since) <= WORD_COUNTS_SECONDS

    def _is_over(self, spans: Sequence[Span]) -> bool:
        """Whether one of these spans, counted from when the owner came, is longer than the patience."""
        assert self._came_at is not None
        began = min((since for since, _ in spans), default=self._came_at)
        if began > self._came_at:
            self._came_at, self._without_progress = began, 0
        patience = TAKE_OVER_AFTER_SECONDS * (1 << min(self._without_progress, DOUBLINGS_MAX))
        return any(until - max(since, self._came_at) > patience for since, until in spans)
