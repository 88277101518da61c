"""Metrics of the last comparison of both sites, as a file for node_exporter's textfile collector.

The job ends before it could be scraped, so it leaves a file. What is not known has no series.

Sources: docs/metrics.md; node_exporter's textfile collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily

from monitoring import catalogue
from monitoring.catalogue import Metric
from monitoring.exposition import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a run.

    Attributes:
        began_at: Seconds since 1970.
        mismatches: Differences by kind, zeros included; None if the comparison was not completed.
        uncompared: Offsets not compared, by reason, zeros included; None if it was not completed.
        records, bytes, seconds: What it covered, and how long it took; None if it was not completed.
    """

    flow: str
    began_at: float
    outcome: str
    mismatches: Mapping[str, int] | None = None
    uncompared: Mapping[str, int] | None = None
    records: int | None = None
    bytes: int | None = None
    seconds: float | None = None


def textfile(last: Comparison, last_success_at: float | None, outcomes: Sequence[str]) -> bytes:
    """The content of the file after a run.

    Args:
        last_success_at: When the last run that found no difference began, in seconds since 1970, this one
            included; None if there was none.
        outcomes: All possible outcomes.
    """
    flow = (last.flow,)
    families = [
        _family(catalogue.RECONCILE_SUCCESS, {flow: last_success_at}),
        _family(catalogue.RECONCILE_RUN, {flow: last.began_at}),
        _family(
            catalogue.RECONCILE_OUTCOME,
            {(last.flow, outcome): float(outcome == last.outcome) for outcome in outcomes},
        ),
        _family(
            catalogue.RECONCILE_MISMATCHES,
            {(last.flow, kind): count for kind, count in (last.mismatches or {}).items()},
        ),
        _family(
            catalogue.RECONCILE_UNCOMPARED,
            {(last.flow, why): count for why, count in (last.uncompared or {}).items()},
        ),
        _family(catalogue.RECONCILE_RECORDS, {flow: last.records}),
        _family(catalogue.RECONCILE_BYTES, {flow: last.bytes}),
        _family(catalogue.RECONCILE_DURATION, {flow: last.seconds}),
    ]
    return write_text([family for family in families if family.samples])


def _family(metric: Metric, values: Mapping[tuple[str, ...], float | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if value is not None:
            family.add_metric(labels, value)
    return family
