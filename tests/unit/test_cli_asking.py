"""Commands that ask a running mirror: what they send, what they show, and what they end with."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import offline
from mirror.api.schema import status_to_json
from mirror.cli.client import MirrorClient
from mirror.cli.main import main
from mirror.config import Settings
from mirror.errors import ConnectionFailedError
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.fake_mirror import FakeMirror, serving
from tests.unit.statuses import a_flow, a_loss, a_partition


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMirror]:
    with serving() as mirror:
        monkeypatch.setenv("TWINSITE_URL", mirror.url)
        yield mirror


def test_the_status_of_a_healthy_mirror_is_a_table_and_0(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A row for each partition, with its name on both sides.
    """
    running.answers["/status"] = (200, status_to_json(a_flow(a_partition("orders", 4))))

    code = main(["status"])

    out = capsys.readouterr().out
    assert code == 0
    assert "orders-4 > east.orders" in out
    assert "1 ACTIVE" in out


def test_the_status_tells_what_to_do_about_a_loss(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The worst stands first, with what was seen and the way out; the exit code is 3.
    """
    loss = a_loss("audit")
    running.answers["/status"] = (200, status_to_json(a_flow(a_partition("orders"), loss)))

    code = main(["status"])

    out = capsys.readouterr().out
    assert code == 3
    assert out.index("audit-2") < out.index("orders-0")
    assert loss.detail in out
    assert loss.hint in out


@pytest.mark.parametrize("reason", [Reason.OPEN_TRANSACTION, Reason.SOURCE_UNAVAILABLE])
def test_the_status_tells_what_to_do_about_a_lag_that_does_not_end_by_itself(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], reason: Reason
) -> None:
    """
    A partition that somebody must look after is no less in trouble because it is LAGGING.
    """
    held = a_partition(state=State.LAGGING, reason=reason, detail="nothing since offset 17")
    running.answers["/status"] = (200, status_to_json(a_flow(held)))

    main(["status"])

    out = capsys.readouterr().out
    assert "orders-0: LAGGING: nothing since offset 17" in out
    assert f"hint: {held.hint}" in out


def test_the_status_of_a_partition_that_catches_up_is_its_row(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The lag stands in the table; there is nothing to do but to wait.
    """
    behind = a_partition(state=State.LAGGING, reason=Reason.CATCHING_UP, detail="70 records behind")
    running.answers["/status"] = (200, status_to_json(a_flow(behind)))

    main(["status"])

    out = capsys.readouterr().out
    assert "catching up" in out
    assert "70 records behind" not in out


def test_a_mirror_that_copies_nothing_is_not_fine(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Most often a pattern is mistaken: the exit code is 3, and the table says where to look.
    """
    running.answers["/status"] = (200, status_to_json(replace(a_flow(), partitions=())))

    code = main(["status"])

    out = capsys.readouterr().out
    assert code == 3
    assert "no partitions" in out
    assert "topics.include" in out


def test_a_mirror_that_has_not_begun_tells_what_it_waits_for(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    No pattern is mistaken: nobody knows yet which topics there are.
    """
    waiting = replace(a_flow(), partitions=(), waits_for="source to answer")
    running.answers["/status"] = (200, status_to_json(waiting))

    code = main(["status"])

    out = capsys.readouterr().out
    assert code == 3
    assert "\n  waits for source to answer\n" in out
    assert "topics.include" not in out


def test_the_status_as_json_is_the_document_of_the_mirror(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Programs read the same document from the command and from the port.
    """
    document = status_to_json(a_flow(a_partition(), a_loss()))
    running.answers["/status"] = (200, document)

    code = main(["status", "-o", "json"])

    assert code == 3
    assert json.loads(capsys.readouterr().out) == document


def test_many_partitions_are_a_summary_unless_all_are_asked_for(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    At three in the morning a thousand rows hide the one that matters.
    """
    healthy = [a_partition("orders", number) for number in range(100)]
    running.answers["/status"] = (200, status_to_json(a_flow(*healthy, a_loss("audit"))))

    main(["status"])
    short = capsys.readouterr().out
    main(["status", "--all"])
    long = capsys.readouterr().out

    assert "audit-2" in short
    assert "orders-99" not in short
    assert "and 100 other partitions" in short
    assert "orders-99" in long


def test_words_from_outside_cannot_steer_the_terminal(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A detail may hold what a broker said; escapes are written out and markup is text.
    """
    nasty = a_partition(state=State.BLOCKED, detail="\x1b[2Jgone [red]now[/red]")
    running.answers["/status"] = (200, status_to_json(a_flow(nasty)))

    main(["status"])

    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert r"\x1b[2Jgone [red]now[/red]" in out


@pytest.mark.parametrize("output", ["json", "table"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((200, b"gone"), "this is not a mirror"),
        ((503, {"detail": "no upstream"}), "no upstream"),
        ((500, {"code": "internal_error", "detail": "internal error of the mirror"}), "internal error"),
    ],
)
def test_watching_goes_on_until_a_signal(
    running: FakeMirror, output: str, bad: tuple[int, object], words: str
) -> None:
    """
    A mirror that is away for a moment, or a proxy that says so, is told of, and asked again.
    """
    running.answers["/status"] = (200, status_to_json(a_flow()))
    command = [sys.executable, "-m", "mirror.cli.main", "status", "--watch", "--every", "0.1", "-o", output]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stderr is not None

    first = [watching.stdout.readline() for _ in range(6)]
    running.answers["/status"] = bad
    errors = watching.stdout if output == "table" else watching.stderr
    while words not in errors.readline():
        assert watching.poll() is None
    running.answers["/status"] = (200, status_to_json(a_flow()))
    while "orders" not in watching.stdout.readline():
        assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=20)

    assert sum("orders" in line for line in first) >= 2
    assert watching.returncode == 130


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_locale_has_not_are_written_as_escapes(
    running: FakeMirror, encoding: str
) -> None:
    """
    A broker's words in a terminal that knows no such characters: they end nothing.
    """
    detail = "the broker says: no \u2013 \u201cnever\u201d"
    refused = a_partition(state=State.BLOCKED, reason=Reason.RECORD_REFUSED, detail=detail)
    running.answers["/status"] = (200, status_to_json(a_flow(refused)))

    done = subprocess.run(
        [sys.executable, "-m", "mirror.cli.main", "status"],
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "COLUMNS": "200"},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (3, b"")
    assert rb"no \u2013 \u201cnever\u201d" in done.stdout


def test_nobody_at_the_port_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """
    The address is in the words, the way out in the hint.
    """
    code = main(["status", "--url", "http://127.0.0.1:1"])

    err = capsys.readouterr().err
    assert code == 1
    assert "error: http://127.0.0.1:1: " in err
    assert "hint: check that the mirror runs" in err


@pytest.mark.parametrize("url", ["127.0.0.1:9640", "ftp://x", "http://", "http://h:99999", "http://a..b:1"])
def test_an_address_that_is_none_is_a_wrong_command(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """
    Only http and https addresses are taken, of hosts that there may be.
    """
    assert main(["status", "--url", url]) == 2
    assert f"--url {url!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["http://u:xyzzy@h", "http://:xyzzy@h", "http://u:xyzzy@h:99999", "u:xyzzy@h:1"]
)
def test_an_address_with_a_password_in_it_is_not_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """
    Errors end up in logs and tickets; it may have come from a variable.
    """
    monkeypatch.setenv("TWINSITE_URL", url)

    assert main(["status"]) == 2
    assert capsys.readouterr().err.startswith("error: --url: must not contain a user or a password\n")


@pytest.mark.parametrize("command", [["status"], ["pause", "orders"]])
@pytest.mark.parametrize("path", ["/status", "/für/uns"])
def test_an_address_at_which_no_mirror_answers_is_named(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], command: list[str], path: str
) -> None:
    """
    A page of a mirror instead of its port, or the port of a relay.
    """
    code = main([*command, "--url", running.url + path])

    assert code == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: {running.url}{path}: a mirror serves nothing at this address",
        "hint: --url must be scheme, host and port only, as in http://127.0.0.1:9640; a relay has no topics: "
        "ask its mirrors",
    ]


def test_a_topic_that_the_flow_does_not_have_is_a_wrong_command(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    In the words of the mirror.
    """
    problem = {"code": "unknown_partition", "detail": "the flow has no order"}
    running.answers["/topics/order/pause"] = (404, problem)

    code = main(["pause", "order"])

    assert code == 2
    assert capsys.readouterr().err == "error: the flow has no order\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_one_that_nobody_reads(running: FakeMirror, closed: str) -> None:
    """
    The exit code says how the mirror is, and nothing else takes the place of the stream.
    """
    running.answers["/status"] = (200, status_to_json(a_flow()))
    command = [sys.executable, "-m", "mirror.cli.main", "status", "-o", "json"]

    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], capture_output=True, timeout=30
    )

    assert ended.returncode == 0
    assert ended.stderr == b""
    assert (ended.stdout == b"") == (">&-" in closed.split())


def test_something_else_at_the_port_is_named_as_such(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A web server that answers with a page is not a mirror.
    """
    running.answers["/status"] = (200, b"<html>")

    code = main(["status"])

    assert code == 1
    assert "this is not a mirror" in capsys.readouterr().err


def test_what_does_not_speak_http_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """
    As the port of a listener with TLS, which sends an alert. Its bytes say nothing to people.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def alert() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x15\x03\x03\x00\x02\x02\x50")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(alert)
            code = main(["status", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}"])

    err = capsys.readouterr().err
    assert code == 1
    assert "the answer is not HTTP: this is not the port of a mirror" in err
    assert "x15" not in err


@pytest.mark.parametrize(("reverse", "shown"), [(False, "87"), (True, "100")])
def test_an_offset_is_translated_both_ways(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], reverse: bool, shown: str
) -> None:
    """
    The number alone goes to standard output, so that a script can take it.
    """
    answer = {"schema": 1, "topic": "orders", "partition": 0, "source_offset": 100, "target_offset": 87}
    running.answers["/offsets/translate"] = (200, answer)
    wanted = ["--topic", "orders", "--partition", "0", "--offset", "100"]

    code = main(["offsets", "translate", *wanted, *(["--reverse"] if reverse else [])])

    assert code == 0
    assert capsys.readouterr().out == f"{shown}\n"
    assert f"reverse={str(reverse).lower()}&committed=false" in running.asked[0][1]


def test_the_mirror_is_told_that_an_offset_is_a_committed_one(running: FakeMirror) -> None:
    """
    In either direction.
    """
    answer = {"schema": 1, "topic": "orders", "partition": 0, "source_offset": 100, "target_offset": 87}
    running.answers["/offsets/translate"] = (200, answer)
    wanted = ["--topic", "orders", "--partition", "0", "--offset", "100", "--committed"]

    codes = [main(["offsets", "translate", *wanted]), main(["offsets", "translate", *wanted, "--reverse"])]

    asked = [path.split("offset=100&")[1] for _, path, _ in running.asked]
    assert codes == [0, 0]
    assert asked == ["reverse=false&committed=true", "reverse=true&committed=true"]


def test_an_offset_that_cannot_be_translated_is_refused(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The words of the mirror become the error, nothing goes to standard output.
    """
    running.answers["/offsets/translate"] = (409, {"detail": "offset 5 was not copied", "hint": "later"})

    code = main(["offsets", "translate", "--topic", "orders", "--partition", "0", "--offset", "5"])

    captured = capsys.readouterr()
    assert code == 4
    assert captured.out == ""
    assert captured.err == "error: offset 5 was not copied\nhint: later\n"


def test_an_offset_is_translated_at_the_target_when_no_mirror_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    After a failover there is no mirror to ask, and no source.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(
        "{source: {bootstrap_servers: 'e:1'}, target: {bootstrap_servers: 'w:1'}, topics: {include: [a]}}"
    )

    async def translate(settings: Settings, tp: TopicPartition, offset: int, **how: bool) -> int:
        assert (settings.target.bootstrap_servers, tp) == (("w:1",), ("orders", 3))
        assert how == {"reverse": True, "committed": True}
        return offset + 13

    monkeypatch.setattr(offline, "translate", translate)
    wanted = ["--topic", "orders", "--partition", "3", "--offset", "87", "--reverse", "--committed"]

    code = main(["offsets", "translate", *wanted, "--config", str(path), "-o", "json"])

    answer = {"schema": 1, "topic": "orders", "partition": 3, "source_offset": 100, "target_offset": 87}
    assert code == 0
    assert json.loads(capsys.readouterr().out) == answer


def posts(mirror: FakeMirror) -> list[str]:
    return [path for method, path, _ in mirror.asked if method == "POST"]


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_a_partition_is_told_what_to_do(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    """
    By POST, with the header that no web page can send.
    """
    done = {"partitions": [{"topic": "orders", "partition": 2, "outcome": "done"}]}
    running.answers[f"/partitions/orders/2/{action}"] = (200, done)

    code = main([action, "orders", "--partition", "2"])

    assert code == 0
    assert running.asked == [("POST", f"/partitions/orders/2/{action}", "yes")]
    assert capsys.readouterr().out == "orders-2: done\n"


def test_a_topic_whose_partitions_partly_refuse_names_each(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What was done and what was not is told, the exit code is that of a refusal.
    """
    partitions = [
        {"topic": "orders", "partition": 0, "outcome": "done"},
        {"topic": "orders", "partition": 1, "outcome": "refused", "detail": "it is FENCED"},
    ]
    problem = {"detail": "1 of 2 partitions refused", "partitions": partitions}
    running.answers["/topics/orders/resume"] = (409, problem)

    code = main(["resume", "orders"])

    err = capsys.readouterr().err
    assert code == 4
    assert "orders-0: done" in err
    assert "orders-1: refused: it is FENCED" in err


def test_a_loss_is_accepted_only_after_a_yes(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Without a terminal there is nobody to say it; ``--yes`` says it.
    """
    loss = a_loss("audit")
    running.answers["/status"] = (200, status_to_json(a_flow(loss)))
    done = {"partitions": [{"topic": "audit", "partition": 2, "outcome": "done"}]}
    running.answers["/partitions/audit/2/accept-loss"] = (200, done)
    codes = []
    for said in ("", "n\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        codes.append(main(["accept-loss", "audit"]))
    refusals, posted = capsys.readouterr().err, posts(running)

    accepted = main(["accept-loss", "audit", "--yes"])

    assert codes == [2, 2]
    assert posted == []
    assert loss.detail in refusals
    assert refusals.count("error: nothing was given up\nhint: ") == 2
    assert "--yes" in refusals
    assert accepted == 0
    assert posts(running) == ["/partitions/audit/2/accept-loss"]


def test_only_a_loss_that_was_shown_is_given_up(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The mirror is told of the partitions by name, and of the offsets: another of the topic, or the same one,
    may lose something meanwhile.
    """
    losses = [a_loss("audit", 1), a_loss("audit", 3), a_loss("orders", 2)]
    running.answers["/status"] = (200, status_to_json(a_flow(*losses, a_partition("audit", 4))))
    done = {"partitions": [{"topic": "audit", "partition": 3, "outcome": "done"}]}
    running.answers["/partitions/audit/1/accept-loss"] = (409, {"detail": "it is COPYING", "hint": "look"})
    running.answers["/partitions/audit/3/accept-loss"] = (200, done)

    code = main(["accept-loss", "audit", "--yes"])

    captured = capsys.readouterr()
    assert code == 4
    assert posts(running) == ["/partitions/audit/1/accept-loss", "/partitions/audit/3/accept-loss"]
    assert running.bodies == [{"lost_from": 1_000, "lost_to": 1_050}] * 2
    assert captured.out == "audit-3: done\n"
    assert "audit-1: refused: it is COPYING\nerror: 1 of 2 partitions refused\nhint: look\n" in captured.err


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [
        (["audit"], 4, "no partition of audit is in DATA_LOSS"),
        (["audit", "--partition", "2"], 4, "audit-2: has lost nothing, its state is ACTIVE"),
        (["audit", "--partition", "7"], 2, "the flow has no audit-7"),
        (["payments"], 2, "the flow has no payments"),
    ],
)
def test_where_nothing_is_lost_nothing_is_given_up(
    running: FakeMirror, capsys: pytest.CaptureFixture[str], wanted: list[str], code: int, said: str
) -> None:
    """
    Nobody is asked to agree to nothing. Nor is the mirror told anything: it may have lost something by then,
    which nobody was shown.
    """
    running.answers["/status"] = (200, status_to_json(a_flow(a_partition("audit", 2))))
    done = {"partitions": [{"topic": "audit", "partition": 2, "outcome": "done"}]}
    for path in ("/topics/audit", "/partitions/audit/2"):
        running.answers[f"{path}/accept-loss"] = (200, done)

    codes = [main(["accept-loss", *wanted, *how]) for how in ([], ["--yes"])]

    assert codes == [code, code]
    assert capsys.readouterr().err.count(f"error: {said}\n") == 2
    assert posts(running) == []


def test_a_partition_of_another_offset_mode_says_so(
    running: FakeMirror, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Who runs with ``offsets: auto`` sees which partitions are mapped.
    """
    running.answers["/status"] = (200, status_to_json(a_flow(a_partition(offset_mode=OffsetMode.MAPPED))))

    main(["status"])

    assert "mapped" in capsys.readouterr().out


def test_whoever_answers_in_the_place_of_a_mirror_writes_nothing_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Its words are one line, their escapes written out.
    """

    def get(_: MirrorClient, *__: str) -> dict[str, object]:
        raise ConnectionFailedError("http://127.0.0.1:9640: \x1b[2J\nall is well")

    def until_now(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MirrorClient, "get", get)
    monkeypatch.setattr(time, "sleep", until_now)

    main(["status", "--watch", "-o", "json"])

    assert capsys.readouterr().err.startswith(r"error: http://127.0.0.1:9640: \x1b[2J\nall is well" + "\n")
