"""A real ZooKeeper of one server that starts in a second.

::

    async with running_zookeeper(tmp_path) as zookeeper:
        zookeeper.create({"/config/topics/orders": b"{}"})
        await zookeeper.kill()
        await zookeeper.restart()

It keeps its port and its data over restarts. Sessions may be as short as a second. It runs from the
jars of Kafka 3.9, the last that came with ZooKeeper.

Tests write to it through a client in this module, which can only create nodes and look whether they exist.

Sources: ZooKeeper's ``zookeeper.jute``, which names the fields of every request.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from tests.harness.daemon import HOST, Daemon, free_ports
from tests.harness.jvm import FAST_JVM, java_command, logging_flag, write_properties

JARS = "3.9"
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
TICK_MS = 500
SESSION_TIMEOUT_MS = 10_000

_CREATE, _EXISTS, _CLOSE = 1, 3, -11
_NO_NODE, _NODE_EXISTS = -101, -110
_ALL_PERMISSIONS = 31


class ZooKeeperError(Exception):
    """A request was refused; says which, and the code."""


class ZooKeeper(Daemon):
    """One server; made by :meth:`prepare`."""

    @classmethod
    def prepare(cls, work_dir: Path, name: str = "zookeeper") -> ZooKeeper:
        """Write the files of a server; nothing runs yet.

        Args:
            work_dir: Its files go to ``work_dir / name``.
        """
        folder = work_dir / name
        folder.mkdir(parents=True)
        (port,) = free_ports(1)
        settings = {
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "minSessionTimeout": 2 * TICK_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        write_properties(folder / "zookeeper.properties", settings)
        flags = (*FAST_JVM, logging_flag(JARS, folder))
        command = java_command(JARS, MAIN_CLASS, str(folder / "zookeeper.properties"), jvm=flags)
        return cls(name, port, folder, command)

    @property
    def connection_string(self) -> str:
        """What clients connect to; a path appended to it becomes their root."""
        return self.address

    def create(self, nodes: Mapping[str, bytes]) -> None:
        """Create persistent nodes that anyone may change, and missing ones above them.

        Raises:
            ZooKeeperError: One is there already, or the server refused.
        """
        with self._session() as session:
            for path, data in nodes.items():
                above = path.split("/")[1:-1]
                for parent in itertools.accumulate(above, lambda one, other: f"{one}/{other}"):
                    session.create(f"/{parent}", b"", may_exist=True)
                session.create(path, data)

    def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        with self._session() as session:
            return session.exists(path)

    def _serves(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 1) as connection:
                connection.sendall(b"srvr")
                return connection.makefile("rb").read().startswith(b"Zookeeper version")
        except OSError:
            return False

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        with (
            socket.create_connection((self.host, self.port), SESSION_TIMEOUT_MS / 1000) as connection,
            connection.makefile("rwb") as stream,
        ):
            session = _Session(cast(BinaryIO, stream))
            try:
                yield session
            finally:
                session.close()


class _Session:
    """One conversation with a server, one request at a time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._send(struct.pack(">iqiq", 0, 0, SESSION_TIMEOUT_MS, 0) + _sized(bytes(16)) + b"\0")
        self._receive()

    def create(self, path: str, data: bytes, *, may_exist: bool = False) -> None:
        acl = struct.pack(">ii", 1, _ALL_PERMISSIONS) + _sized(b"world") + _sized(b"anyone")
        code = self._ask(_CREATE, _sized(path.encode()) + _sized(data) + acl + struct.pack(">i", 0))
        if code and not (may_exist and code == _NODE_EXISTS):
            raise ZooKeeperError(f"{path} not created: {code}")

    def exists(self, path: str) -> bool:
        code = self._ask(_EXISTS, _sized(path.encode()) + b"\0")
        if code not in (0, _NO_NODE):
            raise ZooKeeperError(f"{path} not looked for: {code}")
        return code == 0

    def close(self) -> None:
        """End the session, not only its connection."""
        self._ask(_CLOSE, b"")

    def _ask(self, kind: int, body: bytes) -> int:
        """The error code of the answer, 0 if it is none."""
        self._send(struct.pack(">ii", 1, kind) + body)
        _, _, code = struct.unpack_from(">iqi", self._receive())
        return int(code)

    def _send(self, message: bytes) -> None:
        self._stream.write(_sized(message))
        self._stream.flush()

    def _receive(self) -> bytes:
        head = self._stream.read(4)
        if len(head) < 4:
            raise ZooKeeperError("the server closed the connection")
        return self._stream.read(int.from_bytes(head, "big"))


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@asynccontextmanager
async def running_zookeeper(work_dir: Path, name: str = "zookeeper") -> AsyncIterator[ZooKeeper]:
    """A server that is killed when the block ends.

    Raises:
        JarsMissingError: Kafka was not downloaded.
        JavaFailedError: It did not come up; carries the end of its output.
    """
    zookeeper = ZooKeeper.prepare(work_dir, name)
    try:
        await zookeeper.start()
        yield zookeeper
    finally:
        zookeeper.discard()
