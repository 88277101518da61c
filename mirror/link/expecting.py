"""What to expect of a copy over a link: whether it keeps up, how far it lags, how fast it catches up.

What is not known is None; ``unknown`` says why, by the name of the field.

Pure. Times are seconds, rates bytes a second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mirror.link.measuring import AT_RATE_ABOVE, Limit, Measured
from mirror.model import TopicPartition
from mirror.timetable import lowest

HOUR_SECONDS = 3600.0
NOTHING_PRODUCED = "nothing was produced during the measurement"
NOT_FILLED = "the link was not filled: --rate-max"
AT_LIMIT = "the link was not filled: a rate limit applies"
TOO_SLOW = "more is produced than the link carries: the copy never catches up"
NOTHING_READ = "no batch of what was produced could be read"


class Sample(NamedTuple):
    """Batches of one partition: their bytes at the source, and how many offsets they cover."""

    bytes: int
    offsets: int


@dataclass(frozen=True, slots=True)
class Production:
    """What is written to the topics of a flow.

    Attributes:
        topics_left_out: Topics that the flow's lists also match, but that are copies of topics of the target;
            None if the target did not say.
        partitions_unknown: Those of ``partitions`` whose ends are not known; they count as not growing.
        seconds: For how long the topics were watched.
        records_per_second: In fact offsets: transactions use some without a record.
        bytes_per_second: As the source's brokers store them, compressed or not.
        sample_bytes: Bytes of the batches that were examined.
        wire_share: The share of those bytes that crosses the link, compressed with zstd at level 2.
    """

    topics: int
    topics_left_out: int | None
    partitions: int
    partitions_unknown: int
    seconds: float
    records_per_second: float
    bytes_per_second: float | None
    sample_bytes: int
    wire_share: float | None
    unknown: dict[str, str]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a link achieves for a flow.

    Attributes:
        carries_bytes_per_second: Bytes of records, as the source stores them.
        times_production: How many times what is produced the link carries; if ``at_least`` is true, at least
            this many, as no more was asked of the link.
        lag_seconds: Of caught-up partitions on an idle link; brokers and disks add their time.
        lag_while_full_seconds: The same while others catch up.
        outage_hour_seconds: How long it takes to catch up after an hour without a link.
        missing_bytes_per_second: What the link lacks; 0 if it carries what is produced.
        lag_growth_seconds_per_hour: How fast the lag grows; 0 likewise.
        limit_bytes_per_second: The lowest limit from the settings of mirror and relay, which all this takes
            into account; None if there is none.
    """

    carries_bytes_per_second: float | None
    times_production: float | None
    at_least: bool
    lag_seconds: float
    lag_while_full_seconds: float | None
    outage_hour_seconds: float | None
    missing_bytes_per_second: float | None
    lag_growth_seconds_per_hour: float | None
    limit_bytes_per_second: float | None
    unknown: dict[str, str]

    @property
    def too_slow(self) -> bool:
        return self.times_production is not None and self.times_production < 1


def produced(
    topics: Collection[str],
    before: Mapping[TopicPartition, int | None],
    after: Mapping[TopicPartition, int | None],
    seconds: float,
    samples: Mapping[TopicPartition, Sample],
    wire_share: float | None,
    topics_left_out: int | str = 0,
) -> Production:
    """What was written between two looks at the ends of partitions.

    Args:
        before, after: End offsets; None if not known.
        seconds: Between the looks.
        samples: Of some partitions; weighted by how much those grew they give the length of a record.
        wire_share: As in :class:`Production`.
        topics_left_out: How many, or why that is not known.
    """
    grown = growth(before, after)
    records = sum(grown.values()) / seconds
    length = _record_bytes(grown, samples)
    bytes_per_second = 0.0 if not records else None if length is None else records * length
    left_out = topics_left_out if isinstance(topics_left_out, int) else None
    reasons = (
        ("bytes_per_second", bytes_per_second, NOTHING_READ),
        ("wire_share", wire_share, NOTHING_READ if records else NOTHING_PRODUCED),
        ("topics_left_out", left_out, str(topics_left_out)),
    )
    return Production(
        topics=len(topics),
        topics_left_out=left_out,
        partitions=len(before),
        partitions_unknown=len(before) - len(grown),
        seconds=seconds,
        records_per_second=records,
        bytes_per_second=bytes_per_second,
        sample_bytes=sum(sample.bytes for sample in samples.values()),
        wire_share=wire_share,
        unknown={name: why for name, value, why in reasons if value is None},
    )


def growth(
    before: Mapping[TopicPartition, int | None], after: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """By how many offsets each partition has grown; those for which this is not known are left out."""
    pairs = {tp: (begin, after.get(tp)) for tp, begin in before.items()}
    return {
        tp: max(end - begin, 0) for tp, (begin, end) in pairs.items() if begin is not None and end is not None
    }


def _record_bytes(
    grown: Mapping[TopicPartition, int], samples: Mapping[TopicPartition, Sample]
) -> float | None:
    """Mean bytes of a record, each partition weighted by its growth; None if no sampled one has grown."""
    told = {tp: sample for tp, sample in samples.items() if sample.offsets and grown.get(tp)}
    records = sum(grown[tp] for tp in told)
    if not records:
        return None
    return sum(grown[tp] * sample.bytes / sample.offsets for tp, sample in told.items()) / records


class _Pace(NamedTuple):
    """What a link achieves for what is produced; None: not known."""

    times: float | None
    outage_hour_seconds: float | None
    missing: float | None
    growth_seconds: float | None


def _pace(rate: float, share: float, made: float) -> _Pace:
    """
    Args:
        rate: Of the link, bytes a second.
        share: The share of what is produced that crosses the link.
        made: Bytes produced a second, above 0.
    """
    times = rate / share / made
    outage = HOUR_SECONDS / (times - 1) if times > 1 else None
    return _Pace(times, outage, max(made * share - rate, 0.0), max(1 - times, 0.0) * HOUR_SECONDS)


def expected(
    link: Measured, production: Production | None, why_none: str, rate_limit: float | None = None
) -> Expected:
    """What a link achieves for what is produced, within the limits that apply to it.

    Args:
        why_none: Why ``production`` is None.
        rate_limit: The lowest of the mirror's own limits; None: no limit.
    """
    allowed = lowest(rate_limit, link.rate_limit)
    rate = lowest(link.rate.bytes_per_second, allowed) if link.rate else None
    share = production.wire_share if production else None
    made = production.bytes_per_second if production else None
    not_filled = link.limit is Limit.RATE_MAX and not _at_limit(link, allowed)
    pace, why = _Pace(None, None, None, None), _why_unknown(link, production, why_none)
    if rate and share and made:
        pace = _pace(rate, share, made)
        if not_filled and pace.missing:
            pace, why = _Pace(None, None, None, None), f"{NOT_FILLED} is less than what is produced"
    elif made == 0:
        pace = _Pace(None, None, 0.0, 0.0)
    carries = rate / share if rate and share else None
    paced = link.limit is Limit.RATE_MAX  # then more waits in the kernel than for a copy within a limit
    full, one_way = None if paced else link.loaded, link.idle.median_seconds / 2
    reasons = (
        ("carries_bytes_per_second", carries, why),
        ("times_production", pace.times, why),
        ("missing_bytes_per_second", pace.missing, why),
        ("lag_growth_seconds_per_hour", pace.growth_seconds, why),
        ("outage_hour_seconds", pace.outage_hour_seconds, why if pace.times is None else TOO_SLOW),
        (
            "lag_while_full_seconds",
            full,
            (NOT_FILLED if not_filled else AT_LIMIT) if paced else link.unknown.get("loaded", ""),
        ),
    )
    return Expected(
        carries_bytes_per_second=carries,
        times_production=pace.times,
        at_least=not_filled,
        lag_seconds=one_way,
        lag_while_full_seconds=max(full.median_seconds - one_way, one_way) if full else None,
        outage_hour_seconds=pace.outage_hour_seconds,
        missing_bytes_per_second=pace.missing,
        lag_growth_seconds_per_hour=pace.growth_seconds,
        limit_bytes_per_second=allowed,
        unknown={name: words for name, value, words in reasons if value is None},
    )


def _at_limit(link: Measured, allowed: float | None) -> bool:
    """Whether the link carried all that a copy may use: whether it could carry more makes no difference."""
    return (
        allowed is not None
        and link.rate is not None
        and (link.rate.bytes_per_second >= AT_RATE_ABOVE * allowed)
    )


def _why_unknown(link: Measured, production: Production | None, why_none: str) -> str:
    if link.rate is None:
        return link.unknown["rate"]
    if production is None:
        return why_none
    if not production.records_per_second:
        return NOTHING_PRODUCED
    return next(iter(production.unknown.values()), "nothing crossed the link")
