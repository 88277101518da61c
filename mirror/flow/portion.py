"""How much a broker is asked for at a time, in all and per partition.

An answer that does not come in time is lost, so the next request asks for less. A near broker is asked for
less, too: a small answer is still in the caches when it is sent on, and the target gets a steadier stream.

No I/O.
"""

from __future__ import annotations

PORTION_BYTES_MIN = 64 << 10
"""The least that is asked for; a batch larger than that still comes whole."""
SHARE_BYTES_MIN = 256 << 10
"""The least one partition may bring when many are behind: smaller pieces cost both sides more."""
NEAR_ANSWER_BYTES = 1 << 20
"""The wanted size of a near broker's answers: four partitions are copied a tenth faster than with 4 MiB."""
NEAR_SECONDS = 0.001
"""A near broker's answer takes this long, plus its bytes at NEAR_BYTES_PER_SECOND."""
NEAR_BYTES_PER_SECOND = 300e6
FAR_AFTER = 32
"""Late answers in a row that make a broker far; fewer may be late because the machine is busy."""
SLOW_SECONDS = 1.0
"""A relay asks for smaller answers if one takes longer than this: its mirror hears nothing meanwhile."""


def share(bytes_max: int, behind: int, *, near: bool) -> int:
    """The bytes each partition that is behind may bring in one answer, so that it has room for all of them.

    Args:
        bytes_max: What the answer may bring.
        behind: How many partitions are behind.
        near: Whether the broker is near.
    """
    wanted = min(bytes_max, NEAR_ANSWER_BYTES) if near else bytes_max
    return max(wanted // max(behind, 1), SHARE_BYTES_MIN)


def next_bytes(asked: int, came: int, seconds: float, bytes_max: int) -> int:
    """How many bytes a relay's next answer may bring: twice as many if the last one was more than half full
    and fast, half as many if it was slow, else the same. An answer at most half full says nothing.

    Args:
        asked: What the last answer might have brought, in bytes.
        came: What it brought, in bytes.
        seconds: How long it took from its first byte on, plus how long a quota held it back: what shrinks
            when less is asked for. The time until the first byte does not count.
        bytes_max: The most to ask for.
    """
    if came <= asked // 2:
        return asked
    if seconds > SLOW_SECONDS:
        return min(asked, max(asked // 2, PORTION_BYTES_MIN))
    return asked if seconds > SLOW_SECONDS / 2 else min(asked * 2, bytes_max)


class Nearness:
    """Whether a broker is so near that an answer costs little but its bytes, and may as well be smaller.

    Attributes:
        near: As far as is known; True at first.
    """

    def __init__(self) -> None:
        self.near = True
        self._late = 0

    def came(self, size: int, seconds: float) -> None:
        """Judge by an answer of ``size`` bytes that took ``seconds``. Small and large ones do not count: a
        small one may have waited for new records, and in a large one the round trip hardly shows.
        """
        if not SHARE_BYTES_MIN <= size <= 2 * NEAR_ANSWER_BYTES:
            return
        late = seconds > NEAR_SECONDS + size / NEAR_BYTES_PER_SECOND
        self._late = self._late + 1 if late else 0
        self.near = self._late < FAR_AFTER


class Portion:
    """What one answer of a broker may bring at present.

    Attributes:
        bytes: The most it may bring.

    Args:
        bytes_max: The most it may bring while nothing is lost.
        patience_seconds: No answer is given up before that.
    """

    def __init__(self, bytes_max: int, patience_seconds: float) -> None:
        self.bytes = bytes_max
        self._bytes_max = bytes_max
        self._patience_seconds = patience_seconds

    def came(self, seconds: float) -> None:
        """An answer was complete after ``seconds``; ask for twice as much if that is in time, too."""
        if seconds < self._patience_seconds / 2:
            self.bytes = min(self.bytes * 2, self._bytes_max)

    def lost(self, seconds: float) -> None:
        """An answer was lost after ``seconds``; ask for half as much, unless the connection broke sooner."""
        if seconds >= self._patience_seconds:
            self.bytes = min(self.bytes, max(self.bytes // 2, PORTION_BYTES_MIN))
