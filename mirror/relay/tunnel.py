"""A connection of a mirror, passed on to a broker: requests as they are, answers as they are.

Answers come in the order of the requests, so nothing has to be remembered of them. A mirror that does not
read what it has asked for is not read either: what waits for it is no more than that.
"""

from __future__ import annotations

import asyncio
from typing import cast

import structlog

from mirror.kafka.connection import Connection, Ended
from mirror.relay.rules import RefusedError, requests

log = structlog.get_logger(__name__)


class Tunnel(asyncio.Protocol):
    """One mirror's connection to one broker.

    Attributes:
        ended: Done when either side has ended it.

    Args:
        broker: Nothing else uses it.
        peer: Who asks, for people.
    """

    def __init__(self, broker: Connection, peer: str) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broker = broker
        self._peer = peer
        self._came = bytearray()
        self._transport: asyncio.Transport | None = None
        broker.on_closed = self.close

    # -- the mirror's side ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        try:
            for request in requests(self._came):
                self._broker.forward(request, self._answer)
        except RefusedError as error:
            log.warning("request_refused", peer=self._peer, broker=str(self._broker.address), why=error.why)
            self.close()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self.close()

    # -- the broker's side ---------------------------------------------------------------------------

    def _answer(self, answer: memoryview | Ended) -> None:
        if self._transport is None:
            return
        if isinstance(answer, memoryview):
            self._transport.write(len(answer).to_bytes(4, "big"))
            self._transport.write(answer)
        else:
            log.info("broker_connection_ended", broker=str(self._broker.address), error=str(answer))
            self.close()

    def close(self) -> None:
        """End both sides; nothing where they have ended."""
        if self._transport is not None:
            self._transport.close()
        self._broker.close("the mirror is gone")
        if not self.ended.done():
            self.ended.set_result(None)
