"""Runs the mirror from the command line: signals in, progress and a result out."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from mirror import config, logs, service
from mirror.cli.output import console, print_json
from mirror.cli.progress import reporter
from mirror.cli.render import Totals, copy_document, status_table
from mirror.config import Settings
from mirror.errors import ExitCode, TwinsiteError
from mirror.flow.snapshot import peak_resident_bytes
from mirror.model import FlowStatus
from mirror.signals import Signals

STOP_SECONDS = 15.0
"""How long a mirror that was told to stop may take: it waits up to 10 s for what is in flight to arrive."""
GARBAGE_THRESHOLD = 20_000
"""Objects made and not freed before Python looks for cycles. With its default of 700 that takes a tenth of
the time."""

log = structlog.get_logger(__name__)

OnStatus = Callable[[FlowStatus], None]


class NotStoppedError(TwinsiteError):
    """The mirror was told to stop and did not end in time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A copy that has come to an end, in whatever way.

    Attributes:
        stopped: A signal ended it.
        time_is_up: Its time limit ended it.
    """

    status: FlowStatus
    totals: Totals
    stopped: bool
    time_is_up: bool

    @property
    def exit_code(self) -> ExitCode:
        if self.status.is_there:
            return ExitCode.DONE
        return ExitCode.TIME_IS_UP if self.time_is_up and not self.stopped else ExitCode.NOT_THERE


def run_for_ever(settings: Settings) -> int:
    """Mirror until a signal comes; one that comes before copying has begun ends it at once.

    Raises:
        TwinsiteError: A cluster cannot be reached, or does not allow what is needed.
    """
    _set_up(settings)
    try:
        _run_to_its_end(settings, once=False, timeout_seconds=None, on_status=None)
    except service.NotBegunError as ended:
        log.info("stopped", message=str(ended))
    return 0


def run_once(settings: Settings, timeout_seconds: float | None, output: str) -> int:
    """Mirror what is there now; progress goes to standard error, the result to standard output.

    Raises:
        TwinsiteError: A cluster cannot be reached, or does not allow what is needed.
    """
    with reporter(sys.stderr) as shown:
        _set_up(settings)
        ended = _run_to_its_end(settings, once=True, timeout_seconds=timeout_seconds, on_status=shown.show)
        shown.show(ended.status)
    if output == "json":
        print_json(copy_document(ended.status, ended.totals))
    else:
        console().print(status_table(ended.status))
    return ended.exit_code


def _set_up(settings: Settings) -> None:
    _collect_garbage_seldom()
    logs.set_up(level=settings.log.level, form=settings.log.format)
    for sentence in config.warnings(settings):
        log.warning("settings_warning", message=sentence)


def _collect_garbage_seldom() -> None:
    """Imported modules stay anyway; batches in flight hold no cycles, and are freed by reference counts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _run_to_its_end(
    settings: Settings, *, once: bool, timeout_seconds: float | None, on_status: OnStatus | None
) -> Ended:
    with Signals() as signals, asyncio.Runner() as runner:
        stop = signals.stop_of(runner.get_loop())
        work = _run(settings, stop, once=once, timeout_seconds=timeout_seconds, on_status=on_status)
        return runner.run(work)


async def _run(
    settings: Settings,
    stop: asyncio.Event,
    *,
    once: bool,
    timeout_seconds: float | None,
    on_status: OnStatus | None,
) -> Ended:
    started_at, time_is_up = time.monotonic(), asyncio.Event()
    work = asyncio.create_task(
        service.run(
            settings,
            once=once,
            timeout_seconds=timeout_seconds,
            stop=stop,
            time_is_up=time_is_up,
            on_status=on_status,
        )
    )
    await _attend(work, stop)
    if not work.done():
        await _cut_off(work)
        raise NotStoppedError(f"the mirror did not stop within {STOP_SECONDS:g} s and was terminated")
    seconds = time.monotonic() - started_at
    return Ended(
        work.result(),
        totals_now(seconds),
        stopped=stop.is_set(),
        time_is_up=time_is_up.is_set(),
    )


async def _attend(work: asyncio.Task[FlowStatus], stop: asyncio.Event) -> None:
    """Wait until the work is done, or should be, ``STOP_SECONDS`` after it was told to stop."""
    told = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({work}, timeout=STOP_SECONDS)
    finally:
        told.cancel()


async def _cut_off(work: asyncio.Task[FlowStatus]) -> None:
    work.cancel()
    await asyncio.wait({work})
    error = None if work.cancelled() else work.exception()
    if error is not None:
        raise error


def totals_now(seconds: float) -> Totals:
    """What this process has used so far."""
    return Totals(seconds, cpu_seconds=time.process_time(), peak_memory_bytes=peak_resident_bytes())
