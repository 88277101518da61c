"""Datagrams sent at a rate, and when each was sent and came: what a link does without TCP.

One process sends them, another one receives them at the other end. Both have the same clock, as both run on
this machine, and the kernel notes when a datagram came, so that a busy processor does not make it late.

It needs root, as the link does. Source: socket(7).
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.jvm import REPOSITORY

HEADER_BYTES = 28
"""Of IP and UDP, before what a datagram holds."""
ROOM_BYTES = 32 << 20
SILENT_SECONDS = 0.3
"""Once all have been sent, none comes any more after a silence this long."""
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
"""Linux's; Python has no names for them."""
_SENT = struct.Struct("=qq")
"""The number of a datagram, and when it was sent, in nanoseconds."""
_CAME_AT = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class Datagram:
    """A datagram that came: numbered as sent, times in seconds since 1970, and bytes with all headers."""

    number: int
    sent_at: float
    came_at: float
    bytes: int


def sent_over(
    to: str,
    *,
    packet_bytes: int,
    rate: float,
    count: int,
    sender: Sequence[str] = (),
    taker: Sequence[str] = (),
) -> list[Datagram]:
    """Send ``count`` datagrams to an address; returns those that came there, in the order in which they came.

    Args:
        packet_bytes: Of each, with all headers.
        rate: Bytes a second.
        sender, taker: Prefixes of the commands at both ends, as to run them in a network namespace.
    """
    run = sys.executable, "-m", "tests.harness.datagrams"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*taker, *run, "take", to], cwd=REPOSITORY, **pipes) as taking:
        assert taking.stdin is not None
        assert taking.stdout is not None
        port = taking.stdout.readline().strip()
        subprocess.run(
            [*sender, *run, "send", to, port, str(packet_bytes), str(rate), str(count)],
            cwd=REPOSITORY,
            check=True,
        )
        taking.stdin.close()
        return [Datagram(*one) for one in json.loads(taking.stdout.readline())]


def send(to: tuple[str, int], packet_bytes: int, rate: float, count: int) -> None:
    """Send each datagram when it is due, or at once where it is late."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES)
        sock.connect(to)
        rest = bytes(packet_bytes - HEADER_BYTES - _SENT.size)
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(began + number * packet_bytes / rate - time.monotonic(), 0.0))
            sock.send(_SENT.pack(number, time.time_ns()) + rest)


def take(at: str) -> list[tuple[int, float, float, int]]:
    """Print the port, and receive datagrams until no more come after standard input has ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.bind((at, 0))
        print(sock.getsockname()[1], flush=True)
        came = [_taken(sock)]
        sock.settimeout(SILENT_SECONDS)
        all_sent = False
        while True:
            try:
                came.append(_taken(sock))
            except TimeoutError:
                if all_sent:
                    return came
                all_sent = bool(select.select([sys.stdin], [], [], 0)[0])


def _taken(sock: socket.socket) -> tuple[int, float, float, int]:
    data, told, _, _ = sock.recvmsg(1 << 16, 256)
    ((_, _, stamp),) = told
    seconds, ns = _CAME_AT.unpack(stamp)
    number, sent_ns = _SENT.unpack_from(data)
    return number, sent_ns / 1e9, seconds + ns / 1e9, len(data) + HEADER_BYTES


def main() -> None:
    if sys.argv[1] == "take":
        print(json.dumps(take(sys.argv[2])), flush=True)
        return
    to, port, packet_bytes, rate, count = sys.argv[2:]
    send((to, int(port)), int(packet_bytes), float(rate), int(count))


if __name__ == "__main__":
    main()
