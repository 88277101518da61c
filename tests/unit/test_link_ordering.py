"""Slices over several connections: in their order again, whatever came first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.link.ordering import InOrder


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=20), st.randoms(use_true_random=False))
def test_slices_come_out_in_their_order(slices: list[bytes], dice: random.Random) -> None:
    """
    And nothing is kept when all are there.
    """
    places = [sum(map(len, slices[:number])) for number in range(len(slices))]
    sent = list(zip(places, slices, strict=True))
    dice.shuffle(sent)
    in_order = InOrder()

    came = [bytes(piece) for at, data in sent for piece in in_order.received(at, memoryview(data))]

    assert b"".join(came) == b"".join(slices)
    assert not in_order.incomplete


@pytest.mark.parametrize("at", [0, 1, 9])
def test_what_came_before_is_refused(at: int) -> None:
    """
    Bytes that were given out, and bytes that wait, are not sent again.
    """
    in_order = InOrder()
    assert len(list(in_order.received(0, memoryview(b"abc")))) == 1
    assert list(in_order.received(9, memoryview(b"xyz"))) == []

    assert in_order.incomplete
    with pytest.raises(AnswerError, match="where 3 was due"):
        list(in_order.received(at, memoryview(b"abc")))
