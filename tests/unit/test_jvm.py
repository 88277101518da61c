"""Processes of the harness: found, started, and never left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.daemon import NotReadyError, free_ports, until
from tests.harness.jvm import REPOSITORY, JarsMissingError, kafka_jars, logging_flag, tail

ORPHAN = """
import pathlib, sys, time
from tests.harness.jvm import spawn
print(spawn(["sleep", "600"], pathlib.Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def test_missing_jars_are_named_with_the_way_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whoever runs tests before bootstrap learns what to run.
    """
    monkeypatch.setenv("TWINSITE_CACHE", str(tmp_path))

    with pytest.raises(JarsMissingError, match=r"3\.9\.1.*scripts/bootstrap"):
        kafka_jars("3.9")


def test_a_process_does_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    """
    SIGKILL of the parent, which can clean up nothing, ends the child too.
    """
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "out")],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()

    asyncio.run(until(lambda: not running(child), f"process {child} is gone", 10))


def running(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_free_ports_are_different_and_outside_the_kernels_own() -> None:
    """
    A port handed to a client by the kernel could otherwise be that of a broker which is down.
    """
    ports = free_ports(500)

    assert len(set(ports)) == 500
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < first or first < 32_768


def test_each_generation_of_kafka_gets_the_logging_it_reads(tmp_path: Path) -> None:
    """
    Kafka 4 refuses to start with the settings of log4j 1.
    """
    old = logging_flag("3.9", tmp_path)
    old_text = (tmp_path / "logging.properties").read_text()
    new = logging_flag("4.3", tmp_path, "INFO")
    new_text = (tmp_path / "logging.properties").read_text()

    assert old.startswith("-Dlog4j.configuration=file:/")
    assert "log4j.rootLogger=WARN" in old_text
    assert new.startswith("-Dlog4j2.configurationFile=/")
    assert "rootLogger.level=INFO" in new_text
    assert "log4j.rootLogger" not in new_text


def test_the_tail_of_a_missing_output_is_empty(tmp_path: Path) -> None:
    """
    An error about a process that never wrote a line is still an error about it.
    """
    assert tail(tmp_path / "nothing") == ""


async def test_waiting_in_vain_says_for_what() -> None:
    """
    The failure of a test names the condition.
    """
    with pytest.raises(NotReadyError, match=r"not within 0\.1 s: pigs fly"):
        await until(lambda: False, "pigs fly", 0.1)


def test_a_run_has_its_jars() -> None:
    """
    All versions the suite runs on are there, complete with a voice for the log.
    """
    loggers = {"0.9": "slf4j-log4j12", "0.10": "slf4j-log4j12", "3.9": "slf4j-reload4j"}
    for version, logger in {**loggers, "4.3": "log4j-slf4j-impl"}.items():
        names = os.listdir(kafka_jars(version))
        assert any(name.startswith(logger) for name in names)
