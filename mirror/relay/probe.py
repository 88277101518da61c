"""The relay's end of a probe: it answers PINGs, and fills the link for as long as it is asked to.

What it sends cannot be compressed, and is made once. The kernel gets as little at a time as with frames: so a
PONG waits no longer than urgent frames do while a copy fills the link.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import structlog
from pydantic import Field, ValidationError

from mirror import __version__
from mirror.config_values import Section
from mirror.errors import AnswerError
from mirror.kafka.tcp_info import (
    SEND_BUFFERS,
    TcpInfo,
    available_congestion_controls,
    buffer_bytes_max,
    send_buffer_is_full,
    tcp_info,
)
from mirror.link import messages, probe, protocol
from mirror.link.messages import Messages
from mirror.link.probe import BYTES_MAX, RATE_CEILING, RATE_MIN, SECONDS_MAX, Down, Up
from mirror.relay.audit import TOO_SLOW, Audit
from mirror.relay.line import UNSENT_BYTES, Asked, rest, tune
from mirror.relay.news import steady_us
from mirror.timetable import lowest

log = structlog.get_logger(__name__)

QUESTION_BYTES_MAX = 4096
RANDOM_BYTES = 4 << 20
SLICES_IN_A_ROW = 8
"""After this many, other connections of this relay have their turn, however fast the link is."""
PATIENCE_SECONDS = 30.0
"""How long a mirror may take to say what it wants, and to receive what is in flight at the end."""
PAUSES_MAX = 10_000
"""How many pauses are examined for their cause."""
SO_MAX_PACING_RATE = 47
"""Linux; Python has no name for it."""


class Load(Section, strict=True, extra="ignore"):
    """What a mirror asks for, see :class:`mirror.link.probe.Load`. A newer mirror may send more fields."""

    seconds: float = Field(gt=0, le=SECONDS_MAX, description="How long to send.")
    settle_seconds: float = Field(ge=0, le=SECONDS_MAX, description="Counting starts after this long.")
    bytes_max: int = Field(ge=1, le=BYTES_MAX, description="It also ends after this many.")
    rate_max: int | None = Field(ge=RATE_MIN, le=RATE_CEILING, description="Bytes per second.")


class Probe(Asked):
    """One mirror's connection, once it has become a probe.

    Args:
        peer: The mirror's address, for people.
        audit: Told why a probe is refused.
        rate_now: Returns the bytes a second that this relay's limits allow; None: no limit. A load keeps the
            rate of its beginning to its end, in addition to what mirrors are sent.
    """

    def __init__(self, peer: str, audit: Audit, rate_now: Callable[[], float | None]) -> None:
        super().__init__(UNSENT_BYTES)
        self._peer = peer
        self._audit = audit
        self._rate_now = rate_now
        self._rate_limit: float | None = None
        self._messages = Messages(QUESTION_BYTES_MAX)
        self._congestion = ""
        self._turn_comes = False
        self._load: Load | None = None
        self._slices: Iterator[bytes] = iter(())
        self._began_at = 0.0
        self._sent_bytes = 0
        self._settled: TcpInfo | None = None
        self._pauses: list[bool | None] = []
        self._patience = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)

    # -- the connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.sock is not None, "mirrors come by TCP"
        self._congestion = tune(self.sock, UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        began = time.monotonic()
        try:
            for kind, payload in self._messages.received(data):
                self._heard(kind, payload)
        except AnswerError as error:
            self._refuse("bad_message", str(error))
        rest(self._transport, time.monotonic() - began)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._settled is not None and self.sock is not None and len(self._pauses) < PAUSES_MAX:
            self._pauses.append(send_buffer_is_full(self.sock))

    def has_room(self) -> None:
        """Go on filling it."""
        self._fill()

    def drain(self) -> None:
        """As :meth:`close`: a probe copies nothing."""
        self.close()

    def close(self) -> None:
        """End it; does nothing if it has ended."""
        self._patience.cancel()
        self._load = None
        self.end()

    def _refuse(self, code: str, detail: str) -> None:
        self._audit.probe(self._peer, code, detail)
        self.write(messages.say(Down.BYE, {"code": code, "detail": detail}))
        self.close()

    def _lose_patience(self) -> None:
        self._audit.probe(self._peer, TOO_SLOW, "it requests nothing, or does not read")
        self.close()
        self.give_up()

    # -- what the mirror says ------------------------------------------------------------------------

    def _heard(self, kind: int, payload: memoryview) -> None:
        if kind == Up.PING:
            token = protocol.read_number(payload)
            self.write(protocol.pong(token, time.time_ns() // 1_000_000, steady_us()))
        elif kind == Up.LOAD and not self._began_at:
            self._begin(messages.document(payload))
        else:
            raise AnswerError(f"unexpected message of kind {kind}: a probe has one LOAD, and PINGs")

    def _begin(self, document: dict[str, Any]) -> None:
        try:
            load = Load.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            raise AnswerError(f"load: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        self._rate_limit = self._rate_now()
        rate_max = lowest(load.rate_max, self._rate_limit)
        if rate_max is not None:
            self._pace(round(rate_max))
        self._load, self._slices = load, itertools.cycle(_slices())
        self._began_at = time.monotonic()
        self._patience.cancel()
        self._patience = self._loop.call_later(load.seconds + PATIENCE_SECONDS, self._lose_patience)
        log.info("probe_begun", peer=self._peer, seconds=load.seconds, rate_max=rate_max)
        self._fill()

    def _pace(self, rate_max: int) -> None:
        assert self.sock is not None
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", rate_max))
        except OSError as error:
            raise AnswerError(
                f"load: rate_max: this system cannot limit the rate: {error.strerror}"
            ) from error

    # -- what it is sent -----------------------------------------------------------------------------

    def _fill(self) -> None:
        self._turn_comes = False
        for _ in range(SLICES_IN_A_ROW):
            if self._load is None or self.full:
                return
            seconds = time.monotonic() - self._began_at
            if self._settled is None and seconds >= self._load.settle_seconds:
                self._settled = self._look()
            left = self._load.bytes_max - self._sent_bytes
            if seconds >= self._load.seconds or left <= 0:
                self._finish()
                return
            self.write(next(self._slices))
            self._sent_bytes += UNSENT_BYTES
        if not self._turn_comes:
            self._turn_comes = True
            self._loop.call_soon(self._fill)

    def _finish(self) -> None:
        """Send the report. The mirror ends the connection: if the relay did, whatever the mirror still sends
        would make the kernel drop what is in flight to it.
        """
        self._load = None
        log.info("probe_done", peer=self._peer, bytes=self._sent_bytes)
        report = {
            "relay": __version__,
            "bytes": self._sent_bytes,
            "congestion": self._congestion,
            "congestion_available": available_congestion_controls(),
            "send_buffer_bytes_max": buffer_bytes_max(SEND_BUFFERS),
            "send_buffer_full": self._send_buffer_full(),
            "kernel": None if self._settled is None else asdict(probe.since(self._settled, self._look())),
            "rate_limit": self._rate_limit,
        }
        self.write(messages.say(Down.REPORT, report))

    def _send_buffer_full(self) -> float | None:
        known = [full for full in self._pauses if full is not None]
        return sum(known) / len(known) if known else None

    def _look(self) -> TcpInfo:
        assert self.sock is not None
        return tcp_info(self.sock)

    def unread(self) -> None:
        """Tell the audit."""
        self._audit.probe(self._peer, "unread", "it sends requests but does not read")


_random: list[bytes] = []


def _slices() -> list[bytes]:
    """FILL messages of random bytes, made when first needed."""
    if not _random:
        noise = memoryview(os.urandom(RANDOM_BYTES))
        _random.extend(
            messages.message(Down.FILL, noise[at : at + UNSENT_BYTES])
            for at in range(0, RANDOM_BYTES, UNSENT_BYTES)
        )
    return _random
