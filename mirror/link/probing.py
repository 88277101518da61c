"""The mirror's end of a probe: asks a relay for bytes that cannot be compressed, and notes when they arrive.

First it measures round trips over the idle link, one after the other; then the load, with a PING now and
then. :mod:`mirror.link.measuring` makes figures of that.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from mirror.errors import AnswerError, ConnectionFailedError
from mirror.kafka.dial import Address, ConnectionOptions, dial_relay
from mirror.kafka.nonblocking import receive, send_all
from mirror.kafka.relayed import upgrade
from mirror.link import messages, protocol
from mirror.link.messages import Messages
from mirror.link.probe import (
    PATH,
    PROTOCOL,
    Arrival,
    Down,
    Echo,
    Load,
    Observed,
    Report,
    Up,
    read_report,
)
from mirror.link.protocol import Pong

RECEIVE_BYTES = 256 << 10
IDLE_ECHOES = 20
IDLE_SECONDS = 2.0
"""How many round trips are measured before the load, or as many as fit into this time, but at least three."""
IDLE_ECHOES_MIN = 3
ECHO_EVERY_SECONDS = 0.05
"""Under load the next PING is sent no sooner after the last PONG."""
NOTE_EVERY_SECONDS = 0.02
"""What arrives within this time is noted as one arrival."""


async def observe(options: ConnectionOptions, load_for: Callable[[tuple[Echo, ...]], Load]) -> Observed:
    """Probe the link to one of the relays, the first that answers.

    Args:
        load_for: Chooses the load, given the round trips over the idle link.

    Raises:
        ConnectionFailedError: No relay answers, somebody else is probing there, or the connection is lost or
            silent.
        AuthenticationError: One side does not accept the other.
        UnsupportedVersionError: The relays do not know probes.
        AnswerError: What the relay sent is not of the protocol.
    """
    sock, relay = await dial_relay(_ask_for_probe, options)
    with sock:
        observer = _Observer(sock, relay, options.request_timeout_seconds)
        idle = await observer.idle()
        load = load_for(idle)
        report = await observer.load(load)
        return Observed(
            relay=str(relay),
            tls=_tls(sock),
            load=load,
            idle=idle,
            loaded=tuple(observer.echoes[len(idle) :]),
            arrivals=tuple(observer.arrivals),
            report=report,
        )


async def _ask_for_probe(sock: socket.socket, relay: str) -> None:
    await upgrade(sock, relay, PATH, PROTOCOL)


def _tls(sock: socket.socket) -> tuple[str, str] | None:
    if not isinstance(sock, ssl.SSLSocket):
        return None
    cipher = sock.cipher()
    return sock.version() or "", cipher[0] if cipher else ""


@dataclass(slots=True)
class _Observer:
    """One connection that probes, and what has arrived over it."""

    sock: socket.socket
    relay: Address
    silence_seconds_max: float
    echoes: list[Echo] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    report: Report | None = None
    _messages: Messages = field(default_factory=Messages)
    _asked: int = 0
    _asked_at: float | None = None
    _answered_at: float = 0.0
    _filled: int = 0

    async def idle(self) -> tuple[Echo, ...]:
        """Measure round trips, one after the other."""
        began = time.monotonic()
        while len(self.echoes) < IDLE_ECHOES_MIN or (
            len(self.echoes) < IDLE_ECHOES and time.monotonic() - began < IDLE_SECONDS
        ):
            await self._ask()
            while self._asked_at is not None:
                await self._receive()
        return tuple(self.echoes)

    async def load(self, load: Load) -> Report:
        """Ask for a load, and receive it to its end."""
        await self._say(messages.say(Up.LOAD, asdict(load)))
        ends_at = time.monotonic() + load.seconds + self.silence_seconds_max
        while self.report is None:
            if time.monotonic() > ends_at:
                raise ConnectionFailedError(
                    f"relay {self.relay}: it was asked to send for {load.seconds:g} s, and has not stopped"
                )
            if self._asked_at is None and time.monotonic() - self._answered_at >= ECHO_EVERY_SECONDS:
                await self._ask()
            await self._receive()
            await asyncio.sleep(0)  # lets others run, however fast data arrives
        return self.report

    async def _ask(self) -> None:
        self._asked += 1
        self._asked_at = time.monotonic()
        await self._say(protocol.ping(self._asked))

    async def _say(self, said: bytes) -> None:
        try:
            await send_all(self.sock, said)
        except OSError as error:
            raise self._lost(error) from error

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self.silence_seconds_max):
                data = await receive(self.sock, RECEIVE_BYTES)
        except TimeoutError as error:
            words = f"relay {self.relay}: silent for {self.silence_seconds_max:g} s"
            raise ConnectionFailedError(words) from error
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise ConnectionFailedError(f"relay {self.relay}: it has ended the probe")
        try:
            for kind, payload in self._messages.received(data):
                self._heard(kind, payload)
        except AnswerError as error:
            raise AnswerError(f"relay {self.relay}: {error}") from error

    def _heard(self, kind: int, payload: memoryview) -> None:
        if kind == Down.FILL:
            self._filled += len(payload)
            self._note(time.monotonic())
        elif kind == Down.PONG:
            self._heard_pong(protocol.read_pong(payload))
        elif kind == Down.REPORT:
            self.report = read_report(messages.document(payload))
        elif kind == Down.BYE:
            detail = messages.words(messages.document(payload).get("detail"))
            raise ConnectionFailedError(f"relay {self.relay}: {detail}")
        else:
            raise AnswerError(f"unknown message kind {kind} in a probe")

    def _note(self, now: float) -> None:
        """Note an arrival. The first is kept as it is; later ones close to each other become one."""
        arrivals = self.arrivals
        if len(arrivals) > 1 and now - arrivals[-2].at < NOTE_EVERY_SECONDS:
            arrivals.pop()
        arrivals.append(Arrival(now, self._filled))

    def _heard_pong(self, pong: Pong) -> None:
        if self._asked_at is None or pong.token != self._asked:
            raise AnswerError(f"received PONG {pong.token}, which answers no PING")
        now = time.monotonic()
        seconds = now - self._asked_at
        offset = pong.clock_ms / 1000 - (time.time() - seconds / 2)
        self.echoes.append(Echo(seconds, offset))
        self._asked_at, self._answered_at = None, now

    def _lost(self, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"relay {self.relay}: connection lost: {error}")
