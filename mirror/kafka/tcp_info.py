"""What the kernel knows of one TCP connection, and of the room it gives to all of them.

An older kernel knows less: what it does not say is None. Times are seconds, sizes bytes.

Sources: linux/tcp.h (``tcp_info``, which only ever grows at its end), linux/sock_diag.h (SK_MEMINFO), tcp(7),
RFC 4898, ip-sysctl of the kernel's documentation.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

INFO_BYTES_MAX = 512
RECEIVE_BUFFERS, SEND_BUFFERS = Path("/proc/sys/net/ipv4/tcp_rmem"), Path("/proc/sys/net/ipv4/tcp_wmem")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

SO_MEMINFO, SIOCOUTQ, SIOCOUTQNSD = 55, 0x5411, 0x894B
"""Of Linux; Python has no names for them."""

_SNDBUF, _WMEM_QUEUED = 12, 20
"""Where they stand in what it says."""
_U32, _U64, _INT = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("i")
_MICROSECONDS = 1e-6
_RTT, _TOTAL_RETRANS, _MIN_RTT, _DATA_SEGS_OUT = 68, 100, 148, 156
_BUSY_TIME, _RWND_LIMITED, _SNDBUF_LIMITED, _SND_WND = 168, 176, 184, 228
"""Where fields stand in ``tcp_info``, which is the same on all machines."""
_NEVER = (1 << 32) - 1
"""Stands where the shortest round trip would, before there was one."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Of one connection, since it began.

    Attributes:
        segments_sent: Of data, those sent again included.
        segments_resent: Of these, sent again because they were thought to be lost.
        round_trip_seconds: Of late, on the wire and in its queues, without what waits in programs.
        busy_seconds: For so long there was something to send, or not yet acknowledged.
        receive_window_limited_seconds: For so long of that the other side's window held it back.
        send_buffer_limited_seconds: For so long there was room on the wire and nothing to send, though the
            program had more: the buffer was full, or the program was late when it had room again.
        receive_window_bytes: As the other side has advertised it last.
    """

    segments_sent: int | None
    segments_resent: int | None
    round_trip_seconds: float | None
    busy_seconds: float | None
    receive_window_limited_seconds: float | None
    send_buffer_limited_seconds: float | None
    receive_window_bytes: int | None


def tcp_info(sock: socket.socket) -> TcpInfo:
    """Ask the kernel.

    Args:
        sock: A TCP socket, connected.
    """
    return read_info(_info_of(sock))


def _info_of(sock: socket.socket) -> bytes:
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES_MAX)
    except OSError:
        return b""


def shortest_round_trip_seconds(sock: socket.socket) -> float | None:
    """How far away the other side is, whatever keeps it or the wire busy; None where that is not known."""
    return read_shortest(_info_of(sock))


def send_buffer_is_full(sock: socket.socket) -> bool | None:
    """Whether so much of a connection's buffer is taken that the kernel wakes nobody up to write more, two
    thirds; None where it does not say.

    It may also take no more because enough waits for its place on the wire (TCP_NOTSENT_LOWAT).
    """
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, INFO_BYTES_MAX)
    except OSError:
        return None
    room, taken = _number(info, _U32, _SNDBUF), _number(info, _U32, _WMEM_QUEUED)
    return None if room is None or taken is None else room - taken < taken // 2


def unsent_bytes(sock: socket.socket) -> int | None:
    """What waits in the kernel for its place on the wire, never sent so far; None where it does not say."""
    return _asked(sock, SIOCOUTQNSD)


def unacknowledged_bytes(sock: socket.socket) -> int | None:
    """What the kernel has of a connection that the other side's kernel has not acknowledged, unsent or on its
    way; None where it does not say.
    """
    return _asked(sock, SIOCOUTQ)


def _asked(sock: socket.socket, request: int) -> int | None:
    try:
        told = fcntl.ioctl(sock.fileno(), request, bytes(_INT.size))
    except (OSError, ValueError):  # it is closed: it has no number any more
        return None
    return int(_INT.unpack(told)[0])


def read_info(info: bytes) -> TcpInfo:
    """What a ``tcp_info`` of whatever length says. Pure."""
    return TcpInfo(
        segments_sent=_number(info, _U32, _DATA_SEGS_OUT),
        segments_resent=_number(info, _U32, _TOTAL_RETRANS),
        round_trip_seconds=_seconds(info, _U32, _RTT) or None,
        busy_seconds=_seconds(info, _U64, _BUSY_TIME),
        receive_window_limited_seconds=_seconds(info, _U64, _RWND_LIMITED),
        send_buffer_limited_seconds=_seconds(info, _U64, _SNDBUF_LIMITED),
        receive_window_bytes=_number(info, _U32, _SND_WND),
    )


def read_shortest(info: bytes) -> float | None:
    """The shortest round trip in a ``tcp_info`` of whatever length. Pure."""
    return None if _number(info, _U32, _MIN_RTT) == _NEVER else _seconds(info, _U32, _MIN_RTT)


def _number(info: bytes, kind: struct.Struct, at: int) -> int | None:
    return int(kind.unpack_from(info, at)[0]) if at + kind.size <= len(info) else None


def _seconds(info: bytes, kind: struct.Struct, at: int) -> float | None:
    number = _number(info, kind, at)
    return None if number is None else number * _MICROSECONDS


def buffer_bytes_max(setting: Path) -> int | None:
    """To how much the kernel lets a connection's buffer grow by itself: the last of three numbers.

    Args:
        setting: RECEIVE_BUFFERS or SEND_BUFFERS.
    """
    try:
        return int(setting.read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def available_congestion_controls() -> tuple[str, ...] | None:
    """What the kernel has loaded of them."""
    try:
        return tuple(AVAILABLE.read_text().split())
    except OSError:
        return None
