"""Slices over several connections: in their order again, whatever came first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.link.ordering import PIECE_COSTS_BYTES, InOrder


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


def cut(data: bytes, dice: random.Random) -> list[tuple[int, bytes]]:
    """Pieces of it, each with its place."""
    ends = sorted({*(dice.randrange(len(data) + 1) for _ in range(dice.randrange(8))), len(data)})
    return [(at, data[at:end]) for at, end in zip([0, *ends], ends, strict=False)]


@given(st.binary(max_size=60), st.randoms(use_true_random=False))
def test_what_comes_twice_counts_once(data: bytes, dice: random.Random) -> None:
    """
    Cut here and there, some of it once more and cut elsewhere, whatever comes first; and nothing is kept.
    """
    again = cut(data, dice)
    sent = cut(data, dice) + dice.sample(again, dice.randrange(len(again) + 1))
    dice.shuffle(sent)
    in_order = InOrder(repeats=True)

    came = [bytes(piece) for at, one in sent for piece in in_order.received(at, memoryview(one))]

    assert b"".join(came) == data
    assert all(came)
    assert (in_order.incomplete, in_order.early_bytes) == (False, 0)


@pytest.mark.parametrize("at", [0, 1])
def test_what_was_given_out_does_not_come_again(at: int) -> None:
    """
    Where nothing is sent twice on purpose.
    """
    in_order = InOrder()
    assert len(list(in_order.received(0, memoryview(b"abc")))) == 1

    with pytest.raises(AnswerError, match="expected 3"):
        list(in_order.received(at, memoryview(b"abc")))


def test_what_waits_does_not_come_again() -> None:
    """
    Likewise: it is seen when its turn comes, and counts among what is kept until then.
    """
    in_order = InOrder()
    for _ in range(2):
        assert list(in_order.received(9, memoryview(b"xyz"))) == []

    assert in_order.early_bytes == 2 * (3 + PIECE_COSTS_BYTES)
    with pytest.raises(AnswerError, match="expected 12"):
        list(in_order.received(0, memoryview(b"123456789")))
