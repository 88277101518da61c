"""What a comparison makes of those before it: their summaries, read again."""

from __future__ import annotations

import pytest

from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import Algorithm
from spark_jobs.documents import Scope
from spark_jobs.history import Run
from spark_jobs.logs import Compared
from spark_jobs.report import page
from spark_jobs.result import Outcome, Result, summary
from spark_jobs.window import Range
from tests.unit.test_comparable import comparable, compared, told


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
