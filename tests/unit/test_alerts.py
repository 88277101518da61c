"""The alerts that docs/metrics.md proposes, on scrapes of mirrors: Prometheus' own tool tells which fire."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from mirror.model import FlowStatus, Forecast, Outlook, PartitionStatus, Reason, State
from monitoring import catalogue
from monitoring.comparisons import Comparison, textfile
from monitoring.exposition import write_text
from monitoring.metrics import FlowCollector
from monitoring.surroundings import Expiry, Surroundings
from tests.harness.promtool import promtool
from tests.unit.statuses import a_flow, a_late_partition, a_loss, a_partition, a_standby

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
MINUTES = 40
NOW = (MINUTES - 1) * 60
"""When the alerts are looked at, in seconds since 1970; all scrapes until then were the same."""
DAY = 86_400.0

DECISION = "A partition needs a decision"
NEAR = "A partition itself warns of a loss that is near"
RETENTION = "Retention will overtake the copy, and soon"
LATE = "The copy is late"
UNKNOWN = "Nobody knows how late the copy is"
NOT_PROVEN = "The copy was not proven within a day"
NOBODY = "No mirror copies the flow `orders`"
ALONE = "No mirror stands by"
EXPIRY = "A certificate expires within two weeks"
BLOCKED = "A partition is blocked; the reason is in the labels"
GIVEN_UP = "Records were given up"
DELETES = "Deletes may have been missed"
SETTINGS = "Mirrors of one flow have different settings"
REFUSES = "A relay refuses somebody"
WAITS = "A relay that was just started waits for its source"
ALL = {
    *(DECISION, NEAR, RETENTION, LATE, UNKNOWN, NOT_PROVEN, NOBODY, ALONE, EXPIRY),
    *(BLOCKED, GIVEN_UP, DELETES, SETTINGS, REFUSES, WAITS),
}
"""Each of them fires in some test."""
RECENT = 5
"""How many minutes ago something has changed that the alerts are to see."""


class Change(NamedTuple):
    """What was scraped until a few minutes ago, and since then."""

    before: bytes
    after: bytes


def alerts() -> dict[str, str]:
    """The expressions of the page, by the names of their alerts."""
    section = PAGE.read_text().split("### Alerts")[1].split("### Questions")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+)` \|$", section, re.MULTILINE)
    return {name: expression.replace("\\|", "|") for name, expression in rows}


def scrape(
    status: FlowStatus, *expiries: Expiry, per_partition: bool = True, settings: str = "0123456789abcdef"
) -> bytes:
    """What a mirror in this state says of its flow, its requests and its certificates."""
    registry = CollectorRegistry()
    registry.register(FlowCollector(lambda: status, per_partition=per_partition))
    registry.register(
        Surroundings(
            status.flow,
            settings,
            expiries=lambda: expiries,
            in_flight=dict,
            up=lambda: {"source": True, "target": True},
            fenced=int,
        )
    )
    return write_text(list(registry.collect()))


def series(instance: str, scraped: bytes | Change) -> list[dict[str, str]]:
    """These samples as promtool takes them: each with its value at every minute."""
    change = scraped if isinstance(scraped, Change) else Change(scraped, scraped)
    before, after = (_samples(instance, text) for text in change)
    values = {
        name: [str(before[name])] * (MINUTES - RECENT) + [str(value)] * RECENT
        for name, value in after.items()
    }
    return [{"series": name, "values": " ".join(some)} for name, some in values.items()]


def _samples(instance: str, text: bytes) -> dict[str, float]:
    samples = [one for family in text_string_to_metric_families(text.decode()) for one in family.samples]
    return {_named(one.name, one.labels | {"instance": instance}): one.value for one in samples}


def _named(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


def check(folder: Path, scrapes: Sequence[bytes | Change], firing: set[str]) -> None:
    """Assert that exactly these alerts fire where these mirrors, and what else there is, are scraped."""
    rules = folder / "rules.yml"
    written = [{"alert": name, "expr": expression} for name, expression in alerts().items()]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": written}]}))
    expected = [{"labels": _named("", {"alertname": name}), "value": 1} for name in sorted(firing)]
    question = 'group by (alertname) (ALERTS{alertstate="firing"})'
    test = {
        "interval": "1m",
        "input_series": [one for n, text in enumerate(scrapes) for one in series(f"site-{n}:9640", text)],
        "promql_expr_test": [{"expr": question, "eval_time": f"{NOW}s", "exp_samples": expected}],
    }
    tests = folder / "tests.yml"
    tests.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))

    assert "SUCCESS" in promtool(["test", "rules", str(tests)])


def orders(*partitions: PartitionStatus) -> FlowStatus:
    """The flow of the page, as its owner sees it."""
    return replace(a_flow(*partitions), flow="orders")


def standby(*stopped: PartitionStatus) -> FlowStatus:
    """The flow of the page, as its standby sees it; with these partitions, which had stopped before."""
    standing_by = a_standby(owner=None)
    return replace(standing_by, flow="orders", partitions=(*standing_by.partitions, *stopped))


def comparison(seconds_ago: float | None, outcome: str = "match") -> bytes:
    """What comparisons of the flow left behind; ``seconds_ago`` is when one last found no difference."""
    last = Comparison(flow="orders", began_at=NOW - 60.0, outcome=outcome)
    return textfile(last, None if seconds_ago is None else NOW - seconds_ago, ("match", "mismatch", "failed"))


def expecting(catch_up: float | None, loss: float) -> Outlook:
    """A loss in so many seconds, of a copy that is there in so many; None: nobody knows when."""
    known = Forecast.UNKNOWN if catch_up is None else Forecast.EXPECTED
    return Outlook(known, catch_up, Forecast.EXPECTED, loss)


PROVEN = comparison(3_600)
LOST_BEFORE = replace(a_loss(), lag_records=None, lag_seconds=None, outlook=Outlook())


def relay(*lines: str) -> bytes:
    """What a relay says of itself; ``lines`` more than its version."""
    return "".join(
        f"{line}\n" for line in (f'{catalogue.RELAY_BUILD_INFO.name}{{version="1"}} 1', *lines)
    ).encode()


SOURCE_KNOWN = f'{catalogue.RELAY_SOURCE_INFO.name}{{source_cluster_id="SOURCE"}} 1'


def refused(times: int) -> bytes:
    """What a relay says that has refused somebody so often."""
    return relay(SOURCE_KNOWN, f'{catalogue.RELAY_REFUSED.name}{{code="tls_refused"}} {times}')


def test_the_alerts_of_the_page_are_those_that_are_tried_here() -> None:
    assert alerts().keys() == ALL


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    """
    A standby among them, which knows no lag of its own; and a relay.
    """
    check(tmp_path, [scrape(orders()), scrape(standby()), refused(3), PROVEN], set())


@pytest.mark.parametrize(
    ("state", "reason", "outlook", "firing"),
    [
        (State.PAUSED, Reason.OPERATOR, expecting(None, 7_200), True),
        (State.PAUSED, Reason.OPERATOR, replace(expecting(None, 7_200), catch_up=Forecast.NEVER), True),
        (State.LAGGING, Reason.SOURCE_UNAVAILABLE, expecting(None, 7_200), True),
        (State.LAGGING, Reason.CATCHING_UP, expecting(3_601, 7_200), True),
        (State.LAGGING, Reason.CATCHING_UP, expecting(3_600, 7_200), False),
        (State.PAUSED, Reason.OPERATOR, expecting(None, 2 * DAY), False),
        (State.ACTIVE, None, expecting(0, 3_600), False),
    ],
)
def test_a_copy_that_retention_will_overtake_is_told_whatever_keeps_it(
    tmp_path: Path, state: State, reason: Reason | None, outlook: Outlook, firing: bool
) -> None:
    """
    One that is paused, or whose link is cut, has no time in which it catches up: that is no reason to be
    silent.
    """
    partition = a_partition(state=state, reason=reason, lag_records=None, outlook=outlook)

    check(tmp_path, [scrape(orders(partition)), scrape(standby()), PROVEN], {RETENTION} if firing else set())


def test_a_topic_one_partition_of_which_has_an_unknown_pace_may_be_overtaken(tmp_path: Path) -> None:
    """
    Where all partitions of a topic share their series: that another one catches up soon is no reason to be
    silent.
    """
    paused = a_partition(
        "orders", 0, state=State.PAUSED, reason=Reason.OPERATOR, outlook=expecting(None, 7_200)
    )
    behind = a_partition("orders", 1, outlook=expecting(100, 2 * DAY))
    together = scrape(orders(paused, behind), per_partition=False)

    check(tmp_path, [together, scrape(standby()), PROVEN], {RETENTION})


@pytest.mark.parametrize("compared", [[], [comparison(None, "failed")], [comparison(DAY + 60, "mismatch")]])
def test_a_flow_that_was_never_proven_is_not_proven(tmp_path: Path, compared: list[bytes]) -> None:
    """
    Whether nothing compares it, or the comparisons never succeed, or they no longer do.
    """
    check(tmp_path, [scrape(orders()), scrape(standby()), *compared], {NOT_PROVEN})


def test_a_flow_whose_mirrors_are_not_scraped_is_not_proven_either(tmp_path: Path) -> None:
    check(tmp_path, [comparison(DAY + 60, "mismatch")], {NOT_PROVEN, NOBODY})
    check(tmp_path, [comparison(None, "failed")], {NOT_PROVEN, NOBODY})


def test_nobody_copies_where_no_mirror_says_so(tmp_path: Path) -> None:
    """
    Whether there are standbys only, or no mirror that can be scraped.
    """
    check(tmp_path, [scrape(standby()), PROVEN], {NOBODY})
    check(tmp_path, [PROVEN], {NOBODY})


def test_an_owner_without_a_standby_is_alone(tmp_path: Path) -> None:
    check(tmp_path, [scrape(orders()), PROVEN], {ALONE})


def test_a_standby_that_waits_at_its_start_is_none(tmp_path: Path) -> None:
    """
    It has not reached both clusters, and could not take over.
    """
    waiting = replace(standby(), partitions=(), waits_for="target")

    check(tmp_path, [scrape(orders()), scrape(waiting), PROVEN], {ALONE})


def test_a_late_copy_is_told_and_so_is_one_of_unknown_lag(tmp_path: Path) -> None:
    unknown = a_partition("new", lag_records=None, lag_seconds=None)
    late = a_partition("late", lag_seconds=301.0)

    check(tmp_path, [scrape(orders(unknown, late)), scrape(standby()), PROVEN], {LATE, UNKNOWN})


def test_what_was_lost_or_soon_will_be_is_told(tmp_path: Path) -> None:
    lost, late = a_loss(), a_late_partition()

    check(
        tmp_path,
        [scrape(orders(lost, late)), scrape(standby()), PROVEN],
        {DECISION, RETENTION, NEAR, LATE},
    )


def test_what_a_standby_last_knew_of_a_loss_is_no_alarm(tmp_path: Path) -> None:
    """
    It may have been accepted since at the mirror that copies.
    """
    check(tmp_path, [scrape(orders()), scrape(standby(LOST_BEFORE)), PROVEN], set())


def test_certificates_of_a_relay_expire_too(tmp_path: Path) -> None:
    """
    Mirrors find no way in when one of them has.
    """
    expires = relay(SOURCE_KNOWN, f'{catalogue.RELAY_CERT_EXPIRY.name}{{cert="listen"}} {NOW + 13 * DAY}')
    mirror = scrape(orders(), Expiry("target", "client", NOW + 15 * DAY))

    check(tmp_path, [mirror, scrape(standby()), PROVEN, expires], {EXPIRY})


def test_a_blocked_partition_is_told_and_so_is_one_whose_deletes_may_have_been_missed(tmp_path: Path) -> None:
    blocked = a_partition("blocked", state=State.BLOCKED, reason=Reason.FOREIGN_WRITE)
    compacted = a_partition("compacted", tombstone_headroom_seconds=0.0)

    check(tmp_path, [scrape(orders(blocked, compacted)), scrape(standby()), PROVEN], {BLOCKED, DELETES})


def test_records_that_were_given_up_are_told(tmp_path: Path) -> None:
    """
    Those of some minutes ago; not those of all time.
    """
    before, after = (scrape(orders(a_partition(lost_offsets=lost))) for lost in (3, 8))

    check(tmp_path, [Change(before, after), scrape(standby()), PROVEN], {GIVEN_UP})
    check(tmp_path, [after, scrape(standby()), PROVEN], set())


def test_mirrors_with_different_settings_are_told(tmp_path: Path) -> None:
    check(tmp_path, [scrape(orders()), scrape(standby(), settings="other"), PROVEN], {SETTINGS})


def test_a_relay_that_refuses_somebody_or_has_no_source_is_told(tmp_path: Path) -> None:
    refuses = Change(refused(0), refused(3))

    check(tmp_path, [scrape(orders()), scrape(standby()), PROVEN, refuses, relay()], {REFUSES, WAITS})
