"""Bytes that came over several connections, in their order again.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirror.errors import AnswerError


class InOrder:
    """The slices of one channel. Each says how many bytes of the channel come before it.

    What is early is kept; how much that may be is for the caller to watch.
    """

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, bytes] = {}

    @property
    def incomplete(self) -> bool:
        """Something has come that has to wait for what was sent before it."""
        return bool(self._early)

    def received(self, at: int, data: memoryview) -> Iterator[memoryview]:
        """What follows on what was given out before.

        Raises:
            AnswerError: The same bytes came twice.
        """
        if at < self._next or at in self._early:
            raise AnswerError(f"a slice at byte {at} came where {self._next} was due")
        if at > self._next:
            self._early[at] = bytes(data)
            return
        while True:
            yield data
            self._next += len(data)
            early = self._early.pop(self._next, None)
            if early is None:
                return
            data = memoryview(early)
