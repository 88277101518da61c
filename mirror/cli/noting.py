"""What a comparison leaves behind besides its result: a record of its failure, and metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from mirror.errors import OF_DISKS, TwinsiteError, UsageError
from monitoring.comparisons import Comparison, textfile
from spark_jobs.algorithms import Algorithm
from spark_jobs.extent import Extent
from spark_jobs.findings import Kind
from spark_jobs.history import UNFINISHED, Run, runs
from spark_jobs.reconcile import write_failure
from spark_jobs.result import Files, Outcome, failure
from spark_jobs.sites import UnansweredError

UNNAMED = "unnamed"
"""The kind, in metrics, of differences that were only counted."""
UNCOMPARED = ("pending", "lost", "never_copied", "leaving", "expired_at_source", "expired_at_target")
"""The ranges of offsets in a summary whose records were not compared."""


class NotCompletedError(TwinsiteError):
    """The comparison was not completed: nothing is said about the copy."""


def check_places(folder: Path, metrics_file: Path | None) -> None:
    """Check that a run can write what it leaves, before it takes hours.

    Raises:
        UsageError: It cannot.
    """
    places = {"--folder": folder}
    if metrics_file is not None:
        places["--metrics-file"] = metrics_file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--folder {folder}: {error.strerror}", hint="name a folder that can be created"
        ) from error
    for option, place in places.items():
        if not os.access(place, os.W_OK | os.X_OK):
            why = "is not writable" if place.is_dir() else "is not a directory"
            raise UsageError(f"{option}: {place} {why}", hint="create it, or name another")


@contextmanager
def noted(note: Callable[[TwinsiteError], None] = lambda _: None) -> Iterator[None]:
    """Run a comparison, or a step of one; an error that ends it is noted.

    Args:
        note: Records the error; by default nothing is recorded, for steps without a run.

    Raises:
        UnansweredError: Passed on and not noted: it is not a failure.
        UsageError: Noted and passed on.
        NotCompletedError: In place of every other TwinsiteError, and of OSError.
    """
    try:
        yield
    except UnansweredError:
        raise
    except (TwinsiteError, OSError) as error:
        named = error if isinstance(error, TwinsiteError) else _of_the_system(error)
        try:
            note(named)
        except OSError as failed:
            click.echo(f"warning: {_of_the_system(failed)}: this run was not recorded", err=True)
        if isinstance(error, UsageError):
            raise
        raise NotCompletedError(str(named), hint=named.hint) from error


def _of_the_system(error: OSError) -> TwinsiteError:
    where = f"{error.filename}: " if error.filename else ""
    hint = "check free space and write permission" if error.errno in OF_DISKS else None
    return TwinsiteError(f"{where}{error.strerror or repr(error)}", hint=hint)


def note_failure(
    place: Path,
    error: TwinsiteError,
    flow: str,
    began_at_ms: int,
    extent: Extent,
    algorithm: Algorithm,
    files: Files,
) -> None:
    """Record in a run's folder that it was not completed, and why."""
    words = str(error), error.hint
    write_failure(place, failure(place.name, flow, began_at_ms, extent, algorithm, *words, files))


def write_metrics(path: Path, flow: str, folder: Path) -> None:
    """Write metrics of the flow, from the runs in the folder: from those that left nothing out, if any.

    The file is replaced as a whole. If it cannot be written a warning says so, and the result stands.
    """
    known = [
        one for one in runs(folder) if one.flow == flow and one.is_of_clusters and one.outcome != UNFINISHED
    ]
    if not known:
        return
    known = [one for one in known if one.is_of_all] or known
    matches = [_began_at(one) for one in known if one.outcome == Outcome.MATCH]
    text = textfile(_comparison(known[-1], flow), max(matches, default=None), [*Outcome])
    beside = path.with_name(f".{path.name}")
    try:
        beside.write_bytes(text)
        beside.replace(path)
    except OSError as error:
        click.echo(f"warning: {_of_the_system(error)}: the metrics are still those of an older run", err=True)


def _comparison(last: Run, flow: str) -> Comparison:
    document = last.summary
    completed = "source" in document
    differences = document.get("differences", {}) | {UNNAMED: document.get("unnamed", 0)}
    return Comparison(
        flow=flow,
        began_at=_began_at(last),
        outcome=last.outcome,
        mismatches={kind: differences.get(kind, 0) for kind in (*Kind, UNNAMED)} if completed else None,
        uncompared=_uncompared(document) if completed else None,
        records=document["source"]["records"] if completed else None,
        bytes=document["source"]["bytes"] if completed else None,
        seconds=document.get("seconds"),
    )


def _uncompared(document: Mapping[str, Any]) -> dict[str, int]:
    """How many offsets were not compared or are lost, by reason."""
    found = dict.fromkeys(UNCOMPARED, 0)
    for one in document["partitions"]:
        for why in UNCOMPARED:
            start, end = one.get(why) or (0, 0)
            found[why] += end - start
    return found


def _began_at(one: Run) -> float:
    return datetime.fromisoformat(one.summary["started_at"]).timestamp()
