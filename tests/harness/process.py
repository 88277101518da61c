"""The mirror as users run it: a process with arguments, an environment, output and an end.

::

    with Twinsite.run("mirror", "--source", source.bootstrap, ..., work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: mirror.status()["state"] == "ACTIVE", "the flow is active")
        mirror.kill()
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.daemon import NotReadyError, free_ports, until
from tests.harness.jvm import REPOSITORY, dying_with_us, freeze

WAIT_SECONDS = 30.0
NO_API = ("--api-port", "-1")
"""Options of a relay without a port for its API: several relays run on one machine here."""
COMMAND = (sys.executable, "-m", "mirror.cli.main")


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended and what it said."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """Its standard output read as JSON."""
        return json.loads(self.stdout)

    @property
    def missing(self) -> str:
        """What a copy that ended says about partitions that did not get there, and the end of its log."""
        parts = self.document["partitions"] if self.stdout.strip() else []
        told = Counter((p["state"], p["reason"], p["detail"]) for p in parts if not p["there"])
        return f"{len(parts)} partitions, of these not there: {told.most_common(9)}\n{self.stderr[-2000:]}"


class Twinsite:
    """One process of the command line; made by :meth:`run`.

    Args:
        process: Already started.
        stdout: File its standard output goes to.
        stderr: File its standard error goes to.
        port: Where it listens for HTTP; None if it was not told to.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], stdout: Path, stderr: Path, port: int | None
    ) -> None:
        self.process = process
        self.port = port
        self._stdout = stdout
        self._stderr = stderr

    @classmethod
    @contextmanager
    def run(
        cls,
        *args: str,
        work_dir: Path,
        failpoints: str = "",
        environment: Mapping[str, str] | None = None,
        listen: bool = True,
        checkout: Path = REPOSITORY,
        inside: Sequence[str] = (),
    ) -> Iterator[Twinsite]:
        """Start ``twinsite args...`` and kill it at the end of the block if it still runs.

        Args:
            work_dir: Where its output is kept.
            failpoints: Value of ``TWINSITE_FAILPOINTS``, e.g. ``produce_sent:3``.
            listen: Add ``--api-port`` with a free port, so that :meth:`status` works.
            checkout: Whose code runs.
            inside: A prefix of the command, as to run it at the far end of a link.
        """
        port = free_ports(1)[0] if listen else None
        options = ("--api-port", str(port)) if listen else ()
        if args[0] == "relay" and not listen and "--api-port" not in args:
            options = NO_API
        variables = _environment(failpoints, environment or {})
        command = (*inside, *COMMAND, *args, *options)
        twinsite = cls._spawn(command, work_dir, port, variables, checkout)
        try:
            yield twinsite
        finally:
            twinsite.process.kill()
            twinsite.process.wait()

    @classmethod
    def _spawn(
        cls,
        command: tuple[str, ...],
        work_dir: Path,
        port: int | None,
        environment: Mapping[str, str],
        checkout: Path,
    ) -> Twinsite:
        run = len(list(work_dir.glob("twinsite-*.out"))) + 1
        stdout, stderr = (work_dir / f"twinsite-{run}.{kind}" for kind in ("out", "err"))
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                dying_with_us(command),
                cwd=checkout,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return cls(process, stdout, stderr, port)

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return self._stderr.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL and wait for its end."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to stop with SIGTERM; see :meth:`finished` for its end."""
        self.process.terminate()

    def freeze(self) -> None:
        """Stop it where it is."""
        freeze(self.process)

    def thaw(self) -> None:
        """Let it run on."""
        self.process.send_signal(signal.SIGCONT)

    def get(self, path: str) -> bytes:
        """GET a path of its HTTP server.

        Raises:
            OSError: It does not answer, or answers with an error status.
        """
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def status(self) -> dict[str, Any]:
        """The status document; an empty one while there is no answer."""
        try:
            document: dict[str, Any] = json.loads(self.get("/status"))
        except urllib.error.HTTPError as refused:
            refused.close()
            return {}
        except OSError:
            return {}
        return document

    def control(self, topic: str, action: str) -> bool:
        """Whether it did to a topic what an operator asks for, such as ``pause``."""
        headers = {"X-Twinsite-Control": "yes", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/topics/{topic}/{action}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=5).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except OSError:
            return False
        return True

    async def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a condition holds while the process runs.

        Raises:
            NotReadyError: It did not in time, or the process ended first; carries what it logged.
        """
        try:
            await until(lambda: condition() or not self.running, what, seconds)
        except NotReadyError as late:
            raise NotReadyError(f"{late}\n{self.stderr[-4000:]}") from late
        if not self.running and not condition():
            raise NotReadyError(f"ended with {self.process.returncode} before: {what}\n{self.stderr[-4000:]}")

    async def finished(self, seconds: float = WAIT_SECONDS) -> Finished:
        """Wait for its end.

        Raises:
            NotReadyError: It still runs after that time; carries what it logged.
        """
        try:
            await until(lambda: not self.running, "the process ends", seconds)
        except NotReadyError as late:
            raise NotReadyError(f"{late}\n{self.stderr[-4000:]}") from late
        return Finished(self.process.returncode, self.stdout, self.stderr)


async def twinsite(
    *args: str,
    work_dir: Path,
    failpoints: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = 60.0,
) -> Finished:
    """Run ``twinsite args...`` to its end, e.g. ``mirror --once`` or ``config show``."""
    with Twinsite.run(
        *args, work_dir=work_dir, failpoints=failpoints, environment=environment, listen=False
    ) as process:
        return await process.finished(seconds)


def _environment(failpoints: str, more: Mapping[str, str]) -> dict[str, str]:
    """Our environment without settings of the mirror, which a developer's shell may hold, and with others."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TWINSITE_")}
    armed = {"TWINSITE_FAILPOINTS": failpoints} if failpoints else {}
    return ours | armed | dict(more)


def events(log: str, event: str) -> list[str]:
    """The lines of a log that carry an event of this name."""
    return [line for line in log.splitlines() if re.search(rf"\b{re.escape(event)}\b", line)]
