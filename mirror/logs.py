"""Logging: one line per event, with its name and its fields.

JSON lines to standard error, or a readable form on a terminal. Times are UTC. What
other libraries log through the standard library comes out the same way. No secret
and no raw control character reaches a line, whatever a field holds: topic names and
the words of a broker come from outside.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import structlog
from pydantic import SecretBytes, SecretStr
from structlog.typing import FilteringBoundLogger, Processor
from tenacity import RetryCallState

from mirror import failpoints
from mirror.errors import hint_of
from mirror.kafka.secret import SecretSource

Form = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]

MASK = "***"
DEPTH_MAX = 8
"""Fields nested deeper are masked."""

_SECRET_KEY = re.compile(
    r"passw|passphrase|secret|token|credential|authorization|jaas|api_?key|private_?key|client_assertion",
    re.IGNORECASE,
)
_NOT_SECRET_KEYS = frozenset({"token_endpoint", "token_endpoint_url"})
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Line breaks of every kind, terminal escapes, and what changes the direction of writing."""

_QUIET = {"kafka": logging.WARNING, "aiohttp": logging.WARNING, "asyncio": logging.WARNING}

_FIRST = ("timestamp", "level", "event")

EventDict = MutableMapping[str, Any]


def set_up(*, level: Level = "info", form: Form = "auto", stream: TextIO | None = None) -> None:
    """Configure structlog and the standard library's logging for this process.

    A process with armed failpoints (:mod:`mirror.failpoints`, for tests only) logs that first.

    Args:
        form: ``auto`` is the readable form on a terminal, JSON elsewhere.
        stream: Standard error when None.
    """
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and stream.isatty())
    shared = _shared_processors()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _foreign], processors=_console(stream) if console else _json()
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(max(quiet, threshold))
    if failpoints.ARMED:
        log = structlog.get_logger(__name__)
        log.warning("failpoints_armed", failpoints=failpoints.ARMED)


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _foreign(_: Any, __: str, event_dict: EventDict) -> EventDict:
    """A line of another library: its words become a field, so that event names stay ours."""
    event_dict["message"] = event_dict.pop("event")
    event_dict["event"] = "library_message"
    return event_dict


def _json() -> list[Processor]:
    return [*_CLEANING, _TRACEBACK, escape, _in_order, structlog.processors.JSONRenderer()]


def _console(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=28
    )
    return [*_CLEANING, structlog.processors.format_exc_info, escape, renderer]


def _in_order(_: Any, __: str, event_dict: EventDict) -> EventDict:
    """Put time, level and event first, for people who read the raw lines."""
    first = {key: event_dict.pop(key) for key in _FIRST if key in event_dict}
    return first | dict(event_dict)


_TRACEBACK = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
)
"""Tracebacks as fields, without the values of local variables: those may be secrets."""

_TEXT_OF_EXCEPTION = "exception"
"""The field that holds a traceback in the readable form: its line feeds stay."""


# -- what must not come out ----------------------------------------------------------------------------


def mask_secrets(_: Any, __: str, event_dict: EventDict) -> EventDict:
    """Replace with ``***`` every value that is a secret, or whose key says so, at any depth."""
    return {key: _masked(key, value, 0) for key, value in event_dict.items()}


def _masked(key: object, value: Any, depth: int) -> Any:
    if isinstance(value, SecretSource | SecretStr | SecretBytes):
        return MASK
    if isinstance(key, str) and value is not None and _names_a_secret(key):
        return MASK
    if isinstance(value, Mapping):
        if depth >= DEPTH_MAX:
            return MASK
        return {inner: _masked(inner, held, depth + 1) for inner, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(None, held, depth + 1) for held in value] if depth < DEPTH_MAX else MASK
    return value


def _names_a_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None and key.lower() not in _NOT_SECRET_KEYS


_CLEANING: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, mask_secrets]


def escape(_: Any, __: str, event_dict: EventDict) -> EventDict:
    r"""Write control characters as ``\n`` or ``\x1b``, in keys and values, at any depth."""
    lines = event_dict.get(_TEXT_OF_EXCEPTION)
    out = {_clean(key): _cleaned(value) for key, value in event_dict.items()}
    if isinstance(lines, str):
        out[_TEXT_OF_EXCEPTION] = "\n".join(_clean(line) for line in lines.split("\n"))
    return out


def _cleaned(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_clean(str(key)): _cleaned(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(held) for held in value]
    return _clean(str(value))


def _clean(text: str) -> str:
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


# -- what must not come out too often -------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    said_at: float
    held_back: int


class Repeats:
    """Lets a repeated message through once in a while, and counts what it held back.

    Remembers a bounded number of keys; the least recently used is dropped first.
    """

    def __init__(
        self,
        *,
        every_seconds: float = 30.0,
        keys_max: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_seconds = every_seconds
        self._keys_max = keys_max
        self._clock = clock
        self._seen: OrderedDict[object, _Seen] = OrderedDict()

    def admit(self, key: object) -> int | None:
        """Whether to log it now.

        Returns:
            None: not now; otherwise how often it was held back since it was last logged.
        """
        now = self._clock()
        seen = self._seen.get(key)
        if seen is None:
            self._remember(key, now)
            return 0
        self._seen.move_to_end(key)
        if now - seen.said_at < self._every_seconds:
            seen.held_back += 1
            return None
        held_back, seen.held_back, seen.said_at = seen.held_back, 0, now
        return held_back

    def forget(self, key: object) -> None:
        """It is over: if it happens again, log it at once."""
        self._seen.pop(key, None)

    def _remember(self, key: object, now: float) -> None:
        self._seen[key] = _Seen(now, 0)
        if len(self._seen) > self._keys_max:
            self._seen.popitem(last=False)


def warn_repeated(
    log: FilteringBoundLogger, repeats: Repeats, key: object, event: str, **fields: Any
) -> None:
    """Log a warning that may come a thousand times; ``held_back`` says how many were not printed."""
    held_back = repeats.admit(key)
    if held_back is not None:
        log.warning(event, **fields, **({"held_back": held_back} if held_back else {}))


def log_retry(
    log: FilteringBoundLogger, repeats: Repeats, event: str, **fields: Any
) -> Callable[[RetryCallState], None]:
    """For tenacity's ``before_sleep``: logs why a call is retried, and what can be done about it, as often as
    ``repeats`` allows.
    """

    def before_sleep(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        key = (event, type(error).__name__, *fields.values())
        seconds = round(state.seconds_since_start or 0.0, 1)
        hint = hint_of(error)
        warn_repeated(
            log,
            repeats,
            key,
            event,
            **fields,
            error=str(error),
            **({"hint": hint} if hint else {}),
            attempt=state.attempt_number,
            seconds=seconds,
        )

    return before_sleep
