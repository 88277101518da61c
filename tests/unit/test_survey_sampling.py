"""A sample of what is produced: how much of it is read, of which partitions, and what it says."""

from __future__ import annotations

import json
import random

import pytest

from mirror.kafka.codecs import LZ4, deflate
from mirror.kafka.record_batch import HEADER_BYTES, build
from mirror.link.expecting import Sample
from mirror.model import TopicPartition
from mirror.survey.sampling import (
    PARTITIONS_MAX,
    SAMPLE_BYTES_MAX,
    SAMPLE_BYTES_MIN,
    sample_bytes,
    sample_of,
    wants,
    wire_share,
)
from tests.unit.batches import Entry, old, v2

DICE = random.Random(2026)
ROWS = [
    Entry(100 + number, value=json.dumps({"id": DICE.randrange(10**12), "of": DICE.random()}).encode())
    for number in range(500)
]


@pytest.mark.parametrize(
    ("rate", "bytes_max"),
    [(None, SAMPLE_BYTES_MIN), (1.0, SAMPLE_BYTES_MIN), (100_000.0, 500_000), (1e9, SAMPLE_BYTES_MAX)],
)
def test_a_sample_takes_a_few_seconds_of_the_link_at_most(rate: float | None, bytes_max: int) -> None:
    """
    Of one that is not known, or hardly carries anything, what is needed to say something.
    """
    assert sample_bytes(rate) == bytes_max


def test_partitions_with_most_news_are_read_from_where_they_ended_before() -> None:
    """
    Those without news, and those nobody can tell of, are not.
    """
    tps = [TopicPartition("orders", number) for number in range(PARTITIONS_MAX + 3)]
    before: dict[TopicPartition, int | None] = dict.fromkeys(tps, 100)
    after: dict[TopicPartition, int | None] = {tp: 100 + 10 * tp.partition for tp in tps}
    before[tps[-1]] = None

    found = wants(before, after)

    assert set(found) == set(tps[2:-1])
    assert {want.offset for want in found.values()} == {100}


def test_a_sample_counts_whole_batches_and_the_offsets_they_stand_for() -> None:
    """
    Gaps too; not the torn one at the end, and none of an old format, which stands for nobody knows how many.
    """
    one, gapped = bytes(v2(ROWS[:10])), bytes(v2(ROWS[10:20], last_offset=139))
    torn = bytes(v2(ROWS[20:30]))[:-1]

    assert sample_of(memoryview(one + gapped + torn)) == Sample(len(one) + len(gapped), 40)
    assert sample_of(memoryview(bytes(old(0, ROWS[:3])))) == Sample(0, 0)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_crosses_the_link_is_what_zstd_makes_of_it(codec: str) -> None:
    """
    lz4 as Kafka's clients make it is made smaller by inflating it for the way, and hardly otherwise.
    """
    payload = bytes(v2(ROWS))[HEADER_BYTES:]
    packed = {"none": payload, "lz4": deflate(LZ4, payload)}[codec]
    number = {"none": 0, "lz4": LZ4}[codec]
    times = {"base_timestamp": ROWS[0].timestamp_ms, "max_timestamp": ROWS[-1].timestamp_ms}
    records = memoryview(build(packed, count=len(ROWS), codec=number, **times))

    recoded, as_it_is = wire_share([records], recode=True), wire_share([records], recode=False)

    assert recoded is not None
    assert as_it_is is not None
    if codec == "none":
        assert recoded == as_it_is < 0.8
    else:
        assert recoded < as_it_is


def test_nothing_is_said_where_there_is_no_batch() -> None:
    """
    None, and not nought.
    """
    assert wire_share([], recode=True) is None
    assert wire_share([memoryview(b"")], recode=True) is None
