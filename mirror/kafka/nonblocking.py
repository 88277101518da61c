"""Reads and writes on non-blocking sockets, plain or TLS, before a protocol takes them over."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def ready(sock: socket.socket, *, for_reading: bool) -> None:
    """Wait until a socket can be read, or written."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if for_reading else (loop.add_writer, loop.remove_writer)
    )
    add(sock.fileno(), _resolve, waiting)
    try:
        await waiting
    finally:
        remove(sock.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def handshake(tls: ssl.SSLSocket) -> None:
    """Establish TLS.

    Raises:
        OSError: One side does not accept the other, or speaks no TLS.
    """
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await ready(tls, for_reading=True)
        except ssl.SSLWantWriteError:
            await ready(tls, for_reading=False)
        else:
            return


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Send all of it.

    Raises:
        OSError: The connection ended.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except ssl.SSLWantReadError:
            await ready(sock, for_reading=True)
        except (BlockingIOError, ssl.SSLWantWriteError):
            await ready(sock, for_reading=False)


async def receive(sock: socket.socket, most: int) -> bytes:
    """Bytes, as soon as some have come, at most ``most``; empty if the other side closed the connection.

    Raises:
        OSError: The connection broke.
    """
    return await _received(sock, partial(sock.recv, most))


async def receive_into(sock: socket.socket, room: memoryview) -> int:
    """How many bytes were received into ``room``, as soon as some have come; 0 if the other side closed.

    Raises:
        OSError: The connection broke.
    """
    return await _received(sock, partial(sock.recv_into, room))


async def _received(sock: socket.socket, read: Callable[[], T]) -> T:
    while True:
        try:
            return read()
        except ssl.SSLWantWriteError:
            await ready(sock, for_reading=False)
        except (BlockingIOError, ssl.SSLWantReadError):
            await ready(sock, for_reading=True)
