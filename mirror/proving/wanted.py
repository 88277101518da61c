"""Which offsets an operator wants compared, and how a result names that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirror.acknowledged import Mirror
from spark_jobs.algorithms import Hashing
from spark_jobs.extent import Extent
from spark_jobs.history import SINCE_LAST_MATCH, Run
from spark_jobs.result import time_text
from spark_jobs.sampling import Sample


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be compared. Compacted topics are always compared whole.

    Attributes:
        topics: Only these, by their names at the source; empty for all of the flow.
        start, end: Source offsets, the end not included; None leaves it open.
        since_ms, until_ms: Record timestamps; from the first record at or after ``since_ms`` up to the first
            one at or after ``until_ms``, which is not included. None leaves it open.
        continues: An earlier run; this one begins where that one ended, partition by partition.
        seen: Earlier runs, which saw how far the copy had come.
        sample: Only this part of append-only topics.
        same_offsets: Assume the same offsets where the flow's state has none: something else made the copy.
        hashing: How both sites hash.
        mirror: The mirror that is asked how far the copy has come; None: only the target's log tells.
    """

    topics: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    continues: Run | None = None
    seen: Sequence[Run] = ()
    sample: Sample | None = None
    same_offsets: bool = False
    hashing: Hashing = field(default_factory=Hashing)
    mirror: Mirror | None = None

    @property
    def limits(self) -> tuple[str, ...]:
        """What limits the comparison to a part of each log, sampling aside; times without their values."""
        limits = {
            f"from_offset {self.start}": self.start,
            f"to_offset {self.end}": self.end,
            "since": self.since_ms,
            "until": self.until_ms,
            SINCE_LAST_MATCH: self.continues,
        }
        return tuple(words for words, limit in limits.items() if limit is not None)

    @property
    def extent(self) -> Extent:
        """What is compared, as the result names it."""
        return Extent(self._words(), self.topics, self.limits, self.sample)

    def _words(self) -> str:
        limits = {
            "topics": ", ".join(self.topics) or None,
            "source offsets from": self.start,
            "source offsets below": self.end,
            "since": None if self.since_ms is None else time_text(self.since_ms),
            "until": None if self.until_ms is None else time_text(self.until_ms),
            "after run": None if self.continues is None else self.continues.name,
            "of append-only topics": self.sample,
        }
        said = [f"{words} {limit}" for words, limit in limits.items() if limit is not None]
        return ", ".join(said) or "all there is"
