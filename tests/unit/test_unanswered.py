"""What is said of a partition while it waits for a broker that answers nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.flow import unanswered
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.silence import Silence
from mirror.flow.unanswered import SHOWN_AFTER_SECONDS, Unanswered
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.model import Gap, OffsetMode, Reason, State
from tests.unit.copies import NOW, batch, sent, under_way, waiting

BROKER = 1
LONG = NOW + 10 + SHOWN_AFTER_SECONDS
AWAY = (State.BLOCKED, Reason.TARGET_UNAVAILABLE)


class Side:
    """One cluster, of one broker.

    Attributes:
        heard_at: When its broker was heard last, which is silent now; None: it is not.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = Address(name, 9092)
        self.heard_at: float | None = None
        self.info = SimpleNamespace(leader=lambda _: BROKER, brokers={BROKER: self.address})
        self.connections = self
        self.options = ConnectionOptions()

    def silence(self) -> dict[Address, float]:
        return {} if self.heard_at is None else {self.address: self.heard_at}


class Scene:
    """A flow of one partition.

    Attributes:
        told: What was shown, each time that it changed.
    """

    def __init__(self, copy: PartitionCopy) -> None:
        self.copy = copy
        self.source, self.target, self.silence = Side("source"), Side("target"), Silence()
        flow = SimpleNamespace(source=self.source, target=self.target, silence=self.silence)
        self.told: list[str] = []
        self.unanswered = Unanswered(cast(Any, flow), lambda p: self.told.append(p.detail))

    def look(self, *moments: float) -> tuple[State, Reason | None]:
        """Look at these moments; what is shown then."""
        for now in moments:
            self.unanswered.look([self.copy], now)
        return self.copy.state, self.copy.reason


def lagging() -> PartitionCopy:
    """One that is being copied, and is behind."""
    copy = under_way()
    copy.heard(0, 500, 500)
    copy.state, copy.reason = State.LAGGING, Reason.CATCHING_UP
    return copy


def on_its_way(copy: PartitionCopy) -> None:
    """A batch of it is sent."""
    sent(copy, batch(100))
    copy.waits_for = BROKER


def test_a_look_that_is_not_answered_is_told_and_counts_when_it_is() -> None:
    """
    Whatever was on its way when the broker froze may take as long as any answer may.
    """
    scene = Scene(lagging())
    copy = scene.copy
    copy.doubt(NOW)
    generation, scene.target.heard_at = copy.generation, NOW

    soon = scene.look(NOW + 10, LONG - 1)
    later = scene.look(LONG)
    copy.proceed(Proceed(100, 100, 40, 3, 100), OffsetMode.SAME, 0, LONG + 1)
    looked_at = copy.state, copy.copying
    (one,) = sent(copy, batch(100))
    copy.answered(one, appended=True, now=LONG + 2)

    assert (soon, later) == ((State.LAGGING, Reason.CATCHING_UP), AWAY)
    assert scene.told == ["target: broker 1 at target:9092 has not answered for at least 12 s"]
    assert copy.generation == generation
    assert looked_at == (State.BLOCKED, True)
    assert copy.state is State.ACTIVE


def test_a_batch_that_is_not_answered_is_told_and_counts_when_it_is() -> None:
    """
    Where the broker's kernel has taken all of it, nothing else says that nobody is there.
    """
    scene = Scene(lagging())
    copy = scene.copy
    (one,) = sent(copy, batch(100))
    copy.waits_for, scene.target.heard_at = BROKER, NOW

    away = scene.look(NOW + 10, LONG)
    copying = copy.copying
    copy.answered(one, appended=True, now=LONG + 1)

    assert (away, copying) == (AWAY, True)
    assert (copy.state, copy.next_offset) == (State.ACTIVE, 105)


def test_a_gap_for_which_no_marker_can_be_sent_is_told() -> None:
    """
    It waits behind the markers of others, whose broker is frozen.
    """
    scene = Scene(lagging())
    scene.copy.queue.push([Gap(100, 105)], (), None)
    scene.target.heard_at = NOW

    assert scene.look(NOW + 10, LONG) == AWAY


def test_a_broker_that_is_slow_is_not_away() -> None:
    """
    It answers something now and then, though none of what this partition waits for.
    """
    scene = Scene(lagging())
    scene.copy.doubt(NOW)

    for second in range(10, 100, 5):
        scene.target.heard_at = NOW + second - 1
        scene.look(NOW + second)

    assert scene.told == []


def test_a_broker_that_holds_us_back_is_not_away() -> None:
    """
    A quota: it has said for how long it will answer nothing.
    """
    scene = Scene(lagging())
    on_its_way(scene.copy)
    scene.target.heard_at = NOW
    scene.silence.begins(BROKER, NOW + 60)

    assert scene.look(NOW + 10, LONG, NOW + 60) == (State.LAGGING, Reason.CATCHING_UP)


async def test_a_mirror_that_has_stood_still_says_nothing_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Their answers may be there, and were not read yet.
    """
    scene, moments = Scene(lagging()), iter([NOW + 10, NOW + 11, NOW + 500])
    scene.copy.doubt(NOW)
    scene.target.heard_at = NOW

    async def sleep(_: float) -> None: ...

    stood_still = SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr(unanswered, "time", stood_still)
    monkeypatch.setattr(unanswered, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(RuntimeError):  # no more moments
        await scene.unanswered.run(lambda: [scene.copy])

    assert scene.told == []


def test_the_source_is_named_where_it_is_that() -> None:
    """
    A look asks both sides. Where a relay stands between, it may be that one.
    """
    scene = Scene(waiting())
    scene.source.options = ConnectionOptions(relays=Relays([Address("relay", 9641)]))
    scene.source.heard_at = NOW

    assert scene.look(NOW + 10, LONG) == (State.BLOCKED, Reason.SOURCE_UNAVAILABLE)
    assert "broker 1 at source:9092, asked through a relay, has not answered" in scene.copy.detail


def test_who_stands_by_does_not_know_how_far_the_owner_is_either() -> None:
    """
    What it saw last would be shown as long as a look may take.
    """
    scene = Scene(waiting())
    scene.copy.stand_by(NOW, 1.0, "the owner of the flow is another mirror")
    scene.target.heard_at = NOW

    soon = scene.look(NOW + 10, LONG - 1)
    later = scene.look(LONG)
    scene.copy.stand_by(LONG, 1.0, "the owner of the flow is another mirror")

    assert (soon[0], later, scene.copy.state) == (State.STANDBY, AWAY, State.STANDBY)


@pytest.mark.parametrize("state", [State.PAUSED, State.DIVERGED])
def test_what_waits_for_nobody_is_left_as_it_is(state: State) -> None:
    """
    An operator has to say something first; or all is copied.
    """
    standing, complete = Scene(waiting()), Scene(under_way())
    standing.copy.stop(state, Reason.OPERATOR, "", NOW)
    for scene in (standing, complete):
        scene.source.heard_at = scene.target.heard_at = NOW
        scene.look(NOW + 10, LONG)

    assert (standing.copy.state, complete.copy.state) == (state, State.ACTIVE)
