"""What was fetched and not yet sent: batches and gaps in offset order, and the leader epochs in them.

No I/O. Each batch holds the buffer in which it came; whoever takes a batch out takes over its hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mirror.kafka.buffers import Buffer
from mirror.model import Batch, Gap


class Queue:
    """The items of one partition, contiguous in source offsets.

    Attributes:
        end: Source offset after the last item, from where to fetch.
        bytes: The size of all batches.
        fetched_epoch: The newest leader epoch fetched so far; -1 if none is known.
    """

    __slots__ = ("_epochs", "_items", "_noted_epoch", "bytes", "end", "fetched_epoch")

    def __init__(self) -> None:
        self.end = 0
        self.bytes = 0
        self.fetched_epoch = -1
        self._items: deque[tuple[Batch | Gap, Buffer | None]] = deque()
        self._epochs: list[tuple[int, int]] = []
        self._noted_epoch = -1

    def __bool__(self) -> bool:
        return bool(self._items)

    def begin(self, offset: int, epoch: int) -> None:
        """Drop everything and begin at ``offset``; ``epoch`` is the leader epoch of the record before it."""
        self.clear(offset)
        self.fetched_epoch = self._noted_epoch = epoch

    def clear(self, offset: int) -> None:
        """Drop everything: what comes next begins at ``offset``. Epochs not noted durably are forgotten."""
        for _, buffer in self._items:
            if buffer is not None:
                buffer.release()
        self._items.clear()
        self._epochs.clear()
        self.fetched_epoch = self._noted_epoch
        self.bytes = 0
        self.end = offset

    @property
    def start(self) -> int:
        """Source offset of the first item; ``end`` if there is none."""
        return self._items[0][0].base_offset if self._items else self.end

    # -- in and out ------------------------------------------------------------------------------

    def push(
        self, items: Sequence[Batch | Gap], epochs: Sequence[tuple[int, int]], buffer: Buffer | None
    ) -> None:
        """Add what was fetched; it begins at ``end``. Each batch holds the buffer once.

        Args:
            epochs: Leader epochs in it, (epoch, first offset), in order; those not newer than
                ``fetched_epoch`` are known already.
        """
        end, size, batches = self.end, 0, 0
        for item in items:
            assert item.base_offset == end, f"{item} pushed at {end}"
            end = item.next_offset
            if isinstance(item, Gap):
                self._items.append((item, None))
            else:
                size += len(item.view)
                batches += 1
                self._items.append((item, buffer))
        self.end = end
        self.bytes += size
        if buffer is not None:
            buffer.hold(batches)
        for epoch, offset in epochs:
            if epoch > self.fetched_epoch and offset < self.end:
                self.fetched_epoch = epoch
                self._epochs.append((epoch, offset))

    @property
    def batch_ready(self) -> bool:
        """True when the first item is a batch whose leader epoch is noted durably."""
        if not self._items:
            return False
        head = self._items[0][0]
        return isinstance(head, Batch) and not (self._epochs and head.next_offset > self._epochs[0][1])

    def first_run(self, target_offset: int) -> tuple[int, int] | None:
        """The (source, target) offset at which records continue after the first batch, past a gap if any.

        None if the first item is not a batch.

        Args:
            target_offset: Where the first batch will be at the target.
        """
        head = self._items[0][0] if self._items else None
        if not isinstance(head, Batch):
            return None
        behind = self._items[1][0] if len(self._items) > 1 else None
        begins = behind.next_offset if isinstance(behind, Gap) else head.next_offset
        return begins, target_offset + head.records

    def pop(self) -> tuple[Batch, Buffer | None]:
        """Take out the first item, which must be a batch, with its hold of the buffer."""
        batch, buffer = self._items.popleft()
        assert isinstance(batch, Batch)
        self.bytes -= len(batch.view)
        return batch, buffer

    # -- gaps ------------------------------------------------------------------------------------

    @property
    def gap(self) -> Gap | None:
        """The first item if it is a gap."""
        head = self._items[0][0] if self._items else None
        return head if isinstance(head, Gap) else None

    def cut_gap(self, offsets: int) -> Gap:
        """Cut ``offsets`` offsets off the gap at the head, and return that part."""
        gap, _ = self._items.popleft()
        assert isinstance(gap, Gap)
        first, rest = gap.cut(offsets)
        if rest.offsets:
            self._items.appendleft((rest, None))
        return first

    def runs(self, target_offset: int) -> list[tuple[int, int]]:
        """The runs of an offset map that begin after each gap, as (source, target) offsets.

        Args:
            target_offset: Where the first batch will be at the target.
        """
        runs: list[tuple[int, int]] = []
        for item, _ in self._items:
            if isinstance(item, Gap):
                runs.append((item.next_offset, target_offset))
            else:
                target_offset += item.records
        return runs

    def drop_gaps(self, count: int) -> list[Gap]:
        """Remove the first ``count`` gaps, and return them."""
        kept: deque[tuple[Batch | Gap, Buffer | None]] = deque()
        dropped: list[Gap] = []
        for item, buffer in self._items:
            if isinstance(item, Gap) and len(dropped) < count:
                dropped.append(item)
            else:
                kept.append((item, buffer))
        self._items = kept
        return dropped

    # -- leader epochs ---------------------------------------------------------------------------

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Leader epochs not yet noted durably: (epoch, first source offset)."""
        return list(self._epochs)

    @property
    def epoch_first(self) -> bool:
        """True when the first item reaches into a leader epoch that is not noted durably yet."""
        return bool(self._epochs and self._items) and self._items[0][0].next_offset > self._epochs[0][1]

    def note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """These leader epochs, at least one, are in the durable state now."""
        self._noted_epoch = max(self._noted_epoch, epochs[-1][0])
        self._epochs = [pair for pair in self._epochs if pair[0] > epochs[-1][0]]
