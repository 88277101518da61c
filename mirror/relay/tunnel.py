"""A connection of a mirror, passed on to a broker: requests as they are, answers as they are.

Answers come in the order of the requests, so nothing about those has to be remembered. A mirror that does not
read its answers is not read either, nor one of which many requests wait for the broker: so no more waits for
it than the answers to those.

If a mirror may read only some topics, a guard looks at each request and each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from mirror.errors import TwinsiteError
from mirror.failpoints import reach
from mirror.kafka.answers import Ended
from mirror.kafka.connection import Connection
from mirror.link.loops import first_to_end, in_thread
from mirror.relay.access import Visitor
from mirror.relay.audit import Audit
from mirror.relay.guarding import Asked, Guard
from mirror.relay.line import UNSENT_BYTES, Line
from mirror.relay.rules import RefusedError, requests

log = structlog.get_logger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

REQUESTS_IN_FLIGHT_MAX = 16
"""A broker handles those of one connection one after the other; a mirror sends few at a time."""
TORN_SECONDS_MAX = 60.0
"""How long the rest of a request may take: enough for 4 MiB at 0.6 Mbit/s."""
INLINE_BYTES_MAX = 64 << 10
"""Larger messages are decoded in another thread."""


class Tunnel(Line):
    """One mirror's connection to one broker.

    Attributes:
        bytes_sent: To the mirror.

    Args:
        broker: Nothing else uses it.
        visitor: The mirror.
        greeting_seconds: The first request has to arrive within this time.
    """

    def __init__(
        self, broker: Connection, visitor: Visitor, audit: Audit, *, greeting_seconds: float
    ) -> None:
        super().__init__(UNSENT_BYTES)
        self.bytes_sent = 0
        self.broker = broker
        self.visitor = visitor
        self._audit = audit
        self._came = bytearray()
        self._in_flight = 0
        self._patience: asyncio.TimerHandle | None = self._loop.call_later(
            greeting_seconds, self._too_slow, "a request"
        )
        broker.on_closed = self.close

    # -- the mirror's side ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._draining:
            self._came += data
            self._take()

    def _take(self) -> None:
        """Pass on complete requests, as many as may be in flight."""
        try:
            for request in requests(self._came, REQUESTS_IN_FLIGHT_MAX - self._in_flight):
                self._in_flight += 1
                self._be_patient(None)
                self.pass_on(request)
                reach("request_forwarded")
        except RefusedError as error:
            self.refuse(error)
            return
        self._read_or_not()

    def pass_on(self, request: bytes) -> None:
        """Send a request to the broker."""
        self.broker.forward(request, self._answer)

    def refuse(self, error: RefusedError) -> None:
        """The mirror has asked, or the broker has answered, what is not passed on: the tunnel ends."""
        self._audit.request(self.visitor, str(self.broker.address), error.why)
        self.close()

    def _read_or_not(self) -> None:
        if self._transport is None:
            return
        full = self._in_flight >= REQUESTS_IN_FLIGHT_MAX
        if full or self._full or self._draining:
            self._transport.pause_reading()
            self._be_patient(None)
            return
        self._transport.resume_reading()
        if self._came and self._patience is None:
            self._be_patient(TORN_SECONDS_MAX)

    def _be_patient(self, seconds: float | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None
        if seconds is not None:
            self._patience = self._loop.call_later(seconds, self._too_slow, "the rest of a request")

    def _too_slow(self, waited_for: str) -> None:
        self._audit.too_slow(self.visitor.peer, waited_for)
        self.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hear_or_not()
        self._read_or_not()

    def has_room(self) -> None:
        """Read the broker again, and the mirror."""
        self._hear_or_not()
        self._read_or_not()

    def _hear_or_not(self) -> None:
        self.broker.pause(self.holds_back)

    @property
    def holds_back(self) -> bool:
        """Whether the broker is not read for now."""
        return self._full

    # -- the broker's side ---------------------------------------------------------------------------

    def _answer(self, answer: memoryview | Ended) -> None:
        if isinstance(answer, memoryview):
            self.hand_back([answer])
        else:
            self.broker_gone(answer)

    def broker_gone(self, error: Ended) -> None:
        """The broker's connection has ended: no more answers will come."""
        if self._transport is not None:
            log.info("broker_connection_ended", broker=str(self.broker.address), error=str(error))
            self.close()

    def hand_back(self, answer: Sequence[bytes | memoryview]) -> None:
        """Send an answer to the mirror; it is given in pieces, without its size."""
        if self._transport is None or self._transport.is_closing():
            return
        size = sum(map(len, answer))
        self._transport.write(size.to_bytes(4, "big"))
        for piece in answer:
            self._transport.write(piece)
        reach("answer_forwarded")
        self.bytes_sent += 4 + size
        self._in_flight -= 1
        if self._draining and not self._in_flight:
            self.close()
        elif self._came:
            self._take()
        else:
            self._read_or_not()

    # -- the end -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more requests, and end once those in flight are answered."""
        self._draining = True
        self._came.clear()
        if self._in_flight:
            self._read_or_not()
        else:
            self.close()

    def close(self) -> None:
        """End both sides; does nothing if they have ended."""
        self._be_patient(None)
        self.end()
        self.broker.close("the mirror has disconnected")


class GuardedTunnel(Tunnel):
    """The tunnel of a mirror that may read only some topics.

    Args:
        guard: Judges requests and answers.
        look_again: Refreshes the metadata of the cluster, where that does not know a topic.
    """

    def __init__(
        self,
        broker: Connection,
        visitor: Visitor,
        audit: Audit,
        *,
        greeting_seconds: float,
        guard: Guard,
        look_again: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(broker, visitor, audit, greeting_seconds=greeting_seconds)
        self._guard = guard
        self._look_again = look_again
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: asyncio.Queue[tuple[Asked, memoryview | Ended]] = asyncio.Queue()
        self._in_hand = 0
        self._work = self._loop.create_task(self._guarded())

    def pass_on(self, request: bytes) -> None:
        """Have the guard look at a request first."""
        self._requests.put_nowait(request)

    def close(self) -> None:
        """As for any tunnel."""
        self._work.cancel()
        super().close()

    async def _guarded(self) -> None:
        try:
            await first_to_end(self._look_at_requests(), self._look_at_answers())
        except RefusedError as error:
            self.refuse(error)
        except Exception as error:  # a bug: nothing more gets out, and other tunnels go on
            log.exception("tunnel_broken", error=repr(error), **self.visitor.fields)
            self.close()

    async def _look_at_requests(self) -> None:
        while True:
            request = await self._requests.get()
            asked = await _elsewhere_if(len(request), self._guard.asked, request)
            self.broker.forward(asked.request, partial(self._answered, asked))

    @property
    def holds_back(self) -> bool:
        """Whether the broker is not read for now: also while answers are judged, one at a time, so that whole
        ones do not wait here.
        """
        return self._full or self._in_hand > 0

    def _answered(self, asked: Asked, answer: memoryview | Ended) -> None:
        self._answers.put_nowait((asked, answer))
        self._in_hand += 1
        self._hear_or_not()

    async def _look_at_answers(self) -> None:
        while True:
            asked, answer = await self._answers.get()
            if not isinstance(answer, memoryview):
                self.broker_gone(answer)
                return
            passed = await _elsewhere_if(len(answer), self._guard.answered, asked, answer)
            if passed.unknown:
                with contextlib.suppress(TwinsiteError):  # what stays unknown is refused
                    await self._look_again()
                passed = await _elsewhere_if(len(answer), self._guard.answered, asked, answer)
            if passed.refused:
                self._audit.topics(self.visitor, asked.api, passed.refused)
            self.hand_back(passed.answer)
            self._in_hand -= 1
            self._hear_or_not()


async def _elsewhere_if(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do ``work`` here, or in another thread if it is on more than ``INLINE_BYTES_MAX``."""
    return await in_thread(work, *args, **kwargs) if size > INLINE_BYTES_MAX else work(*args, **kwargs)
