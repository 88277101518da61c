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
        topics: Only these; none means all of the flow.
        limits: By what only a part of each log was asked for: options, offsets with what they say.
        sample: Only this part of append-only topics.
    """

    words: str = "all there is"
    topics: Sequence[str] = ()
    limits: Sequence[str] = ()
    sample: Sample | None = None

    @property
    def is_all(self) -> bool:
        """Whether nothing that the flow has was left out that was not compared before."""
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
    """
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
