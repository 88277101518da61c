"""How much a broker is asked for at a time, in all and of one partition.

What does not come in time is lost, so less is asked for next. Of a broker that is near less is asked for,
too: a small answer is still in the caches when it is sent on, and the target gets a steadier stream.

No I/O.
"""

from __future__ import annotations

PORTION_BYTES_MIN = 64 << 10
"""Less is not asked for; of a batch that is larger than this all comes, whatever is asked for."""
SHARE_BYTES_MIN = 256 << 10
"""The least a partition may bring when many are behind: reading a little of each costs both sides more."""
NEAR_ANSWER_BYTES = 1 << 20
"""So much of a few partitions of a broker that is near. Four are copied a tenth faster so than by 4 MiB."""
NEAR_SECONDS = 0.001
"""Such an answer is there after so long, and what its bytes take."""
NEAR_BYTES_PER_SECOND = 300e6
FAR_AFTER = 32
"""So many answers in a row that take longer, and it is far; fewer may be late because the machine is busy."""
SLOW_SECONDS = 1.0
"""What takes longer to come a relay asks for in smaller answers: its mirror hears nothing meanwhile."""


def share(bytes_max: int, behind: int, *, near: bool) -> int:
    """What each of the partitions that are behind may bring in one answer, so that it holds some of all.

    Args:
        bytes_max: What the answer may bring.
        near: The broker is.
    """
    wanted = min(bytes_max, NEAR_ANSWER_BYTES) if near else bytes_max
    return max(wanted // max(behind, 1), SHARE_BYTES_MIN)


def next_bytes(asked: int, came: int, seconds: float, bytes_max: int) -> int:
    """How many bytes a relay's next answer may bring, after one that took so long: twice as many where that
    was more than half full and came soon, half where it was slow. One that is not full says nothing.

    Args:
        seconds: From its first byte on, and for how long a quota held it back: by what is less where less is
            asked for. Until it begins it may take as long as it likes.
    """
    if came <= asked // 2:
        return asked
    if seconds > SLOW_SECONDS:
        return min(asked, max(asked // 2, PORTION_BYTES_MIN))
    return asked if seconds > SLOW_SECONDS / 2 else min(asked * 2, bytes_max)


class Nearness:
    """Whether a broker is so near that an answer costs its bytes only, and may as well be smaller.

    Attributes:
        near: As far as is known; it is taken for that in the beginning.
    """

    def __init__(self) -> None:
        self.near = True
        self._late = 0

    def came(self, size: int, seconds: float) -> None:
        """An answer of so many bytes was there after so long. Small ones may have waited for news, and of
        large ones the way is the lesser part.
        """
        if not SHARE_BYTES_MIN <= size <= 2 * NEAR_ANSWER_BYTES:
            return
        late = seconds > NEAR_SECONDS + size / NEAR_BYTES_PER_SECOND
        self._late = self._late + 1 if late else 0
        self.near = self._late < FAR_AFTER


class Portion:
    """What one answer of a broker may bring just now.

    Attributes:
        bytes: So much, at most.

    Args:
        bytes_max: What it may bring where nothing is lost.
        patience_seconds: No answer is given up before that.
    """

    def __init__(self, bytes_max: int, patience_seconds: float) -> None:
        self.bytes = bytes_max
        self._bytes_max = bytes_max
        self._patience_seconds = patience_seconds

    def came(self, seconds: float) -> None:
        """An answer was whole after so long: twice as much may be asked for if that, too, comes in time."""
        if seconds < self._patience_seconds / 2:
            self.bytes = min(self.bytes * 2, self._bytes_max)

    def lost(self, seconds: float) -> None:
        """An answer was given up after so long: half as much may come in time, unless the end was sudden."""
        if seconds >= self._patience_seconds:
            self.bytes = min(self.bytes, max(self.bytes // 2, PORTION_BYTES_MIN))
