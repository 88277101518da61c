"""What a mirror has of one channel: slices become frames again, and what is missing or not taken is counted.

Pure; moments are arguments, in monotonic seconds. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link.frames import Arrived, Frames, Opener
from mirror.link.ordering import InOrder


class ChannelState:
    """What has come of one channel.

    Attributes:
        opener: Opens its frames, in their order.
        untaken_bytes: Of frames that came in their order and were not taken.
        taken_bytes: Of those that were, since it began.
        whole_at: Since when something is missing, where something is.
        piece_at: When something came last.
        moved: Of a shared one: with which numbers the partitions that come by it were wanted.
        ended: Nothing more comes.

    Args:
        claim: As :class:`Frames` has it.
        window_log_max: As :class:`Opener` has it.
        repeats: Whether the same bytes may come over more than one connection.
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
        """All that is here of it."""
        return self.untaken_bytes + self.in_order.early_bytes

    def received(self, at: int, data: memoryview, now: float) -> Iterator[Arrived]:
        """Frames that are whole now.

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
