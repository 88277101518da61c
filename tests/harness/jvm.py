"""Java processes of one test run: where the jars are, how one is started, and how none outlives us.

Jars lie where ``scripts/bootstrap`` puts them, ``.cache/kafka/<version>/jars``; the
environment variable ``TWINSITE_CACHE`` names another folder than ``.cache``.

A process started here is killed by the kernel when the *thread* that started it ends
(PR_SET_PDEATHSIG), so start from the main thread, not from a worker. A process whose parent
is gone before that is set up ends by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

RELEASES = {"0.9": "0.9.0.1", "0.10": "0.10.0.1", "3.9": "3.9.1", "4.3": "4.3.0"}
"""The patch release tests run for each version they name."""

FAST_JVM = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
)
"""Starts in half the time, runs slower: for tests, not for figures."""

BENCHMARK_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""As Kafka's own start scripts would."""

TAIL_BYTES = 4000

_STILL_OURS = '[ "$PPID" = "$0" ] && exec "$@"'
"""Run by a shell that has asked to die with its parent: go on if that parent, ``$0``, is still there."""

_LOG4J_1 = """\
log4j.rootLogger={level}, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n
"""
_LOG4J_2 = """\
rootLogger.level={level}
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c: %m%n
"""


class JarsMissingError(Exception):
    """The jars of a version are not there."""


class JavaFailedError(Exception):
    """A Java process ended or never became ready; carries the end of its output."""


def cache_folder() -> Path:
    """Where downloaded things are kept between runs."""
    return Path(os.environ.get("TWINSITE_CACHE", REPOSITORY / ".cache"))


def kafka_jars(version: str) -> Path:
    """The folder with all jars of a Kafka version.

    Args:
        version: One of :data:`RELEASES`, or a full version.

    Raises:
        JarsMissingError: They have not been downloaded yet.
    """
    folder = cache_folder() / "kafka" / RELEASES.get(version, version) / "jars"
    if not any(folder.glob("kafka-clients-*.jar")):
        raise JarsMissingError(f"no Kafka jars in {folder}: run scripts/bootstrap tests")
    return folder


def logging_flag(version: str, folder: Path, level: str = "WARN") -> str:
    """Write a logging configuration into a folder; returns the JVM flag that uses it.

    Kafka up to 3 logs with the first generation of log4j, Kafka 4 with the second.
    """
    file = folder / "logging.properties"
    if not version.startswith("4."):
        file.write_text(_LOG4J_1.format(level=level))
        return f"-Dlog4j.configuration=file:{file}"
    file.write_text(_LOG4J_2.format(level=level))
    return f"-Dlog4j2.configurationFile={file}"


def class_archive(version: str) -> Path:
    """Where the parsed classes of a version may lie, see :mod:`tests.harness.class_archive`."""
    return kafka_jars(version).parent / "classes.jsa"


def java_command(version: str, main_class: str, *args: str, jvm: Sequence[str] = FAST_JVM) -> list[str]:
    """The command line that runs a class of Kafka's jars, from the class archive where flags allow one."""
    archive = class_archive(version)
    shared = [f"-XX:SharedArchiveFile={archive}"] if "-Xshare:auto" in jvm and archive.exists() else []
    return ["java", *jvm, *shared, "-cp", f"{kafka_jars(version)}/*", main_class, *args]


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a process where it is; none of its threads runs any more when this returns."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def dying_with_us(command: Sequence[str]) -> list[str]:
    """The command, killed by the kernel when the thread that starts it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", _STILL_OURS, str(os.getpid()), *command]


def spawn(command: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a process that dies with us and writes all it says to the end of ``output``."""
    with output.open("ab") as log:
        return subprocess.Popen(
            dying_with_us(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def tail(output: Path) -> str:
    """The end of a process's output, for error messages."""
    return output.read_bytes()[-TAIL_BYTES:].decode(errors="replace") if output.exists() else ""


def write_properties(file: Path, settings: Mapping[str, object]) -> None:
    """Write a Java properties file."""
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
