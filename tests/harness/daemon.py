"""Processes that serve clients: their ports, how to wait for them, and what can happen to them."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.jvm import JavaFailedError, freeze, spawn, tail

HOST = "127.0.0.1"
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
PORTS = range(18_000, 32_000)
"""Below the kernel's ephemeral ports, so that no client takes one while its broker is down."""
PORTS_HELD = 500
_taken: deque[socket.socket] = deque()


class NotReadyError(Exception):
    """A condition did not become true in time."""


async def until(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Check a condition, in a thread, until it is true.

    Raises:
        NotReadyError: It was not true in time; says what was waited for.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while not await asyncio.to_thread(condition):
        if asyncio.get_running_loop().time() > deadline:
            raise NotReadyError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(POLL_SECONDS)


def free_ports(count: int, among: range = PORTS) -> list[int]:
    """Different ports on which nothing listens, outside the kernel's ephemeral range.

    They are reserved, also while the process that gets one is down: other processes, of this run and of
    others, take none of the last :data:`PORTS_HELD` of any process.

    Raises:
        NotReadyError: There are fewer.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(among, len(among)):
        if len(found) == count:
            break
        if _is_free(port) and _take(port):
            found.append(port)
    if len(found) < count:
        raise NotReadyError(f"fewer than {count} free ports in {among}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


def _take(port: int) -> bool:
    """Reserve a port; False where it is reserved already. A name in the abstract namespace has one owner, and
    ends with its process.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0twinsite-test-port-{port}")
    except OSError:
        claim.close()
        return False
    if len(_taken) == PORTS_HELD:
        _taken.popleft().close()
    _taken.append(claim)
    return True


@dataclass(frozen=True, slots=True)
class Site:
    """Where nodes run.

    Attributes:
        host: The address they listen on.
        inside: A prefix of their command, as to run at the far end of a link.
    """

    host: str = HOST
    inside: Sequence[str] = ()


HERE = Site()


class Daemon:
    """A process that serves clients, and can be killed, frozen and started again.

    Args:
        name: What error messages call it.
        port: Where clients connect.
        folder: Its settings, data and output.
        command: The command line.
        host: The address it listens on.
    """

    def __init__(self, name: str, port: int, folder: Path, command: Sequence[str], host: str = HOST) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.folder = folder
        self.output = folder / "output.log"
        self.frozen = False
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            JavaFailedError: It does not run.
        """
        return self._alive().pid

    def launch(self) -> None:
        """Start the process and do not wait.

        Raises:
            JavaFailedError: It runs already.
        """
        if self.running:
            raise JavaFailedError(f"{self.name} runs already")
        self._process = spawn(self._command, self.output)
        self.frozen = False

    async def start(self) -> None:
        """Start and wait until it serves clients."""
        self.launch()
        await self.ready()

    async def ready(self) -> None:
        """Wait until it serves clients.

        Raises:
            JavaFailedError: It ended, or did not get there; carries the end of its output.
        """
        try:
            await until(lambda: not self.running or self._serves(), f"{self.name} serves clients")
        except NotReadyError as late:
            raise JavaFailedError(f"{late}\n{tail(self.output)}") from late
        if not self.running:
            raise JavaFailedError(f"{self.name} ended at its start\n{tail(self.output)}")

    async def stop(self) -> None:
        """Shut down in an orderly way: a broker hands over leadership and closes its logs cleanly."""
        process = self._alive()
        process.terminate()
        await asyncio.to_thread(process.wait, READY_SECONDS)

    async def kill(self) -> None:
        """End it as a power cut would."""
        process = self._alive()
        process.kill()
        await asyncio.to_thread(process.wait)

    def discard(self) -> None:
        """Kill it if it runs, frozen or not, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def freeze(self) -> None:
        """Stop the process where it is; connections stay open and nothing answers."""
        freeze(self._alive())
        self.frozen = True

    async def thaw(self) -> None:
        """Let a frozen process run on."""
        self._alive().send_signal(signal.SIGCONT)
        self.frozen = False

    async def restart(self) -> None:
        """Start again, stopping first if it still runs; returns when it serves clients."""
        if self.running:
            await self.stop()
        await self.start()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise JavaFailedError(f"{self.name} does not run\n{tail(self.output)}")
        return self._process

    def _serves(self) -> bool:
        """Whether clients are served now; called repeatedly during a start."""
        raise NotImplementedError
