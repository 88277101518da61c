"""Ends connections whose other end is gone without a word, for example because a firewall forgot them.

The messages of a stream keep its first connection in use, not those that have joined it: one for what is
behind may have nothing to send for hours, and then wait for a packet that never arrives. So the kernel checks
each one.

Source: tcp(7).
"""

from __future__ import annotations

import socket

IDLE_SECONDS, BETWEEN_SECONDS = 10, 2
"""After this long without traffic the kernel probes the other end, and repeats that: one of the probes gets
through even a link that loses many packets.
"""
DEAD_SECONDS = 30
"""After this long without an answer the connection ends, whether data was sent or not."""


def end_when_dead(sock: socket.socket) -> None:
    """Let the kernel end a TCP connection with an error when its other end does not answer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (DEAD_SECONDS - IDLE_SECONDS) // BETWEEN_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
