"""The registry: names, types, labels and values, against golden files and promtool."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from mirror.config import parse
from mirror.model import (
    FlowStatus,
    Forecast,
    OffsetMode,
    Outlook,
    PartitionStatus,
    Reason,
    State,
    TopicPartition,
)
from mirror.observing import register_metrics
from monitoring import catalogue
from monitoring.exposition import OPENMETRICS, content_type, write_text
from monitoring.metrics import FlowCollector, Instruments, register
from monitoring.surroundings import Expiry, Surroundings, settings_hash
from tests.harness.promtool import promtool
from tests.unit.statuses import LATE, a_flow, a_link, a_loss, a_partition, an_unknown_partition

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def a_mixed_flow() -> FlowStatus:
    """One partition of every kind that shows."""
    return a_flow(
        a_partition("orders", 0),
        a_partition(
            "orders",
            1,
            state=State.LAGGING,
            reason=Reason.CATCHING_UP,
            offset_mode=OffsetMode.MAPPED,
            lag_records=200,
            lag_seconds=33.5,
            next_offset=800,
            retention_headroom_seconds=3_600.0,
            tombstone_headroom_seconds=86_366.5,
            outlook=LATE,
        ),
        a_loss("audit", 2),
        an_unknown_partition("fresh", 0),
        link=a_link(),
    )


def flow_text(status: FlowStatus, *, per_partition: bool = True) -> str:
    """What a scrape says of the flow, without process metrics and durations."""
    registry = CollectorRegistry()
    registry.register(FlowCollector(lambda: status, per_partition=per_partition))
    return write_text(list(registry.collect())).decode()


def whole_registry(status: FlowStatus, *, per_partition: bool = True) -> CollectorRegistry:
    """A registry as the mirror has it, with every metric observed once."""
    registry = CollectorRegistry()
    register(registry, lambda: status, per_partition=per_partition)
    instruments = Instruments(registry, status.flow)
    instruments.observe_copy_latency(0.0042, TopicPartition("orders", 1), 4711)
    instruments.observe_request("produce", 0.3)
    instruments.count_crc_failure("source")
    registry.register(a_mirrors_surroundings(status.flow))
    return registry


def a_mirrors_surroundings(flow: str) -> Surroundings:
    """A certificate at the target, which answers nothing just now, and three requests on their way there."""
    return Surroundings(
        flow,
        "0123456789abcdef",
        expiries=lambda: [Expiry("target", "client", 1.7e9)],
        in_flight=lambda: {"source": 0, "target": 3},
        up=lambda: {"source": True, "target": False},
        fenced=lambda: 2,
    )


def value(text: str, name: str, **labels: str) -> float | None:
    """The value of one series, None when it is not there."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


@pytest.mark.parametrize(
    ("golden", "per_partition"), [("metrics.txt", True), ("metrics_per_topic.txt", False)]
)
def test_a_scrape_of_a_known_flow_is_word_for_word_the_golden_file(golden: str, per_partition: bool) -> None:
    """
    Names, types, labels and values are a promise to dashboards: changing one changes this file.
    """
    assert flow_text(a_mixed_flow(), per_partition=per_partition) == (HERE / "golden" / golden).read_text()


@pytest.mark.parametrize("per_partition", [True, False])
def test_promtool_finds_nothing_to_complain_about(per_partition: bool) -> None:
    """
    Prometheus' own linter reads the whole registry, process metrics included.
    """
    text = write_text(list(whole_registry(a_mixed_flow(), per_partition=per_partition).collect()))

    assert promtool(["check", "metrics"], text) == ""


def test_the_expressions_of_the_docs_are_accepted_by_promtool(tmp_path: Path) -> None:
    """
    What the page tells people to type is PromQL, and only speaks of metrics there are.
    """
    section = (DOCS / "metrics.md").read_text().split("## Questions and their expressions")[1]
    expressions = [found.replace("\\|", "|") for found in re.findall(r"\| `(.+)` \|$", section, re.MULTILINE)]
    rules = "".join(f"  - record: a:{n}\n    expr: '{text}'\n" for n, text in enumerate(expressions))
    file = tmp_path / "rules.yml"
    file.write_text(f"groups:\n- name: docs\n  rules:\n{rules}")

    said = promtool(["check", "rules", str(file)])

    assert "SUCCESS" in said
    assert len(expressions) >= 5
    named = {re.sub("_bucket$", "", name) for name in re.findall(r"twinsite_\w+", " ".join(expressions))}
    known = (*catalogue.ALL, *catalogue.RELAY_METRICS, *catalogue.RECONCILE_METRICS)
    assert named <= {metric.name for metric in known}


def test_our_text_is_that_of_the_client_library() -> None:
    """
    The fast writer saves time, not correctness: every byte is the same.
    """
    odd = a_partition(
        'a"b\\c\nd', 0, lag_seconds=1e21, next_offset=12_345_678, retention_headroom_seconds=0.1
    )
    registry = whole_registry(replace(a_mixed_flow(), partitions=(*a_mixed_flow().partitions, odd)))
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert registry.get_sample_value(name) is not None
    families = list(registry.collect())

    frozen = CollectorRegistry()
    frozen.collect = lambda: families  # type: ignore[method-assign]

    assert write_text(families) == generate_latest(frozen)
    assert write_text(families, OPENMETRICS) == openmetrics.generate_latest(frozen)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("accept", "served"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ],
)
def test_who_names_openmetrics_gets_it(accept: str, served: str) -> None:
    """
    As Prometheus does; curl gets what can be read with nothing behind the values.
    """
    assert content_type(accept) == served


@pytest.mark.parametrize(
    ("topic", "told"), [("orders", "orders"), ("x" * 79, "x" * 79), ("x" * 249, "x" * 78 + "…")]
)
def test_the_last_record_of_each_bucket_is_its_exemplar(topic: str, told: str) -> None:
    """
    It is told which record was late, however long its topic's name: an exemplar of more than 128 characters
    would spoil the scrape.
    """
    registry = CollectorRegistry()
    instruments = Instruments(registry, "f")
    for offset, seconds in [(1, 0.004), (2, 30.5), (9_223_372_036_854_775_806, 31.0)]:
        instruments.observe_copy_latency(seconds, TopicPartition(topic, 2_147_483_647), offset)

    text = write_text(list(registry.collect()), OPENMETRICS).decode()

    buckets = {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for family in openmetrics_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
    }
    last = {"topic": told, "partition": "2147483647", "offset": "9223372036854775806"}
    assert buckets == {"0.005": (last | {"offset": "1"}, 0.004), "60.0": (last, 31.0)}
    assert all(sum(map(len, [*labels, *labels.values()])) <= 128 for labels, _ in buckets.values())


def test_the_page_in_the_docs_lists_every_metric_as_it_is() -> None:
    """
    Name, type, labels and meaning of docs/metrics.md are those of the catalogue, in its order.
    """
    rows = re.findall(
        r"^\| `(twinsite_\w+)` \| (\w+) \| ([^|]+) \| (.+) \|$", (DOCS / "metrics.md").read_text(), re.M
    )

    metrics = (*catalogue.ALL, *catalogue.RELAY_METRICS, *catalogue.RECONCILE_METRICS)
    assert rows == [(m.name, m.kind.value, ", ".join(m.labels) or "-", m.help) for m in metrics]


def test_the_registry_holds_what_the_catalogue_names_and_nothing_else() -> None:
    """
    A metric that is named and not made, or made and not named, would make the docs lie.
    """
    text = write_text(list(whole_registry(a_mixed_flow()).collect())).decode()

    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))

    ours = {name: kind for name, kind in types.items() if not name.startswith("process_")}
    assert ours == {metric.name: metric.kind.value for metric in catalogue.ALL}
    for metric in catalogue.ALL:
        labels = {frozenset(found) - {"le"} for found in _label_names(text, metric.name)}
        assert labels == {frozenset(metric.labels)}, metric.name


def _label_names(text: str, name: str) -> list[list[str]]:
    lines = re.findall(rf"^{name}(?:_bucket|_sum|_count)?{{(.*)}} ", text, re.M)
    return [re.findall(r'(\w+)="', line) for line in lines]


def test_what_is_unknown_has_no_series() -> None:
    """
    A partition nobody has looked at must not look as if it had no lag.
    """
    text = flow_text(a_flow(an_unknown_partition(), source_cluster_id=None, producer_epoch=None))

    assert value(text, "twinsite_lag_seconds") is None
    assert value(text, "twinsite_lag_records") is None
    assert value(text, "twinsite_next_offset") is None
    assert value(text, "twinsite_retention_headroom_seconds") is None
    assert value(text, "twinsite_tombstone_headroom_seconds") is None
    assert value(text, "twinsite_flow_info") is None
    assert value(text, "twinsite_fencing_epoch") is None
    assert value(text, "twinsite_partitions_lag_unknown") == 1
    assert value(text, "twinsite_partition_state", topic="fresh", state="UNKNOWN") == 1


def test_exactly_one_state_of_a_partition_is_1() -> None:
    """
    All states have a series, so that an alert on one of them sees it begin.
    """
    text = flow_text(a_flow(a_loss("audit", 2)))

    states = {state: value(text, "twinsite_partition_state", state=state.value) for state in State}

    assert states == {state: float(state is State.DATA_LOSS) for state in State}
    assert value(text, "twinsite_partition_reason", reason="log_start_moved", state="DATA_LOSS") == 1
    assert text.count("\ntwinsite_partition_reason{") == 1


def test_a_topic_is_as_bad_as_its_worst_partition() -> None:
    """
    Without a series per partition, the worst lag and the least headroom stay visible.
    """
    worse = a_partition("orders", 1, lag_seconds=90.0, lag_records=7, retention_headroom_seconds=10.0)
    better = a_partition("orders", 0, lag_seconds=1.0, lag_records=3, retention_headroom_seconds=99.0)
    blocked = a_partition("orders", 2, state=State.BLOCKED, reason=Reason.STORAGE_ERROR, lag_seconds=None)

    text = flow_text(a_flow(better, worse, blocked), per_partition=False)

    assert "partition=" not in text
    assert value(text, "twinsite_lag_seconds", topic="orders") == 90
    assert value(text, "twinsite_lag_records", topic="orders") == 10
    assert value(text, "twinsite_retention_headroom_seconds", topic="orders") == 10
    assert value(text, "twinsite_partition_state", topic="orders", state="BLOCKED") == 1
    assert value(text, "twinsite_partition_state", topic="orders", state="ACTIVE") == 1
    assert value(text, "twinsite_records_copied_total", topic="orders") == 3 * 890
    assert value(text, "twinsite_partitions_lag_unknown") == 1


def test_a_topic_is_not_said_to_miss_nothing_where_that_is_not_known_of_all() -> None:
    """
    What is known to be missing of some of them is told; the rest is counted. When all of it will be there is
    known only of all, unless that is never.
    """
    names = ("twinsite_lag_seconds", "twinsite_lag_records", "twinsite_catch_up_seconds")
    in_time = Outlook(Forecast.EXPECTED, 0.0)
    there = a_partition("orders", 0, lag_seconds=0.4, lag_records=0, outlook=in_time)
    held_back = {"next_offset": 900, "source_last_stable_offset": 900, "source_high_watermark": 901}
    held = a_partition("orders", 1, lag_seconds=5.0, lag_records=0, **held_back)
    paused = a_partition("orders", 1, state=State.PAUSED, lag_seconds=6.0, lag_records=None)
    late = Outlook(Forecast.EXPECTED, 5.0)
    behind = a_partition("orders", 1, lag_seconds=9.0, lag_records=7, outlook=late)
    never = replace(behind, outlook=Outlook(Forecast.NEVER))
    unknown = [an_unknown_partition("orders", 2), an_unknown_partition("orders", 3)]

    def told(*partitions: PartitionStatus) -> list[float | None]:
        text = flow_text(a_flow(*partitions), per_partition=False)
        return [value(text, name, topic="orders") for name in names]

    assert told(there) == [0.4, 0, 0]
    assert told(there, *unknown) == [None, None, None]
    assert told(there, held, *unknown) == [5, None, None]
    assert told(there, paused, *unknown) == [6, None, None]
    assert told(there, behind) == [9, 7, 5]
    assert told(there, behind, *unknown) == [9, 7, None]
    assert told(there, never, *unknown) == [9, 7, math.inf]


def test_of_a_mirror_that_waits_at_its_start_no_partitions_are_counted() -> None:
    """
    Nobody knows yet how many there are: none of unknown lag would be a copy in order.
    """
    waiting = replace(a_flow(), waits_for="source to answer")

    text = flow_text(waiting)

    assert value(text, "twinsite_partitions_lag_unknown") is None
    assert value(text, "twinsite_partitions_mapped") is None
    assert value(text, "twinsite_partitions") is None
    assert value(flow_text(a_flow()), "twinsite_partitions_lag_unknown") == 0


def test_registering_takes_no_snapshot() -> None:
    """
    The registry is put together before there is a flow to ask.
    """

    def too_early() -> FlowStatus:
        raise AssertionError("asked before the first scrape")

    register(CollectorRegistry(), too_early)


def test_two_flows_cannot_share_a_registry() -> None:
    """
    Their series would be one another's.
    """
    registry = CollectorRegistry()
    register(registry, a_flow)

    with pytest.raises(ValueError, match="Duplicated"):
        register(registry, a_flow)


def test_nothing_is_put_on_the_global_registry() -> None:
    """
    Two mirrors in one process keep apart.
    """
    before = {family.name for family in REGISTRY.collect()}

    whole_registry(a_mixed_flow())

    assert {family.name for family in REGISTRY.collect()} == before


def test_durations_are_histograms_without_created_series() -> None:
    """
    One observation falls into the buckets from its size on.
    """
    text = write_text(list(whole_registry(a_mixed_flow()).collect())).decode()

    assert value(text, "twinsite_copy_latency_seconds_bucket", le="0.0025") == 0
    assert value(text, "twinsite_copy_latency_seconds_bucket", le="0.005") == 1
    assert value(text, "twinsite_request_duration_seconds_sum", api="produce") == 0.3
    assert "_created" not in text


def test_a_record_from_the_future_does_not_make_a_negative_latency() -> None:
    """
    Clocks of producers are not ours.
    """
    registry = CollectorRegistry()
    Instruments(registry, "f").observe_copy_latency(-5.0, TopicPartition("orders", 1), 4711)

    assert registry.get_sample_value("twinsite_copy_latency_seconds_sum", {"flow": "f"}) == 0


def test_what_quotas_hold_back_is_counted_in_seconds() -> None:
    """
    From zero on, and apart for reading and writing: the quotas are those of two clusters.
    """
    registry = CollectorRegistry()
    instruments = Instruments(registry, "f")
    instruments.count_throttled("fetch", 0.0)
    instruments.count_throttled("produce", 0.25)
    instruments.count_throttled("produce", 0.5)

    seconds = {
        api: registry.get_sample_value("twinsite_throttled_seconds_total", {"flow": "f", "api": api})
        for api in ("fetch", "produce")
    }

    assert seconds == {"fetch": 0.0, "produce": 0.75}


def test_settings_are_told_apart_by_their_hash() -> None:
    """
    Two mirrors of one flow should have the same; the order in a file means nothing.
    """
    one = settings_hash({"flow": "f", "topics": {"include": ["a"], "exclude": []}})
    same = settings_hash({"topics": {"exclude": [], "include": ["a"]}, "flow": "f"})
    other = settings_hash({"topics": {"exclude": [], "include": ["b"]}, "flow": "f"})

    assert one == same != other


def test_mirrors_differ_by_the_settings_of_their_flow_not_by_where_they_listen() -> None:
    """
    Two on one machine need different ports, and an alert on the hash is about what is copied, and how.
    """
    flow: dict[str, Any] = {
        "source": {"bootstrap_servers": "east:9092"},
        "target": {"bootstrap_servers": "west:9092"},
        "topics": {"include": ["a"]},
    }

    def hashes(**more: Any) -> str:
        registry = CollectorRegistry()
        register_metrics(registry, parse(flow | more), a_flow, ())
        (sample,) = next(one.samples for one in registry.collect() if one.name == catalogue.CONFIG_HASH.name)
        return sample.labels["hash"]

    assert hashes() == hashes(api={"port": 9641, "host": "10.0.0.2"}, log={"level": "debug"})
    assert hashes() != hashes(offsets={"mode": "mapped"})


def test_certificates_are_looked_at_when_somebody_asks() -> None:
    """
    One that was renewed shows at the next scrape, and registering reads no file.
    """
    seen = iter([[Expiry("source", "broker", 1.7e9)], [Expiry("source", "broker", 1.8e9)]])
    registry = CollectorRegistry()

    registry.register(
        Surroundings("f", "0" * 16, expiries=lambda: next(seen), in_flight=dict, up=dict, fenced=int)
    )

    labels = {"flow": "f", "cluster": "source", "cert": "broker"}
    for expected in (1.7e9, 1.8e9):
        assert registry.get_sample_value("twinsite_cert_expiry_timestamp_seconds", labels) == expected


def test_requests_in_flight_are_counted_when_somebody_asks() -> None:
    """
    By cluster, and 0 where nothing is asked.
    """
    registry = CollectorRegistry()
    registry.register(a_mirrors_surroundings("f"))

    found = {
        cluster: registry.get_sample_value("twinsite_requests_in_flight", {"flow": "f", "cluster": cluster})
        for cluster in ("source", "target")
    }

    assert found == {"source": 0, "target": 3}


def test_whether_a_cluster_answers_has_no_series_before_it_was_asked() -> None:
    """
    Unknown is neither up nor down.
    """
    registry = CollectorRegistry()
    up: dict[str, bool | None] = {"source": None, "target": False}
    registry.register(Surroundings("f", "0" * 16, expiries=tuple, in_flight=dict, up=lambda: up, fenced=int))

    found = {
        cluster: registry.get_sample_value("twinsite_peer_up", {"flow": "f", "cluster": cluster})
        for cluster in up
    }

    assert found == {"source": None, "target": 0}


def test_gaps_are_told_apart_by_why_there_is_no_record() -> None:
    """
    What was lost is no marker, and what is none of the others is what compaction removed.
    """
    text = flow_text(
        a_flow(a_partition(gap_offsets=100, lost_offsets=40, aborted_offsets=30, marker_offsets=9))
    )

    found = {
        why: value(text, "twinsite_gap_records_total", topic="orders", reason=why)
        for why in ("expired", "aborted", "marker", "compacted")
    }
    assert found == {"expired": 40, "aborted": 30, "marker": 9, "compacted": 21}


def test_crc_failures_start_at_zero() -> None:
    """
    A counter that appears with its first failure would hide that failure from ``increase()``.
    """
    registry = CollectorRegistry()
    instruments = Instruments(registry, "f")
    labels = {"flow": "f", "where": "source"}
    assert registry.get_sample_value("twinsite_crc_failures_total", labels) == 0

    instruments.count_crc_failure("source")

    assert registry.get_sample_value("twinsite_crc_failures_total", labels) == 1


def test_the_documents_say_how_many_series_a_partition_has() -> None:
    """
    Of one of which all is known, and something lost: whoever sizes a Prometheus by it is not surprised.
    """

    def series(*partitions: PartitionStatus) -> int:
        collected = FlowCollector(lambda: a_flow(*partitions)).collect()
        return sum(len(family.samples) for family in collected)

    one, another = (
        a_partition(
            partition=at,
            state=State.DATA_LOSS,
            reason=Reason.LOG_START_MOVED,
            lost_from=1,
            lost_to=3,
            retention_headroom_seconds=1.0,
            tombstone_headroom_seconds=1.0,
            outlook=Outlook(Forecast.EXPECTED, 10.0, Forecast.EXPECTED, 100.0, 1.0, 2.0),
        )
        for at in range(2)
    )
    each = series(one, another) - series(one)

    for page in ("metrics.md", "settings.md"):
        assert f"make up to {each} 000 series" in (DOCS / page).read_text()
