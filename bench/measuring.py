"""What a copy took, seen from outside: by the target's log ends and the process table.

Time runs from the first record at the target to the last, and CPU time is what the contestant's processes
used in between. So the start of a JVM, or the import of Python modules, is shown separately. A JVM goes on
compiling long after its start; so the second half of a copy has figures of its own.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

POLL_SECONDS = 0.05
"""Often enough for copies of seconds: asking takes CPU time that a contestant could use."""
GIVE_UP_SECONDS = 300.0
PATIENCE: Mapping[str, Any] = {"stop": stop_after_delay(20), "wait": wait_fixed(0.1), "reraise": True}


@dataclass(frozen=True, slots=True)
class Run:
    """What one copy took.

    Attributes:
        start_cpu_seconds: Used before the first record was at the target.
        peak_megabytes: The most memory it had resident; NaN for a process that had ended by itself.
        target_cpu_seconds_per_gigabyte: What the target's broker used meanwhile.
        warm_megabytes_per_second, warm_cpu_seconds_per_gigabyte: Of the second half of the records alone.
    """

    megabytes_per_second: float
    cpu_seconds_per_gigabyte: float
    start_cpu_seconds: float
    peak_megabytes: float
    target_cpu_seconds_per_gigabyte: float = math.nan
    warm_megabytes_per_second: float = math.nan
    warm_cpu_seconds_per_gigabyte: float = math.nan


class LogEnds:
    """How many records a topic holds, asked often and cheaply."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._question = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}

    def records(self) -> int:
        """Records, going by the log ends of all partitions.

        Raises:
            KafkaException: No answer for long. Single failures are tolerated: right after a topic was created
                again there are a few.
        """
        for attempt in Retrying(retry=retry_if_exception_type(KafkaException), **PATIENCE):
            with attempt:
                answers = self._admin.list_offsets(self._question)
                found = sum(int(answer.result().offset) for answer in answers.values())
        return found


def measure(
    pids: Sequence[int], target_pid: int, copied: Callable[[], int], records: int, megabytes: float
) -> Run:
    """Measure processes while they copy this many records.

    Args:
        pids: The contestant's processes.
        target_pid: The broker it writes to.

    Raises:
        ClickException: It is not done in time, or was done before it could be measured.
    """
    first, already = wait_for(copied, 1)
    before, target_before = sum(map(cpu_seconds, pids)), cpu_seconds(target_pid)
    if already >= records:
        raise click.ClickException(f"{megabytes:g} MB were copied before the first look: copy more")
    half, by_half = wait_for(copied, already + (records - already) // 2)
    half_used = sum(map(cpu_seconds, pids)) - before
    last, _ = wait_for(copied, records)
    used = sum(map(cpu_seconds, pids)) - before
    target_used = cpu_seconds(target_pid) - target_before
    gigabytes, warm_gigabytes = (megabytes / 1000 * (records - at) / records for at in (already, by_half))
    return Run(
        megabytes_per_second=gigabytes * 1000 / (last - first),
        cpu_seconds_per_gigabyte=used / gigabytes,
        start_cpu_seconds=before,
        peak_megabytes=max(map(peak_megabytes, pids)),
        target_cpu_seconds_per_gigabyte=target_used / gigabytes,
        warm_megabytes_per_second=warm_gigabytes * 1000 / (last - half) if warm_gigabytes else math.nan,
        warm_cpu_seconds_per_gigabyte=(used - half_used) / warm_gigabytes if warm_gigabytes else math.nan,
    )


def wait_for(copied: Callable[[], int], records: int) -> tuple[float, int]:
    """The moment at which at least this many records were there, and how many there were.

    Raises:
        ClickException: They were not in time.
    """
    found = 0

    def enough() -> bool:
        nonlocal found
        found = copied()
        return found >= records

    return wait(enough, f"{records} records are copied"), found


def wait(condition: Callable[[], bool], what: str) -> float:
    """The moment at which the condition came true.

    Raises:
        ClickException: It did not in time.
    """
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise click.ClickException(f"not within {GIVE_UP_SECONDS:g} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    """The most memory a process had resident so far."""
    return _megabytes(pid, "VmHWM")


def resident_megabytes(pid: int) -> float:
    """The memory a process has resident now."""
    return _megabytes(pid, "VmRSS")


def _megabytes(pid: int, field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else math.nan


def median(runs: Sequence[Run]) -> Run:
    """The median of each figure by itself."""
    return Run(*(statistics.median(getattr(run, name) for run in runs) for name in asdict(runs[0])))


def as_json(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[dict[str, float | None]]]:
    """Every run of every contestant, for saving."""
    return {
        name: [{k: round(v, 3) for k, v in asdict(run).items()} for run in of] for name, of in runs.items()
    }


def from_json(saved: Mapping[str, Sequence[Mapping[str, float | None]]]) -> dict[str, list[Run]]:
    """The reverse of :func:`as_json`; null becomes NaN."""
    return {name: [_run(run) for run in of] for name, of in saved.items()}


def _run(saved: Mapping[str, float | None]) -> Run:
    return Run(**{name: math.nan if value is None else value for name, value in saved.items()})
