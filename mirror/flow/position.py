"""Where a partition goes on, decided from what both sides say. No I/O, no memory of its own.

The target's log end is the position: what was acknowledged is there, and what is there needs no other
proof. With ``offsets: same`` it is the source offset itself; with ``offsets: mapped`` the last run of the
offset map translates it.

Sources: KIP-98 (sequences), KIP-320 (log truncation), docs/design.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkpoint.errors import UntranslatableError
from checkpoint.model import Insertion
from mirror.flow.facts import Known, SourceLook, TargetLook
from mirror.model import OffsetMode, Reason, State

SEQUENCES = 2**31
"""Sequence numbers run from 0 to 2^31 - 1 and begin again (KIP-98)."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Append from here on.

    Attributes:
        skip_to: Source offsets below this are gone at the source, and their loss is accepted; ``next_offset``
            if none are.
        producer_epoch: The producer epoch to write with.
        nothing_copied: Nothing was copied yet, and the target partition held no records when it was begun.
    """

    next_offset: int
    target_next_offset: int
    sequence: int
    coordinator_epoch: int
    skip_to: int
    producer_epoch: int = 0
    nothing_copied: bool = False


@dataclass(frozen=True, slots=True)
class Register:
    """Nothing is known of the partition yet: note this durably, then look again.

    Attributes:
        shared: The target partition holds records that are not ours.
        instead_of: With ``auto``, why the partition is mapped: the stop that ``same`` would have led to. None
            if it keeps its offsets, or if mapping was asked for.
    """

    mode: OffsetMode
    start_offset: int
    target_start_offset: int
    prepared: bool
    shared: bool = False
    instead_of: Stop | None = None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the target partition start at ``start_offset``, then look again.

    Attributes:
        target_log_start_offset: Where it starts now; everything from there on must be ours.
        producer_epoch: The producer epoch to pad with.
    """

    start_offset: int
    target_log_start_offset: int
    target_log_end_offset: int
    sequence: int
    producer_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Insert:
    """A repair has begun to append this: finish that, or find that it never will stand; then look again."""

    insertion: Insertion


@dataclass(frozen=True, slots=True)
class Stop:
    """Write nothing; ``detail`` says what was seen.

    Attributes:
        target_end: The target's log end, if everything up to it is known to be ours and acknowledged.
    """

    state: State
    reason: Reason
    detail: str
    lost_from: int | None = None
    lost_to: int | None = None
    target_end: int | None = None


@dataclass(frozen=True, slots=True)
class Unreplicated:
    """The end of the target's log is not acknowledged yet: nothing may follow it before it is."""

    detail: str


Decision = Proceed | Register | Prepare | Insert | Unreplicated | Stop


def replaced(copied_to: int, epoch: int, epoch_end: int) -> Stop:
    """The stop for a source that has other records than were copied.

    Args:
        copied_to: Source offset after the last record copied.
        epoch: The leader epoch of that record, or the latest before it that the source knows.
        epoch_end: Where the source says that this epoch ends.
    """
    return Stop(
        State.DIVERGED,
        Reason.SOURCE_TRUNCATED,
        f"copied up to {copied_to}, but the source's leader epoch {epoch} ends at {epoch_end}: "
        f"offsets from {epoch_end} on were replaced after an unclean leader election",
    )


def next_sequence(look: TargetLook, producer_epoch: int) -> int:
    """The sequence of the next record: what the broker remembers counts, not what we do.

    A broker that remembers nothing accepts any sequence. All mirrors of the flow then begin with the same
    one, derived from the log end, so that the first write excludes the others here too. A broker that
    remembers an older epoch requires a new one to begin with 0.

    Args:
        producer_epoch: The epoch that the record will be written with.
    """
    if look.last_sequence is None:
        return look.target_log_end_offset % SEQUENCES
    if look.producer_epoch is not None and look.producer_epoch < producer_epoch:
        return 0
    return (look.last_sequence + 1) % SEQUENCES


def decide(
    known: Known | None,
    source: SourceLook,
    target: TargetLook,
    *,
    producer_id: int,
    producer_epoch: int,
    wanted: str,
    acknowledged_target_offset: int | None,
    continue_after_loss: bool,
    padding_limit: int | None = None,
) -> Decision:
    """What to do with a partition.

    Args:
        known: What the flow's state says of it; None if nothing.
        producer_id, producer_epoch: What the flow writes with.
        wanted: ``same``, ``auto`` or ``mapped``, from the settings; only for a partition not yet known.
        acknowledged_target_offset: The target log end that this process has seen acknowledged; None at first.
        continue_after_loss: Go on without asking when the source has lost what was not copied.
        padding_limit: The most padding records with which an empty target may be made to start where the
            source does; None for no limit.
    """
    ours = producer_epoch if known is None else max(producer_epoch, known.producer_epoch)
    inserting = -1 if known is None or known.insertion is None else known.insertion.producer_epoch
    if target.producer_epoch is not None and target.producer_epoch > max(ours, inserting):
        return Stop(
            State.FENCED,
            Reason.NEWER_EPOCH,
            f"producer epoch {target.producer_epoch} has written to the target, ours is {ours}",
        )
    if known is None and _written_to(target, producer_id):
        return _state_lost(target, producer_id)
    if known is None:
        return _first_time(source, target, wanted, padding_limit)
    if known.topic_id != source.topic_id:
        return Stop(
            State.TOPIC_RECREATED,
            Reason.TOPIC_ID_CHANGED,
            f"the source topic had id {known.topic_id} and now has {source.topic_id}",
        )
    if not known.prepared:
        return _prepare(known, target, producer_id)
    if known.insertion is not None:  # it may be what is not acknowledged
        return _not_acknowledged(target) if target.unreplicated else Insert(known.insertion)
    return _go_on(known, source, target, producer_id, acknowledged_target_offset, continue_after_loss)


def _first_time(source: SourceLook, target: TargetLook, wanted: str, padding_limit: int | None) -> Decision:
    start, end = source.log_start_offset, target.target_log_end_offset
    empty = target.target_log_start_offset == end
    if not empty and target.unreplicated:
        return _not_acknowledged(target)
    mapped = Register(OffsetMode.MAPPED, start, end, prepared=True, shared=not empty)
    if wanted == OffsetMode.MAPPED:
        return mapped
    fits = empty and end <= start
    if fits and (padding_limit is None or start - end <= padding_limit):
        return Register(OffsetMode.SAME, start, start, prepared=end == start)
    why_not = _too_much_padding(start, end, padding_limit) if fits else _not_empty(start, target)
    return replace(mapped, instead_of=why_not) if wanted == "auto" else why_not


def _too_much_padding(start: int, end: int, limit: int | None) -> Stop:
    return Stop(
        State.BLOCKED,
        Reason.GAP_TOO_LARGE,
        f"the source starts at {start}: the target needs {start - end} padding records, "
        f"above the limit of {limit} (offsets.padding_limit)",
    )


def _not_empty(start: int, target: TargetLook) -> Stop:
    first, end = target.target_log_start_offset, target.target_log_end_offset
    holds = (
        f"is empty and ends at {end}"
        if first == end
        else f"holds offsets {first} to {end} that this flow did not write"
    )
    return Stop(
        State.BLOCKED, Reason.TARGET_NOT_EMPTY, f"the target partition {holds}; the source starts at {start}"
    )


def _written_to(target: TargetLook, producer_id: int) -> bool:
    """Whether this flow has written to the partition; False while the end of its log is not acknowledged."""
    empty = target.target_log_start_offset == target.target_log_end_offset
    if empty or target.unreplicated:
        return False
    return target.last_producer_id == producer_id or target.producer_epoch is not None


def _state_lost(target: TargetLook, producer_id: int) -> Stop:
    return Stop(
        State.DIVERGED,
        Reason.STATE_LOST,
        f"the target partition holds offsets {target.target_log_start_offset} to "
        f"{target.target_log_end_offset}, this flow has written there as producer id {producer_id}, and its "
        f"state has no record of it",
    )


def _not_acknowledged(target: TargetLook) -> Unreplicated:
    return Unreplicated(
        f"{target.unreplicated} offsets before target offset {target.target_log_end_offset} are not on all "
        f"in-sync replicas yet"
    )


def _prepare(known: Known, target: TargetLook, producer_id: int) -> Decision:
    start, end = target.target_log_start_offset, target.target_log_end_offset
    aim = f"the target partition is to start at {known.start_offset}"
    if target.last_producer_id not in {None, producer_id}:
        return Stop(
            State.BLOCKED,
            Reason.FOREIGN_WRITE,
            f"{aim}; the last batch before target offset {end} was written by producer id "
            f"{target.last_producer_id}, this flow writes as {producer_id}",
        )
    if end > known.start_offset:
        return Stop(
            State.BLOCKED, Reason.FOREIGN_WRITE, f"{aim}, but ends at {end}: something else has written there"
        )
    epoch = known.producer_epoch
    return Prepare(known.start_offset, start, end, next_sequence(target, epoch), epoch)


def _go_on(
    known: Known,
    source: SourceLook,
    target: TargetLook,
    producer_id: int,
    acknowledged: int | None,
    continue_after_loss: bool,
) -> Decision:
    end = target.target_log_end_offset
    cut_short = _cut_short(known, end, acknowledged)
    if cut_short is not None:
        return cut_short
    copied_end = known.insertions.copied_end(end)
    begun = copied_end > known.target_start_offset
    if begun and target.last_producer_id not in {None, producer_id}:
        return Stop(
            State.DIVERGED,
            Reason.FOREIGN_WRITE,
            f"the last batch before target offset {copied_end} was written by producer id "
            f"{target.last_producer_id}, this flow writes as {producer_id}",
        )
    try:
        position = known.to_source(end)
    except UntranslatableError as error:
        return Stop(State.DIVERGED, Reason.TARGET_TRUNCATED, f"the target ends at {end}: {error}")
    if begun and not _reaches(known, copied_end - 1):
        return Stop(
            State.DIVERGED,
            Reason.TARGET_TRUNCATED,
            f"the target ends at {end}, where its offset map begins: the map no longer has the source "
            f"offset of the last record there",
        )
    if position > source.high_watermark:
        return _ahead(known, source, position)
    lost_to = source.log_start_offset
    if position < lost_to and not continue_after_loss and not known.may_lose(position, lost_to):
        return Stop(
            State.DATA_LOSS,
            Reason.LOG_START_MOVED,
            f"{lost_to - position} offsets, {position} to {lost_to}, were removed at the source "
            f"before they were copied",
            lost_from=position,
            lost_to=lost_to,
            target_end=None if target.unreplicated else end,
        )
    if target.unreplicated:
        return _not_acknowledged(target)
    return Proceed(
        next_offset=position,
        target_next_offset=end,
        sequence=next_sequence(target, known.producer_epoch),
        producer_epoch=known.producer_epoch,
        coordinator_epoch=target.coordinator_epoch,
        skip_to=max(position, lost_to),
        nothing_copied=position <= known.start_offset and not known.shared,
    )


def _cut_short(known: Known, end: int, acknowledged: int | None) -> Stop | None:
    """Why a target log that ends there must have lost records; None if nothing says so."""
    if acknowledged is not None and end < acknowledged:
        return Stop(
            State.DIVERGED,
            Reason.TARGET_TRUNCATED,
            f"the target had acknowledged up to {acknowledged} and now ends at {end}",
        )
    if end < known.target_start_offset:
        return Stop(
            State.DIVERGED,
            Reason.TARGET_TRUNCATED,
            f"the copy begins at target offset {known.target_start_offset}, and the target ends at {end}",
        )
    if end < known.insertions.end:
        return Stop(
            State.DIVERGED,
            Reason.TARGET_TRUNCATED,
            f"target offset {known.insertions.end - 1} was written by a repair, and the target ends at {end}",
        )
    return None


def _reaches(known: Known, target_offset: int) -> bool:
    """Whether the record at a target offset can be translated to a source offset."""
    try:
        known.to_source(target_offset)
    except UntranslatableError:
        return False
    return True


def _ahead(known: Known, source: SourceLook, position: int) -> Stop:
    """The stop for a copy that is ahead of the source.

    Under the leader epoch in which the last record was copied the source cannot have lost anything: then the
    target has too much.
    """
    seen = f"copied up to {position}, but the source ends at {source.high_watermark}"
    epoch = known.epoch_before(position)
    if epoch < 0 or epoch != source.leader_epoch:
        return Stop(State.DIVERGED, Reason.SOURCE_TRUNCATED, seen)
    return Stop(
        State.DIVERGED,
        Reason.OFFSETS_DIFFER,
        f"{seen}, under leader epoch {epoch}, as when that was copied: records at the target are duplicated, "
        f"or not of this flow",
    )
