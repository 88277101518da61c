"""A slow, lossy or broken link between this machine and a far site of its own, with real TCP at both ends.

::

    with wan(seed=7) as link:
        link.both(rate=2.5e6, delay_seconds=0.05, queue_bytes=250_000)
        with Twinsite.run("relay", ..., inside=link.inside, work_dir=tmp_path): ...

A packet has 1500 bytes, as on long links. Emulate a link of hundreds of Mbit/s with :meth:`Wan.packets_of`
9000 bytes, which leaves the processors to those who use it; a lost packet is then six times as large.

The far site is a network namespace. Two ways lead there: the link, at the pace it is given, and a fast one to
brokers that run here and count as being at the far site.

It needs root, ``ip`` and ``nsenter``; :func:`why_not` says what is missing.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.jvm import REPOSITORY
from tests.harness.wan_router import Counted

PROGRAMS = ("ip", "nsenter")
DEVICE = "wan0"
SILENT = ("addrgenmode", "none") if Path("/proc/sys/net/ipv6").exists() else ()
"""Option of a device: the kernel asks for no routers over it, so the same seed means the same packets."""
NUMBERS, STEP = 16_000, 4_001
HOMES = "10.64.0.0/10"
"""The network with the addresses of all links: brokers at the end of one may belong to another, too."""
OWN_GROUP = 0
"""Of processes that Ctrl-C does not reach: a link that is put away is gone as a whole."""
TO_NEAR, TO_FAR = 0, 1
"""The directions, as the router numbers them."""


@cache
def why_not() -> str:
    """Why there can be no link here; empty where there can."""
    if os.geteuid():
        return "only root may make network namespaces"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    tried = subprocess.run(["ip", "netns", "add", name := f"twinsite-{os.getpid()}"], capture_output=True)
    if tried.returncode:
        return "this system lets not even root make network namespaces"
    _ip("netns", "delete", name)
    return ""


@dataclass(frozen=True, slots=True)
class Wan:
    """A running link.

    Attributes:
        far, near: Addresses at both ends of the link.
        home: An address of this machine that far sites reach without their links, for their brokers.
        inside: The prefix of a command that runs at the far site.
    """

    far: str
    near: str
    home: str
    inside: tuple[str, ...]
    _router: subprocess.Popen[str]
    _devices: tuple[tuple[str, ...], ...]

    def packets_of(self, mtu_bytes: int) -> None:
        """Let packets be this large, both ways; open connections may keep to the size they began with."""
        for device in self._devices:
            _ip(*device, "mtu", str(mtu_bytes))

    def both(self, **how: float | bool) -> None:
        """Change both directions; see :class:`tests.harness.wan_router.Direction`."""
        self._tell({"set": {str(TO_NEAR): how, str(TO_FAR): how}})

    def to_near(self, **how: float | bool) -> None:
        """Change what comes from the far site."""
        self._tell({"set": {str(TO_NEAR): how}})

    def to_far(self, **how: float | bool) -> None:
        """Change what goes to the far site."""
        self._tell({"set": {str(TO_FAR): how}})

    def without_bbr(self, *, at_all: bool = True) -> None:
        """Let the far kernel send by CUBIC: with ``at_all`` always, else unless a program asks otherwise."""
        route = f"{self.near} dev {DEVICE} scope link src {self.far}".split()
        cubic = ("congctl", "lock", "cubic") if at_all else ("congctl", "cubic")
        subprocess.run([*self.inside, "ip", "route", "change", *route, *cubic], check=True)

    def send_buffers_of(self, bytes_max: int) -> None:
        """Limit what the far kernel buffers of what a connection sends."""
        setting = f"echo 4096 16384 {bytes_max} > /proc/sys/net/ipv4/tcp_wmem"
        subprocess.run([*self.inside, "sh", "-c", setting], check=True)

    def counted(self) -> tuple[Counted, Counted]:
        """What came from the far site so far, and what went there."""
        to_near, to_far = self._tell({})
        return Counted(**to_near), Counted(**to_far)

    def _tell(self, document: dict[str, Any]) -> list[dict[str, int]]:
        assert self._router.stdin is not None
        assert self._router.stdout is not None
        self._router.stdin.write(json.dumps(document) + "\n")
        self._router.stdin.flush()
        answer: list[dict[str, int]] = json.loads(self._router.stdout.readline())
        return answer


@contextmanager
def wan(seed: int = 1) -> Iterator[Wan]:
    """A link at full speed, gone at the end of the block.

    Args:
        seed: Decides what is lost, late and out of order.

    Raises:
        subprocess.CalledProcessError: The system does not allow it; see :func:`why_not`.
    """
    number = _free_number()
    net, here, there = f"10.{64 + number // 256}.{number % 256}", f"near-{number}", f"far-{number}"
    with ExitStack() as stack:
        _ip("netns", "add", there)
        stack.callback(_ip, "netns", "delete", there)
        router = stack.enter_context(_router(there, str(seed)))
        _ip("address", "add", f"{net}.2", "peer", f"{net}.1", "dev", f"{DEVICE}-{number}")
        _ip("link", "set", "dev", f"{DEVICE}-{number}", *SILENT)
        _ip("link", "set", f"{DEVICE}-{number}", "up")
        _ip("link", "add", here, "type", "veth", "peer", "name", "home", "netns", there)
        stack.callback(_ip, "link", "delete", here)
        _ip("address", "add", f"{net}.5/30", "dev", here)
        _ip("link", "set", here, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{net}.1", "peer", f"{net}.2", "dev", DEVICE),
            ("link", "set", "dev", DEVICE, *SILENT),
            ("link", "set", DEVICE, "up"),
            ("address", "add", f"{net}.6/30", "dev", "home"),
            ("link", "set", "home", "up"),
            ("route", "add", HOMES, "via", f"{net}.5"),
        ):
            _ip("-n", there, *command)
        inside = ("nsenter", f"--net=/run/netns/{there}")
        change = ("link", "set", "dev")
        devices = ((*change, f"{DEVICE}-{number}"), ("-n", there, *change, DEVICE))
        yield Wan(f"{net}.1", f"{net}.2", f"{net}.5", inside, router, devices)


def _free_number() -> int:
    """A number that no link of any process has; processes that search at the same time begin elsewhere."""
    names = (number % NUMBERS for number in itertools.count(os.getpid(), STEP))
    return next(number for number in names if not Path(f"/run/netns/far-{number}").exists())


@contextmanager
def _router(namespace: str, seed: str) -> Iterator[subprocess.Popen[str]]:
    number = namespace.rpartition("-")[2]
    command = [
        sys.executable,
        "-m",
        "tests.harness.wan_router",
        namespace,
        DEVICE,
        f"{DEVICE}-{number}",
        seed,
    ]
    router = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=OWN_GROUP,
    )
    with router:
        assert router.stdin is not None
        assert router.stdout is not None
        try:
            if not router.stdout.readline():
                raise subprocess.CalledProcessError(router.wait(), command)
            yield router
        finally:
            router.kill()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdout=subprocess.DEVNULL, process_group=OWN_GROUP)
