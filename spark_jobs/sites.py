"""Both sites as the steps of a comparison see them."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mirror.errors import ExitCode, TwinsiteError
from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.algorithms import Hashing
from spark_jobs.answering import answer, together
from spark_jobs.asking import Both, askable
from spark_jobs.buckets import digests_of_keys, of_buckets
from spark_jobs.failures import SparkFailedError, renamed_errors
from spark_jobs.kafka_ranges import new_group
from spark_jobs.kafka_source import Cluster, Spared
from spark_jobs.logs import Compared, Log
from spark_jobs.pace import Pace, rounds, slices
from spark_jobs.questions import Lines, Question, Ranges, What, endless, offsets_of
from spark_jobs.watching import Tell, watched

ANSWERS = "answers"
ANSWERED = "_SUCCESS"
"""A file that Spark writes when an answer is complete."""
KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a site keeps the keys of an abandoned comparison."""
SLICE_OFFSETS = 100_000
"""At full speed so much is read within a second or so."""


class UnansweredError(TwinsiteError):
    """A site that cannot be reached from here has to answer first."""

    exit_code = ExitCode.NOT_THERE
    hint = "carry the folder to that site, run `twinsite reconcile digest` there, and carry it back"


class Site(Protocol):
    """What answers for a site."""

    def ask(self, question: Question) -> DataFrame:
        """The answer, stored: it may be read several times.

        Raises:
            UnansweredError: The site has not answered yet.
        """


@dataclass(frozen=True, slots=True)
class Sites:
    """The sites that a comparison asks, and the Spark session it runs in.

    Attributes:
        say: Called with what is done now, a few words a step.
        hashing: How both hash.
        logs: What is compared. Questions leave out differences that were accepted, and at the target what
            its log has lost at its end.
        again: Offsets of both sites that were asked for to name what differs, by log; it grows.
    """

    spark: SparkSession
    source: Site
    target: Site
    say: Callable[[str], None]
    hashing: Hashing
    logs: Sequence[Log] = ()
    again: Counter[TopicPartition] = field(default_factory=Counter)

    def ask_closer(self, here: Question, there: Question) -> tuple[DataFrame, DataFrame]:
        """As :meth:`ask`, about what was read before: it is counted in ``again``."""
        here, there = askable((here, there), self.logs)
        self._count(here)
        self._count(there)
        return self.ask(here, there)

    def ask(self, here: Question, there: Question) -> tuple[DataFrame, DataFrame]:
        """Both answers. If the source has not answered yet, the target has been asked as well.

        Args:
            here, there: What the source and the target are asked.

        Raises:
            UnansweredError: One of them has not answered yet.
        """
        here, there = askable((here, there), self.logs)
        self.say(f"asking the source: {here.name}")
        try:
            source = self.source.ask(here)
        except UnansweredError:
            self.target.ask(there)
            raise
        self.say(f"asking the target: {there.name}")
        return source, self.target.ask(there)

    def ask_source_closer(self, question: Question) -> DataFrame:
        """The source's answer about what was read before; accepted differences are not left out.

        Raises:
            UnansweredError: It has not answered yet.
        """
        self._count(question)
        return self.source.ask(question)

    def ask_target_closer(self, question: Question) -> DataFrame:
        """The target's answer about what was read before.

        Raises:
            UnansweredError: It has not answered yet.
        """
        question = askable((question, question), self.logs)[1]
        self._count(question)
        return self.target.ask(question)

    def _count(self, question: Question) -> None:
        self.again.update({tp: offsets_of({tp: some}) for tp, some in question.ranges.items()})

    def ask_each(self, *questions: Both) -> list[tuple[DataFrame, DataFrame]]:
        """Both answers to several questions. All are asked, even if some have not been answered yet.

        Raises:
            UnansweredError: One of them has not been answered yet.
        """
        answers = []
        waiting: UnansweredError | None = None
        for here, there in questions:
            try:
                answers.append(self.ask(here, there))
            except UnansweredError as error:
                waiting = waiting or error
        if waiting:
            raise waiting
        return answers


class Records(Protocol):
    """Where the records of a site are: at its brokers, or in their files."""

    @property
    def name(self) -> str:
        """``source`` or ``target``."""

    def bounded(self, spark: SparkSession, ranges: Ranges, /) -> Ranges:
        """The same ranges. One without an end gets the end up to which a ``read_committed`` consumer could
        read now.

        Raises:
            PySparkException, Py4JError: The cluster could not be asked.
            TwinsiteError: The records are not there.
        """

    def read(self, spark: SparkSession, ranges: Ranges, lines: Lines, little: bool, /) -> DataFrame:
        """A frame of the records of ranges, all with an end, see :func:`spark_jobs.kafka_source.read`.

        Raises:
            PySparkException: They could not be read as asked, now or when the frame is computed.
            TwinsiteError: They are not there.
        """


@dataclass(frozen=True, slots=True)
class KafkaSite:
    """A site whose records are read here.

    Attributes:
        names: Its name of each source topic.
        folder: Where its answers are kept, as Parquet.
        keys_folder: Where the keys of compacted topics are kept, from their digests until they are asked for.
        tell: Called with the share of the answer that is done.
        bytes_per_second: The most keys and values that are read, on average; None: as fast as possible.
    """

    spark: SparkSession
    records: Records
    names: Mapping[str, str]
    folder: Path
    keys_folder: Path
    tell: Tell
    bytes_per_second: float | None = None

    def ask(self, question: Question) -> DataFrame:
        """The answer, kept in the folder.

        Raises:
            SparkFailedError: The cluster could not be read as asked.
            TwinsiteError: The records are not there, see :class:`Records`.
        """
        path = self.folder / ANSWERS / f"{self.records.name}-{question.name}"
        with renamed_errors(f"asking the {self.records.name}: {question.name}"):
            give(self, question, path)
        return self.spark.read.parquet(str(path.absolute()))


def give(site: KafkaSite, question: Question, path: Path) -> None:
    """Write the answer, as Parquet, whole or not at all.

    Compacted topics are answered with digests of their keys at first. The keys are kept until some of them
    are asked for, so that no log is read twice; if they are gone by then, the log is read again.

    Raises:
        PySparkException: The cluster could not be read as asked.
        SparkFailedError: The answer is not all here, see :func:`keep`.
        TwinsiteError: The records are not there, see :class:`Records`.
    """
    kept = kept_keys(site.keys_folder, site.records.name, question.hashing)
    match question.what:
        case What.BUCKETS:
            give_answer(site, replace(question, what=What.KEYS), kept)
            keep(digests_of_keys(_kept(site, kept)), path)
        case What.KEYS if (kept / ANSWERED).exists():
            keys = of_buckets(_kept(site, kept), question.buckets)
            keep(keys.withColumn("bytes", F.lit(0).cast("long")), path)  # counted with their digests
            forget(kept)
        case What.KEYS | What.KEYS_WRITTEN:
            whole = kept.with_name(f"{kept.name}-{question.name}")
            give_answer(site, question, whole)
            keep(of_buckets(_kept(site, whole), question.buckets), path)
            forget(whole)
        case _:
            give_answer(site, question, path)


def kept_keys(folder: Path, site: str, hashing: Hashing) -> Path:
    """Where a site keeps the keys of a comparison. The name depends on its salt, without revealing it."""
    told = sha256(f"{hashing.algorithm} {hashing.salt}".encode()).hexdigest()
    return folder / f"{site}-keys-{told[:16]}"


def forget(kept: Path) -> None:
    """Delete keys that nobody will ask for any more."""
    shutil.rmtree(kept, ignore_errors=True)


def forget_old_keys(folder: Path, now: float) -> None:
    """Delete the keys of abandoned comparisons, see :data:`KEPT_SECONDS`.

    Args:
        now: In seconds since 1970.
    """
    for kept in folder.glob("*-keys-*"):
        if now - kept.stat().st_mtime > KEPT_SECONDS:
            forget(kept)


def _kept(site: KafkaSite, kept: Path) -> DataFrame:
    return site.spark.read.parquet(str(kept.absolute()))


def give_answer(site: KafkaSite, question: Question, path: Path) -> None:
    """Write what the records say, as Parquet, whole or not at all.

    Raises:
        PySparkException: The cluster could not be read as asked.
        SparkFailedError: The answer is not all here, see :func:`keep`.
        TwinsiteError: The records are not there, see :class:`Records`.
    """
    if site.bytes_per_second is None and not endless(question.ranges):
        _write_at_once(site, question, path)
        return
    parts = path.with_name(f"{path.name}-parts")
    if parts.exists():  # left by an interrupted attempt: it would count twice
        shutil.rmtree(parts)
    if site.bytes_per_second is None:
        _write_rounds(site, question, parts)
    else:
        _write_slowly(site, question, parts, Pace(site.bytes_per_second))
    keep(together(question, site.spark.read.parquet(str(parts.absolute() / "*"))), path)
    shutil.rmtree(parts)


def _write_at_once(site: KafkaSite, question: Question, path: Path) -> None:
    with watched(site.spark, site.tell):
        keep(_answer(site, question, site.records), path)


def _write_rounds(site: KafkaSite, question: Question, parts: Path) -> None:
    """Write the parts of the answer, one for each round. The share that is told counts earlier rounds too."""
    done = 0
    wanted = rounds(question.ranges, partial(_bounded, site), lambda _: SLICE_OFFSETS)
    for number, (ranges, _) in enumerate(wanted):
        offsets = offsets_of(ranges)
        further = replace(site, tell=partial(_tell_further, site.tell, done, offsets))
        _write_at_once(further, replace(question, ranges=ranges), parts / f"{number:06}")
        done += offsets


def _tell_further(tell: Tell, done: int, offsets: int, share: float) -> None:
    """Tell the share of all when this share of the offsets is done, and ``done`` were before."""
    tell((done + share * offsets) / max(1, done + offsets))


def _bounded(site: KafkaSite, ranges: Ranges) -> Ranges:
    """The same ranges, all with an end, see :class:`Records`; partitions are named as at the source."""
    here = {tp: TopicPartition(site.names[tp.topic], tp.partition) for tp in ranges}
    found = site.records.bounded(site.spark, {here[tp]: some for tp, some in ranges.items()})
    return {tp: found[name] for tp, name in here.items()}


def _write_slowly(site: KafkaSite, question: Question, parts: Path, pace: Pace) -> None:
    """Write the parts of the answer, one for each slice. The share that is told counts what is still to come,
    as far as that is known, and is 1 only after the last pause.
    """
    began, group = time.monotonic(), new_group()
    wanted = rounds(question.ranges, partial(_bounded, site), pace.next_offsets)
    for number, (ranges, total) in enumerate(slices(wanted, pace)):
        if number:
            site.tell(pace.offsets / max(1, total))
        part = parts / f"{number:06}"
        records = _sparing(site.records, Spared(pace.heaviest, group))
        keep(_answer(site, replace(question, ranges=ranges), records), part)
        kept = site.spark.read.parquet(str(part.absolute())).agg(F.sum("bytes")).first()
        pace.read(offsets_of(ranges), (kept[0] or 0) * question.one_in if kept else 0)
        time.sleep(pace.pause_seconds(time.monotonic() - began))
    site.tell(1.0)


def _sparing(records: Records, spared: Spared) -> Records:
    """Limit fetches from brokers, which send all that is fetched, wanted or not; of files only what is
    wanted is read.
    """
    return records.sparing(spared) if isinstance(records, Cluster) else records


def _answer(site: KafkaSite, question: Question, records: Records) -> DataFrame:
    def read(ranges: Ranges, lines: Lines, little: bool) -> DataFrame:
        return records.read(site.spark, ranges, lines, little)

    return answer(question, site.names, read)


def keep(frame: DataFrame, path: Path) -> None:
    """Write a frame as Parquet. Where other machines write it, check that all of it is here.

    Raises:
        SparkFailedError: It is not.
    """
    place = str(path.absolute())
    if str(frame.sparkSession.sparkContext.master).startswith("local"):
        frame.write.mode("overwrite").parquet(place)
        return
    written = Observation()
    frame.observe(written, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").parquet(place)
    check_is_here(frame, place, written.get["rows"])


def check_is_here(frame: DataFrame, place: str, rows: int) -> None:
    """Check that as many rows of a frame are here as were written.

    Where the folder is not shared, each worker writes to its own disk. Spark does not notice that what others
    wrote is missing here, and rows that are missing from both answers would count as equal.

    Raises:
        SparkFailedError: Some are elsewhere.
    """
    found = frame.sparkSession.read.schema(frame.schema).parquet(place).count()
    if found != rows:
        raise SparkFailedError(
            f"{place} holds {found} of the {rows} rows that were written to it",
            hint="put the folder of the run where the driver and all workers share it: see --folder",
        )


def names_at_target(logs: Iterable[Log]) -> dict[str, str]:
    """The target's name of each source topic."""
    return {log.name.topic: log.target_topic for log in logs}


def with_totals(found: Iterable[Compared], source: DataFrame, target: DataFrame) -> list[Compared]:
    """The results, with how much was compared.

    Args:
        source, target: Digests of all that was compared.
    """
    here, there = _totals(source), _totals(target)
    nothing = (0, 0, 0)
    result = []
    for one in found:
        ranges, records, size = here.get(one.log.name, nothing)
        _, target_records, target_size = there.get(one.log.name, nothing)
        result.append(
            replace(
                one,
                ranges=ranges,
                source_records=records,
                source_bytes=size,
                target_records=target_records,
                target_bytes=target_size,
            )
        )
    return result


def _totals(digests: DataFrame) -> dict[TopicPartition, tuple[int, int, int]]:
    """Ranges, records and bytes of each partition."""
    return {
        TopicPartition(row.topic, row.partition): (row.ranges, row.records, row.bytes)
        for row in compare.totals(digests).collect()
    }
