"""docs/protocol.md says what goes over the link: its tables and its recorded stream are those of the code."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from uuid import UUID

import pytest
from blake3 import blake3

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Fetched, Key
from mirror.link import messages, parts, probe, protocol
from mirror.link.frames import HEADER_BYTES, Frames, Opener
from mirror.link.greeting import Hello
from mirror.link.messages import Messages
from mirror.link.parts import Part, decode_parts
from mirror.link.protocol import Channel, Down, Position, Up
from tests.unit.batches import Entry, read_v2, v2

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
ORDERS_3 = Key(UUID("00112233-4455-6677-8899-aabbccddeeff").bytes, 3)
HELLO = Hello("east-to-west", 4_000, 2, 1, (2 << 20, 16 << 20), 4 << 20, 3, recode=True)
BATCH = v2([Entry(41, 1_700_000_000_000, b"k", b"hello")], leader_epoch=6)


@pytest.fixture(scope="module")
def recorded() -> list[bytes]:
    """The messages of the page, in their order."""
    _, _, section = PAGE.partition("### Byte by byte")
    blocks = re.findall(r"```\n([0-9a-f\n]+)```", section.partition("\n## ")[0])
    return [bytes.fromhex(block.replace("\n", "")) for block in blocks]


def rows(section: str) -> Iterator[tuple[str, str]]:
    """What the tables of a section say of each kind of message: its number and name, and the rest."""
    _, _, found = PAGE.partition(f"## {section}\n")
    for line in found.partition("\n## ")[0].splitlines():
        row = re.match(r"\| (\d+ [A-Z]+) \| (.*) \|$", line)
        if row is not None:
            yield row[1], row[2]


def kinds(*sides: type[IntEnum]) -> list[str]:
    return [f"{kind.value} {kind.name}" for side in sides for kind in side]


def test_every_kind_of_message_is_on_the_page() -> None:
    """
    With its number, and no other one.
    """
    assert [kind for kind, _ in rows("A stream of frames")] == kinds(Up, Down)
    assert [kind for kind, _ in rows("A probe")] == kinds(probe.Up, probe.Down)


@pytest.mark.parametrize(
    ("section", "kind", "size"),
    [
        ("A stream of frames", "2 WANT", protocol._WANT.size),
        ("A stream of frames", "3 FORGET", protocol._KEY.size),
        ("A stream of frames", "4 TAKEN", protocol._TAKEN.size),
        ("A stream of frames", "5 PING", protocol._NUMBER.size),
        ("A stream of frames", "6 RANK", protocol._RANK.size),
        ("A stream of frames", "7 LIMIT", protocol._NUMBER.size),
        ("A stream of frames", "2 SLICE", messages._SLICE_HEAD.size),
        ("A stream of frames", "5 PONG", protocol._PONG.size),
        ("A stream of frames", "7 SHARED", 1 + 32),
        ("A stream of frames", "8 MOVED", 1 + protocol._MOVED.size),
        ("A probe", "5 PONG", protocol._PONG.size),
    ],
)
def test_fields_are_as_long_as_the_page_says(section: str, kind: str, size: int) -> None:
    """
    The numbers in parentheses are their bytes.
    """
    said = dict(rows(section))[kind]

    assert sum(map(int, re.findall(r"\((\d+)\)", said))) == size


def test_a_part_is_as_long_as_the_page_says() -> None:
    """
    Up to its records.
    """
    _, _, table = PAGE.partition("A part is of one partition:")
    lengths = re.findall(r"^\| ((?:\d+, )*\d+) \|", table.partition("| 16 each")[0], re.MULTILINE)
    before_aborted = [int(one) for line in lengths for one in line.split(", ")]

    assert sum(before_aborted) == parts._PART.size


def test_what_the_mirror_says_is_what_was_recorded(recorded: list[bytes]) -> None:
    """
    To the byte.
    """
    want = protocol.want([Position(ORDERS_3, 1, 41, 5, True, 10)])

    assert recorded[0] == messages.say(Up.HELLO, asdict(HELLO))
    assert recorded[1] == want
    assert recorded[5] == protocol.taken(Channel.BULK, 171)


def test_what_the_relay_said_is_understood_as_the_page_explains_it(recorded: list[bytes]) -> None:
    """
    One frame, whose digest is what the page says it is of.
    """
    came: list[tuple[int, int, bytes]] = []
    reader = Messages(on_slice=lambda channel, at, data: came.append((channel, at, bytes(data))))
    kinds = [(kind, bytes(payload)) for kind, payload in reader.received(b"".join(recorded[2:5]))]
    welcome, choice = (json.loads(payload) for _, payload in kinds[:2])
    key = bytes.fromhex(welcome["keys"][Channel.BULK])
    channel, at, frame = came[0]
    (arrived,) = Frames(BufferPool(0)).received(frame)
    header = arrived.header
    body = Opener(key, 27).open(header, arrived.wire, memoryview(bytearray(header.body_bytes)))

    assert [kind for kind, _ in kinds] == [Down.WELCOME, Down.CHOICE, Down.SLICE]
    assert choice == {"level": 3, "recode": True, "why": "as configured"}
    assert (channel, at, len(frame), HEADER_BYTES) == (Channel.BULK, 0, 171, 64)
    assert frame[:4] == b"tsf1"
    assert struct.unpack_from(">Qi8xII", frame, 4) == (0, 1, 164, 107)
    assert blake3(frame[:32] + frame[64:], key=key).digest() == frame[32:64]
    fetched = Fetched(ORDERS_3, 0, 42, 42, 7, None, [], BATCH)
    assert decode_parts(body) == [Part(1, 41, 42, fetched)]
    assert [(entry.key, entry.value) for entry in read_v2(BATCH)] == [(b"k", b"hello")]
