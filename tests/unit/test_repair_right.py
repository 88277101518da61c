"""A repair takes the right to write back from a mirror, but not from another repair for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mirror.errors import StateConflictError
from mirror.flow.position import Stop
from mirror.model import Reason, State
from mirror.repairing import part as taking_part
from mirror.repairing.part import CLAIMS_MAX, Part, stands_still


class Contested:
    """A right that somebody else takes back so many times before it may be made use of."""

    def __init__(self, taken_back: int) -> None:
        self.held, self.claims, self._taken_back = False, 0, taken_back

    async def claim(self) -> None:
        self.claims += 1
        self.held = True

    async def confirm(self) -> bool:
        if self.held and self.claims <= self._taken_back:
            self.held = False
        return self.held


class Memory:
    """Remembers that it was read again."""

    def __init__(self) -> None:
        self.read = 0

    async def refresh(self, *, sole_writer: bool) -> None:
        assert not sole_writer
        self.read += 1


def part_of(owner: Contested, memory: Memory) -> Part:
    return Part(cast(Any, None), cast(Any, memory), cast(Any, owner), "same", {})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_part, "CONFIRM_PAUSE_SECONDS", 0.0)


async def test_a_right_that_a_mirror_took_back_meanwhile_is_taken_again() -> None:
    """
    And what it has written is read before anything is made of it.
    """
    owner, memory = Contested(taken_back=CLAIMS_MAX - 1), Memory()

    await part_of(owner, memory).be_owner()

    assert (owner.claims, owner.held) == (CLAIMS_MAX, True)
    assert memory.read > CLAIMS_MAX


async def test_a_right_that_is_taken_back_each_time_is_left_to_who_has_it() -> None:
    """
    Two repairs took it from each other without end, and no mirror copied meanwhile.
    """
    owner = Contested(taken_back=CLAIMS_MAX + 1)

    with pytest.raises(StateConflictError, match=f"took over the flow {CLAIMS_MAX} times") as refused:
        await part_of(owner, Memory()).be_owner()

    assert "another repair of this flow is running" in refused.value.hint
    assert owner.claims == CLAIMS_MAX


@pytest.mark.parametrize("reason", [Reason.FOREIGN_WRITE, Reason.ANOTHER_FLOW])
def test_a_copy_that_others_have_written_to_or_made_again_stands_still_whatever_it_holds(
    reason: Reason,
) -> None:
    """
    A topic that somebody has deleted at the target and filled again with the same records is compared as the
    same, and the mirror stops there all the same: a repair says so.
    """
    assert stands_still(Stop(State.BLOCKED, reason, "the target topic was created again"))
    assert not stands_still(Stop(State.BLOCKED, Reason.SOURCE_UNAVAILABLE, ""))
