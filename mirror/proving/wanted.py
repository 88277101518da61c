"""Of which offsets a comparison is wanted, as a person has said it, and how a result names that. Pure."""

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
    """Of which offsets a comparison is wanted; compacted topics are always compared whole.

    Attributes:
        topics: Only these, as they are called at the source; none means all of the flow.
        start, end: Source offsets, the end not included; None leaves it open.
        since_ms, until_ms: Timestamps; None leaves it open.
        continues: A run behind whose ends this one begins, partition by partition.
        seen: Runs that have seen how far the copy had come.
        sample: Only this part of append-only topics.
        same_offsets: Take offsets to be the same where the flow does not know: somebody else made the copy.
        hashing: How both sites hash.
        mirror: Whose word is taken for how far the copy had come; None: the target's log alone says so.
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
        """By what only a part of each log is wanted, whatever is sampled of it; of times not which."""
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
        """As the result names it."""
        return Extent(self._words(), self.topics, self.limits, self.sample)

    def _words(self) -> str:
        limits = {
            "topics": ", ".join(self.topics) or None,
            "source offsets from": self.start,
            "source offsets below": self.end,
            "since": None if self.since_ms is None else time_text(self.since_ms),
            "until": None if self.until_ms is None else time_text(self.until_ms),
            "behind run": None if self.continues is None else self.continues.name,
            "of append-only topics": self.sample,
        }
        said = [f"{words} {limit}" for words, limit in limits.items() if limit is not None]
        return ", ".join(said) or "all there is"
