"""Records of segment files as a Spark frame: those a consumer would get from the broker whose files they are.

Spark's tasks read the files themselves, so each Spark machine needs twinsite, and the files under the same
path.

Sources: Spark's Python Data Source API.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
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
from spark_jobs.questions import Lines, Ranges, ended, endless
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

    def bounded(self, _spark: SparkSession, ranges: Ranges, /) -> Ranges:
        """The same ranges, all with an end, see :class:`spark_jobs.sites.Records`.

        Raises:
            UsageError: One of the folders is no log directory, or a partition is in none of them.
            SegmentsError: A folder cannot be read, or does not hold what is wanted.
        """
        logs = self._logs(endless(ranges))
        return ended(ranges, lambda tp, start: _end(logs[tp], start))

    def read(self, spark: SparkSession, ranges: Ranges, lines: Lines, _little: bool, /) -> DataFrame:
        """A frame of records, as :func:`spark_jobs.kafka_source.read` returns it.

        Raises:
            UsageError: One of the folders is no log directory, or a partition is in none of them.
            SegmentsError: A folder cannot be read, or does not hold what is wanted.
        """
        logs = self._logs(ranges)
        plain, mapped = (
            {tp: some for tp, some in ranges.items() if (tp in lines) is has_lines}
            for has_lines in (False, True)
        )
        table = {tp: clipped(lines[tp], some) for tp, some in mapped.items()}
        frames = [at_offsets(frame) for frame in _load(spark, logs, plain)]
        frames += [placed(frame, table) for frame in _load(spark, logs, mapped)]
        return union(spark, [frame.select(*RECORD_COLUMNS) for frame in frames])

    def _logs(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, SegmentLog]:
        paths = find(self.folders, wanted)
        return {tp: open_log(paths[tp], has_gaps=tp.topic in self.compacted) for tp in wanted}


def _end(log: SegmentLog, start: int) -> int:
    """Up to where a ``read_committed`` consumer could read now from an offset on.

    Raises:
        SegmentsError: The log ends before this offset, or is damaged.
    """
    end = stable_end(log, start)
    if end < start:
        raise not_held(log, Range(start, ALL.end), end)
    return end


def _load(spark: SparkSession, logs: Mapping[TopicPartition, SegmentLog], wanted: Ranges) -> list[DataFrame]:
    """One frame, or none where nothing is wanted."""
    some = [(logs[tp], joined(ranges)) for tp, ranges in wanted.items()]
    planned = [
        [_described(part) for part in task] for task in tasks(some, spark.sparkContext.defaultParallelism)
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
