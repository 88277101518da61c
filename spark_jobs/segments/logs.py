"""Which files hold a partition, in a broker's log directories or in a copy of them.

Only what lies in a directory counts; no broker is asked. A file is named after its first offset; the log ends
with the last whole batch of the last file.

Sources: Kafka's ``LogFileUtils``, ``LocalLog`` and ``OffsetCheckpointFile`` (KIP-107: log start offsets).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mirror.errors import TwinsiteError, UsageError
from mirror.model import TopicPartition
from spark_jobs.window import ALL, Range

LOG_STARTS = "log-start-offset-checkpoint"
_SEGMENT = re.compile(r"(\d{20})\.log")
_PARTITION = re.compile(r"(.+)-(\d+)")
_EXAMPLE = "TOPIC-PARTITION/00000000000000000000.log"


class SegmentsError(TwinsiteError):
    """Segment files do not hold what is wanted, or are damaged; nothing was concluded."""

    hint = "copy the log directory again, or read from the brokers instead"


class Segment(NamedTuple):
    """One file of a log: all records from its base offset on, up to that of the next one.

    Attributes:
        is_indexed: An index file next to it says at which positions offsets are.
    """

    path: Path
    base_offset: int
    size_bytes: int
    is_indexed: bool


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """The files of a partition, as they are now.

    Attributes:
        name: As in the name of its folder.
        start: Consumers see nothing before this offset.
        has_gaps: It is compacted: offsets may be missing, also between files.
    """

    name: TopicPartition
    folder: Path
    start: int
    segments: Sequence[Segment]
    has_gaps: bool

    def next_base(self, number: int) -> int | None:
        """The base offset of the file after this one; None after the last."""
        return self.segments[number + 1].base_offset if number + 1 < len(self.segments) else None


def damaged(log: SegmentLog, path: Path, position: int, error: Exception) -> SegmentsError:
    """The error for what is wrong at a position of a file."""
    return SegmentsError(f"{log.name}: {path}, position {position}: {error}")


def not_held(log: SegmentLog, wanted: Range, end: int) -> SegmentsError:
    """The error for wanted offsets that a log, which ends at ``end``, does not have."""
    words = f"all from {wanted.start} on" if wanted.end == ALL.end else f"[{wanted.start}, {wanted.end})"
    return SegmentsError(
        f"{log.name}: of its offsets {words} are wanted, {log.folder} holds [{log.start}, {end})",
        hint="take a newer copy, or compare both sites in one job: it goes as far as the files do",
    )


def open_log(folder: Path, *, has_gaps: bool) -> SegmentLog:
    """The log in a partition's folder.

    Raises:
        SegmentsError: It cannot be read, there are no segment files in it, or the directory's checkpoint of
            log start offsets is damaged.
    """
    name = _partition(folder.name)
    try:
        segments = sorted(_segments(folder), key=lambda segment: segment.base_offset)
        starts = _log_starts(folder.parent / LOG_STARTS)
    except OSError as error:
        raise SegmentsError(f"{folder} cannot be read: {error}") from error
    if name is None or not segments:
        raise SegmentsError(f"{folder} holds no segment files")
    start = max(segments[0].base_offset, starts.get(name, 0))
    return SegmentLog(name, folder, start, segments, has_gaps)


def find(folders: Iterable[Path], wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, Path]:
    """The folder of each partition; where several directories have it, the one in the first of them.

    Raises:
        UsageError: A directory is no log directory, or a partition is in none of them.
    """
    found: dict[TopicPartition, Path] = {}
    searched = list(folders)
    for folder in searched:
        for name, path in _partitions(folder).items():
            found.setdefault(name, path)
    missing = sorted(name for name in wanted if name not in found)
    if missing:
        places = ", ".join(map(str, searched))
        raise UsageError(
            f"{_some(missing)}: in none of {places}",
            hint="a comparison needs every partition: name all log directories, each with --segments",
        )
    return {name: found[name] for name in wanted}


def _partitions(folder: Path) -> dict[TopicPartition, Path]:
    hint = f"name a directory that holds partitions as {_EXAMPLE}"
    try:
        paths = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
        named = {name: path for path in paths if (name := _partition(path.name)) is not None}
        if not any(_segments(path) for path in named.values()):
            raise UsageError(f"{folder} holds no partition's segment files", hint=hint)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error}", hint=hint) from error
    return named


def _partition(name: str) -> TopicPartition | None:
    """The partition that a folder is named after; None for others, such as those to be deleted or moved."""
    match = _PARTITION.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def _segments(folder: Path) -> list[Segment]:
    with os.scandir(folder) as entries:
        files = {entry.name: entry for entry in entries}
    matches = ((entry, _SEGMENT.fullmatch(name)) for name, entry in files.items())
    return [
        Segment(Path(entry.path), int(match[1]), entry.stat().st_size, f"{match[1]}.index" in files)
        for entry, match in matches
        if match
    ]


def _log_starts(path: Path) -> dict[TopicPartition, int]:
    """Starts of logs that do not start with a file. Lines: version, count, then one for each partition."""
    if not path.exists():
        return {}
    try:
        lines = [line.split(" ") for line in path.read_text().splitlines()[2:]]
        return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in lines}
    except ValueError as error:
        raise SegmentsError(f"{path} is not a checkpoint of log start offsets: {error}") from error


def _some(names: Sequence[TopicPartition]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(str, names[:3])) + more
