"""Whether the process is alive, and whether it is ready, with the reasons.

Alive means that the event loop runs and every main task has given a recent sign of life. It never depends on
Kafka or on lag: an outage of a cluster must not make an orchestrator restart the mirror in a loop. Ready
means that settings are loaded, both clusters were reached at least once, and the flow is running.

``*_at`` and ``now`` are readings of one monotonic clock, in seconds. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked. ``reason`` says what was found, good or bad."""

    name: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checks of one probe; ok if all of them are."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of life of a main task, and how long it may stay silent."""

    at: float
    within_seconds: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """What readiness depends on; ``waits_for`` says in words why the flow is not running."""

    settings_loaded: bool
    source_reached: bool
    target_reached: bool
    flow_running: bool
    waits_for: str = ""


@dataclass(slots=True)
class Heartbeats:
    """The signs of life of the main tasks, by name.

    Do not expect a task that may wait for work for ever; expect the loops that run at intervals.
    """

    beats: dict[str, Beat] = field(default_factory=dict)

    def expect(self, name: str, *, within_seconds: float, now: float) -> None:
        """Expect a sign of life of the task at least this often from now on."""
        self.beats[name] = Beat(now, within_seconds)

    def beat(self, name: str, now: float) -> None:
        """Note a sign of life of the task.

        Raises:
            KeyError: The task is not expected.
        """
        self.beats[name] = Beat(now, self.beats[name].within_seconds)


def livez(beats: Mapping[str, Beat], now: float) -> Verdict:
    """Decide on liveness; being called proves that the event loop runs."""
    loop = Check("event_loop", ok=True, reason="responds")
    return Verdict((loop, *(_beats(name, beat, now) for name, beat in sorted(beats.items()))))


def _beats(name: str, beat: Beat, now: float) -> Check:
    silent_seconds = max(now - beat.at, 0.0)
    reason = f"last sign {silent_seconds:.1f} s ago, expected every {beat.within_seconds:g} s"
    return Check(name, silent_seconds <= beat.within_seconds, reason)


def readyz(readiness: Readiness) -> Verdict:
    """Decide on readiness. A cluster that was reached once may be unavailable now."""
    why = f", waits for {readiness.waits_for}" if readiness.waits_for else ""
    return Verdict(
        (
            _either("settings", readiness.settings_loaded, "loaded", "not loaded yet"),
            _either("source", readiness.source_reached, "reached", "not reached since start"),
            _either("target", readiness.target_reached, "reached", "not reached since start"),
            _either("flow", readiness.flow_running, "running", f"not running{why}"),
        )
    )


def _either(name: str, ok: bool, good: str, bad: str) -> Check:
    return Check(name, ok, good if ok else bad)
