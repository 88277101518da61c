"""The bench of compression: prefix codes inside zstd by themselves, and what a dictionary is worth when."""

from __future__ import annotations

import random

import pytest

from bench import compression
from bench.compression import LITERALS_AS_THEY_ARE, Stream, both_in_a_frame, stream_of, topic_of
from tests.harness.data import json_rows

FRAME_BYTES = 4096


def test_prefix_codes_can_be_left_out_inside_zstd() -> None:
    """
    Hex digits without a match are halved by them, and by nothing else; matches are found without them.
    """
    digits = random.Random(1).randbytes(50_000).hex().encode()

    def left(frame: bytes, **more: int) -> float:
        return both_in_a_frame(1, **more)([frame]) / len(frame)

    assert left(digits) == pytest.approx(0.5, abs=0.02)
    assert left(digits, target_length=LITERALS_AS_THEY_ARE) == pytest.approx(1.0, abs=0.01)
    assert left(digits * 2, target_length=LITERALS_AS_THEY_ARE) == pytest.approx(0.5, abs=0.01)


def test_a_dictionary_gains_at_the_beginning_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A megabyte later the window is as good; streams are of what came after its training.
    """
    monkeypatch.setattr(compression, "STREAMS", 3)
    values = [row.value or b"" for row in json_rows(3500, 1024)]

    topic = topic_of(iter(values))
    stream = stream_of(topic, FRAME_BYTES)

    assert topic.later == b"".join(values[1024:])
    assert stream.trained[0] < 0.5 * stream.plain[0]
    assert sum(stream.trained[-50:]) == pytest.approx(sum(stream.plain[-50:]), rel=0.1)


def test_shares_are_of_the_frames_that_are_asked_for() -> None:
    """
    And what is saved is of the first ones.
    """
    stream = Stream(plain=[60.0, 40.0, 30.0], trained=[30.0, 30.0, 30.0])

    assert stream.shares(100, 0, 2) == "0.500, 0.300"
    assert stream.shares(100, 1, 1) == "0.400, 0.300"
    assert (stream.saved(1), stream.saved(3)) == (30.0, 40.0)
