"""Records to mirror: the Debian package index, generated JSON, and everything odd a log may hold.

Nothing is written here: that is in :mod:`tests.harness.loading`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

WORD_BYTES = 10


class NotLoadedError(Exception):
    """A record was not accepted, or the data is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    """0: the present time."""
    partition: int = -1
    """-1: chosen by the key."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Records of an aborted transaction: offsets that consumers do not see, and that of its marker."""

    records: int


class Edge(Enum):
    """The beginning of a transaction, which takes no offset, and its commit marker, which takes one."""

    BEGIN = "begin"
    COMMIT = "commit"


Entry = Row | Aborted | Edge
"""What a log is made of, in its order."""


def size_of(entry: Entry) -> int:
    """How many offsets it takes."""
    if isinstance(entry, Aborted):
        return entry.records + 1
    return 0 if entry is Edge.BEGIN else 1


def debian_packages(limit: int | None = None) -> Iterator[Row]:
    """The package index of this machine: package name and its stanza, about 60 000 of 0.8 KiB.

    Raises:
        NotLoadedError: apt has no index; ``apt-get update`` fetches one.
    """
    dump = subprocess.Popen(["apt-cache", "dumpavail"], stdout=subprocess.PIPE)
    assert dump.stdout is not None
    try:
        rows = (_package(stanza) for stanza in _stanzas(dump.stdout))
        first = next(rows, None)
        if first is None:
            raise NotLoadedError("apt-cache dumpavail prints nothing: run apt-get update")
        yield from itertools.islice(itertools.chain([first], rows), limit)
    finally:
        dump.stdout.close()
        dump.wait()


def _stanzas(lines: Iterable[bytes]) -> Iterator[bytes]:
    for blank, stanza in itertools.groupby(lines, key=lambda line: line == b"\n"):
        if not blank:
            yield b"".join(stanza)


def _package(stanza: bytes) -> Row:
    name = re.match(rb"Package: (\S+)", stanza)
    if name is None:
        raise NotLoadedError(f"not a package stanza: {stanza[:60]!r}")
    return Row(key=name[1], value=stanza)


def json_rows(count: int, value_bytes: int = 1024, seed: int = 1, keys: int | None = None) -> Iterator[Row]:
    """JSON records, each different, the same for the same seed.

    Args:
        value_bytes: Size of every value, at least 80.
        keys: How many different keys there are; every record has its own when None.
    """
    dice = random.Random(seed)
    words = [dice.randbytes(WORD_BYTES // 2).hex() for _ in range(5000)]
    for number in range(count):
        document = {"id": number, "price": dice.randrange(10**6) / 100, "state": dice.choice(words)}
        text = json.dumps(document)[:-1] + ', "note": "'
        missing = max(0, value_bytes - 2 - len(text))
        text += " ".join(dice.choices(words, k=missing // (WORD_BYTES + 1) + 1))
        key = number if keys is None else dice.randrange(keys)
        yield Row(key=b"%012d" % key, value=f'{text[: value_bytes - 2]}"}}'.encode())


def device_rows(count: int, devices: int, value_bytes: int = 400, seed: int = 1) -> Iterator[Row]:
    """JSON records of devices that report in turn, each much the same as the time before.

    So what repeats does so after ``devices`` times ``value_bytes`` bytes, and not before.
    """
    dice = random.Random(seed)
    tells = [dice.randbytes(value_bytes // 2 - 20).hex() for _ in range(devices)]
    for number in range(count):
        device = number % devices
        value = f'{{"id": {number:012d}, "tells": "{tells[device]}"}}'
        yield Row(key=b"%012d" % device, value=value.encode())


def edge_rows(first_timestamp_ms: int = 1_700_000_000_000) -> list[Row]:
    """One record of every odd kind a producer may write to a topic that is not compacted."""
    keys = (None, b"", b"k", b"\x00\xff" * 50)
    values = (None, b"", b"v", bytes(range(256)) * 40)
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
        (),
        (("h", b"1"),),
        (("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None), ("näme ✓", b"\xff")),
    )
    return [
        Row(key=key, value=value, headers=extra, timestamp_ms=first_timestamp_ms + number - 7 * (number % 5))
        for number, (key, value, extra) in enumerate(itertools.product(keys, values, headers))
    ]
