"""Receive buffers that are used again, bounded in bytes.

An answer of several megabytes is received into one buffer and the batches in it
are sent on from there. Getting such a buffer fresh from the kernel each time costs
page faults and zeroing; a pool costs a list.
"""

from __future__ import annotations

GRAIN_BYTES = 1 << 20
"""Buffers are whole multiples of this, or a half, a quarter and so on: a few sizes serve all answers."""
SMALL_BYTES = 64 << 10
"""The smallest; there can be many of them, and of those next to it for frames that came over a link."""


TIMES_MAX = 4
"""A buffer more times as large as what is asked for is left for larger answers: all of it counts as used."""


class Buffer:
    """A receive buffer and how many parts of the pipeline still use it.

    Attributes:
        size: Bytes it can hold.
        counted: It is one of those of which the pool says how many bytes they have.
    """

    __slots__ = ("_pool", "_users", "counted", "memory", "size")

    def __init__(self, pool: BufferPool, size: int) -> None:
        self.size = size
        self.memory = memoryview(bytearray(size))
        self.counted = False
        self._pool = pool
        self._users = 1

    def hold(self, users: int = 1) -> None:
        """So many more users; each calls :meth:`release` once."""
        self._users += users

    def release(self) -> None:
        """One user less; after the last one the memory may be overwritten."""
        self._users -= 1
        if self._users == 0:
            self._pool._give_back(self)
        assert self._users >= 0, "a buffer was released more often than held"


class BufferPool:
    """Keeps up to ``idle_bytes_max`` of unused buffers. Where there would be more, one is let go that is far
    larger than what is given back, or else that one.

    Attributes:
        used_bytes: Bytes of buffers in use just now, but for those that do not count yet.
    """

    def __init__(self, idle_bytes_max: int) -> None:
        self.used_bytes = 0
        self._idle_bytes_max = idle_bytes_max
        self._idle_bytes = 0
        self._idle: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """A buffer of at least ``size`` bytes, the smallest idle one that fits and is not far too large."""
        small = size <= SMALL_BYTES
        grain = min(max(SMALL_BYTES, 1 << (size - 1).bit_length()), GRAIN_BYTES)
        whole = SMALL_BYTES if small else -(-size // grain) * grain
        most = SMALL_BYTES if small else TIMES_MAX * whole
        fitting = [b for b in self._idle if size <= b.size <= most]
        if fitting:
            buffer = min(fitting, key=lambda b: b.size)
            self._idle.remove(buffer)
            self._idle_bytes -= buffer.size
            buffer._users = 1
        else:
            buffer = Buffer(self, whole)
        self.count(buffer)
        return buffer

    def take_uncounted(self, size: int) -> Buffer:
        """The same for what somebody else counts, until :meth:`count`; a small one is as small as it is."""
        if size <= SMALL_BYTES:
            return Buffer(self, size)
        buffer = self.take(size)
        self._discount(buffer)
        return buffer

    def count(self, buffer: Buffer) -> None:
        """From now on it is one that counts."""
        buffer.counted = True
        self.used_bytes += buffer.size

    def close(self) -> None:
        """Keep none: neither those that are unused nor those that come back."""
        self._idle_bytes_max = self._idle_bytes = 0
        self._idle.clear()

    def _discount(self, buffer: Buffer) -> None:
        if buffer.counted:
            buffer.counted = False
            self.used_bytes -= buffer.size

    def _give_back(self, buffer: Buffer) -> None:
        self._discount(buffer)
        if buffer.size < SMALL_BYTES:
            return
        self._idle.append(buffer)
        self._idle_bytes += buffer.size
        if self._idle_bytes > self._idle_bytes_max:
            largest = max(self._idle, key=lambda b: b.size)
            rare = largest.size > TIMES_MAX * max(buffer.size, GRAIN_BYTES)
            over = largest if rare else buffer
            self._idle.remove(over)
            self._idle_bytes -= over.size
