"""Who is silent: a broker that a partition waits for may have answered others meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mirror.flow import receiving
from mirror.flow.partition import PartitionCopy
from mirror.flow.receiving import Room
from mirror.flow.silence import Silence
from mirror.kafka.fetch import Key
from mirror.model import Gap
from tests.unit.copies import NOW, batch, proceeding, sent
from tests.unit.target_model import Mirror

SLOW, DEAD = 1, 2
SOON = 5.0


def waiting_for(node: int) -> PartitionCopy:
    """A partition with a batch on its way to a broker."""
    copy = proceeding()
    sent(copy, batch(100))
    copy.waits_for = node
    return copy


def test_a_broker_that_answers_others_is_not_silent() -> None:
    """
    Many wait for it, and each is served now and then.
    """
    copy, silence = waiting_for(SLOW), Silence()

    silence.begins(SLOW, NOW + 98)

    assert silence.of(copy, NOW + 100) == 2
    assert silence.of(waiting_for(DEAD), NOW + 100) == 100


def test_a_broker_that_holds_us_back_is_not_silent_for_as_long_as_it_said() -> None:
    """
    What it answers by another connection does not take that back.
    """
    copy, silence = waiting_for(SLOW), Silence()

    silence.begins(SLOW, NOW + 10)
    silence.begins(SLOW, NOW + 1)

    assert silence.of(copy, NOW + 12) == 2


def test_for_what_only_the_owner_may_write_no_answer_to_a_batch_counts() -> None:
    """
    Other brokers may have to be asked for that.
    """
    copy, silence = proceeding(), Silence()
    copy.queue.push([Gap(100, 105), batch(105)], (), None)
    copy.waits_for = SLOW

    silence.begins(SLOW, NOW + 98)

    assert silence.of(copy, NOW + 100) == 100


async def test_what_waits_for_a_slow_broker_is_kept_while_what_waits_for_a_dead_one_is_taken_back(
    monkeypatch: Any,
) -> None:
    """
    The one makes room in the end, and would be read again for nothing; the other would hold up everybody.
    """
    monkeypatch.setattr(receiving, "ROOM_WAIT_SECONDS", 0.05)
    mirror = Mirror()
    now, pool = time.monotonic(), mirror.flow.pool
    dead, slow = waiting_for(DEAD), waiting_for(SLOW)
    for copy in (dead, slow):
        copy.acknowledged_at = now - 50
        buffer = pool.take(1 << 20)
        copy.queue.push([batch(105)], (), buffer)
        buffer.release()
    mirror.flow.silence.begins(DEAD, now - 40)
    mirror.flow.silence.begins(SLOW, now + 40)
    room = Room(mirror.flow, {Key(b"t" * 16, number): copy for number, copy in enumerate((dead, slow))})

    async with asyncio.timeout(SOON):
        await room.enough(1 << 20, 2 << 20)

    assert mirror.hooks.changes == [dead]
    assert (bool(dead.queue), bool(slow.queue)) == (False, True)
