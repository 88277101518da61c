"""``twinsite reconcile`` in this process, in the session that is there, or with ``spark-submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Protocol

from mirror.cli import main as cli
from tests.harness.jvm import REPOSITORY, cache_folder, dying_with_us
from tests.harness.process import Finished

FAST = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
    ),
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}
"""Starts in two thirds of the time, runs slower: for tests, not for figures.

There is room for the code and the classes of all queries: they are not looked through again and again.
"""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For one query of little data: to compile it would take longer than to run it."""


def settings_file(path: Path, source: str, target: str, topics: str, flow: str = "proof") -> Path:
    """Settings of a flow, in a file."""
    document = {
        "flow": flow,
        "source": {"bootstrap_servers": source},
        "target": {"bootstrap_servers": target},
        "topics": {"include": [topics]},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


class Command(Protocol):
    """``twinsite reconcile ARGUMENTS...``; answers its exit code."""

    def __call__(self, *arguments: object) -> int: ...


def reconcile(*arguments: object) -> int:
    """The command, in the thread whose session it is to use: tests of commands have no event loop."""
    return cli.main(["reconcile", *map(str, arguments)])


def submitted(*arguments: object, work_dir: Path, seconds: float = 200.0) -> Finished:
    """``spark-submit ... spark_jobs/main.py ARGUMENTS...``, to its end."""
    programs = Path(sys.executable).parent
    jars = ",".join(map(str, (cache_folder() / "spark" / "jars").glob("*.jar")))
    said = (f"{name}={value}" for name, value in {**FAST, **INTERPRETED}.items())
    settings = chain.from_iterable(("--conf", setting) for setting in said)
    command = [str(programs / "spark-submit"), "--master", "local[2]", "--jars", jars, *settings]
    done = subprocess.run(
        dying_with_us([*command, str(REPOSITORY / "spark_jobs" / "main.py"), *map(str, arguments)]),
        cwd=work_dir,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
