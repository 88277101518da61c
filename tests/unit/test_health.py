"""Alive and ready, decided without I/O."""

from __future__ import annotations

import pytest

from monitoring.health import Heartbeats, Readiness, livez, readyz


def test_a_task_that_gives_signs_keeps_the_process_alive() -> None:
    """
    A sign within the stated time is enough, however long the process has been up.
    """
    tasks = Heartbeats()
    tasks.expect("settle", within_seconds=30, now=0)
    tasks.beat("settle", now=1_000)

    verdict = livez(tasks.beats, now=1_030)

    assert verdict.ok
    assert [check.name for check in verdict.checks] == ["event_loop", "settle"]


def test_a_task_that_has_gone_silent_ends_liveness_and_is_named() -> None:
    """
    The one that hangs can be told from those that do not.
    """
    tasks = Heartbeats()
    tasks.expect("keeper", within_seconds=30, now=0)
    tasks.expect("settle", within_seconds=30, now=0)
    tasks.beat("keeper", now=31)

    verdict = livez(tasks.beats, now=31)

    assert not verdict.ok
    silent = [check for check in verdict.checks if not check.ok]
    assert [(check.name, check.reason) for check in silent] == [
        ("settle", "last sign 31.0 s ago, expected every 30 s")
    ]


def test_a_sign_of_a_task_nobody_expects_is_a_mistake() -> None:
    """
    A misspelt name must not leave the right one without signs.
    """
    with pytest.raises(KeyError):
        Heartbeats().beat("setle", now=0)


def test_ready_needs_all_four() -> None:
    """
    Settings, both clusters and the flow.
    """
    assert readyz(Readiness(True, True, True, True)).ok


@pytest.mark.parametrize(("missing", "name"), [(0, "settings"), (1, "source"), (2, "target"), (3, "flow")])
def test_what_is_missing_for_readiness_is_named(missing: int, name: str) -> None:
    """
    Each of the four alone keeps the mirror from being ready.
    """
    settings, source, target, flow = (number != missing for number in range(4))

    verdict = readyz(Readiness(settings, source, target, flow))

    assert [check.name for check in verdict.checks if not check.ok] == [name]
