"""One channel at the mirror: reassembles frames from slices, and counts what is missing or not taken.

Pure; moments are arguments, in monotonic seconds. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link.frames import Arrived, Frames, Opener
from mirror.link.ordering import InOrder


class ChannelState:
    """What a mirror has received of one channel.

    Attributes:
        opener: Opens its frames, in their order.
        untaken_bytes: Bytes that arrived in order and are not taken, those of an incomplete frame included.
        taken_bytes: Bytes of frames taken since the channel began.
        whole_at: When bytes last arrived in order; while bytes are missing, since when they are waited for.
        piece_at: When anything last arrived.
        moved: For a shared channel: partitions that come by it, and the numbers they were wanted with.
        ended: Nothing more comes.

    Args:
        claim: See :class:`Frames`.
        window_log_max: See :class:`Opener`.
        repeats: Whether the same bytes may arrive over more than one connection.
    """

    def __init__(
        self,
        key: bytes,
        now: float,
        pool: BufferPool,
        claim: Callable[[int], None],
        window_log_max: int,
        *,
        repeats: bool = False,
    ) -> None:
        self.opener = Opener(key, window_log_max)
        self.in_order = InOrder(repeats=repeats)
        self.frames = Frames(pool, claim=claim)
        self.untaken_bytes = self.taken_bytes = 0
        self.whole_at = self.piece_at = now
        self.moved: dict[Key, int] = {}
        self.ended = False

    @property
    def held_bytes(self) -> int:
        """Bytes held: those not taken, and those that arrived early with what keeping them costs."""
        return self.untaken_bytes + self.in_order.early_bytes

    def received(self, at: int, data: memoryview, now: float) -> Iterator[Arrived]:
        """Take in the bytes of the channel from ``at`` on; yield the frames that are complete now.

        Raises:
            AnswerError: As for :class:`InOrder` and :class:`Frames`.
        """
        self.piece_at = now
        if not self.in_order.incomplete:
            self.whole_at = now
        for piece in self.in_order.received(at, data):
            self.whole_at = now
            self.untaken_bytes += len(piece)
            yield from self.frames.received(piece)
