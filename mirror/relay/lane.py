"""How a frame is made of what was read, and the frames of one channel that are being sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mirror.kafka.fetch import Key
from mirror.link.frames import Sealer
from mirror.link.loops import in_thread
from mirror.link.parts import encode_parts
from mirror.relay.news import Gone, News, Taken, records_bytes

FRAMES_READY_MAX = 2
"""Compressed frames of a channel that may wait for the link; no more are made until one has gone."""
FRAMES_UNTAKEN_MAX = 65_536
"""Frames of a channel that may be untaken, however small they are: what is kept of each is larger."""
INLINE_BYTES_MAX = 32 << 10
"""Records up to this size are compressed in this thread, larger ones in another."""
Pieces = Sequence[bytes | memoryview]


class Frame:
    """A frame that is being sent.

    Attributes:
        left: Bytes that are still to be sent.
        taken: Called when the mirror has taken it.
        gone: Called when nothing is left.

    Args:
        pieces: Its bytes; copied when they go into slices, and not before.
    """

    def __init__(self, pieces: Pieces, taken: Taken, gone: Gone) -> None:
        self.left = sum(map(len, pieces))
        self.taken = taken
        self.gone = gone
        self._pieces = deque(memoryview(piece) for piece in pieces)

    def cut(self, size: int) -> list[memoryview]:
        """Take off the next ``size`` bytes, or all that are left."""
        cut: list[memoryview] = []
        while self._pieces and size > 0:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
            cut.append(piece[:size])
            size -= len(cut[-1])
            self.left -= len(cut[-1])
        return cut


@dataclass(slots=True)
class Lane:
    """The frames of one channel.

    Attributes:
        window_bytes: A frame begins only while fewer bytes than this, and fewer than ``FRAMES_UNTAKEN_MAX``
            frames, are sent and not taken.
        frames: Those not sent yet; the first one may have begun.
        untaken: For each frame that has begun: where it ends among ``sent_bytes``, and what to call then.
        begun: Whether the first of ``frames`` has.
        sent_bytes: Bytes of all frames that have begun, to their ends.
        sliced_bytes: Those of them that were handed to a connection.
        taken_bytes: Those that the mirror has taken.
        ending: No more frames come.
        room: Set when a frame has been sent.
    """

    window_bytes: int
    frames: deque[Frame] = field(default_factory=deque)
    untaken: deque[tuple[int, Taken]] = field(default_factory=deque)
    begun: bool = False
    sent_bytes: int = 0
    sliced_bytes: int = 0
    taken_bytes: int = 0
    ending: bool = False
    room: asyncio.Event = field(default_factory=asyncio.Event)
    held_seconds: float = 0.0
    held_since: float | None = None

    @property
    def may_send(self) -> bool:
        return bool(self.frames) and (self.begun or self._has_window)

    @property
    def _has_window(self) -> bool:
        untaken_bytes = self.sent_bytes - self.taken_bytes
        return untaken_bytes < self.window_bytes and len(self.untaken) < FRAMES_UNTAKEN_MAX

    def held_until(self, now: float) -> float:
        """For how many seconds, up to now, a frame was ready while the window was full."""
        if self.held_since is not None:
            self.held_seconds += now - self.held_since
        self.held_since = now if self.frames and not self.may_send else None
        return self.held_seconds

    async def has_room(self) -> None:
        """Wait until another frame may be made."""
        while len(self.frames) >= FRAMES_READY_MAX:
            self.room.clear()
            await self.room.wait()


class Press:
    """Lets one frame of a channel be made at a time, until it is closed.

    Attributes:
        sealer: Of the channel.
    """

    def __init__(self, sealer: Sealer) -> None:
        self.sealer = sealer
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a frame is being made, or is about to be."""
        return self._turn.locked()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Within this block nobody else makes a frame."""
        async with self._turn:
            try:
                yield
            finally:
                self._close_sealer()

    def close(self) -> None:
        """Release zstd's memory immediately: an ended stream may stay as garbage for long, as Python does not
        know how large it is. A frame that is being made is finished first.
        """
        self._closed = True
        if not self.busy:
            self._close_sealer()

    def _close_sealer(self) -> None:
        if self._closed:
            self.sealer.close()


async def sealed(sealer: Sealer, news: News, as_is: Container[Key], *, recode: bool) -> Pieces:
    """The next frame of a channel, in pieces; if it is stored, with the records as they were read.

    Args:
        as_is: Partitions whose batches are not recoded even with ``recode``.
    """
    keys = {part.fetched.key for part in news.parts if part.fetched.key not in as_is} if recode else set()
    if sealer.stores or records_bytes(news) <= INLINE_BYTES_MAX:
        return _sealed(sealer, news, keys)
    return await in_thread(_sealed, sealer, news, keys)


def _sealed(sealer: Sealer, news: News, recode: Container[Key]) -> Pieces:
    return sealer.seal(news.node, news.read_us, encode_parts(news.parts, recode))
