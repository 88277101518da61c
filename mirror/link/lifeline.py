"""Connections whose other end is gone without a word, as where a firewall has forgotten them.

What a stream says keeps one of its connections awake, not those that have joined it: what is behind may have
nothing to send for hours, and then waits for a packet that never arrives. So the kernel looks after each one.

Source: tcp(7).
"""

from __future__ import annotations

import socket

IDLE_SECONDS, BETWEEN_SECONDS = 10, 2
"""Nothing has come for so long, and the other end is asked, again and again: one of the packets gets through
a link that loses many.
"""
DEAD_SECONDS = 30
"""After so long without an answer it ends, whether something was sent or not."""


def end_when_dead(sock: socket.socket) -> None:
    """Let the kernel end a connection of TCP, by an error, when its other end does not answer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, BETWEEN_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (DEAD_SECONDS - IDLE_SECONDS) // BETWEEN_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
