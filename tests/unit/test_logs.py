"""Log lines: what they look like, what never is in them, and how often they come."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import Any

import pytest
import structlog
import tenacity
from pydantic import SecretStr

from mirror import failpoints, logs
from mirror.errors import ConnectionFailedError
from mirror.kafka.secret import SecretSource


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def set_up(**settings: Any) -> io.StringIO:
    stream = io.StringIO()
    logs.set_up(stream=stream, **settings)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# -- the form --------------------------------------------------------------------------------------


def test_a_line_is_json_with_time_level_and_event_first() -> None:
    """
    One line a happening, in UTC, the fields as they are.
    """
    stream = set_up()

    structlog.get_logger("mirror.flow").info("partition_state_changed", topic="orders", partition=0, lag=None)

    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "partition_state_changed",
        "logger": "mirror.flow",
        "topic": "orders",
        "partition": 0,
        "lag": None,
    }


def test_a_process_that_is_armed_to_kill_itself_says_so_first_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Anybody may set the variable, where it does not belong, too; without it nothing is said.
    """
    unarmed = set_up()
    monkeypatch.setattr(failpoints, "ARMED", "produce_sent:3")
    armed = set_up()
    structlog.get_logger().info("listening")

    first, second = lines(armed)
    assert lines(unarmed) == []
    assert [first[field] for field in ("level", "event", "failpoints")] == [
        "warning",
        "failpoints_armed",
        "produce_sent:3",
    ]
    assert second["event"] == "listening"


def test_a_terminal_gets_a_readable_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    In colours, unless NO_COLOR asks for none.
    """
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful, plain = Terminal(), Terminal()

    logs.set_up(stream=colourful)
    structlog.get_logger().warning("look_failed", partitions=3)
    monkeypatch.setenv("NO_COLOR", "1")
    logs.set_up(stream=plain)
    structlog.get_logger().warning("look_failed", partitions=3)

    assert "\x1b[" in colourful.getvalue()
    assert "\x1b[" not in plain.getvalue()
    assert "look_failed" in plain.getvalue()
    assert "partitions=3" in plain.getvalue()


def test_lines_below_the_level_are_not_written() -> None:
    """
    Neither ours nor those of libraries; kafka's and aiohttp's small talk never is.
    """
    stream = set_up(level="info")

    structlog.get_logger().debug("fetched")
    logging.getLogger("some.library").debug("detail")
    logging.getLogger("kafka.conn").info("connecting")
    structlog.get_logger().info("started")

    assert [line["event"] for line in lines(stream)] == ["started"]


def test_what_a_library_logs_comes_out_the_same_way() -> None:
    """
    Its words become a field: event names are ours.
    """
    stream = set_up()

    logging.getLogger("aiohttp.server").error("cannot read %s", "request")

    (line,) = lines(stream)
    assert (line["event"], line["message"], line["logger"]) == (
        *("library_message", "cannot read request"),
        "aiohttp.server",
    )


def test_setting_up_twice_does_not_write_twice() -> None:
    """
    A command that is called from another one, or a test, may do so.
    """
    set_up()
    stream = set_up()

    structlog.get_logger().info("started")

    assert len(lines(stream)) == 1


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Standard output is for data.
    """
    logs.set_up(form="json", stream=sys.stderr)

    structlog.get_logger().info("started")

    written = capsys.readouterr()
    assert written.out == ""
    assert "started" in written.err


# -- what never comes out --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["password", "sasl_password", "ssl.key.passphrase", "Token", "client_secret", "sasl.jaas.config"]
)
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_value_of_a_telling_key_is_masked(key: str, form: logs.Form) -> None:
    """
    At any depth, whatever the form.
    """
    stream = set_up(form=form)

    structlog.get_logger().info("settings", **{key: "hunter2"}, inside={"list": [{key: "hunter2"}]})

    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("***") == 2


@pytest.mark.parametrize("secret", [SecretStr("hunter2"), SecretSource(value="hunter2")])
def test_a_secret_is_masked_whatever_its_key(secret: object) -> None:
    """
    The type says enough.
    """
    stream = set_up()

    structlog.get_logger().info("settings", harmless=secret, many=[secret], deep={"a": {"b": secret}})

    assert "hunter2" not in stream.getvalue()
    assert lines(stream)[0]["harmless"] == "***"


def test_what_is_no_secret_stays() -> None:
    """
    An address is needed at three in the morning; so is an empty password.
    """
    stream = set_up()

    structlog.get_logger().info("settings", token_endpoint="https://idp", password=None)

    line = lines(stream)[0]
    assert (line["token_endpoint"], line["password"]) == ("https://idp", None)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_local_variables(form: logs.Form) -> None:
    """
    A function that fails over a password does not print it.
    """
    stream = set_up(form=form)

    try:
        _fails_with("hunter" + str(2))
    except ConnectionFailedError:
        structlog.get_logger().exception("connect_failed")

    assert "ConnectionFailedError" in stream.getvalue()
    assert "_fails_with" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def _fails_with(password: str) -> None:
    raise ConnectionFailedError(f"no answer to {len(password)} letters")


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "evil", ["a\nb", "a\r\nb", "a\x1b[31mb", "a\x00b", "a\u2028b", "a\u202eb", "a\x9b31mb"]
)
def test_nothing_from_outside_begins_a_new_line_or_moves_the_cursor(form: logs.Form, evil: str) -> None:
    """
    A topic name or the words of a broker cannot forge a line: in keys, values, lists, and as an event.
    """
    stream = set_up(form=form)
    log = structlog.get_logger(evil)

    log.info(evil, topic=evil, names=[evil], inside={evil: evil}, error=ValueError(evil))
    logging.getLogger("lib").warning(evil)

    written = stream.getvalue()
    assert written.count("\n") == 2
    assert not any(character in written for character in "\r\x1b\x00\u2028\u202e\x9b")


@pytest.mark.parametrize("form", ["json", "console"])
def test_the_words_of_an_exception_are_escaped_too(form: logs.Form) -> None:
    """
    In the readable form a traceback has lines of its own, and no more than those.
    """
    stream = set_up(form=form)

    try:
        int("a\x1b[31mb")
    except ValueError:
        structlog.get_logger().exception("request_failed")

    assert "\x1b" not in stream.getvalue()
    assert "\\x1b" in stream.getvalue()


# -- how often -------------------------------------------------------------------------------------


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_repeated_warning_is_said_once_in_a_while_and_counted() -> None:
    """
    A thousand failed tries are a few lines, and none is hidden.
    """
    stream, clock = set_up(), Clock()
    repeats = logs.Repeats(every_seconds=30, clock=clock)

    for second in range(61):
        clock.now = float(second)
        logs.warn_repeated(structlog.get_logger(), repeats, "east", "broker_away", broker="east")

    assert [line.get("held_back") for line in lines(stream)] == [None, 29, 29]


def test_different_keys_do_not_silence_one_another() -> None:
    """
    The second broker that fails is news.
    """
    repeats = logs.Repeats(clock=Clock())

    assert [repeats.admit("east"), repeats.admit("west"), repeats.admit("east")] == [0, 0, None]


def test_what_is_over_is_news_when_it_comes_back() -> None:
    """
    A recovery in between starts the count anew.
    """
    repeats = logs.Repeats(clock=Clock())
    repeats.admit("east")
    repeats.forget("east")

    assert repeats.admit("east") == 0


def test_only_so_many_keys_are_remembered() -> None:
    """
    A key for each of a million topics would be a leak; the least used goes first.
    """
    repeats = logs.Repeats(keys_max=2, clock=Clock())
    for key in ("east", "west", "east", "north"):
        repeats.admit(key)

    assert repeats.admit("east") is None
    assert repeats.admit("west") == 0


def test_retries_say_why_and_do_not_flood() -> None:
    """
    Twenty tries at the same thing are one line; another error is another. Where something can be done, it is
    said too: nobody sees how a mirror ends that waits for ever.
    """
    stream = set_up()
    repeats = logs.Repeats(clock=Clock())
    refused = ConnectionFailedError("refused", hint="it wants SASL")
    tries = iter([*[refused] * 19, TimeoutError("too late")])

    @tenacity.retry(
        stop=tenacity.stop_after_attempt(21),
        before_sleep=logs.log_retry(structlog.get_logger(), repeats, "metadata_retried", cluster="source"),
        reraise=True,
    )
    def ask() -> str:
        for error in tries:
            raise error
        return "answer"

    assert ask() == "answer"
    first, second = lines(stream)
    assert (first["event"], first["cluster"], first["error"], first["attempt"]) == (
        *("metadata_retried", "source", "refused"),
        1,
    )
    assert (second["error"], second["attempt"]) == ("too late", 20)
    assert (first["hint"], "hint" in second) == ("it wants SASL", False)


def test_an_exception_a_library_logs_keeps_its_traceback() -> None:
    """
    Without it nobody could say what went wrong there.
    """
    stream = set_up()

    try:
        _fails_with("x")
    except ConnectionFailedError:
        logging.getLogger("some.library").exception("cannot go on")

    (line,) = lines(stream)
    assert line["exception"][0]["exc_type"] == "ConnectionFailedError"
    assert [frame["name"] for frame in line["exception"][0]["frames"]][-1] == "_fails_with"
