"""What a comparison makes of those before it: their summaries, read again."""

from __future__ import annotations

from uuid import UUID

import pytest

from checkpoint.flow_state import FlowState
from checkpoint.model import PartitionRecord
from mirror.model import OffsetMode
from mirror.proving.comparable import AROUND
from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import Algorithm
from spark_jobs.documents import Scope
from spark_jobs.history import Run
from spark_jobs.logs import Compared
from spark_jobs.report import page
from spark_jobs.result import Outcome, Result, summary
from spark_jobs.window import Range
from tests.harness.memory_store import MemoryStore
from tests.unit.test_comparable import ANOTHER, ORDERS_0, TOPIC, cluster, comparable, compared, told


def result(scope: Scope) -> Result:
    """What a comparison says that finds everything to be the same."""
    return Result(
        run="r",
        flow=scope.flow,
        source_cluster_id=scope.source_cluster_id,
        target_cluster_id=scope.target_cluster_id,
        started_at_ms=0,
        seconds=1,
        extent=scope.extent,
        compared=[Compared(log=log) for log in scope.logs],
        algorithm=Algorithm.XXHASH64,
        not_compared=scope.not_compared,
    )


def match(up_to: int) -> Run:
    """A run that has found the same records on both sides, from the first one on."""
    scope = compared(comparable(Wanted(same_offsets=True)), told(Range(0, up_to), Range(0, up_to)))
    return Run("before", summary(result(scope)))


@pytest.mark.parametrize("target", [Range(0, 500), Range(500, 500)], ids=["kept", "expired"])
def test_what_the_source_deleted_before_it_was_copied_is_no_match(target: Range) -> None:
    """
    All that came since the last match, while the mirror stood still.
    """
    before = match(500)

    for continues in (None, before):
        wanted = Wanted(same_offsets=True, continues=continues, seen=[before])
        found = result(compared(comparable(wanted), told(Range(1000, 1000), target)))

        assert found.outcome is Outcome.INCOMPLETE
        assert [one.why for one in found.left_out] == [
            "the source has deleted records of it before they were copied"
        ]
        assert summary(found)["partitions"][0]["never_copied"] == [500, 1000]
        assert ">500 offsets<" in page(found, "r")


def without_target_topics(run: Run) -> Run:
    """As a program left it that did not note them."""
    partitions = [
        {name: value for name, value in one.items() if name != "target_topic_id"}
        for one in run.summary["partitions"]
    ]
    return Run(run.name, run.summary | {"partitions": partitions})


@pytest.mark.parametrize(
    ("before", "target_topic", "start"),
    [
        (match(500_000), TOPIC, 500_000 - AROUND),
        (match(500_000), ANOTHER, 0),
        (without_target_topics(match(500_000)), TOPIC, 0),
    ],
    ids=["same", "made_again", "not_known"],
)
def test_a_copy_that_was_made_again_is_compared_from_its_start(
    before: Run, target_topic: UUID, start: int
) -> None:
    """
    What the last match is about was the copy that is gone, or may be.
    """
    wanted = Wanted(same_offsets=True, continues=before, seen=[before])
    both = Range(0, 501_000)

    (log,) = compared(comparable(wanted, target=cluster(topic_id=target_topic)), told(both, both)).append_only

    assert log.window.source == Range(start, 501_000)


def test_what_a_topic_held_that_was_made_again_is_known() -> None:
    """
    It is lost, and not on its way for the first time.
    """
    before = match(500)
    of = comparable(Wanted(same_offsets=True, seen=[before]), target=cluster(topic_id=ANOTHER))

    seen = of.seen_before(of.copied(of.on_both_sides()), {ORDERS_0: Range(0, 600)})

    assert seen == {ORDERS_0: 500}


async def mapped() -> FlowState:
    """What a flow knows whose source has no records at [500, 1000) and [1400, 1700)."""
    state = FlowState(MemoryStore())
    await state.load()
    record = PartitionRecord("orders", 0, str(TOPIC), "orders", OffsetMode.MAPPED, True, 0, 0)
    await state.begin(record, [(0, 0)])
    await state.extend_maps({ORDERS_0: [(1000, 500), (1700, 900)]})
    return state


async def test_what_a_mapped_copy_has_lost_is_told_from_what_it_never_had() -> None:
    """
    Between where the target ends now and where it was seen to end the map has a gap.
    """
    before = comparable(Wanted())
    before.state = await mapped()
    seen = Run("before", summary(result(compared(before, told(Range(0, 2000), Range(0, 1200))))))
    of = comparable(Wanted(seen=[seen]))
    of.state = await mapped()

    copied = of.copied(of.on_both_sides())
    of.ends_before = of.seen_before(copied, {ORDERS_0: Range(0, 2300)})
    of.compare(copied, told(Range(0, 2300), Range(0, 800)))

    (log,) = of.scope().append_only
    assert of.ends_before == {ORDERS_0: 1200}
    assert (log.lost, log.window.pending) == (Range(1300, 2000), Range(2000, 2300))
