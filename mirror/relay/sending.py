"""What is sent to one mirror: frames, those of the most urgent channel first, and short messages.

A frame leaves in slices, and before each slice the most urgent channel of all mirrors has its turn. The
kernel gets little that it cannot send at once; so what is urgent waits only for what is already on the wire.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mirror.failpoints import reach
from mirror.kafka.fetch import Key
from mirror.link import protocol
from mirror.link.frames import Sealer
from mirror.link.messages import slice_of
from mirror.link.protocol import CHANNELS_MAX, Channel
from mirror.relay.lane import Frame, Lane, Press, sealed
from mirror.relay.news import Gone, News, Taken, nothing, records_bytes
from mirror.relay.pacing import Pace, Turnstile
from mirror.relay.tuning import Spent, Step, Tuner

SLICE_BYTES_MIN, SLICE_SECONDS = 4 << 10, 0.02
"""Within a limit a slice has no more bytes than go in ``SLICE_SECONDS``, but at least ``SLICE_BYTES_MIN``."""
AGAIN_SHARE, AGAIN_BYTES_MAX = 1 / 32, 64 << 10
"""Slices of LIVE are sent twice while that adds no more than this share of all bytes; the most at once."""


@dataclass(slots=True)
class Maker:
    """Makes the frames of a channel that is not shared, one after the other."""

    press: Press
    tuner: Tuner

    @property
    def sealer(self) -> Sealer:
        return self.press.sealer


@dataclass(slots=True)
class Totals:
    """What was sent that is as urgent as one channel."""

    frames: int = 0
    sent_bytes: int = 0
    spent: Spent = field(default_factory=Spent)


class Wire(Protocol):
    """A connection to the mirror.

    Attributes:
        slice_bytes: How much of a frame is sent before something more urgent may go first.
    """

    slice_bytes: int

    def write(self, data: bytes) -> None:
        """Hand over bytes; not while it is full."""

    @property
    def full(self) -> bool:
        """Whether it takes no more for now; :meth:`Sender.go_on` is called when it does again."""

    @property
    def unsent(self) -> bool:
        """Whether something waits in it unsent."""

    @property
    def on_way_bytes(self) -> int:
        """Bytes that were handed over, and that the other side's kernel has not acknowledged."""


class Sender:
    """Sends to one mirror.

    Attributes:
        makers: For each channel that is not shared.
        totals: For each of these, together with the shared ones that are as urgent.

    Args:
        wire: Carries everything until there are more wires: then what is urgent, and those what is behind.
        windows: For each channel, how many bytes may be sent and not taken.
        steps: For each channel, those to choose from.
        chosen: Called with a channel that is sent another way from now on, or as before for another reason.
        turnstile: The slices of all mirrors go through it.
        near: See :class:`mirror.relay.tuning.Tuner`.
    """

    def __init__(
        self,
        wire: Wire,
        windows: Mapping[Channel, int],
        steps: Mapping[Channel, Sequence[Step]],
        chosen: Callable[[Channel], None],
        turnstile: Turnstile,
        *,
        near: bool = False,
    ) -> None:
        self._wire = wire
        self._wires = {channel: deque([wire]) for channel in Channel}
        """By urgency: the connections that carry it, the one that has waited longest for its turn first."""
        self._again: Wire | None = None
        self._again_left: float = AGAIN_BYTES_MAX
        self._chosen = chosen
        self._turnstile = turnstile
        self._pace = Pace()
        self._timer: asyncio.TimerHandle | None = None
        self._paced_seconds = 0.0
        self._paced_since: float | None = None
        now = time.monotonic()
        tuners = {channel: Tuner(steps[channel], now, near=near) for channel in Channel}
        self.totals = {channel: Totals() for channel in Channel}
        self._windows = windows
        self._lanes = {int(channel): Lane(windows[channel]) for channel in Channel}
        self.makers = {
            channel: Maker(Press(Sealer(tuner.step.compression)), tuner) for channel, tuner in tuners.items()
        }

    # -- frames ----------------------------------------------------------------------------------

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        """Send a frame; returns once it is made.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
            gone: Called when the parts are no longer needed.
        """
        lane, maker = self._lanes[channel], self.makers[channel]
        size = records_bytes(news)
        async with maker.press.turn():
            began = time.monotonic()
            held_before, paced_before = lane.held_until(began), self._paced_until(began)
            await lane.has_room()
            waited = time.monotonic() - began
            held = lane.held_until(began + waited) - held_before if self._at_mirror(lane) else 0.0
            paced = self._paced_until(began + waited) - paced_before
            stored = maker.sealer.stores
            frame = Frame(
                await sealed(maker.sealer, news, as_is, recode=maker.tuner.step.recode),
                taken,
                gone if stored else nothing,
            )
            reach("frame_sealed")
            if not stored:
                gone()
            now = time.monotonic()
            sealing = now - began - waited
            dry = sealing if self._dry(lane) else 0.0
            spent = Spent(waited - held, sealing, size, frame.left, dry, held, paced)
            self.put(channel, frame, spent)
            before = maker.tuner.step
            if maker.tuner.watched(spent, now):
                if maker.tuner.step != before:
                    maker.sealer.change(maker.tuner.step.compression)
                self._chosen(channel)

    def look_whether_idle(self, now: float) -> None:
        """If nothing goes by BULK any more, the limit that was reported no longer applies: say so."""
        maker = self.makers[Channel.BULK]
        busy = maker.press.busy or bool(self._lanes[Channel.BULK].frames)
        if not busy and maker.tuner.idle(now):
            self._chosen(Channel.BULK)

    @property
    def mirror_is_late(self) -> bool:
        """Whether the mirror has received most of what it has not taken by BULK."""
        return self._at_mirror(self._lanes[Channel.BULK])

    def _dry(self, lane: Lane) -> bool:
        return not lane.frames and not any(wire.unsent for wire in self._wires[Channel.BULK])

    def _at_mirror(self, lane: Lane) -> bool:
        """Whether most of what the mirror has not taken has arrived there: then the link is not the limit."""
        on_way = sum(wire.on_way_bytes for wire in self._wires[Channel.BULK])
        return lane.sliced_bytes - lane.taken_bytes > 2 * on_way

    def put(self, channel: int, frame: Frame, spent: Spent) -> None:
        """Send a finished frame, after those that were put before."""
        urgency = _urgency(channel)
        totals = self.totals[urgency]
        totals.frames += 1
        totals.spent = totals.spent.and_also(spent)
        lane = self._lanes[channel]
        lane.frames.append(frame)
        lane.held_until(time.monotonic())
        self._offer(urgency)

    def taken(self, channel: int, wire_bytes: int) -> bool:
        """Note how much of a channel the mirror has taken since the channel began; False if impossible."""
        lane = self._lanes.get(channel)
        if lane is None or not lane.taken_bytes <= wire_bytes <= lane.sent_bytes:
            return False
        lane.taken_bytes = wire_bytes
        lane.held_until(time.monotonic())
        while lane.untaken and lane.untaken[0][0] <= wire_bytes:
            lane.untaken.popleft()[1]()
            reach("frame_taken")
        self._drop_ended(channel)
        self._offer(_urgency(channel))
        return True

    # -- shared channels ---------------------------------------------------------------------------

    def begin_shared(self, key: bytes) -> int | None:
        """Begin a channel whose frames other mirrors get, too; returns its number, None if none is left."""
        free = (number for number in range(len(Channel), CHANNELS_MAX) if number not in self._lanes)
        number = next(free, None)
        if number is not None:
            self._lanes[number] = Lane(self._windows[Channel.LIVE])
            self._wire.write(protocol.shared(number, key))
        return number

    def end_shared(self, channel: int) -> None:
        """End a shared channel once its frames are sent; no more are put."""
        self._lanes[channel].ending = True
        self._end_where_sent(channel)

    async def has_room(self, channel: int) -> None:
        """Wait until another frame may be put on a shared channel."""
        await self._lanes[channel].has_room()

    def _end_where_sent(self, channel: int) -> None:
        lane = self._lanes[channel]
        if lane.ending and not lane.frames:
            self._wire.write(protocol.ended(channel))
            self._drop_ended(channel)

    def _drop_ended(self, channel: int) -> None:
        lane = self._lanes[channel]
        if lane.ending and not lane.frames and not lane.untaken:
            del self._lanes[channel]

    # -- connections -----------------------------------------------------------------------------

    def add(self, wire: Wire, carries: Channel) -> None:
        """Add a connection: one more for BULK; or, with LIVE, one over which slices of LIVE are sent a second
        time while they are few. Whichever copy arrives first counts, so nothing waits for a lost packet.
        """
        if carries is Channel.LIVE:
            self._again = wire
            return
        behind = self._wires[Channel.BULK]
        if self._wire in behind:
            behind.remove(self._wire)
        behind.append(wire)
        self._offer(Channel.BULK)

    def go_on(self) -> None:
        """A connection takes more again."""
        for urgency in Channel:
            self._offer(urgency)

    def limit(self, bytes_per_second: float | None) -> None:
        """Send no more than this to this mirror; None: no limit."""
        self._pace.change(bytes_per_second)
        self.go_on()

    def close(self) -> None:
        """Send nothing any more."""
        for wires in self._wires.values():
            wires.clear()
        self._again = None
        for lane in self._lanes.values():
            lane.frames.clear()
            lane.room.set()
        for maker in self.makers.values():
            maker.press.close()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waits(self) -> bool:
        """Whether frames are ready that the link, or the mirror, does not take yet."""
        return any(lane.frames for lane in self._lanes.values())

    # -- slices ----------------------------------------------------------------------------------

    def _offer(self, urgency: Channel) -> None:
        self._paced_until(time.monotonic())
        if self._ready(urgency) is not None and self._free(urgency) is not None:
            self._turnstile.wants(self, urgency)

    def _paced_until(self, now: float) -> float:
        """For how many seconds, up to now, BULK could have been sent, and a limit did not let it through."""
        if self._paced_since is not None:
            self._paced_seconds += now - self._paced_since
        limited = self._pace.rate is not None or self._turnstile.pace.rate is not None
        could = self._ready(Channel.BULK) is not None and self._free(Channel.BULK) is not None
        self._paced_since = now if limited and could else None
        return self._paced_seconds

    def _ready(self, urgency: Channel) -> int | None:
        """Of the channels that are as urgent, the one whose frame goes next; None: none may."""
        if urgency is Channel.BULK:
            return Channel.BULK if self._lanes[Channel.BULK].may_send else None
        live = (channel for channel, lane in self._lanes.items() if channel != Channel.BULK and lane.may_send)
        return next(live, None)

    def _free(self, urgency: Channel) -> Wire | None:
        return next((wire for wire in self._wires[urgency] if not wire.full), None)

    def send_slice(self, urgency: Channel, now: float) -> int:
        """Send the next slice of this urgency if one may go now; returns its bytes, and those of a copy."""
        wait = self._pace.wait(now)
        if wait > 0:
            self._come_back(wait)
            return 0
        channel, wire = self._ready(urgency), self._free(urgency)
        if wire is None or channel is None:
            return 0
        lane = self._lanes[channel]
        frame = lane.frames[0]
        if not lane.begun:
            lane.begun = True
            lane.sent_bytes += frame.left
            self.totals[urgency].sent_bytes += frame.left
            lane.untaken.append((lane.sent_bytes, frame.taken))
        left = frame.left
        sliced = slice_of(channel, lane.sliced_bytes, *frame.cut(self._slice_bytes(wire)))
        size = left - frame.left
        wire.write(sliced)
        self._wires[urgency].remove(wire)  # the turn of another
        self._wires[urgency].append(wire)
        reach("slice_sent")
        lane.sliced_bytes += size
        again = self._say_again(sliced) if channel == Channel.LIVE else 0
        self._again_left = min(self._again_left + size * AGAIN_SHARE, AGAIN_BYTES_MAX)
        self.totals[urgency].sent_bytes += again
        self._pace.spent(size + again, now)
        if not frame.left:
            reach("frame_sent")
            frame.gone()
            lane.begun = False
            lane.frames.popleft()
            lane.held_until(now)
            lane.room.set()
            self._end_where_sent(channel)
        self._paced_until(now)
        return size + again

    def _say_again(self, sliced: bytes) -> int:
        if self._again is None or self._again.full or len(sliced) > self._again_left:
            return 0
        self._again.write(sliced)
        self._again_left -= len(sliced)
        return len(sliced)

    def _slice_bytes(self, wire: Wire) -> int:
        rate = min(self._pace.rate or math.inf, self._turnstile.pace.rate or math.inf)
        return int(min(max(rate * SLICE_SECONDS, SLICE_BYTES_MIN), wire.slice_bytes))

    def _come_back(self, wait: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._paced)

    def _paced(self) -> None:
        self._timer = None
        self.go_on()


def _urgency(channel: int) -> Channel:
    return Channel.BULK if channel == Channel.BULK else Channel.LIVE
