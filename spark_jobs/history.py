"""The runs that a folder holds, read from the summaries they left.

A run without a summary did not come to an end. That is an outcome of its own; the run is not left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from mirror.model import TopicPartition
from spark_jobs.algorithms import Algorithm

SUMMARY = "summary.json"
UNFINISHED = "unfinished"
FAILED = "failed"
DAMAGED = "damaged"
"""The summary cannot be read: nothing is known of the run."""
SINCE_LAST_MATCH = "since_last_match"
"""A limit of a run: what it leaves out was compared before and found to be the same."""
NAME_TIME = "%Y%m%dT%H%M%S"
"""How the name of a run's folder begins, followed by ``Z``, unless the user has named it."""
FOUND = {"source": dict, "differences": dict, "unnamed": int, "partitions": list}
"""Fields that every result has, with their types."""
FIELDS = FOUND | {"flow": str, "topics": list, "limits": list, "sample": dict | None, "files": dict | None}
"""Fields of a summary that later runs and commands look at, with their types."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        summary: The document it left; empty where it left none.
    """

    name: str
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return str(self.summary.get("outcome", UNFINISHED))

    @property
    def has_ended(self) -> bool:
        """Whether it has left a result."""
        return self.outcome not in {UNFINISHED, FAILED, DAMAGED}

    @property
    def flow(self) -> str | None:
        return self.summary.get("flow")

    @property
    def clusters(self) -> tuple[str | None, str | None]:
        """Ids of source and target."""
        return self.summary.get("source_cluster_id"), self.summary.get("target_cluster_id")

    @property
    def is_of_clusters(self) -> bool:
        """Whether both clusters were read, and no files in place of one."""
        return not self.summary.get("files")

    @property
    def topics(self) -> tuple[str, ...]:
        """The only topics that were asked for; empty: all of the flow."""
        return tuple(self.summary.get("topics", ()))

    @property
    def limits(self) -> tuple[str, ...]:
        """The options that limited the run to a part of each log."""
        return tuple(self.summary.get("limits", ()))

    @property
    def is_of_all(self) -> bool:
        """Whether all that the flow has was compared by this run or before. For a sample: by its round."""
        return "limits" in self.summary and not self.topics and {*self.limits} <= {SINCE_LAST_MATCH}

    @property
    def may_be_continued(self) -> bool:
        """Whether everything up to where it ended is known to be the same."""
        return self.outcome == "match" and self.is_of_all and self.summary.get("sample") is None

    def is_as_strong_as(self, wanted: Algorithm) -> bool:
        """Whether it hashed with this algorithm or a stronger one."""
        return self.summary.get("digest") in wanted.and_stronger

    def seen_to(self, tp: TopicPartition, topic_id: str, log_end: int) -> int:
        """The source offset up to which the target had a partition; 0 where that says nothing of it now.

        Args:
            topic_id: The present id of the source's topic.
            log_end: The present log end at the source: a log that has become shorter is not the one it was.
        """
        one = self._partition(tp, topic_id)
        end = int(one["source_offsets"][1]) if one else 0
        return end if end <= log_end else 0

    def compared_to(self, tp: TopicPartition, topic_id: str, target_topic_id: str, log_end: int) -> int:
        """The source offset up to which the target's copy of a partition was compared, as for
        :meth:`seen_to`; 0 also where the target's topic is another one now: it may have been copied again.

        Args:
            target_topic_id: The present id of the target's topic.
        """
        one = self._partition(tp, topic_id)
        same = one is not None and one.get("target_topic_id") == target_topic_id
        return self.seen_to(tp, topic_id, log_end) if same else 0

    def _partition(self, tp: TopicPartition, topic_id: str) -> Mapping[str, Any] | None:
        known = self.summary.get("partitions", ())
        key = (*tp, topic_id)
        return next((one for one in known if (one["topic"], one["partition"], one["topic_id"]) == key), None)


def runs(folder: Path) -> list[Run]:
    """All runs of a folder in the order in which they began, those with a damaged summary included."""
    if not folder.is_dir():
        return []
    found = [(place, _read(place / SUMMARY)) for place in folder.iterdir() if place.is_dir()]
    found.sort(key=lambda one: (_began_at(*one), one[0].name))
    return [Run(place.name, document) for place, document in found]


def has_ended(folder: Path) -> bool:
    """Whether this folder of a run holds a result."""
    return Run(folder.name, _read(folder / SUMMARY)).has_ended


def last_to_continue(known: Iterable[Run], flow: str) -> Run | None:
    """The last run of a flow that a next run may continue; None if there is none."""
    return next((run for run in reversed(list(known)) if run.flow == flow and run.may_be_continued), None)


def _began_at(place: Path, summary: Mapping[str, Any]) -> float:
    """When a run began, in seconds since 1970: from its summary, else its name, else its folder's mtime."""
    with suppress(KeyError, TypeError, ValueError):
        return datetime.fromisoformat(summary["started_at"]).timestamp()
    with suppress(ValueError):
        return datetime.strptime(place.name.partition("-")[0], f"{NAME_TIME}%z").timestamp()
    return place.stat().st_mtime


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return {"outcome": DAMAGED, "error": f"{path.name} cannot be read: {error}"}
    if not isinstance(document, dict):
        return {"outcome": DAMAGED, "error": f"{path.name} is not a summary"}
    wrong = ", ".join(_wrong(document))
    return {"outcome": DAMAGED, "error": f"{path.name} is not a summary: see {wrong}"} if wrong else document


def _wrong(document: dict[str, Any]) -> list[str]:
    """Names of fields that a run would not leave like this: missing, of another type, or not a time."""
    needed = FOUND if Run("", document).has_ended else {}
    wrong = [
        name
        for name, kind in FIELDS.items()
        if (name in document or name in needed) and not isinstance(document.get(name), kind)
    ]
    dated = {"outcome", "started_at"} & document.keys()
    return wrong if not dated or _is_time(document.get("started_at")) else [*wrong, "started_at"]


def _is_time(value: object) -> bool:
    with suppress(TypeError, ValueError):
        return bool(datetime.fromisoformat(value))  # type: ignore[arg-type]
    return False
