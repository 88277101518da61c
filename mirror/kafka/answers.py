"""Turns the bytes that a broker sends into answers, and hands each to its caller.

Answers come in the order of the requests; the network may cut them anywhere. There is no socket here:
:attr:`Answers.room` is where the next bytes go, :meth:`Answers.received` is told how many came.

The length of an answer is in its first four bytes. Until it is known the answer has no buffer, so its first
thousand bytes are received elsewhere and copied once. The rest is received in place.

Sources: the Kafka protocol guide (framing, headers).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.tls_errors import is_tls_alert, speaks_tls_error

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""An answer that claims to be larger is not Kafka's (an HTTP or TLS server reads as about 1 GB)."""
READ_AHEAD_BYTES = 4 + 1024
"""Received at once while the length of an answer is unknown: a short answer is complete then, and of a long
one little is copied."""
WAKE_BYTES_MAX = 128 << 10
"""A long answer wakes us up once for this many bytes. It must be well below what a broker has in flight when
its send buffer is full, on one host four packets of 64 KiB (``socket.send.buffer.bytes`` is 100 KiB, which
the kernel doubles). Otherwise both sides wait for each other until TCP retransmits the last packet.
"""

WHOLE_WITHIN = 10
"""An answer whose bytes keep coming may take this many times as long as a broker may be silent: a slow link
is waited for, a broker that never finishes is not."""

Allocate = Callable[[int], memoryview]
"""Returns a writable buffer of exactly the number of bytes asked for."""
Ended = ConnectionFailedError | AuthenticationError
OnAnswer = Callable[[memoryview | Ended], None]
"""Called with the body of the answer, or with the error for which none will come."""


@dataclass(slots=True)
class Due:
    """A request that waits for its answer.

    Attributes:
        sent_at: Monotonic seconds.
        header_bytes: Left out before the body is handed over: the correlation id, and one zero byte where
            the header is flexible (brokers send no tagged fields there); 0 where the caller wants it all.
    """

    correlation_id: int
    on_answer: OnAnswer
    sent_at: float
    allocate: Allocate
    header_bytes: int


class Answers:
    """The outstanding answers of one connection, and what has come of them.

    Attributes:
        due: The requests without an answer, oldest first. The sender appends to it.
        room: Where the next bytes are received; never empty.
        answered_at: When the last complete answer came, in monotonic seconds; at first, when this was made.
        received_at: When the last bytes came, likewise.
    """

    __slots__ = (
        "_ahead",
        "_body",
        "_given_up",
        "_kept",
        "_where",
        "answered_at",
        "due",
        "received_at",
        "room",
    )

    def __init__(self, where: str) -> None:
        self.due: deque[Due] = deque()
        self.answered_at = self.received_at = time.monotonic()
        self._where = where
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._kept = 0
        self._body: memoryview | None = None
        self._given_up = False
        self.room = self._ahead

    @property
    def arriving_at(self) -> float | None:
        """When the last bytes of an incomplete answer came, in monotonic seconds; None if there is none."""
        return None if self._body is None else self.received_at

    @property
    def worth_waking(self) -> int:
        """How many bytes must have come before it is worth waking up: not every packet of a long answer."""
        return 1 if self._body is None else min(len(self.room), WAKE_BYTES_MAX)

    def received(self, count: int) -> Ended | None:
        """Take ``count`` bytes received into :attr:`room`; call back with every answer that is complete now.

        A callback may send requests, and may end the connection.

        Returns:
            Why the connection must end, or None. Callbacks that wait are not called with that here.
        """
        self.received_at = time.monotonic()
        if self._body is not None:
            room = self.room = self.room[count:]
            return None if room else self._body_is_whole(self._body)
        ahead, at, end = self._ahead, 0, self._kept + count
        while end - at >= 4:
            size = int.from_bytes(ahead[at : at + 4], "big", signed=True)
            if not self.due or not 4 <= size <= ANSWER_BYTES_MAX:
                return self._no_answer(bytes(ahead[at : at + 4]))
            at += 4
            body = self.due[0].allocate(size)
            here = min(size, end - at)
            body[:here] = ahead[at : at + here]
            at += here
            if here < size:
                self._body, self.room, self._kept = body, body[here:], 0
                return None
            ended = self._hand_over(body)
            if ended is not None or self._given_up:
                return ended
        if self._kept or at < end:
            self._keep(at, end)
        return None

    def _body_is_whole(self, body: memoryview) -> Ended | None:
        self._body, self.room = None, self._ahead
        return self._hand_over(body)

    def _keep(self, at: int, end: int) -> None:
        """Keep the start of a length, if there is one, until the rest of it has come."""
        self._kept = end - at
        self._ahead[: self._kept] = bytes(self._ahead[at:end])
        self.room = self._ahead[self._kept :]

    def _hand_over(self, body: memoryview) -> Ended | None:
        due = self.due[0]
        correlation_id = int.from_bytes(body[:4], "big", signed=True)
        if correlation_id != due.correlation_id:
            words = f"{self._where}: received answer {correlation_id}, expected {due.correlation_id}"
            return ConnectionFailedError(words)
        self.due.popleft()
        self.answered_at = time.monotonic()
        due.on_answer(body[due.header_bytes :])
        return None

    def _no_answer(self, start: bytes) -> Ended:
        if is_tls_alert(start):
            return speaks_tls_error(self._where)
        return ConnectionFailedError(
            f"{self._where}: {start!r} is not the start of a Kafka answer",
            hint="the port may expect TLS, or belong to another service; check security.protocol",
        )

    def overdue(self, now: float, silence_seconds: float) -> str | None:
        """Why the oldest answer is given up, in words; None while it still has time.

        A broker handles the requests of a connection one after the other, so the time of each begins when
        the one before it was answered.

        Args:
            silence_seconds: How long a broker that owes an answer may send nothing.
        """
        if not self.due:
            return None
        asked_at = self._asked_at(self.due[0])
        silent, waited = now - max(asked_at, self.received_at), now - asked_at
        if silent >= silence_seconds:
            return f"no answer for {silent:.0f} s"
        if waited >= silence_seconds * WHOLE_WITHIN:
            return f"an answer is still incomplete after {waited:.0f} s"
        return None

    def patience_seconds(self, now: float, silence_seconds: float) -> float:
        """Seconds until the oldest answer is given up if nothing comes; see :meth:`overdue`."""
        heard_at = max(self._asked_at(self.due[0]), self.received_at) if self.due else now
        return max(0.0, heard_at + silence_seconds - now)

    def _asked_at(self, due: Due) -> float:
        return max(due.sent_at, self.answered_at)

    def give_up(self) -> list[Due]:
        """The connection has ended: return the requests that waited, oldest first, and hand over no more."""
        self._given_up = True
        waited = list(self.due)
        self.due.clear()
        return waited
