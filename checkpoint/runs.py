"""Many runs in little memory: the newest as two columns of 64-bit integers, older ones packed.

A transaction leaves a gap at its marker, so a map may have as many runs as there were transactions. Only its
end, where the copy goes on, is in constant use. Packed, a run takes two or three bytes instead of sixteen.

Packed runs are: their number, the source start, the target start; then for each further run the length of the
run before it and the gap between the two, all unsigned varints.

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

Run = tuple[int, int]
"""Where a run begins: (source offset, target offset)."""
Column = Sequence[int]
Bisect = Callable[[Column, int], int]

GROUP_RUNS = 512
"""Runs are packed in groups of this size; a lookup unpacks one group, in a tenth of a millisecond."""


class Runs:
    """Runs in order. Both offsets rise from each run to the next, the source's by more than the target's:
    there is a gap before each run but the first.
    """

    __slots__ = (
        "_group_sources",
        "_group_targets",
        "_groups",
        "_skipped",
        "_sources",
        "_targets",
        "_unpacked",
    )

    def __init__(self) -> None:
        self._groups: list[bytes] = []
        self._group_sources, self._group_targets = array("q"), array("q")
        """Where each group begins."""
        self._skipped = 0
        """How many runs of the first group are dropped."""
        self._sources, self._targets = array("q"), array("q")
        self._unpacked: tuple[bytes, Column, Column] = b"", (), ()
        """The group that was unpacked last."""

    def __len__(self) -> int:
        return self._packed - self._skipped + len(self._targets)

    def __iter__(self) -> Iterator[Run]:
        for number in range(len(self._groups)):
            rows = zip(*self._columns(number), strict=True)
            for at, run in enumerate(rows):
                if number or at >= self._skipped:
                    yield run
        yield from zip(self._sources, self._targets, strict=True)

    def __getitem__(self, index: int) -> Run:
        """The run with this index.

        Raises:
            IndexError: There is none; also for a negative index.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"run {index} of {len(self)}")
        number, at = divmod(index + self._skipped, GROUP_RUNS)
        if number < len(self._groups):
            sources, targets = self._columns(number)
        else:
            sources, targets, at = self._sources, self._targets, index + self._skipped - self._packed
        return sources[at], targets[at]

    # -- searching -------------------------------------------------------------------------------

    def below(self, target: int) -> int:
        """How many runs begin below a target offset."""
        if self._targets and target > self._targets[0]:
            return len(self) - len(self._targets) + bisect_left(self._targets, target)
        return self._in_groups(self._group_targets, 1, target, bisect_left)

    def up_to(self, target: int) -> int:
        """How many runs begin at a target offset or below."""
        if self._targets and target >= self._targets[0]:
            return len(self) - len(self._targets) + bisect_right(self._targets, target)
        return self._in_groups(self._group_targets, 1, target, bisect_right)

    def up_to_source(self, source: int) -> int:
        """How many runs begin at a source offset or below."""
        if self._sources and source >= self._sources[0]:
            return len(self) - len(self._sources) + bisect_right(self._sources, source)
        return self._in_groups(self._group_sources, 0, source, bisect_right)

    # -- changing --------------------------------------------------------------------------------

    def append(self, source: int, target: int) -> None:
        """Add a run at the end; it must continue the order, which is not checked here."""
        self._sources.append(source)
        self._targets.append(target)
        if len(self._targets) >= 2 * GROUP_RUNS:
            self._pack()

    def extend(self, runs: Iterable[Run]) -> None:
        """Add several runs at the end."""
        for source, target in runs:
            self.append(source, target)

    def truncate(self, count: int) -> None:
        """Keep only the first ``count`` runs."""
        end = count + self._skipped
        if end >= self._packed:
            del self._sources[end - self._packed :], self._targets[end - self._packed :]
            return
        number, at = divmod(end, GROUP_RUNS)
        sources, targets = self._columns(number)
        begins = 0 if number else min(self._skipped, at)
        self._sources, self._targets = array("q", sources[begins:at]), array("q", targets[begins:at])
        del self._groups[number:], self._group_sources[number:], self._group_targets[number:]
        if not number:
            self._skipped = 0

    def from_index(self, index: int) -> Runs:
        """A copy of the runs from an index on."""
        rest = Runs()
        begins = min(index + self._skipped, self._packed)
        number = begins // GROUP_RUNS
        rest._groups = self._groups[number:]
        rest._group_sources, rest._group_targets = self._group_sources[number:], self._group_targets[number:]
        rest._skipped = begins - number * GROUP_RUNS
        opened = max(index + self._skipped - self._packed, 0)
        rest._sources, rest._targets = self._sources[opened:], self._targets[opened:]
        return rest

    # -- groups ----------------------------------------------------------------------------------

    @property
    def _packed(self) -> int:
        """How many runs are packed, dropped ones included."""
        return len(self._groups) * GROUP_RUNS

    def _pack(self) -> None:
        self._group_sources.append(self._sources[0])
        self._group_targets.append(self._targets[0])
        packed = pack(list(zip(self._sources[:GROUP_RUNS], self._targets[:GROUP_RUNS], strict=True)))
        self._groups.append(packed)
        self._sources, self._targets = self._sources[GROUP_RUNS:], self._targets[GROUP_RUNS:]

    def _columns(self, number: int) -> tuple[Column, Column]:
        """The source offsets and the target offsets of a group."""
        group = self._groups[number]
        if self._unpacked[0] is not group:
            sources, targets = zip(*unpack(group), strict=True)
            self._unpacked = group, sources, targets
        return self._unpacked[1:]

    def _in_groups(self, firsts: Column, column: int, offset: int, bisect: Bisect) -> int:
        """How many of the packed runs come before an offset.

        Args:
            firsts: That column of the groups' first runs.
            column: 0 for source offsets, 1 for target offsets.
            bisect: ``bisect_left`` for below the offset, ``bisect_right`` for at it or below.
        """
        if not self._groups:
            return 0
        number = max(bisect(firsts, offset) - 1, 0)
        count = number * GROUP_RUNS + bisect(self._columns(number)[column], offset)
        return max(count - self._skipped, 0)


def pack(runs: Sequence[Run]) -> bytes:
    """Runs, at least one, as bytes.

    Raises:
        ValueError: They are not in order.
    """
    out = bytearray()
    _put(out, len(runs))
    source, target = runs[0]
    _put(out, source)
    _put(out, target)
    for next_source, next_target in runs[1:]:
        length = next_target - target
        gap = next_source - source - length
        if 0 < length < 0x80 and 0 < gap < 0x80:
            out += bytes((length, gap))
        else:
            _put(out, length)
            _put(out, gap)
        source, target = next_source, next_target
    return bytes(out)


def unpack(data: bytes, at: int = 0) -> list[Run]:
    """The inverse of :func:`pack`.

    Args:
        at: Where in ``data`` they begin; they must end where it ends.

    Raises:
        ValueError: They are not in order, or bytes follow them.
        IndexError: They are cut off.
    """
    count, at = _get(data, at)
    source, at = _get(data, at)
    target, at = _get(data, at)
    runs = [(source, target)]
    for _ in range(count - 1):
        length, at = _get(data, at)
        gap, at = _get(data, at)
        if not length or not gap:
            raise ValueError(f"a run of {length} records before a gap of {gap} offsets")
        source, target = source + length + gap, target + length
        runs.append((source, target))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last run")
    return runs


def _put(out: bytearray, value: int) -> None:
    if value < 0:
        raise ValueError(f"{value} in an offset map: runs must be in order")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _get(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if value >= 1 << 63:
        raise ValueError("an offset above 2^63")
    return value, at
