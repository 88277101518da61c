"""The status and the metrics of a relay: stable, described by a file, and shown to people."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from mirror.api.relay_schema import is_of_relay, json_schema, relay_from_json, relay_to_json
from mirror.api.schema import UnreadableStatusError, status_from_json
from mirror.cli.main import main
from mirror.cli.render_relay import relay_table
from mirror.model_relay import ChannelTotals, RelayStatus, StreamStatus
from monitoring import catalogue
from monitoring.exposition import write_text
from monitoring.relay_metrics import RelayExpiry, register_relay
from tests.harness.promtool import promtool
from tests.unit.fake_mirror import serving
from tests.unit.test_status_schema import complaints

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "relay-status.schema.json"
BULK = ChannelTotals(12, 250_000, 1_000_000, 3.5, 1.5, 0.5)
STREAM = StreamStatus(
    flow="east",
    peer="10.0.0.7:5001",
    identity="spiffe://example.org/mirror",
    role="orders",
    began_at_ms=1_700_000_000_000,
    round_trip_seconds=0.105,
    congestion="bbr",
    level=6,
    window_bytes=16 << 20,
    recode=True,
    why="the link is full",
    partitions_wanted=9,
    waits=True,
    live=ChannelTotals(3, 5_000, 9_000, 0.0, 0.2, 0.1),
    bulk=BULK,
)
UNKNOWN = replace(
    STREAM,
    flow=None,
    identity=None,
    role=None,
    round_trip_seconds=None,
    level=None,
    window_bytes=None,
    recode=None,
    why="",
)
STATUS = RelayStatus(
    version="0.1.0",
    source_cluster_id="abc",
    started_at_ms=1_699_999_000_000,
    uptime_seconds=3_600.0,
    cpu_seconds=60.0,
    resident_bytes=90_000_000,
    connections=7,
    connections_max=1_000,
    tunnels=5,
    rate_limit_bytes_per_second=2_500_000.0,
    streams=(STREAM, UNKNOWN),
    live=ChannelTotals(3, 5_000, 9_000, 0.0, 0.2, 0.1),
    bulk=BULK,
    tunnelled_bytes=77_000,
    bytes_read=1_200_000,
    refused={"unknown_identity": 2, "too_slow": 0},
)


def registry(status: RelayStatus, *expiries: RelayExpiry) -> CollectorRegistry:
    made = CollectorRegistry()
    register_relay(made, lambda: status, lambda: expiries)
    return made


def shown(status: RelayStatus, *, everything: bool = False, width: int = 1_000) -> str:
    """The table as it is printed where there is no terminal."""
    out = io.StringIO()
    table = relay_table(status, everything=everything, now_ms=1_700_000_060_000)
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [120, 80, 60, 40, 24])
def test_figures_are_whole_or_not_there(width: int) -> None:
    """
    Half a number is another one: a column for which a terminal has no room is left out, a name is cut.
    """
    most = replace(BULK, bytes_sent=123_456_789_012, records_bytes=250_000_000_000)
    streams = [replace(STREAM, flow=f"orders-{at}-east-to-west", bulk=most) for at in range(2)]

    lines = shown(replace(STATUS, streams=tuple(streams)), width=width).splitlines()

    [at] = [at for at, line in enumerate(lines) if line.startswith("FLOW")]
    table, whole = lines[at : at + 3], shown(replace(STATUS, streams=tuple(streams))).split()
    assert all(len(line.rstrip()) <= width for line in table)
    assert all(set(line.split()[1:]) <= set(whole) for line in table)
    assert ["123.5" in line for line in table[1:]] == [width > 30] * 2


def test_the_document_is_read_back_as_it_was() -> None:
    """
    Also from a later relay, which may say more.
    """
    document = json.loads(json.dumps(relay_to_json(STATUS)))

    assert relay_from_json(document | {"later": 1}) == STATUS
    assert is_of_relay(document)


def test_the_document_fits_the_schema_in_the_docs() -> None:
    """
    Field by field, unknown values included; and that file is the one that is made.
    """
    schema = json.loads(SCHEMA_FILE.read_text())

    assert schema == json_schema()
    assert complaints(relay_to_json(STATUS), schema, schema) == []
    assert complaints(relay_to_json(STATUS) | {"more": 1}, schema, schema) == ["$.more: unexpected"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"schema": 2}, "schema 2, this version reads 1"), ({"streams": 7}, "status of a relay: streams")],
)
def test_what_cannot_be_read_is_said(change: dict[str, object], words: str) -> None:
    """
    With what is wrong about it.
    """
    with pytest.raises(UnreadableStatusError, match=words):
        relay_from_json(relay_to_json(STATUS) | change)


def test_a_relay_is_not_taken_for_a_mirror() -> None:
    """
    Commands that want a mirror say what answers there.
    """
    with pytest.raises(UnreadableStatusError, match="what answers there is a relay, not a mirror"):
        status_from_json(relay_to_json(STATUS))


def test_promtool_finds_nothing_to_complain_about() -> None:
    """
    And every metric that is named is made, with its labels.
    """
    expiry = RelayExpiry("listen", 1.8e9)

    text = write_text(list(registry(STATUS, expiry).collect()))

    assert promtool(["check", "metrics"], text) == ""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.M))
    ours = {name: kind for name, kind in types.items() if not name.startswith("process_")}
    assert ours == {metric.name: metric.kind.value for metric in catalogue.RELAY_METRICS}
    for metric in catalogue.RELAY_METRICS:
        labels = re.findall(rf"^{metric.name}(?:{{(\w+)=.*}})? ", text.decode(), re.M)
        assert {*labels} == {"".join(metric.labels)}, metric.name


def test_what_is_unknown_has_no_series() -> None:
    """
    A level that nobody has chosen yet is not level 0, and a certificate that cannot be read never ends.
    """
    status = replace(STATUS, streams=(UNKNOWN,), source_cluster_id=None, rate_limit_bytes_per_second=None)

    text = write_text(list(registry(status).collect())).decode()

    for name in ("relay_streams_at_level", "relay_source_info", "relay_cert_expiry_timestamp_seconds"):
        assert f"\ntwinsite_{name}{{" not in text
    assert "\ntwinsite_relay_rate_limit_bytes_per_second " not in text
    assert "\ntwinsite_relay_streams 1.0" in text


def test_registering_takes_no_snapshot() -> None:
    """
    The registry is put together before the relay listens.
    """

    def too_early() -> RelayStatus:
        raise AssertionError("asked before the first scrape")

    register_relay(CollectorRegistry(), too_early, list)


def test_the_table_has_a_row_for_each_stream() -> None:
    """
    What is not known is a question mark; what was refused is told.
    """
    text = shown(STATUS)

    (row,) = [line for line in text.splitlines() if line.startswith("east ")]
    assert re.split(r"\s{2,}", row.strip()) == [
        *("east", "10.0.0.7:5001", "spiffe://example.org/mirror", "orders", "60 s", "105.0 ms", "9"),
        *("255.0 kB (waits)", "0.253", "6"),
    ]
    assert "2 streams, 5 connections to brokers" in text
    assert "refused since the start: unknown_identity 2" in text
    assert "limits: at most 20 Mbit/s at this time" in text
    assert "too_slow" not in text
    assert "east, from 10.0.0.7:5001: level 6: the link is full" in text
    assert "None" not in text


def test_a_relay_that_does_not_listen_yet_says_what_it_waits_for() -> None:
    """
    That no mirror has a stream open goes without saying.
    """
    text = shown(replace(STATUS, source_cluster_id=None, streams=(), waits_for="source to answer: a\x1b[1m"))

    assert "\n  waits for source to answer: a" in text
    assert "\x1b" not in text
    assert "no mirror has a stream" not in text


def test_of_many_streams_some_are_shown_and_the_others_counted() -> None:
    """
    Unless all are asked for.
    """
    many = replace(STATUS, streams=(STREAM,) * 100)

    assert "and 40 other streams (--all shows them)" in shown(many)
    assert len(re.findall("^east ", shown(many, everything=True), re.M)) == 100


def test_words_of_a_mirror_do_not_move_the_cursor() -> None:
    """
    Names come from certificates of others.
    """
    evil = replace(STREAM, identity="a\x1b[31mb")

    assert "\x1b" not in shown(replace(STATUS, streams=(evil,)))


@pytest.mark.parametrize(("waits_for", "ends_with"), [("", 0), ("source to answer", 3)])
def test_the_status_command_shows_a_relay(
    waits_for: str, ends_with: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    And ends with 0, as a relay has no partitions that could be in trouble; unless no mirror can come in yet.
    """
    with serving() as relay:
        relay.answers["/status"] = (200, relay_to_json(replace(STATUS, waits_for=waits_for)))
        monkeypatch.setenv("TWINSITE_URL", relay.url)
        code = main(["status"])

    assert code == ends_with
    assert "relay of cluster abc: 2 streams" in capsys.readouterr().out
