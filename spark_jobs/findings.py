"""How two sites can differ, and where: the vocabulary of the result.

Offsets are those of each site's own log. A *place* is the target offset at which a record stands, or, for
a record of the source, at which it should stand: the same number where offsets are the same, else what the
offset map says. So both sites are compared in one space, and a shift stays the same over the source's gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a record differs."""

    MISSING = "missing"
    """The source has it, the target does not."""
    EXTRA = "extra"
    """The target has it, the source does not."""
    CHANGED = "changed"
    """Both have it; :attr:`Difference.parts` says what of it is not the same."""
    DUPLICATED = "duplicated"
    """The target has it more often than the source."""
    REORDERED = "reordered"
    """Both have it, in another order."""
    SHIFTED = "offset_shifted"
    """Both have it, in the same order, but not at the target offset that it should have."""
    STALE = "stale"
    """Compacted: the key's latest value at the target is an older one of the source."""
    RESURRECTED = "resurrected"
    """Compacted: deleted at the source, with a value at the target."""
    NOT_YET_DELETED = "not_yet_deleted"
    """Compacted: its latest record at the source is a tombstone that the target does not have."""


class Part(StrEnum):
    """The parts of a record that can differ."""

    TIMESTAMP = "timestamp"
    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"
    HEADER_ORDER = "header_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One record that differs, or a row of records that are shifted by the same distance.

    Attributes:
        source_offset: Of the record, or the first of a row; None where the source has none.
        target_offset: The same at the target.
        parts: For a changed record, what is not the same.
        records: How many it covers: more than one only for a shifted row.
        shift: By how many offsets the row is too high at the target; negative: too low.
        original: For a duplicated record, the source offset of one that it is a copy of.
    """

    kind: Kind
    source_offset: int | None = None
    target_offset: int | None = None
    parts: tuple[Part, ...] = ()
    records: int = 1
    shift: int = 0
    original: int | None = None

    @property
    def named_source_offset(self) -> int | None:
        """Where to look at the source: its own offset, or that of the record it is a copy of."""
        return self.original if self.source_offset is None else self.source_offset
