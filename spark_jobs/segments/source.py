"""Records of segment files as a Spark frame: those a consumer would get from the broker whose files they are.

Spark's tasks read the files themselves, so each Spark machine needs twinsite, and the files under the same
path.

Sources: Spark's Python Data Source API.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mirror.model import TopicPartition
from spark_jobs.kafka_source import RECORD_COLUMNS, at_offsets, placed, union
from spark_jobs.places import clipped
from spark_jobs.questions import Lines, Ranges
from spark_jobs.segments.logs import SegmentLog, find, not_held, open_log
from spark_jobs.segments.plan import Part, near, tasks
from spark_jobs.segments.reading import read_records
from spark_jobs.segments.transactions import stable_end
from spark_jobs.stretches import joined
from spark_jobs.window import ALL, Range

FORMAT = "twinsite-segments"
TASKS = "tasks"
"""Option: what each task reads, as JSON; of each part the folder, whether offsets may be gone, and ranges."""
_SCHEMA = (
    "topic string, partition int, offset long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A site's records as they lie in log directories, or in copies of them.

    Attributes:
        name: ``source`` or ``target``, for people.
        compacted: Topics, under the site's own names, of which some offsets may be gone.
    """

    name: str
    folders: Sequence[Path]
    compacted: Set[str]

    def ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where logs end here for a ``read_committed`` consumer, as far as their last files tell.

        Raises:
            UsageError: One of the folders is no log directory, or a partition is in none of them.
            SegmentsError: A folder or its last file cannot be read.
        """
        logs = {tp: open_log(path, has_gaps=True) for tp, path in find(self.folders, wanted).items()}
        return {tp: stable_end(log, max(log.start, log.segments[-1].base_offset)) for tp, log in logs.items()}

    def read(self, spark: SparkSession, ranges: Ranges, lines: Lines, _little: bool, /) -> DataFrame:
        """A frame of records, as :func:`spark_jobs.kafka_source.read` returns it.

        Raises:
            UsageError: One of the folders is no log directory, or a partition is in none of them.
            SegmentsError: A folder cannot be read, or does not hold what is wanted.
        """
        paths = find(self.folders, ranges)
        logs = {tp: open_log(paths[tp], has_gaps=tp.topic in self.compacted) for tp in ranges}
        wanted = {tp: [_bounded(logs[tp], one) for one in some] for tp, some in ranges.items()}
        plain, mapped = (
            _load(
                spark, [(logs[tp], joined(some)) for tp, some in wanted.items() if (tp in lines) is has_lines]
            )
            for has_lines in (False, True)
        )
        table = {tp: clipped(some, wanted[tp]) for tp, some in lines.items()}
        frames = [at_offsets(frame) for frame in plain] + [placed(frame, table) for frame in mapped]
        return union(spark, [frame.select(*RECORD_COLUMNS) for frame in frames])


def _bounded(log: SegmentLog, wanted: Range) -> Range:
    """What is wanted, with an end; by default that up to which a ``read_committed`` consumer could read now.

    Raises:
        SegmentsError: The log ends before it starts, or is damaged.
    """
    if wanted.end < ALL.end:
        return wanted
    end = stable_end(log, wanted.start)
    if end < wanted.start:
        raise not_held(log, wanted, end)
    return Range(wanted.start, end)


def _load(spark: SparkSession, wanted: Sequence[tuple[SegmentLog, Sequence[Range]]]) -> list[DataFrame]:
    """One frame, or none where nothing is wanted."""
    planned = [
        [_described(part) for part in task] for task in tasks(wanted, spark.sparkContext.defaultParallelism)
    ]
    if not planned:
        return []
    spark.dataSource.register(SegmentSource)
    return [spark.read.format(FORMAT).option(TASKS, json.dumps(planned)).load()]


def _described(part: Part) -> list[Any]:
    return [str(part.log.folder.absolute()), part.log.has_gaps, part.wanted]


class SegmentSource(DataSource):
    """The records of segment files."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # the interface has it
        return _Reader(json.loads(self.options[TASKS]))


class _Task(InputPartition):
    """What one task reads."""


class _Reader(DataSourceReader):
    def __init__(self, planned: list[Any]) -> None:
        self._planned = planned

    def partitions(self) -> Sequence[InputPartition]:
        return [_Task(task) for task in self._planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for folder, has_gaps, wanted in partition.value:
            log = open_log(Path(folder), has_gaps=has_gaps)
            for some in near([Range(*one) for one in wanted]):
                yield from read_records(log, some)
