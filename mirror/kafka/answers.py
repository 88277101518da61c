"""The bytes that a broker sends become answers, and each goes to whoever asked.

Answers come in the order of the requests, wherever the network cuts them. There is no socket here:
:attr:`Answers.room` says where the next bytes are to be put, :meth:`Answers.received` how many came.

How long an answer is stands in its first four bytes, so its first thousand are received before there is a
place for it, and copied once. The rest is received where it stays.

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
"""Received in one go before it is known how long an answer is: a short one is whole by then, and of a long
one little is copied once more."""
WAKE_BYTES_MAX = 128 << 10
"""Of a long answer so much at a time. It has to be well below what a broker has on its way when its buffer is
full, four packets of 64 KiB on one host (``socket.send.buffer.bytes``, 100 KiB, of which the kernel makes
twice as much): else both wait for each other until TCP sends the last packet again.
"""

WHOLE_WITHIN = 10
"""An answer whose bytes keep coming may take so many times as long as one of which nothing comes: a slow link
is waited for, a broker that never comes to an end is not."""

Allocate = Callable[[int], memoryview]
"""Gives a writable buffer of exactly the number of bytes asked for."""
Ended = ConnectionFailedError | AuthenticationError
OnAnswer = Callable[[memoryview | Ended], None]
"""Is told the answer's body, or why there will be none."""


@dataclass(slots=True)
class Due:
    """A request that waits for its answer.

    Attributes:
        sent_at: Monotonic seconds.
        header_bytes: What stands before the answer's body: the correlation id, and one zero byte where the
            header is flexible (brokers send no tagged fields there).
    """

    correlation_id: int
    on_answer: OnAnswer
    sent_at: float
    allocate: Allocate
    header_bytes: int


class Answers:
    """What one connection is still to be answered, and what of it has come.

    Attributes:
        due: The requests without an answer, the oldest first. Whoever sends one appends it.
        room: Where the next bytes are received; never empty.
        answered_at: When the last whole answer came, in monotonic seconds; in the beginning, now.
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
        """When the last bytes came of an answer that is not whole; None where there is none."""
        return None if self._body is None else self.received_at

    @property
    def worth_waking(self) -> int:
        """How many bytes have to be there before it is worth looking: of a long answer not each packet."""
        return 1 if self._body is None else min(len(self.room), WAKE_BYTES_MAX)

    def received(self, count: int) -> Ended | None:
        """So many bytes more are in :attr:`room`: whoever asked is told every answer that is whole now.

        What is called back may send, and may end the connection.

        Returns:
            Why the connection cannot go on; None when it can. Who waits is not told that here.
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
        """The start of a length, if there is one, is looked at again when more has come."""
        self._kept = end - at
        self._ahead[: self._kept] = bytes(self._ahead[at:end])
        self.room = self._ahead[self._kept :]

    def _hand_over(self, body: memoryview) -> Ended | None:
        due = self.due[0]
        correlation_id = int.from_bytes(body[:4], "big", signed=True)
        if correlation_id != due.correlation_id:
            words = f"{self._where}: answer {correlation_id} came where {due.correlation_id} was due"
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
        """Why the oldest answer is not waited for any more, in words; None while it is.

        The broker works on one request after the other, so each has its time from when the one before it was
        answered.

        Args:
            silence_seconds: So long no byte may come while an answer is due.
        """
        if not self.due:
            return None
        asked_at = self._asked_at(self.due[0])
        silent, waited = now - max(asked_at, self.received_at), now - asked_at
        if silent >= silence_seconds:
            return f"no answer for {silent:.0f} s"
        if waited >= silence_seconds * WHOLE_WITHIN:
            return f"an answer is not whole after {waited:.0f} s"
        return None

    def patience_seconds(self, now: float, silence_seconds: float) -> float:
        """How long the oldest answer is still waited for if nothing comes; as for :meth:`overdue`."""
        heard_at = max(self._asked_at(self.due[0]), self.received_at) if self.due else now
        return max(0.0, heard_at + silence_seconds - now)

    def _asked_at(self, due: Due) -> float:
        return max(due.sent_at, self.answered_at)

    def give_up(self) -> list[Due]:
        """The connection is over: who has waited, the oldest first. Nobody is told any answer from now on."""
        self._given_up = True
        waited = list(self.due)
        self.due.clear()
        return waited
