"""What a fetched record set means for the target: batches to append, and gaps between them.

Pure. A v2 batch without gaps passes as it is. Transaction markers, aborted batches,
empty batches and what compaction removed become gaps. Everything else is re-encoded
(:mod:`mirror.flow.encode`). The items cover the offsets read without a hole, so no
record can get lost between them undetected.

Sources: KIP-98 (aborted transactions as consumers see them), docs/design.md.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from mirror.errors import BatchError, CorruptBatchError, MisplacedBatchError, UnreadableBatchError
from mirror.flow.encode import reencode
from mirror.flow.legacy import is_packed, old_crc_matches, sets
from mirror.flow.misplaced import Asked, check_place, check_torn
from mirror.kafka.codecs import CodecError, inflate
from mirror.kafka.record_batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    CONTROL,
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
_OF_PLAIN = struct.Struct(">qiibIhi8xq14xi")
"""The fields that decide whether a batch passes as it is: all but the base timestamp and the producer."""


@dataclass(slots=True)
class Intake:
    """What a Fetch answer brought, in offset order.

    Attributes:
        items: Batches and gaps that cover ``[fetch_offset, next_offset)`` without a hole.
        leader_epochs: Where each leader epoch seen here begins, (epoch, first offset): at the end of the
            batch before. What compaction removed in between may have been of either epoch, or of one between
            them, and the source says of the older one that it ends before that.
        reencoded: Batches that went the slow path.
        error: Why the batch at ``next_offset`` cannot be taken; what came before it is in ``items``.
    """

    next_offset: int
    items: list[Batch | Gap] = field(default_factory=list)
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    reencoded: int = 0
    error: BatchError | None = None

    def skip_to(self, offset: int, *, aborted: int = 0, markers: int = 0) -> None:
        """Add a gap up to ``offset``; adjacent gaps become one.

        Args:
            aborted: How many of its offsets belong to aborted batches.
            markers: How many belong to transaction markers.
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


def newer_before(records: memoryview, *, asked_from: int, fetch_offset: int, epoch: int) -> int | None:
    """Where, before ``fetch_offset``, a leader epoch begins that is newer than ``epoch``; None if nowhere.

    What was copied is not what the source has, from the offset returned on. A batch that begins before
    ``asked_from`` was not asked for, and proves nothing.

    Args:
        epoch: Leader epoch of the last record before ``fetch_offset``; -1 where it is not known.
    """
    for header, _ in walk(records):
        if header.base_offset >= fetch_offset:
            return None
        if header.base_offset >= asked_from and 0 <= epoch < header.leader_epoch:
            return header.base_offset
    return None


def take(
    records: memoryview,
    *,
    fetch_offset: int,
    aborted: Sequence[tuple[int, int]],
    batch_bytes_max: int,
    asked: Asked | None = None,
) -> Intake:
    """Sort out what a Fetch answer brought for one partition.

    Args:
        records: Whole batches and perhaps a torn last one, writable.
        fetch_offset: From where records are wanted; a batch may begin before it.
        aborted: (producer id, first offset) of aborted transactions, as the answer lists them.
        batch_bytes_max: Larger batches are split.
        asked: What was asked, where that is more than the offset.
    """
    asked = asked or Asked(fetch_offset)
    intake, rest = take_plain(records, fetch_offset=fetch_offset, batch_bytes_max=batch_bytes_max)
    take_rest(intake, rest, asked=asked, aborted=aborted, batch_bytes_max=batch_bytes_max)
    return intake


def take_plain(records: memoryview, *, fetch_offset: int, batch_bytes_max: int) -> tuple[Intake, memoryview]:
    """The batches at the beginning that pass as they are, and the rest, which needs a closer look. A torn
    batch alone needs none.
    """
    intake = Intake(fetch_offset)
    rest = records[_take_plain(intake, records, batch_bytes_max) :]
    if not len(rest):
        return intake, rest
    if next(walk(rest), None) is not None:
        return intake, rest
    if intake.items:
        try:
            check_torn(rest, intake.next_offset)
        except MisplacedBatchError as error:
            intake.error = error
    return intake, rest[:0]


def is_little(records: memoryview, *, next_offset: int, batch_bytes_max: int, bytes_max: int) -> bool:
    """Whether a closer look handles at most ``bytes_max``, including what is inflated for it: a few kilobytes
    may become megabytes.

    Args:
        next_offset: From where records are wanted.
    """
    left = bytes_max - len(records)
    if left < 0:
        return False
    for header, view in walk(records):
        if header.magic != MAGIC_V2:
            if is_packed(header, view):
                return False
        elif header.attributes & CODEC_BITS and not _as_it_is(header, view, next_offset, batch_bytes_max):
            try:
                left -= len(inflate(header.attributes & CODEC_BITS, view[HEADER_BYTES:], left))
            except CodecError:
                return False
    return True


def take_rest(
    intake: Intake,
    records: memoryview,
    *,
    asked: Asked,
    aborted: Sequence[tuple[int, int]],
    batch_bytes_max: int,
) -> None:
    """Take what :func:`take_plain` has left, too; what cannot be taken becomes ``intake.error``.

    It may take long: batches are re-encoded.
    """
    taking = _Taking(intake, _Aborted(aborted), asked, batch_bytes_max)
    batches = walk(records)
    # old formats stand at the beginning of a log, if anywhere
    if len(records) > MAGIC_AT and records[MAGIC_AT] < MAGIC_V2:
        batches = sets(batches, records)
    at = 0
    try:
        for header, view in batches:
            if header.magic == MAGIC_V2:
                taking.take_batch(header, view)
            else:
                taking.take_old(header, view)
            at += len(view)
        if at:
            check_torn(records[at:], taking.reached)
    except MisplacedBatchError as error:
        intake.error = taking.taken_back(error)
    except BatchError as error:
        intake.error = error


def _take_plain(intake: Intake, records: memoryview, batch_bytes_max: int) -> int:
    """Take the batches at the beginning that pass as they are, without a gap between them.

    Nearly all batches are like that, so nothing is done here that they do not need. Any other, for whatever
    reason, is left to the closer look.

    Returns:
        Where in ``records`` the first batch is that needs a closer look.
    """
    at, end, next_offset = 0, len(records), intake.next_offset
    length_min, length_max = HEADER_BYTES - PREFIX_BYTES, batch_bytes_max - PREFIX_BYTES
    items, epochs = intake.items, intake.leader_epochs
    unpack, new = _OF_PLAIN.unpack_from, tuple.__new__
    while end - at >= HEADER_BYTES:
        base, length, epoch, magic, crc, attributes, delta, newest_ms, count = unpack(records, at)
        after = at + PREFIX_BYTES + length
        if (
            magic != MAGIC_V2
            or base != next_offset
            or count != delta + 1
            or count < 1
            or attributes & _NOT_PLAIN
            or length < length_min
            or length > length_max
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


_Sure = tuple[int, Batch | Gap | None, int, int, int]
"""An intake as it was before a batch that does not begin where it was expected, kept until the next batch
confirms that one: the number of items, the last of them, ``next_offset``, the number of epochs,
``reencoded``.
"""


class _Taking:
    """Moves one answer's records into the intake.

    Attributes:
        reached: Where the previous batch ends; before the first one, where the answer was asked from.
    """

    def __init__(self, intake: Intake, transactions: _Aborted, asked: Asked, batch_bytes_max: int) -> None:
        self.intake = intake
        self.reached, self._batch_end = asked.offset, asked.batch_end
        if intake.items:
            self.reached = self._batch_end = intake.next_offset
        self._transactions = transactions
        self._end = asked.end
        self._batch_bytes_max = batch_bytes_max
        self._wanted_from = intake.next_offset
        self._sure: _Sure | None = None

    def taken_back(self, error: MisplacedBatchError) -> MisplacedBatchError:
        """Undo the previous batch if it left a gap, or reached in from before what was asked for: either of
        the two may be in the wrong place.

        Returns:
            The same error, at the offset from which nothing is certain.
        """
        intake = self.intake
        if self._sure is not None:
            items, last, intake.next_offset, epochs, intake.reencoded = self._sure
            del intake.items[items:], intake.leader_epochs[epochs:]
            if last is not None:
                intake.items[-1] = last
            words = f"it does not begin there, and the next batch does not follow it: {error.words}"
            return MisplacedBatchError(intake.next_offset, words)
        return MisplacedBatchError(intake.next_offset, error.words)

    def _follow(self, header: BatchHeader, next_offset: int) -> None:
        """Go on to a batch whose header can be trusted, except for where it belongs."""
        reached = self.reached
        check_place(header, next_offset, reached, batch_end=self._batch_end, end=self._end)
        self._sure = None
        if header.base_offset != reached and next_offset > self._wanted_from:
            intake = self.intake
            items, epochs = intake.items, intake.leader_epochs
            last = items[-1] if items else None
            self._sure = len(items), last, intake.next_offset, len(epochs), intake.reencoded
        self.reached = self._batch_end = next_offset

    def take_old(self, header: BatchHeader, view: memoryview) -> None:
        """Plain messages in a row, one by one if one of them cannot be taken; or a compressed set."""
        try:
            self._take_set(header, view)
        except BatchError:
            if header.magic not in (0, 1):
                raise
            for one, message in walk(view):
                self._take_set(one, message)

    def _take_set(self, header: BatchHeader, view: memoryview) -> None:
        if header.magic < 0:
            raise UnreadableBatchError(header.base_offset, "its header has an unknown message format")
        before = self.reached, self._batch_end, self._sure
        try:
            lowest = self.reached if self._batch_end == self.reached else 0
            self._follow(header, header.next_offset)
            if self._reencode(header, view, lowest) == header.next_offset - before[0]:
                self._sure = None
        except BatchError:
            self.reached, self._batch_end, self._sure = before
            raise

    def take_batch(self, header: BatchHeader, view: memoryview) -> None:
        check_crc(header, view)
        if header.last_offset_delta < 0 or header.records < 0:
            raise CorruptBatchError(header.base_offset, "its header has a negative count")
        intake, next_offset, attributes = self.intake, header.next_offset, header.attributes
        self._follow(header, next_offset)
        epochs = intake.leader_epochs
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs.append((header.leader_epoch, min(header.base_offset, intake.next_offset)))
        dropped = attributes & (TRANSACTIONAL | CONTROL) and self._transactions.drop(header, view)
        if next_offset <= self._wanted_from:
            return
        if dropped:
            self._drop(header)
        elif _as_it_is(header, view, intake.next_offset, self._batch_bytes_max):
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

    def _reencode(self, header: BatchHeader, view: memoryview, lowest_offset: int = 0) -> int:
        """Re-encode a batch into the intake; returns how many records were taken."""
        batches = reencode(
            header,
            view,
            start_offset=self.intake.next_offset,
            lowest_offset=lowest_offset,
            batch_bytes_max=self._batch_bytes_max,
        )
        for batch in batches:
            self.intake.add(batch)
        self.intake.reencoded += 1
        return sum(batch.records for batch in batches)


def check_crc(header: BatchHeader, view: memoryview) -> None:
    """
    Raises:
        CorruptBatchError: A batch does not hold what was written.
        UnreadableBatchError: Its format is unknown.
    """
    if header.magic == MAGIC_V2:
        if not crc_matches(header, view):
            stated = f"{header.crc:08x}"
            raise CorruptBatchError(header.base_offset, f"its CRC-32C is not the {stated} in its header")
    elif header.magic < 0:
        raise UnreadableBatchError(header.base_offset, "its header has an unknown message format")
    elif not old_crc_matches(view):
        raise CorruptBatchError(
            header.base_offset, f"its header has message format v{header.magic}, whose CRC-32 does not match"
        )


def _as_it_is(header: BatchHeader, view: memoryview, next_offset: int, batch_bytes_max: int) -> bool:
    """True when the broker accepts the batch with another header and gives its records the same offsets."""
    return (
        header.records == header.last_offset_delta + 1
        and not header.attributes & LOG_APPEND_TIME
        and header.base_offset >= next_offset
        and len(view) <= batch_bytes_max
    )


class _Aborted:
    """Which transactional batches belong to aborted transactions, by their offsets (KIP-98)."""

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
        raise CorruptBatchError(header.base_offset, "it should hold a marker but does not") from error
