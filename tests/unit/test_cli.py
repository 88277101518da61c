"""The command line: options become settings, answers become output, errors become a hint and an exit code."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import logs, service
from mirror.cli.main import COMMANDS, main
from mirror.config import Settings, parse
from mirror.config_flow import LogSettings
from mirror.errors import AuthenticationError, UsageError
from mirror.model import FlowStatus, Reason, State, TopicLeftOut
from mirror.waiting import Waiting
from tests.harness.terminal import on_terminal
from tests.unit.statuses import a_flow, a_loss, a_partition

CLUSTERS = ("--source", "east:9092", "--target", "west:9092")

FILE = """
source: {bootstrap_servers: 'east:9092'}
target: {bootstrap_servers: 'west:9092'}
topics: {include: ['orders'], names: prefix, prefix: 'east.'}
"""


class FakeService:
    """Stands for the mirror: notes what it was asked to do and answers with a status."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.status: FlowStatus | BaseException = a_flow()
        self.once: bool | None = None
        self.timeout_seconds: float | None = None
        self.waits_for_stop = self.gives_up_late = False
        self.before_end: Callable[[], None] = lambda: None

    async def run(
        self,
        settings: Settings,
        *,
        stop: asyncio.Event,
        once: bool = False,
        timeout_seconds: float | None = None,
        time_is_up: asyncio.Event | None = None,
        on_status: Callable[[FlowStatus], None] | None = None,
    ) -> FlowStatus:
        self.settings, self.once, self.timeout_seconds = settings, once, timeout_seconds
        if isinstance(self.status, BaseException):
            raise self.status
        if on_status is not None:
            on_status(self.status)
        self.before_end()
        if self.gives_up_late and time_is_up is not None:
            time_is_up.set()
        if self.waits_for_stop or not once:
            await asyncio.wait_for(stop.wait(), 10)
        return self.status


@pytest.fixture
def mirroring(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    fake = FakeService()
    monkeypatch.setattr(service, "run", fake.run)
    return fake


def settings_of(fake: FakeService) -> Settings:
    assert fake.settings is not None
    return fake.settings


def interrupt() -> None:
    signal.raise_signal(signal.SIGTERM)


def a_little_longer() -> None:
    """Outlast a tenth of a second on the clock that the command looks at."""
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass


# -- options become settings ---------------------------------------------------------------------------


def test_three_options_are_enough_for_a_mirror(mirroring: FakeService) -> None:
    """
    Everything else has a default; a pattern with ``!`` leaves out what it matches.
    """
    code = main(["mirror", *CLUSTERS, "--topics", r"orders.*,a{1,2},!orders\.tmp", "--once"])

    made = settings_of(mirroring)
    assert code == 0
    assert made.way_to_source.servers == ("east:9092",)
    assert made.target.bootstrap_servers == ("west:9092",)
    assert made.topics.include == ("orders.*", "a{1,2}")
    assert made.topics.exclude == (r"orders\.tmp",)
    assert mirroring.once is True


def test_leaving_out_alone_means_everything_else(mirroring: FakeService) -> None:
    """
    ``--topics '!tmp'`` copies all topics but one.
    """
    main(["mirror", *CLUSTERS, "--topics", "!tmp", "--once"])

    assert settings_of(mirroring).topics.include == (".*",)
    assert settings_of(mirroring).topics.exclude == ("tmp",)


def test_blanks_around_a_pattern_are_no_part_of_it(mirroring: FakeService) -> None:
    """
    Behind the ``!`` as well: a pattern that begins with a blank would leave out nothing.
    """
    main(["mirror", *CLUSTERS, "--topics", " orders , ! tmp.* ", "--once"])

    assert settings_of(mirroring).topics.include == ("orders",)
    assert settings_of(mirroring).topics.exclude == ("tmp.*",)


def test_options_win_over_the_file(mirroring: FakeService, tmp_path: Path) -> None:
    """
    What an option says replaces what the file says; the rest of the file stays.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(FILE)

    code = main(
        shlex.split(
            f"mirror --config {path} --once --target north:9092,south:9092 --topics audit --flow night "
            "--offsets auto --names identity --api-port 0 --log-level debug"
        )
    )

    made = settings_of(mirroring)
    assert code == 0
    assert made.way_to_source.servers == ("east:9092",)
    assert made.target.bootstrap_servers == ("north:9092", "south:9092")
    assert (made.topics.include, made.topics.names, made.topics.prefix) == (("audit",), "identity", None)
    assert (made.flow, made.offsets.mode, made.api.port, made.log.level) == ("night", "auto", 0, "debug")


@pytest.mark.parametrize(
    ("topics", "include", "exclude"),
    [
        ("audit.*", ("audit.*",), ("secret",)),
        ("audit.*,!tmp", ("audit.*",), ("tmp",)),
        ("!tmp", (".*",), ("tmp",)),
    ],
)
def test_what_a_file_excludes_stays_out_unless_an_option_excludes(
    mirroring: FakeService, tmp_path: Path, topics: str, include: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    """
    Topics that somebody took out for a reason do not come in because others are named.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(FILE.replace("include: ['orders']", "include: ['orders'], exclude: ['secret']"))

    main(["mirror", "--config", str(path), "--topics", topics, "--once"])

    assert settings_of(mirroring).topics.include == include
    assert settings_of(mirroring).topics.exclude == exclude


def test_a_prefix_alone_asks_for_prefixed_names(mirroring: FakeService) -> None:
    """
    ``--prefix east.`` needs no ``--names prefix`` beside it.
    """
    main(["mirror", *CLUSTERS, "--topics", "orders", "--prefix", "east.", "--once"])

    assert settings_of(mirroring).topics.names == "prefix"
    assert settings_of(mirroring).topics.prefix == "east."


def test_a_copy_that_ends_opens_no_port_unless_asked(mirroring: FakeService, tmp_path: Path) -> None:
    """
    A mirror that runs beside it, by the same file most often, keeps its port.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(f"{FILE}api: {{host: 127.0.0.2, port: 9641}}")

    def ports(*options: str) -> list[int]:
        found = []
        for given in ([*CLUSTERS, "--topics", "orders"], ["--config", str(path)]):
            main(["mirror", *given, "--once", *options])
            found.append(settings_of(mirroring).api.port)
        return found

    assert ports() == [-1, -1]
    assert ports("--api-port", "9642") == [9642, 9642]
    assert settings_of(mirroring).api.host == "127.0.0.2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--source, --target, --topics: missing"),
        ([*CLUSTERS], "--topics: missing"),
        ([*CLUSTERS, "--topics", "a("], "topics.include[0]: 'a(' is not a regular expression"),
        ([*CLUSTERS, "--topics", "a", "--flow", "Ä"], "flow: 'Ä' must match"),
        ([*CLUSTERS, "--topics", "a", "--source", "nowhere"], "must be HOST:PORT"),
        ([*CLUSTERS, "--topics", "a", "--timeout-seconds", "3"], "--timeout-seconds requires --once"),
        ([*CLUSTERS, "--topics", "a", "-o", "json"], "-o json requires --once"),
        ([*CLUSTERS, "--topics", "a", "--offsets", "near"], "'near' is not one of 'same', 'auto', 'mapped'"),
        (["--config", "/does/not/exist.yaml"], "/does/not/exist.yaml: cannot be read"),
        ([*CLUSTERS, "--topics", "a{99999999999999999999}"], "number is too large"),
        ([*CLUSTERS, "--topics", "(" * 3000 + ")" * 3000], "its brackets are nested too deeply"),
        (
            [*CLUSTERS, "--topics", "a", "--once", "--timeout-seconds", "nan"],
            "'nan' is not a finite number",
        ),
        (["--source", "a..b:9092", "--target", "b:1", "--topics", "a"], "'a..b:9092' is not a host name"),
    ],
)
def test_a_wrong_command_ends_with_2_and_says_why(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """
    Nothing is started.
    """
    code = main(["mirror", *arguments])

    assert code == 2
    assert words in capsys.readouterr().err
    assert mirroring.settings is None


def test_what_a_file_lacks_is_said_of_the_file(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    Most often there is a slip of the finger in it, and an option is not what is missing.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(FILE.replace("topics:", "topcs:"))

    code = main(["mirror", "--config", str(path)])

    err = capsys.readouterr().err
    assert code == 2
    assert f"error: {path}: 2 settings are not accepted:" in err
    assert "topcs: there is no such setting; did you mean topics?" in err
    assert mirroring.settings is None


# -- how a copy ends -----------------------------------------------------------------------------------


def test_a_copy_that_ended_leaves_one_document(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Offsets of both sides for each partition, then what the whole has cost.
    """
    mirroring.status = a_flow(a_partition("b"), a_partition("a", 1), a_partition("a", 0))

    code = main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "-o", "json"])

    document = json.loads(capsys.readouterr().out)
    first = document["partitions"][0]
    assert code == 0
    assert document["complete"] is True
    assert [(one["topic"], one["partition"]) for one in document["partitions"]] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
    ]
    assert first["source"] == {
        "log_start_offset": 100,
        "high_watermark": 1_000,
        "last_stable_offset": 1_000,
        "next_offset": 1_000,
        "goal_offset": 1_000,
    }
    assert first["target"] == {"log_end_offset": 1_000}
    assert (first["state"], first["reason"], first["offset_mode"]) == ("ACTIVE", None, "same")
    assert document["totals"]["records"] == 3 * 890
    assert document["totals"]["bytes"] == 3 * 89_000
    assert document["totals"]["peak_memory_bytes"] > 1_000_000
    assert document["totals"]["cpu_seconds"] > 0
    assert 0 <= document["totals"]["seconds"] < 60


def test_a_copy_of_nothing_but_topics_left_out_is_not_there(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Whoever wanted them copied is told which, and why they were not. Of one that may be a copy, and that
    nobody could judge, it is not said that all is there.
    """
    copy = TopicLeftOut("east.orders", "copy_of_target", "flow back copies into it")
    mirroring.status = replace(a_flow(), partitions=(), topics_left_out=(copy,))
    codes = [main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "-o", "json"])]
    document = json.loads(capsys.readouterr().out)
    mirroring.status = replace(a_flow(a_partition()), topics_left_out=(copy,))
    codes.append(main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "-o", "json"]))
    unsure = replace(copy, reason="not_known", detail="flow back could not be read yet")
    mirroring.status = replace(a_flow(a_partition()), topics_left_out=(copy, unsure))
    codes.append(main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "-o", "json"]))

    assert codes == [3, 0, 3]
    assert document["complete"] is False
    assert document["topics_left_out"] == [
        {"topic": "east.orders", "reason": "copy_of_target", "detail": "flow back copies into it"}
    ]


@pytest.mark.parametrize("state", [State.BLOCKED, State.DATA_LOSS, State.PAUSED, State.UNKNOWN])
def test_a_partition_in_trouble_makes_it_3(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str], state: State
) -> None:
    """
    One partition that did not get there is enough, and the table says what to do.
    """
    mirroring.status = a_flow(
        a_partition("fine"), a_loss() if state is State.DATA_LOSS else a_partition(state=state)
    )

    code = main(["mirror", *CLUSTERS, "--topics", ".*", "--once"])

    assert code == 3
    assert state in capsys.readouterr().out


def test_a_partition_that_goes_on_being_written_to_is_there(mirroring: FakeService) -> None:
    """
    It has reached what was seen at the start; that it is behind again is no failure.
    """
    mirroring.status = a_flow(a_partition(state=State.LAGGING, lag_records=5))

    assert main(["mirror", *CLUSTERS, "--topics", ".*", "--once"]) == 0


def test_a_partition_that_ends_below_its_goal_makes_it_3(mirroring: FakeService) -> None:
    """
    An open transaction may hold back what was there at the start, while the partition is being copied.
    """
    held = a_partition(state=State.LAGGING, reason=Reason.OPEN_TRANSACTION, goal_offset=1_001)
    mirroring.status = a_flow(a_partition("fine"), held)

    assert main(["mirror", *CLUSTERS, "--topics", ".*", "--once"]) == 3


def test_time_that_is_up_makes_it_5(mirroring: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    """
    A partition may be ACTIVE and still not be where it was meant to be.
    """
    mirroring.status = a_flow(a_partition(lag_records=7, goal_offset=1_007))
    mirroring.gives_up_late = True

    code = main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "--timeout-seconds", "0.1", "-o", "json"])

    assert code == 5
    assert mirroring.timeout_seconds == 0.1
    assert json.loads(capsys.readouterr().out)["complete"] is False


def test_a_copy_that_gave_up_before_its_time_was_up_does_not_blame_the_time(mirroring: FakeService) -> None:
    """
    What is on its way has time to arrive, which may end later.
    """
    mirroring.status = a_flow(a_partition(lag_records=7, goal_offset=1_007))
    mirroring.before_end = a_little_longer

    assert main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "--timeout-seconds", "0.1"]) == 3


def test_a_signal_ends_a_copy_early_and_says_so(mirroring: FakeService) -> None:
    """
    Not everything that was there at the start was copied.
    """
    mirroring.status = a_flow(a_partition(lag_records=7, goal_offset=1_007))
    mirroring.before_end = interrupt
    mirroring.waits_for_stop = True

    assert main(["mirror", *CLUSTERS, "--topics", ".*", "--once"]) == 3


def not_begun(*reached: str, stopped: bool) -> service.NotBegunError:
    """A mirror that has ended before it was under way, where these clusters had answered."""
    source, target = ({"bootstrap_servers": f"{name}:9092"} for name in ("east", "west"))
    waiting = Waiting(parse({"source": source, "target": target, "topics": {"include": [".*"]}}))
    waiting.reached.update(reached)
    waiting.tell("the flow's state at the target")
    return service.NotBegunError(waiting, stopped=stopped)


@pytest.mark.parametrize(
    ("reached", "words", "hint"),
    [
        (["target"], "source to answer", "hint: check the address, the broker and the network\n"),
        (["source", "target"], "the flow's state at the target", ""),
    ],
)
def test_time_that_is_up_before_a_mirror_is_under_way_makes_it_5(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str], reached: list[str], words: str, hint: str
) -> None:
    """
    The limit holds for a cluster that cannot be reached, too; the network is blamed for nothing else.
    """
    mirroring.status = not_begun(*reached, stopped=False)

    code = main(["mirror", *CLUSTERS, "--topics", ".*", "--once", "--timeout-seconds", "0.1"])

    assert code == 5
    assert capsys.readouterr().err == f"error: timed out while the mirror waited for {words}\n{hint}"


def test_what_went_wrong_with_a_cluster_brings_its_own_hint() -> None:
    """
    Said once, and not beside another one that leads elsewhere.
    """
    source, target = ({"bootstrap_servers": f"{name}:9092"} for name in ("east", "west"))
    waiting = Waiting(parse({"source": source, "target": target, "topics": {"include": [".*"]}}))
    waiting.reached.add("target")
    waiting.not_reached("source", "east:9092: the broker closed the connection (it may require SASL)")

    error = service.NotBegunError(waiting, stopped=False)

    assert str(error).endswith("closed the connection (it may require SASL)")
    assert error.hint == ""


@pytest.mark.parametrize(("arguments", "expected"), [(["--once"], 1), (["--api-port", "-1"], 0)])
def test_a_signal_before_a_cluster_answered(
    mirroring: FakeService, arguments: list[str], expected: int
) -> None:
    """
    A copy that was to end has not been made; a mirror that was to run for ever has stopped as told.
    """
    mirroring.status = not_begun(stopped=True)

    assert main(["mirror", *CLUSTERS, "--topics", ".*", *arguments]) == expected


def test_a_mirror_runs_until_a_signal_and_ends_with_0(mirroring: FakeService) -> None:
    """
    The first SIGTERM lets it end by itself.
    """
    mirroring.before_end = interrupt

    assert main(["mirror", *CLUSTERS, "--topics", ".*", "--api-port", "-1"]) == 0
    assert mirroring.once is False


def test_the_second_signal_ends_at_once() -> None:
    """
    A mirror that does not end by itself is ended all the same, with the code of the signal.
    """
    program = (
        "import asyncio, signal, sys\n"
        "from mirror import service\n"
        "from mirror.cli.main import main\n"
        "async def run(settings, *, stop, **_):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    await stop.wait()\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    await asyncio.Event().wait()\n"
        "service.run = run\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program, "mirror", *CLUSTERS, "--topics", "a"], timeout=30, capture_output=True
    )

    assert ended.returncode == 128 + signal.SIGTERM
    assert b"stopping" in ended.stderr


BUSY = (
    "import signal, sys\n"
    "from mirror import service\n"
    "from mirror.cli.main import main\n"
    "async def run(settings, **_):\n"
    "    signal.raise_signal(signal.SIGTERM)\n"
    "    signal.raise_signal(signal.SIGINT)\n"
    "    while True:\n"
    "        pass\n"
    "service.run = run\n"
    "sys.exit(main(sys.argv[1:]))\n"
)
"""A mirror whose event loop does not turn, as while a pattern takes for ever, and that is told twice."""


def test_the_second_signal_ends_a_mirror_that_is_busy_with_something_else() -> None:
    """
    It does not wait for the event loop.
    """
    ended = subprocess.run(
        [sys.executable, "-c", BUSY, "mirror", *CLUSTERS, "--topics", "a"], timeout=30, capture_output=True
    )

    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr == b""


def test_the_second_signal_gives_the_terminal_its_cursor_back() -> None:
    """
    The bar has hidden it, and nobody is left to put it back.
    """
    command, copy = (sys.executable, "-c", BUSY), ("mirror", *CLUSTERS, "--topics", "a", "--once")
    with on_terminal(*copy, lines=24, columns=80, command=command) as seen:
        code = seen.finished()

    assert code == 128 + signal.SIGINT
    assert "\x1b[?25l" in seen.shown
    assert seen.shown.endswith("\x1b[?25h\r\n")


def test_a_mirror_that_has_ended_leaves_signals_as_they_were(mirroring: FakeService) -> None:
    """
    What comes after it can be interrupted as before.
    """
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    mirroring.before_end = interrupt

    main(["mirror", *CLUSTERS, "--topics", ".*", "--api-port", "-1"])

    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before


HUNG_UP = (
    "import asyncio, signal, sys\n"
    "from mirror import service\n"
    "from mirror.cli.main import main\n"
    "async def run(settings, *, stop, **_):\n"
    "    signal.raise_signal(signal.SIGHUP)\n"
    "    await asyncio.sleep(0.1)\n"
    "    print('goes on')\n"
    "    signal.raise_signal(signal.SIGTERM)\n"
    "    await stop.wait()\n"
    "service.run = run\n"
    "main(sys.argv[1:])\n"
)
"""A mirror that gets the signal by which many services read their settings again."""
AS_STARTED_BY = "import signal\nsignal.signal(signal.SIGHUP, signal.{})\n"
"""What starts it decides what the signal does at first, and these tests may run under nohup."""


def test_a_service_goes_on_after_a_hangup_and_says_what_it_does_not_do() -> None:
    """
    It reads no settings again, but it must not end either: systemd takes that end for a success, and starts
    nothing.
    """
    ended = hung_up_without_terminal(AS_STARTED_BY.format("SIG_DFL") + HUNG_UP)

    assert ended.stdout.startswith(b"goes on\n"), ended
    assert b"settings_not_read_again" in ended.stderr


def hung_up_without_terminal(code: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", code, "mirror", *CLUSTERS, "--topics", "a"]
    return subprocess.run(command, timeout=30, capture_output=True, start_new_session=True)


def test_a_hangup_that_is_to_be_ignored_is_ignored() -> None:
    """
    As nohup wants it.
    """
    ended = hung_up_without_terminal(AS_STARTED_BY.format("SIG_IGN") + HUNG_UP)

    assert ended.stdout.startswith(b"goes on\n"), ended
    assert b"settings_not_read_again" not in ended.stderr


IN_A_WINDOW = "import fcntl, os, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
"""What a terminal's shell does before it starts anything: the process has a terminal that can hang up."""
LOGS_ELSEWHERE = "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"


@pytest.mark.parametrize("log", ["", LOGS_ELSEWHERE], ids=["its log on it", "its log elsewhere"])
def test_a_mirror_ends_with_its_terminal(log: str) -> None:
    """
    A window that is closed leaves no mirror behind.
    """
    command = (sys.executable, "-c", IN_A_WINDOW + log + AS_STARTED_BY.format("SIG_DFL") + HUNG_UP)
    with on_terminal("mirror", *CLUSTERS, "--topics", "a", lines=24, columns=80, command=command) as seen:
        code = seen.finished()

    assert code == -signal.SIGHUP
    assert "goes on" not in seen.shown


def test_an_error_is_a_line_and_a_hint(mirroring: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    """
    No traceback; the exit code is that of the error.
    """
    mirroring.status = AuthenticationError("west: the broker refused", hint="check the password")

    code = main(["mirror", *CLUSTERS, "--topics", "a", "--once", "-o", "json"])

    assert code == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("error: west: the broker refused\nhint: check the password\n")


def test_words_from_outside_write_nothing_on_a_terminal(
    mirroring: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What a broker says is one line, its escapes written out: it cannot pass for another error, or for none.
    """
    mirroring.status = AuthenticationError("west: no\x1b[2J\nhint: all is well", hint="check\x07 it")

    main(["mirror", *CLUSTERS, "--topics", "a", "--once"])

    shown = r"error: west: no\x1b[2J\nhint: all is well" + "\n" + r"hint: check\x07 it" + "\n"
    assert capsys.readouterr().err.endswith(shown)


def test_settings_that_are_refused_have_a_line_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    What was written in the file has its escapes written out.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(
        'flow: "a\\x1b"\nsource: {bootstrap_servers: "east:no"}\ntarget: {bootstrap_servers: west}\n'
    )

    assert main(["mirror", "--config", str(path)]) == 2

    err = capsys.readouterr().err
    assert "\n  source.bootstrap_servers" in err
    assert "\x1b" not in err


# -- the command line itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """
    ``--help`` of every command names it and ends with 0.
    """
    assert main([command, "--help"]) == 0
    assert f"Usage: twinsite {command}" in capsys.readouterr().out


def test_a_slip_of_the_finger_is_a_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Exit code 2, as for everything that starts nothing.
    """
    assert main(["stauts"]) == 2
    assert "stauts" in capsys.readouterr().err


def test_help_does_not_wait_for_the_mirror_to_be_imported() -> None:
    """
    What copies records is imported only by the command that does.
    """
    program = (
        "import sys\n"
        "from mirror.cli.main import main\n"
        "main(['--help'])\n"
        "sys.exit('mirror.service' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30).returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        ("reconcile",),
        ("reconcile", "scope", "proof"),
        ("reconcile", "digest", "--site", "source", "proof"),
        ("repair", "plan"),
        ("link", "test"),
        ("offsets", "translate", "--topic", "orders", "--partition", "0", "--offset", "7"),
    ],
)
@pytest.mark.parametrize("form", ["json", "console", "auto"])
def test_a_command_beside_the_mirror_logs_in_the_form_of_the_settings(
    command: tuple[str, ...], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who collects lines wants those of a nightly comparison as they are of the mirror; only what is worse than
    info is said.
    """
    asked = logs_asked_for(monkeypatch)
    path = tmp_path / "flow.yaml"
    link = "link: {relays: ['east:9650']}\ntarget: {bootstrap_servers: 'west:9092'}\ntopics: {include: [a]}\n"
    path.write_text(f"{link}log: {{level: debug, format: {form}}}\n")

    code = main([*command, "--config", str(path)])

    assert code == 2
    assert asked == [{"level": "warning", "form": form}]


def test_a_command_without_settings_logs_as_with_auto_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who compares what was carried need not know the flow.
    """
    asked = logs_asked_for(monkeypatch)

    code = main(["reconcile", "compare", str(tmp_path)])

    assert code == 2
    assert asked == [{"level": "warning"}]
    said = LogSettings.model_fields["format"].description
    assert said is not None
    assert "reconcile compare has no settings, and logs as with auto" in said


def logs_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """How commands set up their logs, with which they end."""
    asked: list[dict[str, str]] = []

    def set_up(**how: str) -> None:
        asked.append(how)
        raise UsageError("nothing more is wanted")

    monkeypatch.setattr(logs, "set_up", set_up)
    return asked


def test_a_copy_without_a_port_does_not_wait_for_the_server_to_be_imported() -> None:
    """
    An HTTP server and the documents it sends would be a third of all it imports.
    """
    program = (
        "import sys\n"
        "from mirror.cli.main import main\n"
        "code = main('mirror --source 127.0.0.1:1 --target 127.0.0.1:2 --topics x --once "
        "--timeout-seconds 0.1'.split())\n"
        "assert code == 5, code\n"
        "assert 'mirror.service' in sys.modules\n"
        "sys.exit(bool({'aiohttp', 'mirror.api.schema'} & set(sys.modules)))\n"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30).returncode == 0


def test_the_peak_of_memory_is_that_of_the_mirror_alone() -> None:
    """
    Whoever starts it may be large: Linux lets a child begin with the parent's peak.
    """
    large = bytearray(200 << 20)
    large[::4096] = b"x" * len(large[::4096])

    said = subprocess.run(
        [sys.executable, "-c", "from mirror.flow.snapshot import *; print(peak_resident_bytes())"],
        check=True,
        capture_output=True,
    )

    assert int(said.stdout) < len(large)
