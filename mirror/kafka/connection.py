"""One connection to one broker: how it is opened, and what is asked over it, in which version.

Small questions are generated requests of kafka-python; what holds record batches is coded by hand and not
copied (``submit``). How either leaves, how answers come, and how a connection ends stands in ``transport``;
what is said in the beginning in ``greeting``, and when that is said again in ``session``.

Source: the Kafka protocol guide (headers).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from functools import partial
from typing import Any

from mirror.errors import AnswerError, ConnectionFailedError, UnsupportedVersionError
from mirror.kafka.answers import Allocate, Due, Ended, OnAnswer
from mirror.kafka.dial import Address, ConnectionOptions, dial
from mirror.kafka.greeting import Versions, ask_versions
from mirror.kafka.outgoing import Buffers
from mirror.kafka.session import Way
from mirror.kafka.transport import Transport

_HEAD = struct.Struct(">ihhih")


def _plain_buffer(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _resolve(future: asyncio.Future[memoryview], answer: memoryview | Ended) -> None:
    if future.done():
        return
    if isinstance(answer, memoryview):
        future.set_result(answer)
    else:
        future.set_exception(answer)


class Connection(Transport):
    """An open, authenticated connection. Make one with :meth:`open`."""

    def __init__(self, sock: socket.socket, address: Address, options: ConnectionOptions) -> None:
        super().__init__(sock, address, options)
        self.api_versions: Versions = {}
        self._client_id = options.client_id.encode()
        self._correlation_id = 0

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    async def open(cls, address: Address, options: ConnectionOptions) -> Connection:
        """Connect, secure and authenticate, with a token that was asked for before.

        Raises:
            ConnectionFailedError: Nobody answers there, or not in time; or no token is to be had.
            AuthenticationError: One side does not accept the other.
            UnsupportedVersionError: The peer does not speak a Kafka protocol we know.
        """
        await options.security.prepare()
        try:
            async with asyncio.timeout(options.connect_timeout_seconds):
                sock = await dial(address, options)
        except TimeoutError as error:
            raise ConnectionFailedError(
                f"{address}: no connection within {options.connect_timeout_seconds:g} s"
            ) from error
        connection = cls(sock, address, options)
        connection._start()
        try:
            async with asyncio.timeout(options.connect_timeout_seconds):
                connection.api_versions = await ask_versions(connection._ask, str(address))
                way = Way(connection._ask_now, connection._submit, connection._not_believed)
                await connection._session.begin(way)
        except TimeoutError as error:
            connection.close("no answer to the greeting")
            raise ConnectionFailedError(
                f"{address}: connected, but no answer within {options.connect_timeout_seconds:g} s",
                hint="the port may expect TLS, or belong to another service; check security.protocol",
            ) from error
        except BaseException:
            connection.close("opening failed")
            raise
        return connection

    def _not_believed(self, error: Ended) -> None:
        self._fail(error)
        self.closed_because = error

    # -- asking ----------------------------------------------------------------------------------

    def version(self, api_key: int, highest: int, name: str = "", *, lowest: int = 0) -> int:
        """The highest version of an API both sides speak.

        Args:
            highest: The newest we speak.
            lowest: The oldest we speak.

        Raises:
            UnsupportedVersionError: There is none.
        """
        low, high = self.api_versions.get(api_key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            what = name or f"API {api_key}"
            theirs = f"speaks {what} versions {low} to {high}" if high >= 0 else f"does not speak {what}"
            ours = f"{lowest} to {highest}" if lowest < highest else str(highest)
            raise UnsupportedVersionError(f"{self.address}: the broker {theirs}, the mirror speaks {ours}")
        return version

    async def call(self, request: Any, highest: int | None = None) -> Any:
        """Send one of kafka-python's generated requests and decode its answer.

        Args:
            request: A message of ``kafka.protocol``.
            highest: Upper bound of the version to use; the newest known by default.

        Raises:
            ConnectionFailedError: The connection ended before the answer came.
            UnsupportedVersionError: No version in common.
        """
        bound = request.max_version if highest is None else highest
        return await self._ask(request, self.version(request.API_KEY, bound, request.name))

    async def _ask_now(self, request: Any) -> Any:
        """Ask even while other requests are held back."""
        version = self.version(request.API_KEY, request.max_version, request.name)
        return await self._ask(request, version, held=False)

    async def _ask(self, request: Any, version: int, *, held: bool = True) -> Any:
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self._options.client_id)
        frame = request.encode(framed=True, header=True)
        answer_class = request.header.get_response_class()
        flexible_header = answer_class.flexible_version_q(version) and request.API_KEY != 18
        future: asyncio.Future[memoryview] = self._loop.create_future()
        on_answer = partial(_resolve, future)
        header_bytes = 5 if flexible_header else 4
        due = Due(self._correlation_id, on_answer, time.monotonic(), _plain_buffer, header_bytes)
        self._submit(due, [frame], held=held)
        body = await future
        try:
            return answer_class.decode(body, version=version)
        except (ValueError, TypeError, IndexError, struct.error) as error:
            words = f"{self.address}: {len(body)} bytes that are no whole answer to {request.name}: {error}"
            raise AnswerError(words) from error

    def send(
        self,
        api_key: int,
        api_version: int,
        parts: Buffers,
        *,
        allocate: Allocate = _plain_buffer,
    ) -> asyncio.Future[memoryview]:
        """Send a request coded by hand, as :meth:`submit` does.

        Returns:
            A future of the answer's body. It fails with ConnectionFailedError.
        """
        future: asyncio.Future[memoryview] = self._loop.create_future()
        self.submit(api_key, api_version, parts, partial(_resolve, future), allocate=allocate)
        return future

    def submit(
        self,
        api_key: int,
        api_version: int,
        parts: Buffers,
        on_answer: OnAnswer,
        *,
        allocate: Allocate = _plain_buffer,
    ) -> None:
        """Send a request coded by hand, of a version with flexible headers, and call back with its answer.

        Args:
            parts: The request's body, flexible header version 2 assumed, in pieces that are not copied.
                They must not change before the answer.
            on_answer: Called once, never from within this call: with the body of the answer as soon as it
                is there, or with the error that ended the connection. It must not raise.
            allocate: Where the answer is received; called once with its size in bytes.
        """
        self._correlation_id += 1
        client_id = self._client_id
        size = sum(map(len, parts)) + 11 + len(client_id)
        head = _HEAD.pack(size, api_key, api_version, self._correlation_id, len(client_id))
        due = Due(self._correlation_id, on_answer, time.monotonic(), allocate, 5)
        self._submit(due, [head + client_id + b"\0", *parts])

    def forward(self, request: bytes, on_answer: OnAnswer) -> None:
        """Send a request as somebody else has made it, header and all, and call back with the whole answer.

        Args:
            request: Without its size. Requests that have no answer are not for this.
            on_answer: As for :meth:`submit`; the answer begins with the correlation id of the request.
        """
        correlation_id = int.from_bytes(request[4:8], "big", signed=True)
        due = Due(correlation_id, on_answer, time.monotonic(), _plain_buffer, 0)
        self._submit(due, [len(request).to_bytes(4, "big"), request])
