"""Puts bytes that arrived over several connections back in order.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mirror.errors import AnswerError

PIECE_COSTS_BYTES = 160
"""Memory that a kept piece takes besides its bytes."""


class InOrder:
    """The slices of one channel. Each says how many bytes of the channel come before it.

    Pieces that arrive early are kept; the caller bounds how much that may be.

    Attributes:
        early_bytes: Bytes kept, and ``PIECE_COSTS_BYTES`` for each piece.

    Args:
        repeats: Whether the same bytes may arrive again, cut elsewhere: they are skipped then.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self.early_bytes = 0
        self._repeats = repeats
        self._next = 0
        self._early: list[tuple[int, bytes]] = []
        """A heap: the earliest piece of the channel is first."""

    @property
    def incomplete(self) -> bool:
        """Whether pieces wait for bytes that were sent before them."""
        return bool(self._early)

    def received(self, at: int, data: memoryview) -> Iterator[memoryview]:
        """Take in a piece; yield what continues the bytes yielded before.

        Raises:
            AnswerError: The same bytes arrived twice, and must not.
        """
        if at > self._next:
            heapq.heappush(self._early, (at, bytes(data)))
            self.early_bytes += len(data) + PIECE_COSTS_BYTES
            return
        yield from self._given_out(at, data)
        while self._early and self._early[0][0] <= self._next:
            at, early = heapq.heappop(self._early)
            self.early_bytes -= len(early) + PIECE_COSTS_BYTES
            yield from self._given_out(at, memoryview(early))

    def _given_out(self, at: int, data: memoryview) -> Iterator[memoryview]:
        """The new bytes of a piece that begins at the next byte or before it."""
        if at < self._next and not self._repeats:
            raise AnswerError(f"received a slice at byte {at}, expected {self._next}")
        new = data[self._next - at :]
        if new:
            self._next += len(new)
            yield new
