"""A stretch of network of our own, between a mirror and a relay: to cut it, or to spoil what passes.

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
    """What is still passed on before the connection is cut."""


Spoil = Callable[[int, int, bytes], bytes | Last]
"""What is passed on of what has come. Told the connection, counted from 0, how many bytes have come before,
and the bytes."""


def _as_it_is(_: int, __: int, data: bytes) -> bytes:
    return data


class Proxy:
    """Passes connections on; what goes either way is looked at.

    Attributes:
        address: Where it listens.
        connections: That were made so far.
        cut: Numbers of those that it has cut itself, in this order: what came before was passed on.
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
        """Listen no more; every connection ends."""
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
    """Pass on what goes to ``to`` as ``spoil_there`` says, and what comes back as ``spoil`` does.

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
