"""``twinsite link test``: what is asked for, what is shown, and the exit code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mirror.cli.link_report import document, report
from mirror.cli.main import main
from mirror.config import LinkSettings
from mirror.errors import AuthenticationError, ConnectionFailedError, TwinsiteError
from mirror.link.advising import advice
from mirror.link.expecting import Production, expected
from mirror.link.measuring import Clock, Measured
from mirror.survey import run
from mirror.survey.run import Failed, Survey, Surveyed, Wish
from tests.unit.links import MB, REPORT, a_link
from tests.unit.test_link_expecting import PRODUCTION

PAGE = (Path(__file__).parents[2] / "docs" / "link.md").read_text()
FILE = """
link: {relays: ['relay-1.east:9650'], window_bytes: 32 MiB, security: {protocol: SSL}}
target: {bootstrap_servers: 'west:9092'}
topics: {include: ['orders'], exclude: ['tmp']}
"""


def surveyed(link: Measured, made: Production | None = PRODUCTION, window_bytes: int = 16 << 20) -> Surveyed:
    return Surveyed(
        link, expected(link, made, "nobody asked"), window_bytes, tuple(advice(link, window_bytes))
    )


def a_survey(
    *relays: Surveyed | Failed, made: Production | None = PRODUCTION, error: TwinsiteError | None = None
) -> Survey:
    why = "" if made else "nobody asked"
    return Survey(relays or (surveyed(a_link(), made),), made, why, error)


class FakeSurvey:
    """Stands for the link: notes what it was asked for and answers."""

    def __init__(self) -> None:
        self.link: LinkSettings | None = None
        self.wish: Wish | None = None
        self.answer = a_survey()

    async def survey(self, link: LinkSettings, wish: Wish, say: Any) -> Survey:
        self.link, self.wish = link, wish
        say("filling")
        return self.answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> FakeSurvey:
    fake = FakeSurvey()
    monkeypatch.setattr(run, "survey", fake.survey)
    return fake


def page(survey: Survey, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(report(survey))
    return out.getvalue()


# -- what is asked for ---------------------------------------------------------------------------------


def test_a_relay_is_all_that_is_needed(asked: FakeSurvey) -> None:
    """
    Ten seconds, as fast as it goes, and no topics.
    """
    code = main(["link", "test", "--relay", "a:9650,b:9650"])

    assert code == 0
    assert asked.link is not None
    assert asked.link.relays == ("a:9650", "b:9650")
    assert asked.wish == Wish(10.0, None, None)


def test_settings_bring_the_link_and_the_topics(asked: FakeSurvey, tmp_path: Path) -> None:
    """
    Options win over them: other relays are asked with the same certificates.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(FILE)

    main(["link", "test", "--config", str(path), "--relay", "c:9650", "--topics", "audit", "--seconds", "3"])

    assert asked.link is not None
    assert asked.link.relays == ("c:9650",)
    assert (asked.link.window_bytes, asked.link.security.protocol) == (32 << 20, "SSL")
    assert asked.wish is not None
    assert asked.wish.seconds == 3.0
    assert asked.wish.topics is not None
    assert (asked.wish.topics.include, asked.wish.topics.exclude) == (("audit",), ("tmp",))
    assert asked.wish.flow is not None
    assert asked.wish.flow.target.bootstrap_servers == ("west:9092",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--relay: missing"),
        (["--relay", "nonsense"], "nonsense"),
        (["--relay", "a:9650", "--topics", "("], "include"),
        (["--relay", "a:9650", "--seconds", "600"], "600"),
        (["--relay", "a:9650", "--rate-max", "5"], "5"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    asked: FakeSurvey, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """
    By its name and its value, before anything is done.
    """
    code = main(["link", "test", *arguments])

    assert code == 2
    assert words in capsys.readouterr().err
    assert asked.wish is None


def test_settings_without_a_link_are_named(
    asked: FakeSurvey, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    A mirror that reads brokers itself has no relays.
    """
    path = tmp_path / "flow.yaml"
    path.write_text("source: {bootstrap_servers: 'e:9092'}\n" + FILE.replace("link:", "api: {}\n#"))

    code = main(["link", "test", "--config", str(path)])

    assert code == 2
    assert "has no link section, and --relay is missing" in capsys.readouterr().err


# -- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("survey", "code"),
    [
        (a_survey(), 0),
        (a_survey(made=None), 0),
        (a_survey(surveyed(a_link(0.1 * MB))), 3),
        (a_survey(surveyed(a_link()), Failed("b:9650", ConnectionFailedError("b:9650: gone"))), 1),
        (a_survey(surveyed(a_link(0.1 * MB)), Failed("b:9650", ConnectionFailedError("b:9650: gone"))), 1),
        (a_survey(Failed("b:9650", AuthenticationError("b:9650: no"))), 4),
        (a_survey(made=None, error=ConnectionFailedError("source: gone")), 1),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_the_exit_code_says_how_it_went(
    asked: FakeSurvey, capsys: pytest.CaptureFixture[str], survey: Survey, code: int, output: str
) -> None:
    """
    What was measured is printed in any case, what was not is said, with a way out.
    """
    asked.answer = survey

    ended = main(["link", "test", "--relay", "a:9650", "-o", output])
    printed = capsys.readouterr()

    assert ended == code
    assert printed.out
    assert ("hint: " in printed.err) == (code in {1, 4})


def test_why_a_relay_was_not_measured_is_said_once(
    asked: FakeSurvey, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Below the page, as each command says what went wrong.
    """
    refused = Failed("b:9650", AuthenticationError("b:9650: refused"))
    asked.answer = a_survey(surveyed(a_link()), refused)

    main(["link", "test", "--relay", "a:9650,b:9650"])
    printed = capsys.readouterr()

    assert "relay b:9650: not measured" in printed.out
    assert (printed.out + printed.err).count("b:9650: refused") == 1
    assert "error: b:9650: refused\n" in printed.err


# -- what is shown ---------------------------------------------------------------------------------------


def test_the_page_says_all_that_was_measured() -> None:
    """
    In units that people use.
    """
    link = replace(a_link(), tls=("TLSv1.3", "TLS_AES_256_GCM_SHA384"))

    shown = page(a_survey(surveyed(link)))

    for words in (
        "relay relay.east:9650, version 0.1.0",
        "102 ms (100 ms to 104 ms)",
        "200 ms (150 ms to 500 ms); on the wire 120 ms of it",
        "2.5 MB/s (20.0 Mbit/s) over 8 s; 2.5 MB/s to 2.5 MB/s from second to second",
        "the link itself",
        "1.00 % of segments retransmitted",
        "3.0 MB at the end, which allows 30.0 MB/s",
        "up to 6.3 MB here (net.ipv4.tcp_rmem), 500.0 kB wanted",
        "16.8 MB, 500.0 kB wanted",
        "5000 ms ahead, give or take 51 ms",
        "TLSv1.3, TLS_AES_256_GCM_SHA384",
        "production: 2 topics, 2 partitions",
        "1 000/s",
        "50.00 % of these bytes (sample: 500.0 kB of batches, zstd level 2)",
        "yes: the link carries 5.0 times what is produced",
        "51 ms on the link, 149 ms while something catches up",
        "of one hour: caught up in 15 min",
    ):
        assert words in shown


def test_a_link_that_is_too_slow_is_told_in_two_lines() -> None:
    """
    By how much, and what becomes of the copy; nothing is said of a lag that it never has.
    """
    shown = page(a_survey(surveyed(a_link(0.125 * MB))))

    assert "no: the link is too slow by 375.0 kB/s" in shown
    assert "grows by 45 min each hour" in shown
    assert "while something catches up" not in shown


def test_what_is_not_known_is_a_question_mark_and_a_reason() -> None:
    """
    No figure stands for it, zero least of all.
    """
    link = a_link(arrivals=(), loaded=(), report=replace(REPORT, kernel=None))

    shown = page(a_survey(surveyed(link)))

    for name in ("rate", "loss", "held back by", "receive window", "keeps up"):
        assert re.search(rf"{name} +\? \(the load ended before TCP had found its pace", shown), name


def test_advice_stands_below_with_commands_that_can_be_copied() -> None:
    """
    On lines of their own, which no width cuts.
    """
    link = replace(a_link(), congestion="cubic", congestion_available=("cubic",), clock=Clock(0.0, 0.05))

    lines = [line.strip() for line in page(a_survey(surveyed(link)), width=80).splitlines()]

    assert "on the relay's machine:" in lines
    for command in advice(link, 16 << 20)[0].commands:
        assert command in lines


def test_what_a_relay_says_of_itself_reaches_no_terminal() -> None:
    """
    Escapes are written out.
    """
    link = replace(a_link(), version="\x1b[2J1.0", congestion="\x1b]0;x\x07")

    assert "\x1b" not in page(a_survey(surveyed(link)))


def test_the_documented_document_has_the_fields_there_are() -> None:
    """
    Names and nesting are those of the program, in its order.
    """
    [shown] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    link = replace(a_link(), clock=Clock(0.0, 0.05))

    made = document(a_survey(surveyed(link)))

    assert _names(json.loads(shown)) == _names(json.loads(json.dumps(made)))


def test_the_table_of_rows_has_the_names_of_the_document() -> None:
    """
    Of each row what is the same with ``-o json``: of the relay, or of the part of the document that it names.
    """
    made = document(a_survey(surveyed(a_link())))
    relay = made["relays"][0]
    parts = {"": relay, "of `production`: ": made["production"], "of `expected`: ": relay["expected"]}
    _, _, table = PAGE.partition("| Row | With `-o json` | What it says |\n|---|---|---|\n")
    rows = [line.split(" | ")[1] for line in table.partition("\n\n")[0].splitlines()]
    said = {(part, name) for row in rows for part, names in [_of_a_part(row)] for name in names}

    assert {(part, name) for part, name in said if name not in parts[part]} == set()
    for part in ("of `production`: ", "of `expected`: "):
        told = {name for where, name in said if where == part}
        assert parts[part].keys() - told <= {"unknown", "topics", "partitions", "partitions_unknown"}


def _of_a_part(cell: str) -> tuple[str, list[str]]:
    """Which part of the document a cell speaks of, and the names in it."""
    part = re.match(r"of `\w+`: ", cell)
    begins = part[0] if part else ""
    return begins, re.findall(r"`(\w+)`", cell.removeprefix(begins))


@pytest.mark.parametrize("limit", ["link", "receive_buffer", "send_buffer", "rate_max", "programs"])
def test_every_limit_is_documented(limit: str) -> None:
    """
    Scripts are written after the page.
    """
    assert f"`{limit}`" in PAGE


def test_a_relay_that_was_not_measured_has_its_error() -> None:
    """
    And nothing else.
    """
    failed = Failed("b:9650", ConnectionFailedError("b:9650: gone"))

    assert document(a_survey(failed))["relays"] == [{"relay": "b:9650", "error": "b:9650: gone"}]
    assert page(a_survey(failed)).startswith("relay b:9650: not measured\n")


def _names(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _names(held)) for name, held in value.items()]
    return [_names(held) for held in value if isinstance(held, dict)] if isinstance(value, list) else None
