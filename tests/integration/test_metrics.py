"""What a running mirror tells Prometheus, read by Prometheus' own tool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from monitoring import catalogue
from tests.conftest import TopicFactory
from tests.harness.daemon import until
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Twinsite, twinsite
from tests.harness.prometheus import prometheus
from tests.harness.promtool import promtool
from tests.harness.quotas import limit

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("partition_metrics", [True, False])
async def test_the_metrics_of_a_mirror_at_work_are_clean(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, partition_metrics: bool
) -> None:
    """
    After records, gaps, a loss and a pause: promtool is silent, and every metric of the catalogue is there.
    """
    plain, gapped, lost = [await topic(source, partitions=2, retention_ms=86_400_000) for _ in range(3)]
    compacted = await topic(source, cleanup_policy="compact")
    load(source.bootstrap, plain, json_rows(200, 100))
    load_transactions(source.bootstrap, gapped, json_rows(200, 100), 20, aborted_every=2)
    settings = tmp_path / "flow.yaml"
    document = {
        "flow": plain,
        "source": {"bootstrap_servers": source.bootstrap},
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [plain, gapped, lost, compacted]},
        "api": {"partition_metrics": partition_metrics},
    }
    settings.write_text(yaml.safe_dump(document))
    assert (await twinsite("mirror", "--config", str(settings), "--once", work_dir=tmp_path)).code == 0
    load(source.bootstrap, plain, json_rows(200, 100, seed=2))
    load(source.bootstrap, lost, json_rows(50, 100))
    source.delete_records(lost, {0: 5, 1: 5})

    with Twinsite.run("mirror", "--config", str(settings), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: states(mirror).get(lost) == {"DATA_LOSS"}, "the loss is seen")
        await mirror.wait_for(lambda: records(mirror, plain) == 200, "the rest is copied")
        await mirror.wait_for(lambda: states(mirror).get(compacted) == {"ACTIVE"}, "it was looked at")
        url = f"http://127.0.0.1:{mirror.port}"
        assert (await twinsite("pause", gapped, "--url", url, work_dir=tmp_path)).code == 0
        text = mirror.get("/metrics")

    assert promtool(["check", "metrics"], text) == ""
    found = {family.name for family in text_string_to_metric_families(text.decode()) if family.samples}
    left_out = set() if partition_metrics else {metric.name for metric in catalogue.OFFSET_METRICS}
    left_out |= {catalogue.CERT_EXPIRY.name}  # there is no TLS here
    left_out |= {catalogue.LINK_RTT.name, catalogue.PEER_CLOCK_SKEW.name}  # and no relay
    assert {
        re.sub("_total$", "", metric.name) for metric in catalogue.ALL if metric.name not in left_out
    } <= found
    assert (b'partition="0"' in text) is partition_metrics


async def test_prometheus_keeps_which_record_was_late(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It asks for OpenMetrics by itself, and an exemplar leads from a bar of the histogram to a record.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(100, 100))
    between = ("--source", source.bootstrap, "--target", target.bootstrap, "--flow", name)

    with Twinsite.run("mirror", *between, "--topics", name, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: records(mirror, name) == 100, "all is copied")
        async with prometheus(tmp_path / "prometheus", f"127.0.0.1:{mirror.port}") as reader:
            await until(lambda: bool(reader.exemplars("twinsite_copy_latency_seconds_bucket")), "an exemplar")
            await until(reader.healthy, "what it scrapes makes sense to it")
            late = reader.exemplars("twinsite_copy_latency_seconds_bucket")
            copied = reader.ask("query", query="max_over_time(twinsite_records_copied_total[1m])")
            assert copied["result"][0]["value"][1] == "100"

    assert {(one["topic"], one["partition"]) for one in late} == {(name, "0")}
    assert "99" in {one["offset"] for one in late}


@pytest.mark.parametrize(
    ("api", "quota"), [("fetch", "consumer_byte_rate"), ("produce", "producer_byte_rate")]
)
async def test_quotas_of_the_brokers_show(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, api: str, quota: str
) -> None:
    """
    A mirror that is held back, by either side, is not slow for reasons that nobody can see.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(400, 500), batch_size=8_192)
    side = source if api == "fetch" else target
    await limit(side, client_id=f"held-{name}", quota=quota, bytes_per_second=10_000.0)
    settings = tmp_path / "flow.yaml"
    document = {
        "flow": name,
        "source": {"bootstrap_servers": source.bootstrap, "client_id": f"held-{name}"},
        "target": {"bootstrap_servers": target.bootstrap, "client_id": f"held-{name}"},
        "topics": {"include": [name]},
    }
    settings.write_text(yaml.safe_dump(document))

    with Twinsite.run("mirror", "--config", str(settings), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: throttled(mirror).get(api, 0.0) > 0, "it is held back")
        other = "produce" if api == "fetch" else "fetch"

        assert throttled(mirror)[other] == 0


def throttled(mirror: Twinsite) -> dict[str, float]:
    """Seconds held back so far, by API."""
    try:
        text = mirror.get("/metrics").decode()
    except OSError:
        return {}
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.labels["api"]: s.value for s in samples if s.name == "twinsite_throttled_seconds_total"}


def states(mirror: Twinsite) -> dict[str, set[str]]:
    """The states of the partitions of each topic."""
    found: dict[str, set[str]] = {}
    for one in mirror.status().get("partitions", []):
        found.setdefault(one["topic"], set()).add(one["state"])
    return found


def records(mirror: Twinsite, topic: str) -> int:
    """Records of a topic copied since the start."""
    return sum(one["records"] for one in mirror.status().get("partitions", []) if one["topic"] == topic)
