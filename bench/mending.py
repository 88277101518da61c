"""The second half of the demo: prove the copy, damage it, find the damage, put it right, prove it again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.harness.data import Row
from tests.harness.jvm import REPOSITORY, cache_folder
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Finished, twinsite

RUNS = REPOSITORY / "build" / "demo"
"""Where comparisons are left, each with its page; those of an earlier demo are deleted."""
SECONDS = 180.0
QUICK_START = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Little is read: Java would spend most of the time on compiling code that it soon no longer needs."""
MATCH, MISMATCH, DONE = 0, 10, 0

Say = Callable[[str], None]


class DemoError(Exception):
    """A step did not have the outcome that it should."""


async def mend(target: KafkaCluster, topic: str, rows: Sequence[Row], settings: Path, say: Say) -> None:
    """Go through all steps, with a compacted topic.

    Args:
        rows: What the topic was filled with.
        settings: The settings file of the flow.

    Raises:
        DemoError: What was damaged was not found, or not put right.
    """
    if RUNS.exists():
        shutil.rmtree(RUNS)
    say("proving the copy with Spark: twinsite reconcile")
    _expect(MATCH, await _reconcile(settings), say)

    say(f"damaging it: somebody else writes to {topic} at the target, over one package, and a new one")
    victim = rows[len(rows) // 2]
    damage = [Row(key=victim.key, value=b"Package: not what Debian says"), Row(key=b"zombie", value=b"?")]
    await asyncio.to_thread(load, target.bootstrap, topic, damage)

    say("proving it again")
    _expect(MISMATCH, await _reconcile(settings), say)
    run = max(RUNS.iterdir())
    page = run / "report.html"
    _expect_named(page.read_text(), damage)
    say(f"the page that shows the damage is kept: {page.relative_to(REPOSITORY)}")

    say("repairing it: twinsite repair")
    _expect(DONE, await _repair(settings, run, "--to-mapped"), say)
    _expect(DONE, await _repair(settings, run, "--to-mapped", "--apply"), say)

    say("and proving it again")
    _expect(MATCH, await _reconcile(settings), say)


def _expect_named(page: str, damage: Sequence[Row]) -> None:
    for row in damage:
        key = (row.key or b"").decode()
        if key not in page:
            raise DemoError(f"{key} was damaged, and the page does not name it")


async def _reconcile(settings: Path) -> Finished:
    jars = str(cache_folder() / "spark" / "jars")
    arguments = ("reconcile", "--config", str(settings), "--folder", str(RUNS), "--spark-jars", jars)
    return await twinsite(*arguments, work_dir=settings.parent, seconds=SECONDS, environment=QUICK_START)


async def _repair(settings: Path, run: Path, *more: str) -> Finished:
    arguments = ("repair", "--config", str(settings), *more, str(run))
    return await twinsite(*arguments, work_dir=settings.parent, seconds=SECONDS)


def _expect(code: int, done: Finished, say: Say) -> None:
    for line in done.stdout.strip().splitlines():
        say(f"  {line.rstrip()}")
    if done.code != code:
        raise DemoError(f"exit code {done.code} instead of {code}:\n{done.stderr[-2000:]}")
