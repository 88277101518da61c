"""Steps of a start that are taken again, and those that are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog
from structlog.testing import capture_logs

from mirror.errors import ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.patience import Patience

LOADING = ConnectionFailedError("target: topic orders has no leader yet")


class Steps:
    """A step that fails as told, and then is done; and a cluster that is looked at.

    Attributes:
        told: What was said to be waited for.
        log: ``step`` and ``refresh``, in the order in which they happened.
    """

    def __init__(self, *failures: TwinsiteError, blind: Sequence[TwinsiteError] = ()) -> None:
        self.told: list[str] = []
        self.log: list[str] = []
        self._failures, self._blind = list(failures), list(blind)

    async def step(self) -> int:
        self.log.append("step")
        if self._failures:
            raise self._failures.pop(0)
        return 7

    async def refresh(self) -> None:
        self.log.append("refresh")
        if self._blind:
            raise self._blind.pop(0)


def a_cluster(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that is never reached: only looking at it is of interest."""
    cluster = Cluster("target", [Address("127.0.0.1", 1)], ConnectionOptions())
    monkeypatch.setattr(cluster, "refresh", steps.refresh)
    return cluster


async def test_a_step_is_taken_again_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its cluster is looked at before each further try: who leads there may be another broker by now.
    """
    steps = Steps(LOADING, LOADING)
    cluster = a_cluster(steps, monkeypatch)

    done = await Patience(steps.told.append, once=False).take("the state", steps.step, cluster)

    assert done == 7
    assert steps.log == ["step", "refresh", "step", "refresh", "step"]
    assert steps.told == ["the state", *[f"the state: {LOADING}"] * 2, ""]


async def test_a_cluster_that_cannot_be_looked_at_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The broker that answered first may be gone again.
    """
    steps = Steps(LOADING, blind=[ConnectionFailedError("nobody there")])
    cluster = a_cluster(steps, monkeypatch)

    done = await Patience(steps.told.append, once=False).take("the state", steps.step, cluster)

    assert done == 7
    assert steps.log == ["step", "refresh", "refresh", "step"]
    assert "the state: nobody there" in steps.told


@pytest.mark.parametrize(
    ("once", "failure"), [(False, NotAuthorizedError("no WRITE on the transactional id")), (True, LOADING)]
)
async def test_what_waiting_cannot_help_is_raised_at_once(once: bool, failure: TwinsiteError) -> None:
    """
    And so is everything where an end was asked for.
    """
    steps = Steps(failure)

    with pytest.raises(type(failure)) as raised:
        await Patience(steps.told.append, once=once).take("the state", steps.step)

    assert raised.value is failure
    assert steps.log == ["step"]


async def test_a_wait_is_said_seldom_and_with_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It may take minutes, and a try fails within milliseconds.
    """
    monkeypatch.setattr("mirror.patience.log", structlog.get_logger())
    steps = Steps(*[LOADING] * 5)

    with capture_logs() as logged:
        await Patience(steps.told.append, once=False).take("the state", steps.step)

    said = [(line["event"], line["waits_for"], line["error"]) for line in logged]
    assert said == [("flow_not_begun", "the state", str(LOADING))]
