"""What a mirror has of all channels of a stream: what has come waits here until it is taken.

It is no more than both sides have agreed on, whatever the relay sends. Channels that are shared begin and
end; what comes by them waits with what is live. Frames are not opened here.

No I/O. Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link import messages, protocol
from mirror.link.channel_state import ChannelState
from mirror.link.clocks import Distance
from mirror.link.frames import BODY_BYTES_MAX, HEADER_BYTES, KEY_BYTES, Arrived, Opener, wire_bound
from mirror.link.greeting import Hello
from mirror.link.parts import Part
from mirror.link.protocol import CHANNELS_MAX, Channel, Down

WINDOW_LOG_MAX, SHARED_WINDOW_LOG_MAX = 27, 23
"""A relay that compresses with a window above 128 MiB is refused, and above 8 MiB on a channel that is
shared: there can be thirty of those, and each has one.
"""
FRAME_COSTS_BYTES = 1 << 10
"""So much memory a frame takes here, however short it is."""
FRAME_BYTES_MAX = HEADER_BYTES + wire_bound(BODY_BYTES_MAX)
FRAMES_AT_ONCE = 8
"""So many frames of all channels may go beyond their windows at a time, and one of the largest size."""
UNCERTAIN_BYTES = messages.MESSAGE_BYTES_MAX
"""Of what has just come part may be counted twice."""

Wanted = tuple[Key, int]
"""A partition, and the number with which it was wanted."""
OnMoved = Callable[[int, Sequence[Wanted]], Iterable[Wanted]]


class Came(NamedTuple):
    """A frame: its channel, what has arrived, and a moment not after it was read, in monotonic seconds."""

    channel: int
    arrived: Arrived
    read_at: float


class Channels:
    """The channels of a stream.

    Attributes:
        on_moved: Told by which channel partitions come from now on, and with which numbers they were wanted;
            answers which of them are still wanted so. Others will never be taken.
    """

    def __init__(self, hello: Hello, pool: BufferPool, distance: Distance) -> None:
        """
        Args:
            hello: Has the windows that the relay was told.
            pool: Has the buffers for what comes.
            distance: To the relay's clock.
        """
        self.on_moved: OnMoved = _none
        self._hello = hello
        self._pool = pool
        self._distance = distance
        self._states: dict[int, ChannelState] = {}
        self._came: dict[Channel, asyncio.Queue[Came]] = {c: asyncio.Queue() for c in Channel}

    def begin(self, keys: Sequence[bytes], now: float) -> None:
        """Those that are this mirror's own; ``keys`` as the relay's welcome has them."""
        self._states = {
            c: self._new(keys[c], now, WINDOW_LOG_MAX, repeats=c is Channel.LIVE) for c in Channel
        }

    def close(self) -> None:
        """Keep nothing: what has come and was not taken is given back, and so is what zstd has."""
        for state in self._states.values():
            state.opener.close()
        self._states.clear()
        for came in self._came.values():
            while not came.empty():
                came.get_nowait().arrived.buffer.release()

    # -- what comes ----------------------------------------------------------------------------------

    def heard_slice(self, number: int, at: int, data: memoryview) -> None:
        """A piece of a channel, from such a place of it on.

        Raises:
            AnswerError: It is more than was allowed, or makes no sense.
        """
        now = time.monotonic()
        state = self._state(number)
        base = _base(number)
        if state.held_bytes + len(data) > self._hello.windows[base] + FRAME_BYTES_MAX:
            raise AnswerError("it sends more than it was allowed to")
        self._claim(len(data))
        for arrived in state.received(at, data, now):
            read_at = self._distance.ours(arrived.header.read_us / 1e6, now)
            self._came[base].put_nowait(Came(number, arrived, read_at))

    def heard_of_shared(self, kind: int, payload: memoryview, now: float) -> None:
        """A channel that is shared begins or ends, or partitions come by another one: SHARED, ENDED, MOVED.

        Raises:
            AnswerError: It cannot.
        """
        number, rest = protocol.read_channel(payload)
        if kind == Down.MOVED:
            moved = self._state(number).moved
            moved.update(self.on_moved(*protocol.read_moved(payload)))
        elif number in self._came:
            raise AnswerError(f"channel {number} is not shared")
        elif kind == Down.ENDED:
            state = self._state(number)
            state.ended = True
            if not state.untaken_bytes:
                del self._states[number]
        elif number in self._states or number >= CHANNELS_MAX or len(rest) != KEY_BYTES:
            raise AnswerError(f"channel {number} cannot begin")
        else:
            self._states[number] = self._new(bytes(rest), now, SHARED_WINDOW_LOG_MAX)

    def _state(self, number: int) -> ChannelState:
        state = self._states.get(number)
        if state is None or state.ended:
            raise AnswerError(f"there is no channel {number}")
        return state

    def _new(self, key: bytes, now: float, window_log_max: int, *, repeats: bool = False) -> ChannelState:
        return ChannelState(key, now, self._pool, self._claim, window_log_max, repeats=repeats)

    def _claim(self, size: int) -> None:
        """So many bytes more are to be kept: what is here of all channels, and has a buffer, is bounded."""
        held = sum(state.held_bytes + state.frames.missing_bytes for state in self._states.values())
        held += FRAME_COSTS_BYTES * sum(came.qsize() for came in self._came.values())
        windows = sum(self._hello.windows[_base(number)] for number in self._states)
        frames = FRAMES_AT_ONCE * self._hello.frame_bytes + FRAME_BYTES_MAX
        if held + size > windows + frames + UNCERTAIN_BYTES:
            raise AnswerError("it sends more than it was allowed to, on all channels together")

    # -- what is taken -------------------------------------------------------------------------------

    async def next_frame(self, channel: Channel) -> Came:
        """The next frame of a channel; of LIVE, the next of it or of any that is shared."""
        return await self._came[channel].get()

    def opener(self, channel: int) -> Opener:
        """Opens the frames of a channel; one for its whole life."""
        return self._states[channel].opener

    def number_of(self, channel: int, part: Part) -> int | None:
        """With which number a part that came by some channel was wanted; None where it was not."""
        return part.number if channel in self._came else self._states[channel].moved.get(part.fetched.key)

    def took(self, came: Came) -> int:
        """A frame is out of the way; answers how many bytes of its channel are by now."""
        size = HEADER_BYTES + came.arrived.header.wire_bytes
        state = self._states[came.channel]
        state.untaken_bytes -= size
        state.taken_bytes += size
        if state.ended and not state.untaken_bytes:
            del self._states[came.channel]
        return state.taken_bytes

    # -- how it stands -------------------------------------------------------------------------------

    def piece_at(self) -> float | None:
        """When something of a frame that is not whole yet came last; else None."""
        torn = [state.piece_at for state in self._states.values() if state.frames.torn]
        return max(torn, default=None)

    def held_up(self) -> list[float]:
        """Since when one of the connections has held up what came over others."""
        return [state.whole_at for state in self._states.values() if state.in_order.incomplete]


def _base(channel: int) -> Channel:
    """Whose window a channel has."""
    return Channel.BULK if channel == Channel.BULK else Channel.LIVE


def _none(_channel: int, _: Sequence[Wanted]) -> Sequence[Wanted]:
    return ()
