"""What goes down to one mirror: frames in the order of their channels' urgency, and short messages.

A frame leaves in slices, and before each of them the most urgent channel has its turn. The kernel is given
little that it cannot send at once; so what is urgent waits for what is on the wire already, and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from mirror.kafka.fetch import Key
from mirror.link.frames import Sealer
from mirror.link.loops import in_thread
from mirror.link.messages import SLICE_BYTES, Channel, Down, message
from mirror.link.parts import Part, encode_parts
from mirror.relay.tuning import Spent, Step, Tuner

FRAMES_READY_MAX = 2
"""So many frames of a channel wait for the link, compressed; more are not read before."""
INLINE_BYTES_MAX = 32 << 10
"""Less than this is compressed at once, more in another thread."""

Taken = Callable[[], None]


@dataclass(slots=True)
class Frame:
    """A frame on its way out."""

    left: memoryview
    taken: Taken


@dataclass(slots=True)
class Lane:
    """The frames of one channel.

    Attributes:
        window_bytes: A frame begins while less than this is not taken by the mirror.
        frames: The first one may have begun.
        untaken: Of each that has begun, where it ends among ``sent_bytes``.
        sent_bytes: Of frames, begun ones as a whole.
    """

    sealer: Sealer
    tuner: Tuner
    window_bytes: int
    frames: deque[Frame] = field(default_factory=deque)
    untaken: deque[tuple[int, Taken]] = field(default_factory=deque)
    begun: bool = False
    sent_bytes: int = 0
    taken_bytes: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    room: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def may_send(self) -> bool:
        return bool(self.frames) and (self.begun or self.sent_bytes - self.taken_bytes < self.window_bytes)


class Sender:
    """Sends to one mirror.

    Args:
        write: Hands bytes to the connection; must not be called while it is :meth:`pause`\\ d.
        windows: Of each channel, how many bytes may be on their way.
        steps: Of each channel, from which to choose.
        chosen: Told of a channel that is sent another way from now on.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        windows: Mapping[Channel, int],
        steps: Mapping[Channel, Sequence[Step]],
        chosen: Callable[[Channel], None],
    ) -> None:
        self._write = write
        self._chosen = chosen
        self._paused = False
        now = time.monotonic()
        tuners = {channel: Tuner(steps[channel], now) for channel in Channel}
        self.lanes = {
            channel: Lane(Sealer(tuners[channel].step.compression), tuners[channel], windows[channel])
            for channel in sorted(Channel)
        }

    # -- frames ----------------------------------------------------------------------------------

    async def send(
        self, channel: Channel, node: int, parts: Sequence[Part], as_is: Container[Key], taken: Taken
    ) -> None:
        """Send a frame; returns when the parts are not needed any more.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
        """
        lane = self.lanes[channel]
        size = sum(len(part.fetched.records) for part in parts)
        async with lane.turn:
            began = time.monotonic()
            while len(lane.frames) >= FRAMES_READY_MAX:
                lane.room.clear()
                await lane.room.wait()
            waited = time.monotonic() - began
            keys = [part.fetched.key for part in parts] if lane.tuner.step.recode else []
            recode = {key for key in keys if key not in as_is}
            if size <= INLINE_BYTES_MAX:
                frame = _sealed(lane.sealer, node, parts, recode)
            else:
                frame = await in_thread(_sealed, lane.sealer, node, parts, recode)
            lane.frames.append(Frame(memoryview(frame), taken))
            now = time.monotonic()
            if lane.tuner.watched(Spent(waited, now - began - waited, size, len(frame)), now):
                lane.sealer.change(lane.tuner.step.compression)
                self._chosen(channel)
        self._pump()

    def taken(self, channel: Channel, wire_bytes: int) -> bool:
        """The mirror has taken so much since the beginning; False when that cannot be."""
        lane = self.lanes[channel]
        if not lane.taken_bytes <= wire_bytes <= lane.sent_bytes:
            return False
        lane.taken_bytes = wire_bytes
        while lane.untaken and lane.untaken[0][0] <= wire_bytes:
            lane.untaken.popleft()[1]()
        self._pump()
        return True

    # -- the connection --------------------------------------------------------------------------

    def pause(self) -> None:
        """The connection takes no more for now."""
        self._paused = True

    def resume(self) -> None:
        """It does again."""
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while not self._paused:
            for channel, lane in self.lanes.items():
                if lane.may_send:
                    self._send_slice(channel, lane)
                    break
            else:
                return

    def _send_slice(self, channel: Channel, lane: Lane) -> None:
        frame = lane.frames[0]
        if not lane.begun:
            lane.begun = True
            lane.sent_bytes += len(frame.left)
            lane.untaken.append((lane.sent_bytes, frame.taken))
        piece, frame.left = frame.left[:SLICE_BYTES], frame.left[SLICE_BYTES:]
        self._write(message(Down.SLICE, b"".join((bytes([channel]), piece))))
        if not frame.left:
            lane.begun = False
            lane.frames.popleft()
            lane.room.set()


def _sealed(sealer: Sealer, node: int, parts: Sequence[Part], recode: Container[Key]) -> bytes:
    return b"".join(sealer.seal(node, encode_parts(parts, recode)))
