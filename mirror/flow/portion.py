"""How much a broker is asked for at a time: what does not come in time is lost, so less is asked for next.

No I/O.
"""

from __future__ import annotations

PORTION_BYTES_MIN = 64 << 10
"""Less is not asked for; of a batch that is larger than this all comes, whatever is asked for."""


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
