"""Whether the process is alive, and whether it is ready, with the reasons.

Alive means that the event loop turns and every main task has given a sign lately.
It never depends on Kafka or on lag: an outage of a cluster must not make an
orchestrator kill the mirror in a loop. Ready means that settings are loaded, both
clusters were reached at least once and the flow is running.

``*_at`` and ``now`` are readings of one monotonic clock, in seconds. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``reason`` says what was seen, good or bad."""

    name: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The checks behind one probe; fine when all are."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of a main task, and how long it may stay silent."""

    at: float
    within_seconds: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """What readiness is decided on; ``waits_for`` says in words why the flow is not running."""

    settings_loaded: bool
    source_reached: bool
    target_reached: bool
    flow_running: bool
    waits_for: str = ""


@dataclass(slots=True)
class Heartbeats:
    """The signs of life of the main tasks, by name.

    A task that waits for work without end must not be expected: expect the loops that turn by themselves.
    """

    beats: dict[str, Beat] = field(default_factory=dict)

    def expect(self, name: str, *, within_seconds: float, now: float) -> None:
        """From now on the task gives a sign at least this often."""
        self.beats[name] = Beat(now, within_seconds)

    def beat(self, name: str, now: float) -> None:
        """The task turns.

        Raises:
            KeyError: Nobody expects this task.
        """
        self.beats[name] = Beat(now, self.beats[name].within_seconds)


def livez(beats: Mapping[str, Beat], now: float) -> Verdict:
    """Decide on liveness; that somebody could ask is the proof that the event loop turns."""
    loop = Check("event_loop", ok=True, reason="turned to answer this")
    return Verdict((loop, *(_beats(name, beat, now) for name, beat in sorted(beats.items()))))


def _beats(name: str, beat: Beat, now: float) -> Check:
    silent_seconds = max(now - beat.at, 0.0)
    reason = f"last sign {silent_seconds:.1f} s ago, expected every {beat.within_seconds:g} s"
    return Check(name, silent_seconds <= beat.within_seconds, reason)


def readyz(readiness: Readiness) -> Verdict:
    """Decide on readiness. A cluster that was reached once and is away now does not end it."""
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
