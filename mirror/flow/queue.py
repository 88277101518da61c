"""What was fetched and not yet sent: batches and gaps in the order of their offsets, and the epochs in them.

No I/O. Batches hold the buffer in which they came; whoever takes one out takes the
hold over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mirror.kafka.buffers import Buffer
from mirror.model import Batch, Gap


class Queue:
    """The items of one partition, without a hole between them.

    Attributes:
        end: Source offset after the last item, from where to fetch.
        bytes: Of all batches.
        fetched_epoch: The newest leader epoch met, -1 when none is known.
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
        """Hold nothing, and begin at this offset; ``epoch`` is that of the last record before it."""
        self.clear(offset)
        self.fetched_epoch = self._noted_epoch = epoch

    def clear(self, offset: int) -> None:
        """Hold nothing: what comes next begins at this offset again."""
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
        """Source offset of the first item; ``end`` when there is none."""
        return self._items[0][0].base_offset if self._items else self.end

    # -- in and out ------------------------------------------------------------------------------

    def push(
        self, items: Sequence[Batch | Gap], epochs: Sequence[tuple[int, int]], buffer: Buffer | None
    ) -> None:
        """Add what was fetched; it begins at ``end``. Each batch holds the buffer once.

        Args:
            epochs: Leader epochs met, (epoch, first offset), in order; older ones are known already.
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
        """True when the first item is a batch of a leader epoch that is noted."""
        if not self._items:
            return False
        head = self._items[0][0]
        return isinstance(head, Batch) and not (self._epochs and head.next_offset > self._epochs[0][1])

    def first_run(self, target_offset: int) -> tuple[int, int] | None:
        """Where what follows the first batch begins, as (source, target) offset, behind a gap if any.

        None where the first item is no batch.

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
        """Take the first item, a batch, with its hold of the buffer."""
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
        """Take so many offsets off the gap at the head; answers what was taken."""
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
        """Leave out the first so many gaps; answers what was left out."""
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
        """True when the first item reaches into a leader epoch that is not noted durably."""
        return bool(self._epochs and self._items) and self._items[0][0].next_offset > self._epochs[0][1]

    def note_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """These leader epochs are in the durable state now."""
        self._noted_epoch = max(self._noted_epoch, epochs[-1][0])
        self._epochs = [pair for pair in self._epochs if pair[0] > epochs[-1][0]]
