"""Buffers that are used again: never by two at once, and counted while they should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.buffers import GRAIN_BYTES, SMALL_BYTES, Buffer, BufferPool

IDLE_BYTES_MAX = 8 << 20
SIZES = st.integers(0, 3_000_000)


@given(
    st.lists(st.tuples(SIZES, st.sampled_from(["take", "uncounted", "later"]), st.booleans()), max_size=30)
)
def test_memory_is_used_again_and_never_by_two(steps: list[tuple[int, str, bool]]) -> None:
    """
    As long as wanted; what is said to be used is what is held and counts, now or later.
    """
    pool, held = BufferPool(IDLE_BYTES_MAX), list[Buffer]()
    for size, how, back in steps:
        buffer = pool.take(size) if how == "take" else pool.take_uncounted(size)
        if how == "later":
            pool.count(buffer)
        assert len(buffer.memory) >= size
        assert all(buffer.memory.obj is not other.memory.obj for other in held)
        held.append(buffer)
        if back:
            held.pop(0).release()
        assert pool.used_bytes == sum(buffer.size for buffer in held if buffer.counted)


def test_memory_that_was_given_back_is_taken() -> None:
    """
    The smallest that is large enough, by whoever comes next; what is more than may be idle is let go.
    """
    pool = BufferPool(IDLE_BYTES_MAX)
    large, fitting = pool.take(3 * GRAIN_BYTES), pool.take_uncounted(GRAIN_BYTES)
    memory = fitting.memory.obj
    large.release()
    fitting.release()

    assert pool.take(GRAIN_BYTES - 1).memory.obj is memory
    assert pool.take_uncounted(GRAIN_BYTES).memory.obj is large.memory.obj
    many = [pool.take(GRAIN_BYTES) for _ in range(IDLE_BYTES_MAX // GRAIN_BYTES + 1)]
    memories = {id(buffer.memory.obj) for buffer in many}
    for buffer in many:
        buffer.release()
    again = [pool.take(GRAIN_BYTES) for _ in many]
    assert sum(id(buffer.memory.obj) in memories for buffer in again[:-1]) == IDLE_BYTES_MAX // GRAIN_BYTES


def test_one_large_answer_leaves_no_buffer_that_small_ones_would_fill() -> None:
    """
    All of a buffer counts as used, and others would have to wait for it.
    """
    pool = BufferPool(IDLE_BYTES_MAX)
    large = pool.take(IDLE_BYTES_MAX)
    memory = large.memory.obj
    large.release()

    for _ in range(3):
        pool.take(GRAIN_BYTES // 4)
    used_bytes = pool.used_bytes
    large_again = pool.take(IDLE_BYTES_MAX - 1)

    assert used_bytes == 3 * GRAIN_BYTES // 4
    assert large_again.memory.obj is memory


@pytest.mark.parametrize("size", [SMALL_BYTES + 1, 73_000, 200_000, 262_144, 300_000, GRAIN_BYTES + 1])
def test_a_buffer_is_less_than_twice_as_large_as_what_goes_into_it(size: int) -> None:
    """
    Hundreds of frames wait for a target that is slow, each of some 70 kB where they are well compressed.
    """
    pool = BufferPool(IDLE_BYTES_MAX)

    assert size <= pool.take_uncounted(size).size < 2 * size
    assert size <= pool.take(size).size < 2 * size


def test_an_idle_buffer_far_too_large_makes_room_for_those_that_are_given_back() -> None:
    """
    One that was needed once does not keep those from being used again that are needed all the time.
    """
    pool = BufferPool(IDLE_BYTES_MAX)
    large, often = pool.take(IDLE_BYTES_MAX), pool.take(GRAIN_BYTES)
    memory = often.memory.obj

    large.release()
    often.release()

    assert pool.take(GRAIN_BYTES).memory.obj is memory


def test_what_waits_uncounted_takes_no_more_than_it_has() -> None:
    """
    There can be many small ones of those: they are not rounded up to what answers of brokers are.
    """
    pool = BufferPool(IDLE_BYTES_MAX)

    assert pool.take_uncounted(200).size == 200
    assert pool.take(200).size == SMALL_BYTES


def test_a_pool_that_is_closed_keeps_none() -> None:
    """
    Neither those that were idle, nor those that come back then.
    """
    pool = BufferPool(IDLE_BYTES_MAX)
    idle, used = [pool.take(GRAIN_BYTES) for _ in range(2)]
    idle.release()

    pool.close()
    used.release()

    again = [pool.take(GRAIN_BYTES) for _ in range(2)]
    assert not {id(buffer) for buffer in again} & {id(idle), id(used)}
    assert pool.used_bytes == 2 * GRAIN_BYTES


def test_a_buffer_has_several_users() -> None:
    """
    It is in use until the last one of them has released it.
    """
    pool = BufferPool(IDLE_BYTES_MAX)
    buffer = pool.take(GRAIN_BYTES)
    buffer.hold(2)

    buffer.release()
    buffer.release()
    assert pool.used_bytes == GRAIN_BYTES
    buffer.release()
    assert pool.used_bytes == 0
