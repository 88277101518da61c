"""How a site answers: always with less than it holds.

Answers are frames of digests or hashes, with keys where a record has to be named, and never with values.
Their column ``bytes`` says how many bytes of keys and values a row covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.digest import (
    contents,
    digests,
    key_hashes,
    key_hashes_together,
    latest,
    latest_together,
    record_hashes,
)
from spark_jobs.digest import together as digests_together
from spark_jobs.questions import Lines, Question, Ranges, What

Read = Callable[[Ranges, Lines, bool], DataFrame]
"""Reads records, given ranges, lines and whether little is read; partitions have the site's own names."""


def answer(question: Question, names: Mapping[str, str], read: Read) -> DataFrame:
    """The answer, with partitions named as at the source.

    Args:
        names: The site's name of each source topic.
    """

    def called(tp: TopicPartition) -> TopicPartition:
        return TopicPartition(names[tp.topic], tp.partition)

    ranges = {called(tp): some for tp, some in question.ranges.items()}
    lines = {called(tp): some for tp, some in question.lines.items()}
    reduced = _reduced(question, read(ranges, lines, question.reads_little))
    return compare.renamed(reduced, {names[topic]: topic for topic in {tp.topic for tp in question.ranges}})


def together(question: Question, answers: DataFrame) -> DataFrame:
    """Combine answers about parts of the ranges into the answer about all of them."""
    match question.what:
        case What.DIGESTS:
            return digests_together(answers)
        case What.KEYS:
            return latest_together(answers)
        case What.KEYS_WRITTEN:
            return key_hashes_together(answers)
        case _:
            return answers


def _reduced(question: Question, records: DataFrame) -> DataFrame:
    hashing = question.hashing
    match question.what:
        case What.DIGESTS:
            return digests(records, hashing, width=question.width)
        case What.CONTENTS:
            return contents(records, hashing).where(F.pmod("content_a", F.lit(question.one_in)) == 0)
        case What.RECORDS:
            return record_hashes(records, hashing)
        case What.KEYS | What.BUCKETS:  # buckets are made later, from the keys that were kept
            return latest(records, hashing)
        case What.KEYS_WRITTEN:
            return key_hashes(records, hashing)
