"""What a fetched record set means for the target: batches to append, and gaps between them.

Pure. A v2 batch without gaps passes as it is; markers of transactions, aborted
batches, empty batches and what compaction removed become gaps; everything else
is re-encoded (:mod:`mirror.flow.encode`). The items cover the offsets read without
a hole, so that no record can get lost between them unseen.

Sources: KIP-98 (aborted transactions as consumers see them), docs/design.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from mirror.errors import BatchError, CorruptBatchError, UnreadableBatchError
from mirror.flow.encode import reencode
from mirror.flow.legacy import sets
from mirror.kafka.record_batch import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAGIC_V2,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    aborts,
    crc_matches,
    walk,
)
from mirror.model import Batch, Gap

_NOT_PLAIN = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL


@dataclass(slots=True)
class Intake:
    """What came, in the order of its offsets.

    Attributes:
        items: Batches and gaps that cover ``[fetch_offset, next_offset)`` without a hole.
        leader_epochs: Where each leader epoch begins, (epoch, first offset), as far as seen here.
        reencoded: Batches that went the slow path.
        error: Why the batch at ``next_offset`` cannot be taken; what came before it is in ``items``.
    """

    next_offset: int
    items: list[Batch | Gap] = field(default_factory=list)
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    reencoded: int = 0
    error: BatchError | None = None

    def skip_to(self, offset: int, *, aborted: int = 0, markers: int = 0) -> None:
        """Nothing for a consumer up to here; neighbouring gaps become one.

        Args:
            aborted: How many of these offsets are those of an aborted batch.
            markers: Likewise of transaction markers.
        """
        if offset <= self.next_offset:
            return
        start = self.next_offset
        if self.items and isinstance(self.items[-1], Gap):
            before = self.items.pop()
            assert isinstance(before, Gap)
            start = before.base_offset
            aborted, markers = aborted + before.aborted, markers + before.markers
        self.items.append(Gap(start, offset, aborted=aborted, markers=markers))
        self.next_offset = offset

    def add(self, batch: Batch) -> None:
        if batch.base_offset > self.next_offset:
            self.skip_to(batch.base_offset)
        self.items.append(batch)
        self.next_offset = batch.next_offset


def take(
    records: memoryview,
    *,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]],
    batch_bytes_max: int,
) -> Intake:
    """Sort out what a Fetch answer brought for one partition.

    Args:
        records: Whole batches and perhaps a torn last one, writable.
        fetch_offset: What was asked for; a batch may begin before it.
        aborted: (producer id, first offset) of aborted transactions, as the answer lists them.
        batch_bytes_max: Larger batches are split.
    """
    intake, rest = take_plain(records, fetch_offset=fetch_offset, batch_bytes_max=batch_bytes_max)
    take_rest(intake, rest, fetch_offset=fetch_offset, aborted=aborted, batch_bytes_max=batch_bytes_max)
    return intake


def take_plain(records: memoryview, *, fetch_offset: int, batch_bytes_max: int) -> tuple[Intake, memoryview]:
    """The batches at the beginning that pass as they are; and the rest, which wants a closer look. A torn
    batch alone wants none.
    """
    intake = Intake(fetch_offset)
    rest = records[_take_plain(intake, records, batch_bytes_max) :]
    return intake, rest if next(walk(rest), None) is not None else rest[:0]


def take_rest(
    intake: Intake,
    records: memoryview,
    *,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]],
    batch_bytes_max: int,
) -> None:
    """Take what :func:`take_plain` has left, too. That may take long: batches are written again."""
    taking = _Taking(intake, _Aborted(aborted), fetch_offset, batch_bytes_max)
    batches = walk(records)
    # old formats stand at the beginning of a log, if anywhere
    if len(records) > MAGIC_AT and records[MAGIC_AT] < MAGIC_V2:
        batches = sets(batches, records)
    try:
        for header, view in batches:
            if header.magic == MAGIC_V2:
                taking.take_batch(header, view)
            else:
                taking.take_old(header, view)
    except BatchError as error:
        intake.error = error


def _take_plain(intake: Intake, records: memoryview, batch_bytes_max: int) -> int:
    """Take the batches at the beginning that pass as they are, without a gap between them.

    Nearly all batches are like that, so nothing is done here that they do not need. One that is not, for
    whatever reason, is left to those who look closer.

    Returns:
        Where in ``records`` the first batch is that needs a closer look.
    """
    at, end, next_offset = 0, len(records), intake.next_offset
    items, epochs = intake.items, intake.leader_epochs
    unpack, new = HEADER.unpack_from, tuple.__new__
    while end - at >= HEADER_BYTES:
        base, length, epoch, magic, crc, attributes, delta, _, newest_ms, _, _, _, count = unpack(records, at)
        after = at + PREFIX_BYTES + length
        if (
            magic != MAGIC_V2
            or base != next_offset
            or count != delta + 1
            or count < 1
            or attributes & _NOT_PLAIN
            or not HEADER_BYTES <= after - at <= batch_bytes_max
            or after > end
            or crc32c(records[at + ATTRIBUTES_AT : after]) != crc
        ):
            break
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, base))
        next_offset += count
        items.append(new(Batch, (base, next_offset, epoch, newest_ms, records[at:after])))
        at = after
    intake.next_offset = next_offset
    return at


@dataclass(frozen=True, slots=True)
class _Taking:
    """One answer's records on their way into the intake."""

    intake: Intake
    transactions: _Aborted
    fetch_offset: int
    batch_bytes_max: int

    def take_old(self, header: BatchHeader, view: memoryview) -> None:
        """Plain messages in a row, one by one if one of them cannot be taken; or a compressed set."""
        try:
            self._reencode(header, view)
        except BatchError:
            if header.magic not in (0, 1):
                raise
            for one, message in walk(view):
                self._reencode(one, message)

    def take_batch(self, header: BatchHeader, view: memoryview) -> None:
        if not crc_matches(header, view):
            raise CorruptBatchError(
                header.base_offset, f"its CRC-32C is not {header.crc:08x} as its header says"
            )
        if header.last_offset_delta < 0 or header.records < 0:
            raise CorruptBatchError(header.base_offset, "its header counts less than nothing")
        intake, next_offset, attributes = self.intake, header.next_offset, header.attributes
        epochs = intake.leader_epochs
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs.append((header.leader_epoch, header.base_offset))
        dropped = attributes & (TRANSACTIONAL | CONTROL) and self.transactions.drop(header, view)
        if next_offset <= self.fetch_offset:
            return
        if dropped:
            self._drop(header)
        elif self._as_it_is(header, view):
            intake.add(
                Batch(header.base_offset, next_offset, header.leader_epoch, header.max_timestamp, view)
            )
        else:
            if header.records:
                self._reencode(header, view)
            intake.skip_to(next_offset)

    def _drop(self, header: BatchHeader) -> None:
        offsets = header.next_offset - max(header.base_offset, self.intake.next_offset)
        if header.attributes & CONTROL:
            self.intake.skip_to(header.next_offset, markers=offsets)
        else:
            self.intake.skip_to(header.next_offset, aborted=offsets)

    def _as_it_is(self, header: BatchHeader, view: memoryview) -> bool:
        """True when the broker takes the batch with another header and gives its records the same offsets."""
        return (
            header.records == header.last_offset_delta + 1
            and not header.attributes & LOG_APPEND_TIME
            and header.base_offset >= self.intake.next_offset
            and len(view) <= self.batch_bytes_max
        )

    def _reencode(self, header: BatchHeader, view: memoryview) -> None:
        if header.magic < 0:
            raise UnreadableBatchError(header.base_offset, "its header is of no message format known")
        start = max(self.fetch_offset, self.intake.next_offset)
        for batch in reencode(header, view, start_offset=start, batch_bytes_max=self.batch_bytes_max):
            self.intake.add(batch)
        self.intake.reencoded += 1


class _Aborted:
    """Which transactional batches belong to aborted transactions, going by the offsets (KIP-98)."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda entry: entry[1])) if aborted else deque()
        self._active: set[int] = set()

    def drop(self, header: BatchHeader, view: memoryview) -> bool:
        """True for markers and for batches of an aborted transaction."""
        while self._to_come and self._to_come[0][1] < header.next_offset:
            self._active.add(self._to_come.popleft()[0])
        if header.attributes & CONTROL:
            if header.records and _aborts(header, view):
                self._active.discard(header.producer_id)
            return True
        return header.producer_id in self._active


def _aborts(header: BatchHeader, view: memoryview) -> bool:
    try:
        return aborts(view)
    except IndexError as error:
        raise CorruptBatchError(header.base_offset, "it should hold a marker, and does not") from error
