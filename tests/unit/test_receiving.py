"""What comes from further down than it was copied, as a relay reads it for several mirrors."""

from __future__ import annotations

import pytest

from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.receiving import Answers, Outcome, Receiver, truncated
from mirror.kafka.fetch import Fetched
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.batches import entries, v2
from tests.unit.target_model import Mirror

ORDERS_0 = TopicPartition("orders", 0)


async def came(*batches: memoryview, at: int, epoch: int, asked_from: int) -> tuple[Outcome, PartitionCopy]:
    """A part for a partition that is copied up to ``at``, the last record under a leader epoch."""
    flow = Mirror().lane._flow
    copy = PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(at, at, at, 0, at), OffsetMode.SAME, epoch, 0.0)
    data = b"".join(batches)
    buffer = flow.pool.take(len(data))
    memory = buffer.memory[: len(data)]
    memory[:] = data
    fetched = Fetched(copy.key, 0, 200, 200, 0, None, [], memory)
    outcome = await Receiver(flow, lambda _: False).take(
        copy, fetched, asked_from, buffer, Answers(0.0, None)
    )
    return outcome, copy


@pytest.mark.parametrize("begins", [110, 119])
async def test_what_was_replaced_before_the_end_of_a_copy_is_not_continued(begins: int) -> None:
    """
    The broker was asked where another mirror's copy ends, and found nothing wrong there.
    """
    before = v2(entries(100, begins - 100), leader_epoch=1)
    other = v2(entries(begins, 140 - begins), leader_epoch=3)

    outcome, copy = await came(before, other, at=120, epoch=1, asked_from=100)

    assert outcome is Outcome.REFUSED
    assert (copy.state, copy.reason) == (State.DIVERGED, Reason.SOURCE_TRUNCATED)
    assert f"copied up to 120, but the source's leader epoch 1 ends at {begins}" in copy.detail
    assert not copy.pending


@pytest.mark.parametrize(
    ("begins", "epoch", "asked_from"),
    [
        pytest.param(120, 1, 100, id="it begins where the copy ends"),
        pytest.param(110, 3, 100, id="it was copied"),
        pytest.param(110, -1, 100, id="nobody knows what was copied"),
        pytest.param(110, 1, 120, id="the log starts within a batch"),
    ],
)
async def test_a_newer_leader_epoch_that_takes_nothing_back_is_copied(
    begins: int, epoch: int, asked_from: int
) -> None:
    """
    What is there already is left out, and the rest follows.
    """
    before = [v2(entries(100, begins - 100), leader_epoch=1)] if asked_from < begins else []
    other = v2(entries(begins, 140 - begins), leader_epoch=3)

    outcome, copy = await came(*before, other, at=120, epoch=epoch, asked_from=asked_from)

    assert (outcome, copy.state) == (Outcome.TAKEN, State.ACTIVE)
    assert (copy.queue.start, copy.queue.end) == (120, 140)


@pytest.mark.parametrize("ends", [119, 120, 130])
async def test_what_was_only_read_may_be_replaced(ends: int) -> None:
    """
    The source has lost what waits to be sent. Only what was copied cannot be taken back: else the copy is
    looked at, and goes on.
    """
    outcome, copy = await came(v2(entries(120, 20)), at=120, epoch=0, asked_from=120)
    assert (outcome, copy.queue.end) == (Outcome.TAKEN, 140)

    truncated(copy, 0, ends)

    assert not copy.pending
    assert (copy.state is State.DIVERGED) == (ends < 120)
    assert (copy.look_due_at is None) == (ends < 120)
