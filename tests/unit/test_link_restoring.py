"""Where restoring takes most of the time: what brings more, recoded batches or those that are left alone."""

from __future__ import annotations

import pytest

from mirror.kafka.fetch import Key
from mirror.link.restoring import DECIDED_SECONDS, LIMIT_ABOVE, Restoring

ONE, OTHER = Key(bytes(16), 0), Key(bytes(16), 1)
MB = 1_000_000


class Copy:
    """A copy that goes on: frames of a megabyte of records of one partition come as fast as they may.

    Args:
        core: Megabytes a second that are restored, of recoded ones.
        plain: That come, of those that are left as they are.
        share: Of its time that is spent restoring, while it is recoded.
    """

    def __init__(self, core: float, plain: float, share: float = 1.0) -> None:
        self.restoring = Restoring()
        self.now = 1_000.0
        self._core, self._plain, self._share = core, plain, share

    def go_on(self, seconds: float) -> list[bool]:
        """For so long; answers at each change whether it is recoded from then on."""
        end, changes = self.now + seconds, list[bool]()
        while self.now < end:
            recoded = ONE not in self.restoring.left
            took = 1 / (self._core if recoded else self._plain)
            self.now += took
            sizes, spent = {ONE: MB}, took * self._share if recoded else 0.0
            changed = self.restoring.took(sizes if recoded else {}, {} if recoded else sizes, spent, self.now)
            if changed:
                assert set(changed) == {ONE}
                changes.append(ONE not in self.restoring.left)
        return changes


def test_over_a_narrow_link_it_is_recoded_though_a_core_is_the_limit() -> None:
    """
    Left alone it brought less: that is tried for some seconds, and not again for long.
    """
    copy = Copy(core=40, plain=25)

    assert copy.go_on(30) == [False, True]
    assert copy.go_on(DECIDED_SECONDS - 60) == []
    assert copy.go_on(100) == [False, True]


def test_over_a_wide_link_it_is_left_alone() -> None:
    """
    Until it is looked at again.
    """
    copy = Copy(core=40, plain=110)

    assert copy.go_on(30) == [False]
    assert copy.go_on(DECIDED_SECONDS - 60) == []
    assert copy.go_on(60) == [True, False]


def test_what_brings_little_more_is_not_worth_its_bytes() -> None:
    """
    A twentieth.
    """
    assert Copy(core=40, plain=42).go_on(30) == [False, True]


@pytest.mark.parametrize("share", [0.1, LIMIT_ABOVE - 0.1])
def test_while_there_is_time_for_it_nothing_is_tried(share: float) -> None:
    """
    The link is the limit, or the target.
    """
    assert Copy(core=40, plain=110, share=share).go_on(60) == []


def test_others_are_not_concerned() -> None:
    """
    What is not recoded anyway, whichever way it comes.
    """
    copy = Copy(core=40, plain=110)
    copy.restoring.took({}, {OTHER: MB}, 0.0, copy.now)
    copy.go_on(30)

    assert copy.restoring.left == {ONE}
