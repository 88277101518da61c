"""What the status page says of statuses, in the words that a browser shows."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

from mirror.api.page import PAGE
from mirror.api.schema import status_to_json
from mirror.model import FlowStatus, Outlook, PartitionStatus, Reason, State, TopicLeftOut
from tests.unit.statuses import a_flow, a_loss, a_partition, an_unknown_partition
from tests.unit.test_report_in_a_browser import CHROMIUM

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")

SHOW = """
<script>
const words = (id) => document.getElementById(id).innerText;
const seen = STATUSES.map((status) => {
  show(status, performance.now());
  return { banner: words("banner"), tone: document.getElementById("banner").className.split(" ")[1],
    clusters: words("clusters"),
    figures: Object.fromEntries([...document.querySelectorAll("#figures .card")].map(
      (card) => [card.querySelector("span").innerText, card.querySelector("b").innerText])),
    commands: [...document.querySelectorAll("code.command")].map((code) => code.innerText),
    troubles: words("troubles") };
});
document.body.append(Object.assign(document.createElement("pre"),
  { id: "seen", textContent: JSON.stringify(seen) }));
</script>
"""
"""Gives the page's own script one status after the other."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is shown of one status.

    Attributes:
        tone: Of the banner: good, calm, warn or bad.
        figures: By their names.
    """

    banner: str
    tone: str
    clusters: str
    figures: dict[str, str]
    commands: list[str]
    troubles: str


def shown(folder: Path, *statuses: FlowStatus) -> list[Seen]:
    """Each of the statuses as the page shows it."""
    documents = json.dumps([status_to_json(one) for one in statuses]).replace("<", "\\u003c")
    (folder / "page.html").write_text(
        PAGE.replace("</body>", SHOW.replace("STATUSES", documents) + "</body>"), encoding="utf-8"
    )
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={folder / 'browser'}", (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return [Seen(**one) for one in json.loads(unescape(found[1]))]


def lagging(partition: int, reason: Reason, detail: str, lag_records: int | None) -> PartitionStatus:
    return a_partition(
        partition=partition,
        state=State.LAGGING,
        reason=reason,
        detail=detail,
        lag_records=lag_records,
        lag_seconds=1_800.0,
        outlook=Outlook(),
    )


def blocked(topic: str, partition: int) -> PartitionStatus:
    return a_partition(
        topic, partition, state=State.BLOCKED, reason=Reason.RECORD_TOO_LARGE, detail="too large"
    )


def test_a_source_that_is_silent_is_not_called_a_copy_that_catches_up(tmp_path: Path) -> None:
    """
    Nor is a transaction left open; nor do partitions that were not looked at yet hide it.
    """
    since = "the source has not answered since 03:00:00 UTC"
    silent = [lagging(at, Reason.SOURCE_UNAVAILABLE, since, None) for at in range(4)]
    held = lagging(4, Reason.OPEN_TRANSACTION, "offsets 5 to 9 wait for the end of a transaction", 0)
    behind = lagging(5, Reason.CATCHING_UP, "250 offsets behind", 250)

    dead, both, going = shown(
        tmp_path, a_flow(*silent, an_unknown_partition()), a_flow(*silent, held, behind), a_flow(behind)
    )

    assert dead.tone == "warn"
    assert dead.banner == f"4 partitions behind: source unavailable\n\norders-0: {since}."
    assert both.banner.startswith("5 partitions behind: source unavailable, open transaction")
    assert going.tone == "calm"
    assert going.banner == f"Catching up: 1 partition behind\n\n{behind.hint}"


def test_what_is_not_known_is_not_shown_as_none(tmp_path: Path) -> None:
    """
    Records behind of a source that is silent, or of some partitions of which it is not known.
    """
    unknown = [an_unknown_partition(partition=at) for at in range(2)]
    behind = lagging(5, Reason.CATCHING_UP, "250 offsets behind", 250)

    none, some, every = shown(tmp_path, a_flow(*unknown), a_flow(*unknown, behind), a_flow(behind))

    assert none.figures["records behind"] == "unknown"
    assert some.figures["records behind; unknown for 2"] == "250"
    assert some.figures["worst lag; unknown for 2"] == "30 min"
    assert every.figures["records behind"] == "250"


def test_a_topic_that_is_gone_is_none_of_those_whose_lag_is_not_known(tmp_path: Path) -> None:
    """
    Whatever state its partitions keep: they have no lag. Where it is all there is, its figures read neither 0
    nor unknown.
    """
    kept = {"lag_seconds": None, "lag_records": None, "outlook": Outlook(), "topic_gone": True}
    gone = [
        a_partition("old", 0, state=State.BLOCKED, reason=Reason.TOPIC_DELETED, detail="gone", **kept),
        a_partition("old", 1, state=State.PAUSED, reason=Reason.OPERATOR, detail="paused", **kept),
    ]
    behind = lagging(5, Reason.CATCHING_UP, "250 offsets behind", 250)

    alone, beside = shown(tmp_path, a_flow(*gone), a_flow(*gone, behind))

    assert (alone.figures["records behind"], alone.figures["worst lag"]) == ("none", "none")
    assert (beside.figures["records behind"], beside.figures["worst lag"]) == ("250", "30 min")


def test_a_mirror_that_waits_says_for_what(tmp_path: Path) -> None:
    """
    It blames neither the lists of topics, of which it has seen none, nor a cluster that has answered.
    """
    waits_for = "source to answer: kafka-1.east:9092: connection refused"
    waiting = a_flow(waits_for=waits_for, source_cluster_id=None, target_cluster_id=None)
    [seen] = shown(tmp_path, waiting)

    assert (seen.tone, seen.clusters) == ("warn", "")
    assert seen.banner == f"Waiting\n\nNothing is copied yet: the mirror waits for {waits_for}."


def test_a_topic_of_which_it_is_not_known_whether_it_is_a_copy_is_not_hidden(tmp_path: Path) -> None:
    """
    A topic that is known to be one needs nobody.
    """
    copy = TopicLeftOut("west.orders", "copy_of_target", "flow back has copied it")
    unsure = TopicLeftOut("audit", "not_known", "what flow back remembers could not be read yet")

    fine, empty, both = shown(
        tmp_path,
        a_flow(a_partition(), topics_left_out=(copy,)),
        a_flow(partitions=(), topics_left_out=(copy, unsure)),
        a_flow(a_partition(), topics_left_out=(copy, unsure)),
    )

    assert fine.tone == "good"
    words = "1 topic not copied\n\naudit: what flow back remembers could not be read yet."
    assert [(seen.tone, seen.banner) for seen in (empty, both)] == [("warn", words)] * 2


def test_partitions_that_were_not_looked_at_do_not_count_as_copied(tmp_path: Path) -> None:
    """
    One is blocked, one is copied, of three nothing is known.
    """
    unknown = [an_unknown_partition(partition=at) for at in range(3)]

    [seen] = shown(tmp_path, a_flow(blocked("orders", 0), a_partition(partition=1), *unknown))

    assert seen.banner.endswith("1 of 5 partitions are being copied.")


def test_a_command_does_nothing_to_partitions_of_which_its_card_says_nothing(tmp_path: Path) -> None:
    """
    Two of a topic are blocked, and a third is paused on purpose. For all of a topic there is one command.
    """
    partly = [blocked("orders", 0), blocked("orders", 1)]
    paused = a_partition(partition=2, state=State.PAUSED, reason=Reason.OPERATOR, detail="paused")
    whole = [blocked("audit", at) for at in range(3)]

    some, every = shown(tmp_path, a_flow(*partly, *whole, paused), a_flow(*whole, a_partition()))

    assert paths(some) == [
        "partitions/orders/0/resume",
        "partitions/orders/1/resume",
        "topics/audit/resume",
        "partitions/orders/2/resume",
    ]
    assert paths(every) == ["topics/audit/resume"]


def test_the_command_for_a_loss_gives_up_what_the_page_shows(tmp_path: Path) -> None:
    """
    By its offsets: the source may have removed more by the time somebody uses it.
    """
    [seen] = shown(tmp_path, a_flow(a_loss("audit", 0), a_loss("audit", 1)))

    body = """ -d '{"lost_from":1000,"lost_to":1050}'"""
    assert paths(seen) == [f"partitions/audit/{at}/accept-loss{body}" for at in (0, 1)]


def test_of_many_commands_the_first_are_shown(tmp_path: Path) -> None:
    """
    And how many more there are.
    """
    many = [blocked("orders", at) for at in range(8)]

    [seen] = shown(tmp_path, a_flow(*many, a_partition(partition=8)))

    assert paths(seen) == [f"partitions/orders/{at}/resume" for at in range(5)]
    assert "and 3 others in the same way" in seen.troubles


def paths(seen: Seen) -> list[str]:
    return [re.sub("^.*(?=(topics|partitions)/)", "", command) for command in seen.commands]
