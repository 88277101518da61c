"""A TCP proxy between a mirror and a relay: it cuts connections, or spoils what passes.

::

    with proxy(relay.address, spoil) as between:
        ... through(source, between.address)
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.harness.daemon import HOST

RECEIVE_BYTES = 64 << 10


class Last(bytes):
    """The last bytes that are passed on before the connection is cut."""


Spoil = Callable[[int, int, bytes], bytes | Last]
"""From the number of the connection, counted from 0, the number of bytes that came before, and the bytes that
came now to the bytes that are passed on."""


def _as_it_is(_: int, __: int, data: bytes) -> bytes:
    return data


class Proxy:
    """Passes connections on; functions decide what passes in either direction.

    Attributes:
        address: Where it listens.
        connections: How many were made so far.
        cut: Numbers of those that it has cut itself, in this order, after passing on what came before.
    """

    def __init__(self, to: str, spoil: Spoil, spoil_there: Spoil, host: str) -> None:
        self.connections = 0
        self.cut: list[int] = []
        self._to = to.rpartition(":")
        self._spoil = spoil
        self._spoil_there = spoil_there
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            _end(sock)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(ours, self.connections), daemon=True).start()
                self.connections += 1

    def _connect(self, ours: socket.socket, number: int) -> None:
        try:
            theirs = socket.create_connection((self._to[0], int(self._to[2])), timeout=10)
        except OSError:
            ours.close()
            return
        theirs.settimeout(None)
        self._open |= {ours, theirs}
        there = threading.Thread(
            target=self._pass_on, args=(ours, theirs, number, self._spoil_there), daemon=True
        )
        there.start()
        self._pass_on(theirs, ours, number, self._spoil)
        there.join()
        self._open -= {ours, theirs}
        ours.close()
        theirs.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, number: int, spoil: Spoil) -> None:
        before = 0
        with contextlib.suppress(OSError):
            while data := source.recv(RECEIVE_BYTES):
                passed = spoil(number, before, data)
                before += len(data)
                target.sendall(passed)
                if isinstance(passed, Last):
                    self.cut.append(number)
                    break
        _end(source)
        _end(target)


@contextmanager
def proxy(
    to: str, spoil: Spoil = _as_it_is, spoil_there: Spoil = _as_it_is, host: str = HOST
) -> Iterator[Proxy]:
    """Pass on what goes to ``to`` through ``spoil_there``, and what comes back through ``spoil``.

    Args:
        host: The address of this machine on which it listens.
    """
    between = Proxy(to, spoil, spoil_there, host)
    try:
        yield between
    finally:
        between.close()


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
