"""Durable state in a compacted topic of one partition on the target cluster.

A value is a record. The last record of a key counts; one without a value removes the key.

**Reading.** The topic is read from start to end when the mirror begins; after that only from where the last
read ended, as long as the last known batch is still in its place. A log that has lost its end, or that the
cleaner has rewritten there, is read from its start again. So is one that was not read for an hour: keys may
have been removed since, and the records that say so may be gone too (``delete.retention.ms``, a day by
default).

**Other writers.** A writer notices that somebody else has written meanwhile: its batch does not land where
the log ended before. What is in between may be its own batch, sent twice because an answer was lost; that is
checked. Anything else is a :class:`StateTakenOverError`, after which everything must be loaded again.

**Epochs.** A writer that passes its producer id and epoch is guarded by the broker as well. Under a new epoch
it writes once before it reads. From then on the broker refuses what a writer with an older epoch sends, or
has sent and is still in flight: an old chunk of an offset map never replaces a newer one. And that writer can
see there that it has been replaced.

**A lost end.** If the log loses its end all the same, by an unclean election or a power cut, its only writer
still knows what was acknowledged, as long as nobody newer has written. It goes on by what it knows, and
writes what is gone again ahead of its next write. If that takes several batches and the flow's own record is
gone too, as after the topic was deleted, that record comes last: readers then see that the state is
incomplete.

The broker is behind a narrow Protocol. Nothing here is on the hot path.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from checkpoint.batches import NOBODY, Item, Tail, Writer, batch_of, headers_of, is_newer, records_of
from checkpoint.errors import StateTakenOverError, StateUnavailableError
from checkpoint.store import applied, changes_between
from mirror import broker_codes as codes
from mirror.errors import BrokerError
from mirror.failpoints import reach

log = structlog.get_logger(__name__)

FENCE_KEY = "fence"
"""The first write of every epoch removes this key; it never has a value."""
NEWER_EPOCH = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.PRODUCER_FENCED})
NOT_OUR_TURN = NEWER_EPOCH | {codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.DUPLICATE_SEQUENCE_NUMBER}
SEQUENCES = 1 << 31
KNOWN_FOR_SECONDS = 3600.0
"""A read continues where the last one ended if that is not longer ago; else it starts at the log's start."""


def _nobody() -> Writer | None:
    return None


def _untold(_: Writer) -> None:
    return


def _now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the log holds below ``next_offset``; ``tail`` is the last batch that was read."""

    items: Mapping[str, bytes]
    next_offset: int
    tail: Tail | None


class LogPort(Protocol):
    """One partition as a log of raw record batches of format v2, none of them compressed."""

    async def append(self, batch: bytes) -> int:
        """Append a batch; when this returns it is on all in-sync replicas. After a lost answer it may be
        there twice.

        Returns:
            The offset of its first record.
        """

    async def read(self, offset: int) -> bytes:
        """Batches from the one that holds ``offset`` on, as many as fit one answer; b'' at the end."""

    async def start(self) -> int:
        """The first offset."""

    async def end(self) -> int:
        """The offset after the last record that is on all in-sync replicas."""


class TopicStore:
    """A store in a compacted topic.

    Args:
        log: Access to its partition.
        writer: With which producer id and epoch to write, asked before every load and put; None: the broker
            guards nothing.
        begun: Called when the first write of an epoch is there.
        outdated: Called when that write was refused, or was there before, because somebody has written under
            this epoch or a newer one; and when something is to be written after somebody newer has written.

    Attributes:
        fenced: How many writes the broker has refused because of a newer epoch.
        news_at: When a load last found the log to end elsewhere than the one before: since then nobody has
            written (monotonic seconds).
    """

    def __init__(
        self,
        log: LogPort,
        *,
        writer: Callable[[], Writer | None] = _nobody,
        begun: Callable[[Writer], None] = _untold,
        outdated: Callable[[Writer], None] = _untold,
    ) -> None:
        self.fenced = 0
        self.news_at = -math.inf
        self._log = log
        self._writer = writer
        self._begun = begun
        self._outdated = outdated
        self._begun_at: tuple[Writer, int] | None = None
        """The epoch under which we have written, and the offset up to which nobody newer has since."""
        self._fence_at = 0
        """The offset of the first batch of our epoch."""
        self._replaced = False
        """Whether somebody newer has written."""
        self._shrunk = False
        """Whether the log was found to end, or a write of ours to land, before the acknowledged end."""
        self._written: dict[str, bytes | None] = {}
        """Our acknowledged changes since the log was read."""
        self._gone: dict[str, bytes | None] = {}
        """Our acknowledged changes that the log has lost, to be written again."""
        self._written_as = NOBODY
        self._sequence = 0
        self._end: int | None = None
        self._ours: int | None = None
        """The log end as ``_end`` has it, if it was seen under the epoch we write with."""
        self._known = _Known({}, 0, None)
        self._read_at = -math.inf
        self._unsure = False
        self._verify = False
        self._lock = asyncio.Lock()

    async def load(self) -> dict[str, bytes]:
        async with self._lock:
            return await self._load()

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        async with self._lock:
            await self._get_ready()
            if self._gone:
                await self._write(list(self._gone.items()))
                reach("end_written_again")
            await self._write(list(items.items()))

    @property
    def written_at_ms(self) -> int | None:
        """When the last batch that was read was written, in milliseconds since 1970; None if there was none.

        By the broker's clock, or by the writer's if the topic was created by hand.
        """
        tail = self._known.tail
        return None if tail is None else tail.max_timestamp_ms

    @property
    def cut_short(self) -> bool:
        """Whether the log is known to have lost writes of ours that are not written again yet."""
        return self._shrunk or bool(self._gone)

    async def taken_over(self) -> bool:
        """Whether somebody newer has begun to write since our first write under our epoch.

        Raises:
            StateUnavailableError: Nothing was written under our epoch yet, or the log has lost its end since.
            TwinsiteError: The log cannot be read.
        """
        begun = self._begun_at
        if begun is None or begun[0] != self._writer():
            raise StateUnavailableError("nothing was written under our epoch yet")
        writer, at = begun
        end = await self._log.end()
        if end < at:
            self._shrunk = self._shrunk or self._begun_at is begun
            raise StateUnavailableError(f"the state ended at offset {at} and now ends at {end}")
        while at < end:
            headers = headers_of(await self._log.read(at), at)
            if any(is_newer((batch.producer_id, batch.producer_epoch), writer) for batch in headers):
                return True
            at = int(headers[-1].next_offset)
            if self._begun_at is begun:
                begun = self._begun_at = writer, at
        return False

    async def _load(self) -> dict[str, bytes]:
        await self._become(self._writer() or NOBODY)
        began, end = time.monotonic(), await self._log.end()
        had, known = self._ours, self._known
        if had is None and self._has_begun and end <= self._fence_at:
            self._written_as = NOBODY
            raise StateUnavailableError(f"the state ends at offset {end}: our first write to it is lost")
        ends_before = had is not None and end < had
        shorter = self._has_begun and had is not None and (self._shrunk or ends_before)
        if shorter or began - self._read_at > KNOWN_FOR_SECONDS or not await self._still_there(end):
            known = _Known({}, await self._log.start(), None)
        if shorter:
            self._unsure, self._sequence = True, 0
        read, tail = await self._read(known.next_offset, end)
        items = applied(known.items, dict(read))
        if end != self._known.next_offset:
            self.news_at = began
        if self._replaced:
            self._gone = {}
        elif shorter:
            acknowledged = applied(self._known.items, {**self._gone, **self._written})
            self._gone = changes_between(items, acknowledged)
            self._begun_at = self._written_as, end
            if self._gone or ends_before:
                log.warning("state_lost_its_end", ended_at=had, ends_at=end, keys=len(self._gone))
        self._known, self._written = _Known(items, end, tail or known.tail), {}
        self._read_at, self._end, self._ours, self._shrunk = began, end, end, False
        self._verify, self._unsure = self._verify or self._unsure, False
        return applied(items, self._gone)

    @property
    def _has_begun(self) -> bool:
        """Whether our first write under our epoch is done."""
        return self._begun_at is not None and self._begun_at[0] == self._written_as

    async def _still_there(self, end: int) -> bool:
        """True when the log continues what is known of it."""
        tail = self._known.tail
        if tail is None or end < self._known.next_offset:
            return False
        try:
            data = await self._log.read(tail.base_offset)
        except BrokerError as error:
            if error.code == codes.OFFSET_OUT_OF_RANGE:
                return False
            raise
        return tail.begins(data)

    async def _become(self, writer: Writer) -> None:
        """Write once under a new epoch. If a newer one has written, that is refused; reading does no harm."""
        if writer == self._written_as:
            return
        if writer != NOBODY:
            await self._fence(writer)
        self._written_as, self._sequence, self._unsure, self._verify = writer, 1, False, False
        self._replaced, self._shrunk, self._gone, self._ours = False, False, {}, None

    async def _fence(self, writer: Writer) -> None:
        """The first write under an epoch. It is refused, or there before, if the epoch is outdated."""
        end = await self._log.end()
        try:
            base = await self._log.append(batch_of([(FENCE_KEY, None)], writer, 0, timestamp_ms=_now_ms())[0])
        except BrokerError as error:
            self.fenced += error.code in NEWER_EPOCH
            if error.code not in NOT_OUR_TURN:
                raise
            base = -1
        if base < end:
            self._outdated(writer)
            return
        self._begun_at, self._fence_at = (writer, base + 1), base
        reach("state_fenced")
        self._begun(writer)

    async def _get_ready(self) -> None:
        """Find out what we write after: whether the right is still ours, and whether our last write is there.

        The broker compares epochs of one producer id only, and refuses nothing of another id.

        Raises:
            StateTakenOverError: The right was taken since the state was read, by us or by somebody newer.
        """
        anew = (self._writer() or NOBODY) != self._written_as
        if anew and self._end is not None:
            raise StateTakenOverError("the right to write was taken again since the state was read")
        if anew or self._unsure or self._shrunk:
            await self._load()
        if self._replaced and self._written_as != NOBODY:
            self._outdated(self._written_as)
            raise StateTakenOverError("a mirror that took the right after us has written to the state")

    async def _write(self, items: list[Item]) -> None:
        while items:
            sequence = self._sequence if self._written_as != NOBODY else -1
            batch, count = batch_of(items, self._written_as, sequence, timestamp_ms=_now_ms())
            await self._append(batch, count)
            for key, value in items[:count]:
                self._written.pop(key, None)  # what is written last must come last
                if value is not None or key in self._known.items:
                    self._written[key] = value
                self._gone.pop(key, None)
            items = items[count:]
            if items:
                reach("state_written_in_part")

    async def _append(self, batch: bytes, count: int) -> None:
        self._unsure, following = self._written_as != NOBODY, (self._sequence + count) % SEQUENCES
        base = await self._send(batch)
        if self._end is not None and base != self._end:
            await self._check_between(self._end, base, batch)
        if self._verify:
            await self._check_landed(base, count, batch)
        if self._begun_at == (self._written_as, base):
            self._begun_at = self._written_as, base + count
        self._end = self._ours = base + count
        self._sequence = following
        self._unsure = self._verify = False

    async def _send(self, batch: bytes) -> int:
        try:
            return await self._log.append(batch)
        except BrokerError as error:
            self.fenced += error.code in NEWER_EPOCH
            if error.code in NOT_OUR_TURN:
                raise StateTakenOverError(f"a write to the state was refused: {error}") from error
            raise

    async def _check_landed(self, base: int, count: int, batch: bytes) -> None:
        """Check that our batch is where its answer says: the broker may have taken it for the repetition of
        an earlier write that was given up and landed late.

        Raises:
            StateTakenOverError: It is not.
        """
        found, _ = await self._read(base, base + count)
        if found != [item for _, item in records_of(batch)]:
            raise StateTakenOverError(f"offset {base} of the state holds an earlier write of ours")

    async def _check_between(self, expected: int, base: int, batch: bytes) -> None:
        """Check that between the expected offset and ours there is only our own batch, whose answer was lost.

        Raises:
            StateTakenOverError: There is something else, or the batch landed before the expected offset.
        """
        ours = [item for _, item in records_of(batch)]
        self._shrunk = base < expected
        between, _ = await self._read(expected, base)
        if base < expected or any(item not in ours for item in between):
            raise StateTakenOverError(
                f"the state ended at offset {expected} and the next write landed at {base}: "
                f"something else has written to it"
            )

    async def _read(self, start: int, end: int) -> tuple[list[Item], Tail | None]:
        """All items of the offsets [start, end), in order, and the last batch; None if there is none."""
        items: list[Item] = []
        tail: Tail | None = None
        at = start
        while at < end:
            data = await self._log.read(at)
            if not data:
                raise StateUnavailableError(
                    f"the state could be read only up to offset {at}, but ends at {end}"
                )
            items.extend(item for offset, item in records_of(data) if at <= offset < end)
            headers = self._pass(data, at)
            tail = [Tail.of(header) for header in headers if header.base_offset < end][-1]
            at = int(headers[-1].next_offset)
        return items, tail

    def _pass(self, data: bytes, at: int) -> list[Any]:
        """The headers of the whole batches; what they say of our sequence and of newer writers is noted."""
        headers = headers_of(data, at)
        for header in headers:
            writer = header.producer_id, header.producer_epoch
            if self._unsure and writer == self._written_as:
                self._sequence = (header.last_sequence + 1) % SEQUENCES
            since = writer[0] == self._written_as[0] or header.base_offset >= self._fence_at
            self._replaced = self._replaced or (since and is_newer(writer, self._written_as))
        return headers
