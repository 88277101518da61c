"""Messages between mirror and relay: framing, and what is refused."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.kafka.fetch import Key
from mirror.link import messages, protocol
from mirror.link.messages import Messages
from mirror.link.protocol import Channel, Down, Position, Up

keys = st.builds(Key, st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))
positions = st.builds(
    Position,
    keys,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.integers(0, 255),
)
READERS: list[Callable[[bytes], Any]] = [
    messages.document,
    protocol.read_want,
    protocol.read_forget,
    protocol.read_taken,
    protocol.read_number,
    protocol.read_pong,
    protocol.read_rank,
]


def test_a_long_document_is_refused() -> None:
    """
    However little it says, in memory it would be a hundred times as long.
    """
    with pytest.raises(AnswerError, match="100002 bytes of JSON; the limit is 65536"):
        messages.document(b"{" + b" " * 100_000 + b"}")


@given(st.lists(positions, max_size=5), st.lists(keys, max_size=5), st.integers(1, 50))
def test_messages_come_whole(wanted: list[Position], forgotten: list[Key], cut: int) -> None:
    """
    Wherever the network has cut them.
    """
    sent = b"".join(
        (protocol.want(wanted), protocol.forget(forgotten), protocol.taken(Channel.BULK, 7), protocol.ping(9))
    )
    reader = Messages()
    came = [
        (kind, bytes(payload))
        for at in range(0, len(sent), cut)
        for kind, payload in reader.received(sent[at : at + cut])
    ]

    assert [kind for kind, _ in came] == [Up.WANT, Up.FORGET, Up.TAKEN, Up.PING]
    assert protocol.read_want(came[0][1]) == wanted
    assert protocol.read_forget(came[1][1]) == forgotten
    assert protocol.read_taken(came[2][1]) == (Channel.BULK, 7)
    assert protocol.read_number(came[3][1]) == 9


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), st.integers(1, 50))
def test_slices_are_told_of_as_they_come(slices: list[bytes], cut: int) -> None:
    """
    Each byte once, at its place; and when a slice is whole, and what stands between them.
    """
    starts = [0, *itertools.accumulate(map(len, slices))]
    sent = b"".join(
        messages.slice_of(Channel.BULK, at, data) + protocol.ping(at)
        for at, data in zip(starts, slices, strict=False)
    )
    told = bytearray()

    def on_slice(channel: int, at: int, data: memoryview) -> None:
        assert (channel, at) == (Channel.BULK, len(told))
        told.extend(data)

    reader = Messages(on_slice=on_slice)
    came = [
        (kind, bytes(payload))
        for at in range(0, len(sent), cut)
        for kind, payload in reader.received(sent[at : at + cut])
    ]

    assert bytes(told) == b"".join(slices)
    assert [kind for kind, _ in came] == [Down.SLICE, Up.PING] * len(slices)
    assert [protocol.read_number(payload) for kind, payload in came if kind == Up.PING] == starts[:-1]


@given(st.lists(positions, max_size=3), st.data())
def test_a_message_with_a_flipped_bit_is_never_taken_for_another(
    wanted: list[Position], data: st.DataObject
) -> None:
    """
    It is refused; or it seems to be longer, and is waited for. TCP does not see each flipped bit.
    """
    said = bytearray(protocol.want(wanted) + protocol.limit(1_000_000))
    at = data.draw(st.integers(0, len(said) - 1))
    said[at] ^= 1 << data.draw(st.integers(0, 7))

    came, reader = [], Messages()
    try:
        for _, payload in reader.received(bytes(said)):
            came.append(bytes(payload))
    except AnswerError:
        pass

    assert len(came) < 2
    assert all(protocol.read_want(payload) == wanted for payload in came)


@pytest.mark.parametrize("size", [0, 1, 9])
def test_a_slice_of_nothing_is_refused(size: int) -> None:
    """
    As it could go on for ever.
    """
    with pytest.raises(AnswerError, match=f"a slice of {size} bytes"):
        list(Messages(on_slice=lambda *_: None).received(struct.pack(">IB", size + 1, Down.SLICE)))


@given(st.binary(max_size=100), st.sampled_from(READERS))
def test_what_makes_no_sense_is_refused(payload: bytes, read: Callable[[bytes], Any]) -> None:
    """
    Any bytes: they say something, or are refused.
    """
    try:
        read(payload)
    except AnswerError:
        return


@pytest.mark.parametrize("length", [0, (4 << 20) + 1, 0xFFFFFFFF])
def test_a_length_that_cannot_be_true_is_refused(length: int) -> None:
    """
    Before anything is kept for it.
    """
    with pytest.raises(AnswerError, match=f"a message of {length} bytes"):
        list(Messages().received(length.to_bytes(4, "big") + b"\1"))


NOWHERE, SOMEWHERE = Key(bytes(16), -1), Key(bytes(16), 0)


@pytest.mark.parametrize(
    ("said", "read", "words"),
    [
        (protocol.want([Position(NOWHERE, 1, 0, -1, True)]), protocol.read_want, "invalid partition -1"),
        (protocol.forget([NOWHERE]), protocol.read_forget, "invalid partition -1"),
        (protocol.rank([(NOWHERE, 3)]), protocol.read_rank, "invalid partition -1"),
        (protocol.want([Position(SOMEWHERE, 1, -1, -1, True)]), protocol.read_want, "offset=-1"),
        (protocol.want([Position(SOMEWHERE, 1, 0, -1, cast(bool, 7))]), protocol.read_want, "recode=7"),
    ],
    ids=["WANT", "FORGET", "RANK", "an offset", "neither recoded nor not"],
)
def test_what_cannot_be_wanted_is_refused(said: bytes, read: Callable[[bytes], Any], words: str) -> None:
    """
    Nothing is there that could be read, or be read so.
    """
    with pytest.raises(AnswerError, match=words):
        read(said[5:-4])
