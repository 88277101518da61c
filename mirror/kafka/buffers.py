"""Reusable receive buffers, bounded in bytes.

An answer of several megabytes is received into one buffer, and its batches are sent
on from there. A fresh buffer from the kernel each time costs page faults and zeroing;
a pool costs a list.
"""

from __future__ import annotations

GRAIN_BYTES = 1 << 20
"""Buffers are multiples of this, or a half, a quarter and so on of it: a few sizes serve all answers."""
SMALL_BYTES = 64 << 10
"""The smallest pooled size. Frames from a link can hold many buffers of this and of the next sizes."""


TIMES_MAX = 4
"""A buffer of more than this many times the size needed is left for larger answers: it counts as a whole."""


class Buffer:
    """A receive buffer and how many parts of the pipeline still use it.

    Attributes:
        size: Bytes it can hold.
        counted: Whether it is part of :attr:`BufferPool.used_bytes`.
    """

    __slots__ = ("_pool", "_users", "counted", "memory", "size")

    def __init__(self, pool: BufferPool, size: int) -> None:
        self.size = size
        self.memory = memoryview(bytearray(size))
        self.counted = False
        self._pool = pool
        self._users = 1

    def hold(self, users: int = 1) -> None:
        """Add users; each calls :meth:`release` once."""
        self._users += users

    def release(self) -> None:
        """Remove one user; after the last one the memory may be overwritten."""
        self._users -= 1
        if self._users == 0:
            self._pool._give_back(self)
        assert self._users >= 0, "a buffer was released more often than held"


class BufferPool:
    """Keeps up to ``idle_bytes_max`` bytes of unused buffers.

    When a returned buffer would exceed that, the largest idle one is dropped if it is far larger than the
    returned one; otherwise the returned one is dropped.

    Attributes:
        used_bytes: Bytes of the buffers in use now, without those that do not count yet.
    """

    def __init__(self, idle_bytes_max: int) -> None:
        self.used_bytes = 0
        self._idle_bytes_max = idle_bytes_max
        self._idle_bytes = 0
        self._idle: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """A buffer of at least ``size`` bytes: the smallest idle one that fits and is not far too large, or
        a new one.
        """
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
        """A buffer that is not part of ``used_bytes`` before :meth:`count`: its bytes count elsewhere.

        Up to ``SMALL_BYTES`` it has exactly ``size`` bytes.
        """
        if size <= SMALL_BYTES:
            return Buffer(self, size)
        buffer = self.take(size)
        self._discount(buffer)
        return buffer

    def count(self, buffer: Buffer) -> None:
        """Count a buffer in ``used_bytes`` from now on."""
        buffer.counted = True
        self.used_bytes += buffer.size

    def close(self) -> None:
        """Drop the idle buffers, and from now on every buffer that comes back."""
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
