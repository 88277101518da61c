"""The wire between two sites: takes packets off one end and puts them on the other, later, slower, or never.

One process with a TUN device here and one in another network namespace. Each direction has tail drop in front
of a rate, then loss by a seed, delay, jitter and reordering. Commands come in, and counts go out, as lines of
JSON on standard input and output.

It runs with real-time priority, so a link is as fast next to busy brokers as alone. For 400 Mbit/s it takes a
third of a core in packets of 1500 bytes, a seventh in packets of 9000.

It is run by :mod:`tests.harness.wan`; it needs root.

Sources: linux/if_tun.h, setns(2), sched(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
PACKET_BYTES_MAX = 65_536
PACKETS_IN_A_ROW = 64
"""Packets taken off one end before the other one is looked at."""


@dataclass(frozen=True, slots=True)
class Direction:
    """What happens to packets that go one way.

    Attributes:
        rate: Bytes a second.
        queue_bytes: What may wait in front of the rate; what is above is dropped.
        delay_seconds: From one end to the other, for the smallest packet.
        jitter_seconds: Up to this much more, drawn for each packet; their order stays.
        loss: Share of packets that are lost.
        reorder: Share of packets that overtake all that wait behind the rate.
        is_cut: Nothing gets through.
    """

    rate: float = 1.25e9
    queue_bytes: float = 64 << 10
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    loss: float = 0.0
    reorder: float = 0.0
    is_cut: bool = False


@dataclass
class Counted:
    """The counts of one direction, since the beginning.

    Attributes:
        overtook: Packets that arrive before others that were sent earlier.
    """

    packets: int = 0
    bytes: int = 0
    dropped: int = 0
    lost: int = 0
    overtook: int = 0
    cut: int = 0


@dataclass
class Wire:
    """One direction: what is in flight, and when it arrives. Pure, except for its dice."""

    direction: Direction
    dice: random.Random
    counted: Counted = field(default_factory=Counted)
    _free_at: float = 0.0
    _last_arrival: float = 0.0
    _on_the_way: list[tuple[float, int, bytes]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def take(self, packet: bytes, now: float) -> None:
        """Take a packet that has come to this end."""
        how = self.direction
        if how.is_cut:
            self.counted.cut += 1
            return
        begins = max(now, self._free_at)
        if (begins - now) * how.rate > how.queue_bytes:
            self.counted.dropped += 1
            return
        self._free_at = begins + len(packet) / how.rate
        if how.loss and self.dice.random() < how.loss:
            self.counted.lost += 1
            return
        arrives = self._free_at + how.delay_seconds
        if how.reorder and self.dice.random() < how.reorder:
            arrives = now + how.delay_seconds / 2
            self.counted.overtook += arrives < self._last_arrival
        else:
            arrives += how.jitter_seconds * self.dice.random() if how.jitter_seconds else 0.0
            self._last_arrival = arrives = max(arrives, self._last_arrival)
        heapq.heappush(self._on_the_way, (arrives, next(self._numbers), packet))

    def arrived(self, now: float) -> Iterator[bytes]:
        """Packets that are at the other end by now."""
        waiting = self._on_the_way
        while waiting and waiting[0][0] <= now:
            packet = heapq.heappop(waiting)[2]
            if self.direction.is_cut:
                self.counted.cut += 1
                continue
            self.counted.packets += 1
            self.counted.bytes += len(packet)
            yield packet

    @property
    def next_at(self) -> float | None:
        """When the next packet arrives."""
        return self._on_the_way[0][0] if self._on_the_way else None


def enter(namespace: str) -> None:
    """Move this process to a network namespace.

    Raises:
        OSError: There is none of this name, or the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as name:
        if libc.setns(name.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {namespace}")


def open_tun(device: str) -> int:
    """A TUN device in the network namespace of this process, as a file that does not block."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH14x", device.encode(), IFF_TUN | IFF_NO_PI))
    return tun


def run(ends: tuple[int, int], wires: tuple[Wire, Wire]) -> None:
    """Carry packets until standard input ends."""
    poll = select.epoll()
    for file in (*ends, sys.stdin.fileno()):
        poll.register(file, select.EPOLLIN)
    while True:
        upcoming = [at for wire in wires if (at := wire.next_at) is not None]
        timeout = max(0.0, min(upcoming) - time.monotonic()) if upcoming else -1
        for file, _ in poll.poll(timeout):
            if file == sys.stdin.fileno():
                line = os.read(file, PACKET_BYTES_MAX)
                if not line:
                    return
                for told in line.splitlines():
                    _obey(json.loads(told), wires)
            else:
                _take(file, wires[ends.index(file)])
        now = time.monotonic()
        for wire, end in zip(wires, reversed(ends), strict=True):
            for packet in wire.arrived(now):
                _put(end, packet)


def _take(file: int, wire: Wire) -> None:
    for _ in range(PACKETS_IN_A_ROW):
        try:
            packet = os.read(file, PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        wire.take(packet, time.monotonic())


def _put(file: int, packet: bytes) -> None:
    try:
        os.write(file, packet)
    except OSError:
        return  # what an end refuses is lost, as on any wire


def _obey(told: dict[str, Any], wires: tuple[Wire, Wire]) -> None:
    """Change directions, by their number; then say what was counted."""
    for number, changes in told.get("set", {}).items():
        wire = wires[int(number)]
        wire.direction = replace(wire.direction, **changes)
    counted = [{name: getattr(wire.counted, name) for name in Counted.__dataclass_fields__} for wire in wires]
    print(json.dumps(counted), flush=True)


def main() -> None:
    namespace, far_device, near_device, seed = sys.argv[1:]
    near = open_tun(near_device)
    enter(namespace)
    ends = open_tun(far_device), near
    dice = [random.Random(f"{seed}-{number}") for number in range(2)]
    with contextlib.suppress(PermissionError):  # some containers do not allow it
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("[]", flush=True)
    run(ends, (Wire(Direction(), dice[0]), Wire(Direction(), dice[1])))


if __name__ == "__main__":
    main()
