"""Which records belong to aborted transactions, going by the markers in the log itself.

A transaction ends with the next marker of its producer. The marker follows the last record, often within what
is read anyway, sometimes after it or in a later file; ``.txnindex`` files are not needed.

Sources: KIP-98 (transactions and their markers).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from mirror.kafka.record_batch import CONTROL, TRANSACTIONAL, BatchHeader, aborts
from spark_jobs.segments.logs import SegmentLog, SegmentsError
from spark_jobs.segments.walk import Found, Walk


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    offset: int
    aborts: bool


def is_control(header: BatchHeader) -> bool:
    return bool(header.attributes & CONTROL)


def is_transactional(header: BatchHeader) -> bool:
    return bool(header.attributes & TRANSACTIONAL)


class Decisions:
    """How transactions end; looks ahead in the log as far as necessary."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._ahead: Iterator[Found] | None = None
        self._markers: defaultdict[int, deque[Marker]] = defaultdict(deque)

    def is_aborted(self, found: Found) -> bool:
        """Whether a batch belongs to an aborted transaction. Batches must come in order.

        Raises:
            SegmentsError: The log ends before the transaction does, or is damaged.
        """
        if not is_transactional(found.header):
            return False
        if self._ahead is None:
            self._ahead = iter(Walk(self._log, found.base_offset))
        markers = self._markers[found.header.producer_id]
        while markers and markers[0].offset < found.base_offset:
            markers.popleft()
        while not markers:
            self._look_ahead(found, self._ahead)
        return markers[0].aborts

    def _look_ahead(self, wanted: Found, ahead: Iterator[Found]) -> None:
        found = next(ahead, None)
        if found is None:
            raise SegmentsError(
                f"{self._log.name}: the transaction at offset {wanted.base_offset} has no end in "
                f"{self._log.folder}: {wanted.path}, position {wanted.position}"
            )
        if found.base_offset >= wanted.base_offset and (marker := marker_of(found)) is not None:
            self._markers[found.header.producer_id].append(marker)


def marker_of(found: Found) -> Marker | None:
    """The marker in a batch, if there is one; the cleaner leaves some batches empty.

    Raises:
        SegmentsError: A control batch with records holds no marker.
    """
    header = found.header
    if not (is_control(header) and is_transactional(header) and header.records):
        return None
    try:
        return Marker(found.base_offset, aborts(found.view))
    except IndexError as error:
        raise SegmentsError(f"{found.path}, position {found.position}: it holds no marker") from error


def stable_end(log: SegmentLog, start: int) -> int:
    """Where the log ends for a ``read_committed`` consumer: at its first open transaction, if there is one.

    Args:
        start: Transactions that began before this offset are taken to have ended.

    Raises:
        SegmentsError: Something in the log is missing or damaged.
    """
    walk = Walk(log, start)
    begun: dict[int, int] = {}
    for found in walk:
        if marker_of(found) is not None:
            begun.pop(found.header.producer_id, None)
        elif is_transactional(found.header) and not is_control(found.header):
            begun.setdefault(found.header.producer_id, found.base_offset)
    return min([walk.log_end, *begun.values()])
