"""What each part of compression saves of what crosses a link: prefix codes, matches, and how far they reach.

The same records, cut into frames as a relay cuts them, are compressed in many ways: bytes left for each byte,
and megabytes a second of one core. Then what a dictionary saves at the beginning of a stream, where a window
holds nothing yet. Nothing is copied; ``python -m bench.compression``.

Sources: RFC 1951 (prefix codes), RFC 8878 (zstd), zstd 1.5.7's lib/compress/zstd_compress_internal.h
(``ZSTD_literalsCompressionIsDisabled``).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import lz4.frame
import zstandard
from rich.console import Console
from rich.table import Table

from mirror.link.frames import Compression, Sealer
from tests.harness.data import debian_packages, device_rows, json_rows

WIDTH = 130
FRAME_BYTES, MEGABYTES = 1 << 20, 64
SMALL_FRAME_BYTES, SMALL_FRAMES = 4096, 2000
"""As for partitions that are caught up: a few records at a time."""
DEVICES = 15_000
"""Each reports 400 B in turn: what repeats does so after 6 MB."""
DICTIONARY_BYTES = 112_640
"""zstd's own default."""
EARLIER_BYTES = 1 << 20
"""A dictionary is trained on the first bytes of the topic it is then used for."""
STREAMS = 50
"""They begin at equal distances over all that comes later."""
BEGINNINGS = {"64 KiB": 64 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20}
HISTORIES = {"nothing": 0, "64 KiB": 64 << 10, "1 MiB": 1 << 20}
TRICKLE_FRAME_BYTES = (1024, 2048, 4096)
STREAM_BYTES = max(HISTORIES.values()) + max(TRICKLE_FRAME_BYTES)
CONNECTIONS_A_DAY = 24
LITERALS_AS_THEY_ARE = 1
"""A target length for zstd. With its fast strategy, which is that of level 1, literals then get no prefix
codes; matches are looked for as with 0, in steps of two. The binding has no other switch for that.
"""

Frames = Sequence[bytes]
Way = Callable[[Frames], int]
"""Returns how many bytes the frames become."""


def prefix_codes_alone(frames: Frames) -> int:
    """Huffman codes and no matches at all."""
    return sum(len(_deflated(frame, zlib.Z_HUFFMAN_ONLY)) for frame in frames)


def _deflated(frame: bytes, strategy: int) -> bytes:
    deflate = zlib.compressobj(level=6, strategy=strategy)
    return deflate.compress(frame) + deflate.flush()


def matches_alone(frames: Frames) -> int:
    """Matches within 64 KiB and no prefix codes, as in lz4."""
    return sum(len(lz4.frame.compress(frame)) for frame in frames)


def both_in_a_frame(level: int, **more: int) -> Way:
    """zstd, each frame by itself.

    Args:
        more: Parameters that override those of the level.
    """

    def way(frames: Frames) -> int:
        left = 0
        for one in frames:
            parameters = zstandard.ZstdCompressionParameters.from_level(level, source_size=len(one), **more)
            left += len(zstandard.ZstdCompressor(compression_params=parameters).compress(one))
        return left

    return way


def with_dictionary(frames: Frames) -> int:
    """zstd at level 3, each frame by itself, with a dictionary. It is trained on half of the frames; what the
    other half becomes counts twice.
    """
    half = frames[: len(frames) // 2]
    dictionary = zstandard.train_dictionary(DICTIONARY_BYTES, list(half))
    compressor = zstandard.ZstdCompressor(level=3, dict_data=dictionary)
    return 2 * sum(len(compressor.compress(frame)) for frame in frames[len(half) :])


def with_window(level: int, window_log: int = 24, *, long: bool = False) -> Way:
    """As a relay does it: one window over all frames, and a new one when it is full."""

    def way(frames: Frames) -> int:
        sealer = Sealer(Compression(level, window_log, long))
        return sum(len(piece) for frame in frames for piece in sealer.seal(1, 0, [frame]))

    return way


WAYS: dict[str, Way] = {
    "prefix codes alone (deflate)": prefix_codes_alone,
    "matches alone (lz4)": matches_alone,
    "zstd 1, literals as they are": both_in_a_frame(1, target_length=LITERALS_AS_THEY_ARE),
    "zstd 1, frame by frame": both_in_a_frame(1),
    "zstd 3, frame by frame": both_in_a_frame(3),
    "zstd -5, 16 MiB": with_window(-5),
    "zstd -1, 16 MiB": with_window(-1),
    "zstd 1, 16 MiB": with_window(1),
    "zstd 2, 16 MiB": with_window(2),
    "zstd 3, 16 MiB": with_window(3),
    "zstd 6, 16 MiB": with_window(6),
    "zstd 9, 16 MiB": with_window(9),
    "zstd 1, long, 16 MiB": with_window(1, long=True),
    "zstd 2, long, 16 MiB": with_window(2, long=True),
    "zstd 3, long, 16 MiB": with_window(3, long=True),
    "zstd 6, long, 16 MiB": with_window(6, long=True),
    "zstd 9, long, 16 MiB": with_window(9, long=True),
}
OF_SMALL_ONES: dict[str, Way] = {
    "zstd 3, frame by frame": both_in_a_frame(3),
    "the same with a dictionary": with_dictionary,
    "zstd 2, long, 16 MiB": with_window(2, long=True),
}


def json_of(size: int) -> Iterator[bytes]:
    return (row.value or b"" for row in json_rows(MEGABYTES * 1_000_000 // size, size))


def of_devices() -> Iterator[bytes]:
    return (row.value or b"" for row in device_rows(MEGABYTES * 2500, DEVICES))


def packages() -> Iterator[bytes]:
    return (row.value or b"" for row in debian_packages())


KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "JSON of 1 KiB": lambda: json_of(1024),
    "JSON of 100 B": lambda: json_of(100),
    "Debian's package index": packages,
    "JSON, again after 6 MB": of_devices,
}


def frames_of(values: Iterator[bytes], size: int) -> Frames:
    """Values joined, and cut into frames."""
    whole = b"".join(values)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def show(title: str, ways: Mapping[str, Way], found: Mapping[str, Frames]) -> None:
    """Print what each way makes of each kind of data."""
    table = Table(title=title)
    table.add_column("bytes left for each, MB/s of a core")
    for kind in found:
        table.add_column(kind, justify="right")
    for name, way in ways.items():
        row = []
        for frames in found.values():
            size, began = sum(map(len, frames)), time.process_time()
            share = way(frames) / size
            row.append(f"{share:.3f}, {size / 1e6 / (time.process_time() - began):,.0f}")
        table.add_row(name, *row)
    Console(width=WIDTH).print(table)


class Topic(NamedTuple):
    """A dictionary that was trained on the first records, and all that came later."""

    dictionary: zstandard.ZstdCompressionDict
    later: bytes


class Stream(NamedTuple):
    """The compressed size of each of its frames, without a dictionary and with one; means of many streams."""

    plain: Sequence[float]
    trained: Sequence[float]

    def shares(self, frame_bytes: int, first: int, count: int) -> str:
        """What is left of some frames, without a dictionary and with one."""
        size = frame_bytes * count
        return ", ".join(f"{sum(of[first : first + count]) / size:.3f}" for of in self)

    def saved(self, count: int) -> float:
        """Bytes that a dictionary saves on the first frames."""
        return sum(self.plain[:count]) - sum(self.trained[:count])


def topic_of(values: Iterator[bytes]) -> Topic:
    """Train a dictionary on the first records."""
    earlier: list[bytes | bytearray | memoryview] = []
    size = 0
    while size < EARLIER_BYTES:
        earlier.append(value := next(values))
        size += len(value)
    return Topic(zstandard.train_dictionary(DICTIONARY_BYTES, earlier), b"".join(values))


def stream_of(topic: Topic, frame_bytes: int) -> Stream:
    """zstd at level 3, one window over all frames of a stream."""
    return Stream(
        _mean_sizes(topic.later, frame_bytes, None), _mean_sizes(topic.later, frame_bytes, topic.dictionary)
    )


def _mean_sizes(
    later: bytes, frame_bytes: int, dictionary: zstandard.ZstdCompressionDict | None
) -> list[float]:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary)
    apart = (len(later) - STREAM_BYTES) // STREAMS
    every = [
        _sizes(compressor.compressobj(), later[at : at + STREAM_BYTES], frame_bytes)
        for at in range(0, apart * STREAMS, apart)
    ]
    return [sum(of) / STREAMS for of in zip(*every, strict=True)]


def _sizes(window: zstandard.ZstdCompressionObj, data: bytes, frame_bytes: int) -> list[int]:
    return [
        len(window.compress(data[at : at + frame_bytes]))
        + len(window.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        for at in range(0, len(data), frame_bytes)
    ]


def show_dictionaries(topics: Mapping[str, Topic]) -> None:
    """Print what a dictionary could gain, which it can only while the window holds little."""
    table = Table(title="one window over a stream, zstd 3: without, with a dictionary")
    table.add_column("bytes left for each")
    for kind in topics:
        table.add_column(kind, justify="right")
    found = {size: [stream_of(topic, size) for topic in topics.values()] for size in TRICKLE_FRAME_BYTES}
    small = found[SMALL_FRAME_BYTES]
    for name, size in BEGINNINGS.items():
        count = size // SMALL_FRAME_BYTES
        shares = (stream.shares(SMALL_FRAME_BYTES, 0, count) for stream in small)
        table.add_row(f"the first {name}, frames of 4 KiB", *shares)
    for frame_bytes, streams in found.items():
        for name, history in HISTORIES.items():
            shares = (stream.shares(frame_bytes, history // frame_bytes, 1) for stream in streams)
            table.add_row(f"a frame of {frame_bytes >> 10} KiB after {name}", *shares)
    for name, size in BEGINNINGS.items():
        saved = (stream.saved(size // SMALL_FRAME_BYTES) * CONNECTIONS_A_DAY for stream in small)
        table.add_row(f"saved of {CONNECTIONS_A_DAY} times {name}", *map(_kilobytes, saved))
    sent = (len(zstandard.compress(topic.dictionary.as_bytes(), 3)) for topic in topics.values())
    table.add_row("the dictionary, compressed", *map(_kilobytes, sent))
    Console(width=WIDTH).print(table)


def _kilobytes(size: float) -> str:
    return f"{size / 1000:,.0f} kB"


def main() -> None:
    """Print all tables."""
    large = {name: frames_of(values(), FRAME_BYTES) for name, values in KINDS.items()}
    show("frames of 1 MiB: partitions that are behind", WAYS, large)
    small = {
        name: list(islice(frames_of(iter(frames), SMALL_FRAME_BYTES), SMALL_FRAMES))
        for name, frames in large.items()
    }
    show("frames of 4 KiB: partitions that are caught up", OF_SMALL_ONES, small)
    show_dictionaries({name: topic_of(values()) for name, values in KINDS.items()})


if __name__ == "__main__":
    main()
