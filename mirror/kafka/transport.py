"""Carries requests to one broker, and its answers back: the socket, its timeouts, and its end.

The socket is our own and non-blocking. A large answer is received straight into one buffer (``recv_into``),
except for its first thousand bytes, which come before its size is known. A request leaves as a list of
buffers (``sendmsg``). So only the kernel copies record batches. Plain and TLS sockets share all of this.

After any error the connection is closed and every unanswered request fails: the
caller must look again, because nobody knows what the broker did.

This module decides when to send, to receive and to give up. How bytes leave is in ``outgoing``, how received
bytes become answers in ``answers``; neither needs an event loop. What requests contain does not matter here,
except that they wait while a session is renewed (``session``).

Source: the Kafka protocol guide (framing).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable

from mirror.errors import ConnectionFailedError
from mirror.kafka.answers import Answers, Due, Ended
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.outgoing import Buffers, Outgoing, WithheldError
from mirror.kafka.security import BROKER, RELAY, rename_ssl_error
from mirror.kafka.session import Session

RECEIVE_ROUNDS_MAX = 32
"""``recv_into`` calls in one turn of the event loop, so that one peer cannot starve the others."""
LOOKS_IN_TIME, LATE_SECONDS = 4, 0.01
"""How often per request timeout to check whether an answer is coming, and how long after the timeout."""


class Transport:
    """Carries requests to one broker in order, and answers back in order.

    Attributes:
        on_closed: Called soon after the connection has ended, whichever side ended it.
    """

    def __init__(self, sock: socket.socket, address: Address, options: ConnectionOptions) -> None:
        self.address = address
        self.closed_at: float | None = None
        self.bytes_received = 0
        self.closed_because: Ended | None = None
        self.on_closed: Callable[[], None] | None = None
        self._options = options
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._loop = asyncio.get_running_loop()
        self._answers = Answers(str(address))
        self._outgoing = Outgoing(sock)
        self._writer_armed = False
        self._wakes_at = 1
        self._timer: asyncio.TimerHandle | None = None
        self._session = Session(options.security, str(address))
        self._paused = False
        self._why_not = "", ""

    @property
    def closed(self) -> bool:
        return self.closed_because is not None

    @property
    def bytes_sent(self) -> int:
        return self._outgoing.bytes_sent

    @property
    def answered_at(self) -> float:
        """When the last answer came, in monotonic seconds; before the first, when the connection was made."""
        return self._answers.answered_at

    @property
    def arriving_at(self) -> float | None:
        """When the last bytes of an incomplete answer came, in monotonic seconds; None if there is none."""
        return None if self.closed else self._answers.arriving_at

    @property
    def unanswered(self) -> int:
        """Requests that wait for their answer."""
        return len(self._answers.due) + len(self._session.held or ())

    @property
    def unanswered_seconds(self) -> float:
        """How long the oldest request that was sent has been waiting; 0 when there is none."""
        due = self._answers.due
        return time.monotonic() - due[0].sent_at if due else 0.0

    @property
    def certificate_valid_until(self) -> float | None:
        """When the broker's certificate expires, in seconds since 1970; None without TLS or when closed."""
        if self.closed or not isinstance(self._sock, ssl.SSLSocket):
            return None
        shown = self._sock.getpeercert()
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"]))) if shown else None

    # -- the socket ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _submit(self, due: Due, buffers: Buffers, *, held: bool = True) -> None:
        """Send a request, and call back with its answer, or why there is none; never from within this call.

        Args:
            buffers: The whole request, its size included. They must not change before the answer.
            held: Whether it waits while a session is renewed.
        """
        if held and self._session.held is not None:
            self._session.held.append((due, buffers))
            return
        if self.closed_because is not None:
            self._loop.call_soon(due.on_answer, self.closed_because)
            return
        self._answers.due.append(due)
        self._outgoing.buffers.extend(buffers)
        if self._timer is None:
            self._arm_timer()
        if not self._writer_armed:
            self._flush()

    def pause(self, paused: bool) -> None:
        """Receive nothing for now, or go on. While paused, no request is given up for want of an answer."""
        if self.closed or paused is self._paused:
            return
        self._paused = paused
        if paused:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._answers.received_at = self._answers.answered_at = time.monotonic()
            self._start()
            self._loop.call_soon(self._on_readable)  # TLS may hold bytes that the kernel no longer has

    def _flush(self) -> None:
        try:
            self._outgoing.send()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not self._writer_armed:
                self._arm_writer(True)
        except WithheldError:
            self._end_of_turn()
        except OSError as error:
            self._fail(ConnectionFailedError(f"{self.address}: connection lost while sending: {error}"))
        else:
            if self._writer_armed:
                self._arm_writer(False)

    def _arm_writer(self, armed: bool) -> None:
        self._writer_armed = armed
        if armed:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        if not (self._paused or self.closed):
            self._receive()
        if not (self._tls or self.closed) and self._answers.worth_waking != self._wakes_at:
            self._wakes_at = self._answers.worth_waking
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._wakes_at)

    def _receive(self) -> None:
        rounds, answers = RECEIVE_ROUNDS_MAX, self._answers
        try:
            while rounds or (self._tls and self._sock.pending()):  # type: ignore[attr-defined]
                rounds = max(0, rounds - 1)
                room = answers.room
                count = self._sock.recv_into(room)
                if count == 0:
                    self._fail(self._closed_by_broker())
                    return
                self.bytes_received += count
                ended = answers.received(count)
                if ended is not None:
                    self._fail(ended)
                if self.closed_because is not None or self._paused:
                    return
                if not (count == len(room) or self._tls):
                    return  # less than asked for: there is no more
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            other = BROKER if self._options.relays is None else RELAY
            self._fail(rename_ssl_error(error, str(self.address), self._options.security.tls, other))

    def _closed_by_broker(self) -> ConnectionFailedError:
        what = f"{self.address}: the broker closed the connection"
        if self._options.security.uses_sasl or self.bytes_received > 4096:
            return ConnectionFailedError(what)
        return ConnectionFailedError(
            what, hint="the listener may require SASL: check security.protocol, the broker and the network"
        )

    # -- sending while somebody says so --------------------------------------------------------

    def send_while(self, may_send: Callable[[], bool], why_not: str, hint: str) -> None:
        """Ask ``may_send`` right before each write to the socket; the first no closes the connection.

        So the rest of a request that the kernel has taken in part never leaves, and the broker, which lacks
        that rest, never begins with the request.

        Args:
            why_not: The message of the error then.
            hint: What to do about it.
        """
        self._outgoing.may_send = may_send
        self._why_not = why_not, hint

    @property
    def guarded(self) -> bool:
        """Whether :meth:`send_while` guards what is sent."""
        return self._outgoing.may_send is not None

    def withdraw(self) -> None:
        """Close the connection if the broker's kernel lacks, or may lack, some of what was to be sent."""
        if not self.closed and (self._session.held or self._outgoing.undelivered):
            self._end_of_turn()

    def _end_of_turn(self) -> None:
        why_not, hint = self._why_not
        self._fail(ConnectionFailedError(f"{self.address}: {why_not}", hint=hint))

    # -- time and the end ------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        patience = self._options.request_timeout_seconds
        left = patience if self._paused else self._answers.patience_seconds(time.monotonic(), patience)
        seconds = min(patience / LOOKS_IN_TIME, left + LATE_SECONDS)
        self._timer = self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        """Give up, or look again later. Bytes that have come count, even too few to wake up for."""
        self._timer = None
        if not self._answers.due:
            return
        self._on_readable()
        if self._paused:
            self._arm_timer()
            return
        overdue = self._answers.overdue(time.monotonic(), self._options.request_timeout_seconds)
        if overdue is not None:
            self._fail(ConnectionFailedError(f"{self.address}: {overdue}"))
        elif self._answers.due and self._timer is None:
            self._arm_timer()

    def close(self, why: str = "closed by the mirror") -> None:
        """Close the socket; requests without an answer fail. Closing twice does nothing."""
        self._fail(ConnectionFailedError(f"{self.address}: {why}"))

    def _fail(self, error: Ended) -> None:
        if self.closed_because is not None:
            return
        self.closed_because, self.closed_at = error, time.monotonic()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._session.end()
        with contextlib.suppress(OSError):
            if self.guarded:
                self._outgoing.take_back()
        with contextlib.suppress(OSError):
            self._sock.close()
        self._outgoing.buffers.clear()
        for due in self._answers.give_up():
            self._loop.call_soon(due.on_answer, error)
        if self.on_closed is not None:
            self._loop.call_soon(self.on_closed)
