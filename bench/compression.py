"""What each part of compression makes of what crosses a link: prefix codes, matches, and how far they reach.

Of the same records, cut into frames as a relay cuts them: bytes left for each byte, and megabytes a second of
one core. Nothing is copied; ``python -m bench.compression``.

Sources: RFC 1951 (prefix codes), RFC 8878 (zstd).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import lz4.frame
import zstandard
from rich.console import Console
from rich.table import Table

from mirror.link.frames import Compression, Sealer
from tests.harness.data import debian_packages, device_rows, json_rows

FRAME_BYTES, MEGABYTES = 1 << 20, 64
SMALL_FRAME_BYTES, SMALL_FRAMES = 4096, 2000
"""As of what is up to date: a few records at a time."""
DEVICES = 15_000
"""Of 400 B each: what repeats does so after 6 MB."""
DICTIONARY_BYTES = 112_640
"""zstd's own default."""

Frames = Sequence[bytes]
Way = Callable[[Frames], int]
"""Answers how many bytes the frames become."""


def prefix_codes_alone(frames: Frames) -> int:
    """Huffman codes and no matches at all."""
    return sum(len(_deflated(frame, zlib.Z_HUFFMAN_ONLY)) for frame in frames)


def _deflated(frame: bytes, strategy: int) -> bytes:
    deflate = zlib.compressobj(level=6, strategy=strategy)
    return deflate.compress(frame) + deflate.flush()


def matches_alone(frames: Frames) -> int:
    """Matches over 64 KiB and no prefix codes, as lz4 has it."""
    return sum(len(lz4.frame.compress(frame)) for frame in frames)


def both_in_a_frame(level: int) -> Way:
    """Zstd, each frame for itself."""
    return lambda frames: sum(len(zstandard.ZstdCompressor(level=level).compress(one)) for one in frames)


def with_dictionary(frames: Frames) -> int:
    """Zstd at level 3, each frame for itself, with a dictionary that was trained on half of them."""
    half = frames[: len(frames) // 2]
    dictionary = zstandard.train_dictionary(DICTIONARY_BYTES, list(half))
    compressor = zstandard.ZstdCompressor(level=3, dict_data=dictionary)
    return 2 * sum(len(compressor.compress(frame)) for frame in frames[len(half) :])


def with_window(level: int, window_log: int = 24, *, long: bool = False) -> Way:
    """As a relay does it: one window over all frames, or anew when it is full."""

    def way(frames: Frames) -> int:
        sealer = Sealer(Compression(level, window_log, long))
        return sum(len(piece) for frame in frames for piece in sealer.seal(1, 0, [frame]))

    return way


WAYS: dict[str, Way] = {
    "prefix codes alone": prefix_codes_alone,
    "matches alone (lz4)": matches_alone,
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
    """Values one behind the other, cut."""
    whole = b"".join(values)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def show(title: str, ways: Mapping[str, Way], found: Mapping[str, Frames]) -> None:
    """What each way makes of each kind."""
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
    Console(width=110).print(table)


def main() -> None:
    """Print both tables."""
    large = {name: frames_of(values(), FRAME_BYTES) for name, values in KINDS.items()}
    show("frames of 1 MiB: what is behind", WAYS, large)
    small = {
        name: list(islice(frames_of(iter(frames), SMALL_FRAME_BYTES), SMALL_FRAMES))
        for name, frames in large.items()
    }
    show("frames of 4 KiB: what is up to date", OF_SMALL_ONES, small)


if __name__ == "__main__":
    main()
