"""What the kernel knows about one TCP connection, and the buffer sizes that it allows.

An older kernel knows less: what it does not report is None. Times are in seconds, sizes in bytes.

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
"""Linux's numbers; Python has no names for them."""

_SNDBUF, _WMEM_QUEUED = 12, 20
"""Where these fields are in SK_MEMINFO."""
_U32, _U64, _INT = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("i")
_MICROSECONDS = 1e-6
_RTT, _TOTAL_RETRANS, _MIN_RTT, _DATA_SEGS_OUT = 68, 100, 148, 156
_BUSY_TIME, _RWND_LIMITED, _SNDBUF_LIMITED, _SND_WND = 168, 176, 184, 228
"""Where these fields are in ``tcp_info``, the same on all machines."""
_NEVER = (1 << 32) - 1
"""The shortest round trip before there was one."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The counters of one connection, since it began.

    Attributes:
        segments_sent: Data segments, retransmissions included.
        segments_resent: Those retransmitted because they were thought to be lost.
        round_trip_seconds: Of late, on the wire and in its queues, without the time spent in programs.
        busy_seconds: How long there was something to send, or not yet acknowledged.
        receive_window_limited_seconds: How long of that the other side's window held it back.
        send_buffer_limited_seconds: How long the wire had room but nothing to send, although the program had
            more: the send buffer was full, or the program was late to fill it again.
        receive_window_bytes: As last advertised by the other side.
    """

    segments_sent: int | None
    segments_resent: int | None
    round_trip_seconds: float | None
    busy_seconds: float | None
    receive_window_limited_seconds: float | None
    send_buffer_limited_seconds: float | None
    receive_window_bytes: int | None


def tcp_info(sock: socket.socket) -> TcpInfo:
    """Ask the kernel; every field is None if the socket is closed.

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
    """How far away the other side is, without the effect of load; None if that is not known."""
    return read_shortest(_info_of(sock))


def send_buffer_is_full(sock: socket.socket) -> bool | None:
    """Whether more than two thirds of the send buffer are taken: then the kernel wakes nobody up to write.

    None if it does not say. The kernel may also take no more because enough is unsent (TCP_NOTSENT_LOWAT).
    """
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, INFO_BYTES_MAX)
    except OSError:
        return None
    room, taken = _number(info, _U32, _SNDBUF), _number(info, _U32, _WMEM_QUEUED)
    return None if room is None or taken is None else room - taken < taken // 2


def unsent_bytes(sock: socket.socket) -> int | None:
    """How many bytes in the kernel were never sent so far; None if it does not say."""
    return _asked(sock, SIOCOUTQNSD)


def unacknowledged_bytes(sock: socket.socket) -> int | None:
    """How many bytes, unsent or in flight, the other side's kernel has not acknowledged; None if the kernel
    does not say.
    """
    return _asked(sock, SIOCOUTQ)


def _asked(sock: socket.socket, request: int) -> int | None:
    try:
        told = fcntl.ioctl(sock.fileno(), request, bytes(_INT.size))
    except (OSError, ValueError):  # it is closed, and has no file descriptor any more
        return None
    return int(_INT.unpack(told)[0])


def read_info(info: bytes) -> TcpInfo:
    """What a ``tcp_info`` of any length says. Pure."""
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
    """The shortest round trip in a ``tcp_info`` of any length. Pure."""
    return None if _number(info, _U32, _MIN_RTT) == _NEVER else _seconds(info, _U32, _MIN_RTT)


def _number(info: bytes, kind: struct.Struct, at: int) -> int | None:
    return int(kind.unpack_from(info, at)[0]) if at + kind.size <= len(info) else None


def _seconds(info: bytes, kind: struct.Struct, at: int) -> float | None:
    number = _number(info, kind, at)
    return None if number is None else number * _MICROSECONDS


def buffer_bytes_max(setting: Path) -> int | None:
    """Up to how many bytes the kernel grows a connection's buffer: the last of three numbers.

    Args:
        setting: RECEIVE_BUFFERS or SEND_BUFFERS.
    """
    try:
        return int(setting.read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return None


def available_congestion_controls() -> tuple[str, ...] | None:
    """Those that the kernel has loaded; None if it does not say."""
    try:
        return tuple(AVAILABLE.read_text().split())
    except OSError:
        return None
