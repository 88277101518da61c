"""Whose stream may begin at a relay, and whose ends with it."""

from __future__ import annotations

import pytest

from mirror.relay.hello import FLOWS_MAX, Epochs, Hello, Refused

ROLE = "west"


class Stream:
    """One that knows why it was ended."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self.why = ""

    def refuse(self, code: str, detail: str) -> None:
        self.why = f"{code}: {detail}"
        self._epochs.end(self)


def hello(epoch: int, flow: str = "flow", producer_id: int = 7) -> Hello:
    return Hello(
        flow=flow,
        producer_id=producer_id,
        epoch=epoch,
        isolation=1,
        windows=(1, 1),
        frame_bytes=1,
        level=0,
        recode=True,
    )


def begun(epochs: Epochs, said: Hello, role: str | None = ROLE) -> Stream:
    stream = Stream(epochs)
    epochs.begin(stream, said, role)
    return stream


def test_streams_of_an_older_epoch_end_when_a_newer_one_begins() -> None:
    """
    All of them, and each is told why. One of the same epoch goes on beside it.
    """
    epochs = Epochs()
    old, older = begun(epochs, hello(4)), begun(epochs, hello(4))

    newer, beside = begun(epochs, hello(5)), begun(epochs, hello(5))

    why = "old_epoch: flow flow is at epoch 5: a mirror of epoch 4 was fenced off"
    assert [one.why for one in (old, older, newer, beside)] == [why, why, "", ""]
    with pytest.raises(Refused, match="flow flow is at epoch 5: a mirror of epoch 4 was fenced off"):
        begun(epochs, hello(4))


def test_nobody_is_ended_by_another_flow_producer_or_role() -> None:
    """
    Whoever may come in under another role stops nobody by a flow's name.
    """
    epochs = Epochs()
    stream = begun(epochs, hello(4))

    for said, role in ((hello(9, flow="another"), ROLE), (hello(9, producer_id=8), ROLE)):
        begun(epochs, said, role)
    for another_role in ("east", None):
        begun(epochs, hello(9), another_role)

    assert stream.why == ""
    assert begun(epochs, hello(4)).why == ""


def test_a_stream_that_has_ended_is_not_ended_again() -> None:
    """
    Nor one that was refused and never began.
    """
    epochs = Epochs()
    ended, refused = begun(epochs, hello(4)), Stream(epochs)
    epochs.end(ended)
    epochs.end(ended)
    begun(epochs, hello(5))
    with pytest.raises(Refused):
        epochs.begin(refused, hello(4), ROLE)

    begun(epochs, hello(6))

    assert (ended.why, refused.why) == ("", "")


def test_an_epoch_that_is_open_is_known_however_many_others_have_come() -> None:
    """
    Of others than the last ten thousand it is forgotten with the last stream.
    """
    epochs = Epochs()
    stream = begun(epochs, hello(5))
    for number in range(FLOWS_MAX):
        epochs.end(begun(epochs, hello(0, flow=f"flow-{number}")))

    with pytest.raises(Refused):
        begun(epochs, hello(4))
    epochs.end(stream)

    assert begun(epochs, hello(4)).why == ""
