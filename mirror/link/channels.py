"""All channels of a stream at the mirror: frames that have arrived wait here until they are taken.

Whatever the relay sends, no more is kept than both sides have agreed on. Shared channels begin and end; their
frames wait in one queue with those of LIVE. Frames are not opened here.

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
"""Base-2 logarithm of the largest zstd window accepted: 128 MiB, or 8 MiB on a shared channel. There can be
thirty of those, each with a window of its own.
"""
FRAME_COSTS_BYTES = 1 << 10
"""Memory that a waiting frame takes here, however short it is."""
FRAME_BYTES_MAX = HEADER_BYTES + wire_bound(BODY_BYTES_MAX)
FRAMES_AT_ONCE = 8
"""Frames of ``frame_bytes`` for which all channels together have room beyond their windows, and beyond one
frame of the largest size.
"""
UNCERTAIN_BYTES = messages.MESSAGE_BYTES_MAX
"""Tolerance: part of what has just arrived may be counted twice."""

Wanted = tuple[Key, int]
"""A partition, and the number it was wanted with."""
OnMoved = Callable[[int, Sequence[Wanted]], Iterable[Wanted]]


class Came(NamedTuple):
    """A frame and its channel; ``read_at`` is not later than the relay read it, in monotonic seconds."""

    channel: int
    arrived: Arrived
    read_at: float


class Channels:
    """The channels of a stream.

    Attributes:
        on_moved: Called with a channel, and with the partitions that come by it from now on and the numbers
            they were wanted with; returns those that are still wanted so. The others are never taken.
    """

    def __init__(self, hello: Hello, pool: BufferPool, distance: Distance) -> None:
        """
        Args:
            hello: Has the windows that were announced to the relay.
            pool: Has the buffers for frames.
            distance: To the relay's clock.
        """
        self.on_moved: OnMoved = _none
        self._hello = hello
        self._pool = pool
        self._distance = distance
        self._states: dict[int, ChannelState] = {}
        self._came: dict[Channel, asyncio.Queue[Came]] = {c: asyncio.Queue() for c in Channel}

    def begin(self, keys: Sequence[bytes], now: float) -> None:
        """Begin LIVE and BULK; ``keys`` are those of the relay's WELCOME."""
        self._states = {
            c: self._new(keys[c], now, WINDOW_LOG_MAX, repeats=c is Channel.LIVE) for c in Channel
        }

    def close(self) -> None:
        """Release the buffers of frames that were not taken, and the memory of zstd."""
        for state in self._states.values():
            state.opener.close()
        self._states.clear()
        for came in self._came.values():
            while not came.empty():
                came.get_nowait().arrived.buffer.release()

    # -- what comes ----------------------------------------------------------------------------------

    def heard_slice(self, number: int, at: int, data: memoryview) -> None:
        """Take in bytes of a channel; ``at`` bytes of the channel come before them.

        Raises:
            AnswerError: There is no such channel, it is more than the relay may send, or the bytes are
                refused by :class:`InOrder` or :class:`Frames`.
        """
        now = time.monotonic()
        state = self._state(number)
        base = _base(number)
        if state.held_bytes + len(data) > self._hello.windows[base] + FRAME_BYTES_MAX:
            raise AnswerError("it sent more than its window allows")
        self._claim(len(data))
        for arrived in state.received(at, data, now):
            read_at = self._distance.ours(arrived.header.read_us / 1e6, now)
            self._came[base].put_nowait(Came(number, arrived, read_at))

    def heard_of_shared(self, kind: int, payload: memoryview, now: float) -> None:
        """Handle SHARED, ENDED or MOVED: a shared channel begins or ends, or partitions move to a channel.

        Raises:
            AnswerError: The channel cannot begin, does not exist or is not one for this, or the payload has a
                wrong size.
        """
        number, rest = protocol.read_channel(payload)
        if kind == Down.MOVED:
            self._move(number, payload)
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

    def _move(self, number: int, payload: memoryview) -> None:
        """Keep what moved to a shared channel; parts that come by LIVE have their own numbers."""
        if number == Channel.BULK:
            raise AnswerError(f"nothing moves to channel {number}")
        state = self._state(number)
        still_wanted = self.on_moved(*protocol.read_moved(payload))
        if number != Channel.LIVE:
            state.moved.update(still_wanted)

    def _state(self, number: int) -> ChannelState:
        state = self._states.get(number)
        if state is None or state.ended:
            raise AnswerError(f"unknown channel {number}")
        return state

    def _new(self, key: bytes, now: float, window_log_max: int, *, repeats: bool = False) -> ChannelState:
        return ChannelState(key, now, self._pool, self._claim, window_log_max, repeats=repeats)

    def _claim(self, size: int) -> None:
        """Check that there is room for ``size`` more bytes, over all channels. Bytes still missing of a frame
        count once the frame has its buffer.

        Raises:
            AnswerError: There is not.
        """
        held = sum(state.held_bytes + state.frames.missing_bytes for state in self._states.values())
        held += FRAME_COSTS_BYTES * sum(came.qsize() for came in self._came.values())
        windows = sum(self._hello.windows[_base(number)] for number in self._states)
        frames = FRAMES_AT_ONCE * self._hello.frame_bytes + FRAME_BYTES_MAX
        if held + size > windows + frames + UNCERTAIN_BYTES:
            raise AnswerError("it sent more than its windows allow, over all channels")

    # -- what is taken -------------------------------------------------------------------------------

    async def next_frame(self, channel: Channel) -> Came:
        """The next frame of a channel; for LIVE, the next one of LIVE or of any shared channel."""
        return await self._came[channel].get()

    def opener(self, channel: int) -> Opener:
        """The opener for a channel's frames, the same for the channel's whole life."""
        return self._states[channel].opener

    def number_of(self, channel: int, part: Part) -> int | None:
        """The number that a part's partition was wanted with; None if it was not moved to this shared one."""
        return part.number if channel in self._came else self._states[channel].moved.get(part.fetched.key)

    def took(self, came: Came) -> int:
        """Count a frame as taken; returns the bytes of its channel taken so far."""
        size = HEADER_BYTES + came.arrived.header.wire_bytes
        state = self._states[came.channel]
        state.untaken_bytes -= size
        state.taken_bytes += size
        if state.ended and not state.untaken_bytes:
            del self._states[came.channel]
        return state.taken_bytes

    # -- how it stands -------------------------------------------------------------------------------

    def piece_at(self) -> float | None:
        """When a piece of a frame that is still incomplete last arrived; None if there is no such frame."""
        torn = [state.piece_at for state in self._states.values() if state.frames.torn]
        return max(torn, default=None)

    def held_up(self) -> list[float]:
        """For each channel with bytes that wait for earlier ones from another connection: since when."""
        return [state.whole_at for state in self._states.values() if state.in_order.incomplete]


def _base(channel: int) -> Channel:
    """The channel whose window and queue this channel has."""
    return Channel.BULK if channel == Channel.BULK else Channel.LIVE


def _none(_channel: int, _: Sequence[Wanted]) -> Sequence[Wanted]:
    return ()
