"""Bytes that came over several connections, in their order again.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mirror.errors import AnswerError

PIECE_COSTS_BYTES = 160
"""So much memory a piece takes that is kept, besides what is in it."""


class InOrder:
    """The slices of one channel. Each says how many bytes of the channel come before it.

    What is early is kept; how much that may be is for the caller to watch.

    Attributes:
        early_bytes: So much of it, and of what it costs to keep it in pieces.

    Args:
        repeats: Whether the same bytes may come again, cut elsewhere: they are passed over then.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self.early_bytes = 0
        self._repeats = repeats
        self._next = 0
        self._early: list[tuple[int, bytes]] = []
        """A heap: the one that comes before all others is the first."""

    @property
    def incomplete(self) -> bool:
        """Something has come that has to wait for what was sent before it."""
        return bool(self._early)

    def received(self, at: int, data: memoryview) -> Iterator[memoryview]:
        """What follows on what was given out before.

        Raises:
            AnswerError: The same bytes came twice, and may not.
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
        """What is new of bytes that begin at the next one, or before it."""
        if at < self._next and not self._repeats:
            raise AnswerError(f"a slice at byte {at} came where {self._next} was due")
        new = data[self._next - at :]
        if new:
            self._next += len(new)
            yield new
