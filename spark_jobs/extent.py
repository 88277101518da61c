"""How much of a flow a comparison was asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_jobs.history import SINCE_LAST_MATCH
from spark_jobs.sampling import Sample


@dataclass(frozen=True, slots=True)
class Extent:
    """What was asked for.

    Attributes:
        words: For people.
        topics: Only these; empty: all of the flow.
        limits: The options that limit it to a part of each log; offsets with their values.
        sample: Only this part of append-only topics.
    """

    words: str = "all there is"
    topics: Sequence[str] = ()
    limits: Sequence[str] = ()
    sample: Sample | None = None

    @property
    def is_all(self) -> bool:
        """Whether it covers all that the flow has, except what was compared before."""
        return not self.topics and self.sample is None and {*self.limits} <= {SINCE_LAST_MATCH}


def extent_to_document(extent: Extent) -> dict[str, Any]:
    """Parts of a larger document: ``wanted``, ``topics``, ``limits`` and ``sample``."""
    return {
        "wanted": extent.words,
        "topics": list(extent.topics),
        "limits": list(extent.limits),
        "sample": None if extent.sample is None else asdict(extent.sample),
    }


def extent_of_document(document: Mapping[str, Any]) -> Extent:
    """The extent in a larger document.

    Raises:
        KeyError, TypeError: It has no such parts.
    """
    sample = document["sample"]
    return Extent(
        document["wanted"],
        tuple(document["topics"]),
        tuple(document["limits"]),
        None if sample is None else Sample(**sample),
    )
