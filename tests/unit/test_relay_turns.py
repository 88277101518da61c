"""Whose turn it is, of partitions that are behind on several brokers."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirror.link.protocol import RANK_LAST
from mirror.relay.turns import Turns

lanes, ranks = st.sampled_from("abc"), st.integers(0, 4)


def test_a_broker_that_does_not_answer_holds_up_nobody() -> None:
    """
    What it has goes first again when it answers.
    """
    turns = Turns()
    turns.count("a", 5, 1)
    assert turns.count("b", 0, 1)
    assert turns.served == 0

    assert turns.silent("b")
    assert turns.served == 5

    assert turns.heard("b")
    assert turns.served == 0


class Model(RuleBasedStateMachine):
    """Held against a list of all that are behind."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()
        self.behind: list[tuple[str, int]] = []
        self.silent: set[str] = set()
        self.before = RANK_LAST

    @property
    def served(self) -> int:
        return min((rank for lane, rank in self.behind if lane not in self.silent), default=RANK_LAST)

    def changed(self, said: bool) -> None:
        assert said == (self.served != self.before)
        self.before = self.served

    @rule(lane=lanes, rank=ranks)
    def more(self, lane: str, rank: int) -> None:
        self.behind.append((lane, rank))
        self.changed(self.turns.count(lane, rank, 1))

    @precondition(lambda self: self.behind)
    @rule(data=st.data())
    def less(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.behind))
        self.behind.remove(one)
        self.changed(self.turns.count(*one, -1))

    @rule(lane=lanes)
    def falls_silent(self, lane: str) -> None:
        self.silent.add(lane)
        self.changed(self.turns.silent(lane))

    @rule(lane=lanes)
    def speaks(self, lane: str) -> None:
        self.silent.discard(lane)
        self.changed(self.turns.heard(lane))

    @invariant()
    def the_lowest_rank_of_those_that_answer_is_served(self) -> None:
        assert self.turns.served == self.served


TestModel = Model.TestCase
