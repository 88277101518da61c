"""Peers of a relay that mean no good: each opens a connection and does one thing that it should not.

What a peer does is drawn from a seed, so that it can be done again. Nothing is checked here: a peer ends when
the relay has ended its connection, or after :data:`PEER_SECONDS`.

::

    met = await go_on(Aim(relay.address, keys), seed=7, seconds=10)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mirror.kafka.fetch import FETCH, FETCH_VERSION, FetchLimits, Key, Want, encode_request
from mirror.link import messages, probe, protocol
from mirror.link.messages import MESSAGE_BYTES_MAX
from mirror.link.protocol import Channel, Position, Up

PEER_SECONDS = 3.0
SAYS_NOTHING_SECONDS_MAX = 60.0
AT_ONCE = 12
"""Peers at a time."""
FLOW = "hostile"
HELLO: dict[str, Any] = {
    "flow": FLOW,
    "producer_id": 7,
    "epoch": 3,
    "isolation": 1,
    "windows": [1 << 20, 1 << 20],
    "frame_bytes": 1 << 20,
    "level": 0,
    "recode": True,
}
FAR = (0, 1, 2**31, 2**62, 2**63 - 1)
LENGTHS = (0, 1, 4, 5, 6, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, 2**31, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Aim:
    """What peers know of a relay: where it listens, and partitions that there are."""

    address: str
    keys: Sequence[Key]


class Peer:
    """One connection to a relay."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dice: random.Random
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.dice = dice

    async def say(self, *said: bytes) -> None:
        """Send all of it."""
        self.writer.write(b"".join(said))
        await self.writer.drain()

    async def answer(self, asked: bytes) -> bytes:
        """Ask by HTTP; the head of the answer."""
        await self.say(asked)
        return await self.reader.readuntil(b"\r\n\r\n")

    async def listen(self) -> None:
        """Read until the relay ends the connection."""
        while await self.reader.read(1 << 16):
            pass


Attack = Callable[[Peer, Aim], Awaitable[None]]


def asking(path: str, protocol: str) -> bytes:
    """The request that makes a connection another one."""
    lines = (f"GET {path} HTTP/1.1", "Host: x", "Connection: Upgrade", f"Upgrade: {protocol}", "", "")
    return "\r\n".join(lines).encode()


STREAM = asking(protocol.PATH, protocol.PROTOCOL)
BROKER = asking("/v1/kafka", "twinsite-kafka/1")
PROBE = asking(probe.PATH, probe.PROTOCOL)
LET_IN = b"HTTP/1.1 101 "


def hello(**changes: Any) -> bytes:
    return messages.say(Up.HELLO, HELLO | changes)


def everything(aim: Aim, offset: int = 0) -> bytes:
    """All partitions are wanted."""
    return protocol.want(Position(key, n, offset, -1, True) for n, key in enumerate(aim.keys))


# -- bytes that are no protocol ------------------------------------------------------------------------


async def noise(peer: Peer, _: Aim) -> None:
    """Random bytes instead of a request."""
    await peer.say(peer.dice.randbytes(peer.dice.choice((1, 100, 50_000))))
    await peer.listen()


async def broken_request(peer: Peer, aim: Aim) -> None:
    """A request of which some bits are others."""
    asked = bytearray(peer.dice.choice((STREAM, BROKER, PROBE)))
    for _ in range(peer.dice.randint(1, 4)):
        asked[peer.dice.randrange(len(asked))] ^= 1 << peer.dice.randrange(8)
    await peer.say(bytes(asked))
    await peer.listen()


async def strange_request(peer: Peer, _: Aim) -> None:
    """HTTP that is as it should be, of something there is not."""
    query = "a" * peer.dice.choice((1, 3_000))
    asked = peer.dice.choice(
        (
            asking(f"{protocol.PATH}?join={query}", protocol.PROTOCOL),
            asking(f"{protocol.PATH}?join=00&carries={query}", protocol.PROTOCOL),
            asking(f"/v1/kafka?broker={query}", "twinsite-kafka/1"),
            asking("/v1/kafka?broker=127.0.0.1%3A1", "twinsite-kafka/1"),
            asking(protocol.PATH, f"twinsite-frames/{query}"),
            asking(f"/{query}", protocol.PROTOCOL),
            b"POST /v1/frames HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n" + query.encode(),
            b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        )
    )
    await peer.say(asked)
    await peer.listen()


# -- a stream --------------------------------------------------------------------------------------


async def noise_in_a_stream(peer: Peer, _: Aim) -> None:
    """A greeting as it should be, and then random bytes."""
    await peer.answer(STREAM)
    await peer.say(hello(), peer.dice.randbytes(peer.dice.choice((3, 1_000, 100_000))))
    await peer.listen()


async def flipped(peer: Peer, aim: Aim) -> None:
    """Some bits of messages are others, and their CRC is right all the same."""
    await peer.answer(STREAM)
    said = [
        (Up.HELLO, json.dumps(HELLO).encode()),
        (Up.WANT, everything(aim)[5:-4]),
        (Up.RANK, protocol.rank((key, 3) for key in aim.keys)[5:-4]),
        (Up.TAKEN, protocol.taken(Channel.BULK, 0)[5:-4]),
        (Up.FORGET, protocol.forget(aim.keys)[5:-4]),
        (Up.LIMIT, protocol.limit(100_000)[5:-4]),
    ]
    spoiled = peer.dice.randrange(len(said))
    for number, (kind, payload) in enumerate(said):
        changed = bytearray(payload)
        for _ in range(peer.dice.randint(1, 6) if number == spoiled else 0):
            changed[peer.dice.randrange(len(changed))] ^= 1 << peer.dice.randrange(8)
        await peer.say(messages.message(kind, bytes(changed)))
    await peer.listen()


async def wrong_length(peer: Peer, aim: Aim) -> None:
    """A message says of itself that it is longer or shorter."""
    await peer.answer(STREAM)
    said = bytearray(peer.dice.choice((hello(), everything(aim), protocol.ping(1))))
    said[:4] = struct.pack(">I", peer.dice.choice(LENGTHS))
    await peer.say(*([hello()] if peer.dice.random() < 0.5 else []), bytes(said))
    await peer.listen()


async def wrong_order(peer: Peer, aim: Aim) -> None:
    """What should come later comes first, or twice, or is said by the other side."""
    await peer.answer(STREAM)
    said = [
        hello(),
        hello(),
        everything(aim),
        protocol.taken(peer.dice.choice((0, 1, 2, 31, 255)), peer.dice.choice((0, 1, 2**64 - 1))),
        protocol.forget(aim.keys),
        messages.slice_of(0, 0, b"x"),
        messages.message(Up(peer.dice.randint(1, 7)), b""),
    ]
    peer.dice.shuffle(said)
    await peer.say(*said)
    await peer.listen()


async def far_away(peer: Peer, aim: Aim) -> None:
    """Partitions are wanted from where they are not, and partitions that there are not."""
    await peer.answer(STREAM)
    dice = peer.dice
    strange = [Key(dice.randbytes(16), dice.choice((0, 2**31 - 1))) for _ in range(5)]
    known = [Key(key.topic_id, dice.choice((key.partition, 2**31 - 1))) for key in aim.keys]
    wanted = [
        Position(key, n, dice.choice(FAR), dice.choice((-1, 0, 2**31 - 1)), recode=dice.random() < 0.5)
        for n, key in enumerate([*strange, *known])
    ]
    await peer.say(hello(), protocol.want(wanted))
    await peer.listen()


async def huge_claims(peer: Peer, aim: Aim) -> None:
    """As much as a message holds, of whatever kind."""
    await peer.answer(STREAM)
    dice = peer.dice
    if dice.random() < 0.5:
        keys = {f"k{n}": n for n in range(300_000)}
        said = dice.choice(
            (
                messages.say(Up.HELLO, HELLO | keys),
                messages.say(Up.HELLO, HELLO | {"k" * 4_000_000: 1}),
                messages.say(Up.HELLO, HELLO | {"flow": "x" * 4_000_000}),
                messages.message(Up.HELLO, b"[" * 4_000_000),
                messages.message(Up.HELLO, b'{"epoch":' + b"9" * 4_000_000 + b"}"),
                hello(windows=[1 << 31, 1 << 62]),
            )
        )
        await peer.say(said)
    else:
        wide = hello(windows=[1 << 30, 1 << 30], frame_bytes=1 << 62, flow=f"wide-{dice.randrange(99)}")
        many = 50_000
        said = dice.choice(
            (
                protocol.want(Position(Key(n.to_bytes(16, "big"), 0), n, 0, -1, True) for n in range(many)),
                protocol.want(Position(aim.keys[0], n, 0, -1, True) for n in range(many)),
                protocol.rank((aim.keys[0], n % 256) for n in range(2 * many)),
                protocol.forget(Key(n.to_bytes(16, "big"), 0) for n in range(many)),
            )
        )
        await peer.say(wide, everything(aim), said)
    await peer.listen()


async def replayed(peer: Peer, aim: Aim) -> None:
    """An epoch that is over since another mirror has come."""
    async with connected(aim, peer.dice) as newer:
        await newer.answer(STREAM)
        await newer.say(hello(flow="replayed"))
        await newer.reader.readexactly(1)
        await peer.answer(STREAM)
        await peer.say(hello(flow="replayed", epoch=0), everything(aim))
        await peer.listen()


async def endless(peer: Peer, _: Aim) -> None:
    """Small messages one after the other, whose answers are read or not."""
    await peer.answer(STREAM)
    await peer.say(hello())
    listens = peer.dice.random() < 0.5
    small = peer.dice.choice((protocol.ping(1), protocol.limit(0), protocol.taken(0, 0), protocol.forget(())))
    reading = asyncio.create_task(peer.listen()) if listens else None
    try:
        while True:
            await peer.say(small * 2_000)
            await asyncio.sleep(0)
    finally:
        if reading is not None:
            reading.cancel()


async def never_reads(peer: Peer, aim: Aim) -> None:
    """All that there is is wanted, with the largest window, and nothing is read of it."""
    await peer.answer(STREAM)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await peer.say(hello(windows=[1 << 30, 1 << 30], frame_bytes=1 << 40), everything(aim))
    await asyncio.sleep(PEER_SECONDS)


async def one_byte_at_a_time(peer: Peer, aim: Aim) -> None:
    """Frames as small as can be; all of them are taken, some before they have come."""
    await peer.answer(STREAM)
    await peer.say(hello(windows=[1, 1], frame_bytes=1), everything(aim))
    taken = 0
    while peer.dice.random() < 0.99:
        taken += peer.dice.choice((0, 1, 100, 10_000))
        await peer.say(protocol.taken(peer.dice.choice((0, 1)), taken))
        await peer.reader.read(1 << 16)


async def half_closed(peer: Peer, aim: Aim) -> None:
    """Nothing more will be said, and what comes is read."""
    await peer.answer(STREAM)
    await peer.say(hello(), everything(aim))
    peer.writer.write_eof()
    await peer.listen()


async def cut_off(peer: Peer, aim: Aim) -> None:
    """The connection is gone in the middle of a message."""
    await peer.answer(STREAM)
    said = hello() + everything(aim)
    await peer.say(said[: peer.dice.randrange(len(said))])
    peer.writer.transport.abort()


async def joined_and_said(peer: Peer, aim: Aim) -> None:
    """A further connection of a stream of its own, on which something is said."""
    await peer.answer(STREAM)
    await peer.say(hello(), everything(aim))
    size = int.from_bytes(await peer.reader.readexactly(4), "big")
    welcome = json.loads((await peer.reader.readexactly(size))[1:-4])
    path = f"{protocol.PATH}?join={welcome['token']}&carries={peer.dice.choice(('live', 'bulk'))}"
    async with connected(aim, peer.dice) as other:
        await other.answer(asking(path, protocol.PROTOCOL))
        await other.say(peer.dice.choice((b"x", hello(), protocol.ping(1))))
        await other.listen()


# -- a connection to a broker, and a probe --------------------------------------------------------------


def fetch(aim: Aim, bytes_max: int) -> bytes:
    """A Fetch of all partitions."""
    limits = FetchLimits(wait_ms_max=10, bytes_max=bytes_max)
    changed = {key: Want(0, -1, -1, bytes_max) for key in aim.keys}
    body = encode_request(limits, session=(0, -1), changed=changed, forgotten=())
    request = struct.pack(">hhi", FETCH, FETCH_VERSION, 1) + b"\xff\xff\0" + body
    return len(request).to_bytes(4, "big") + request


async def noise_to_a_broker(peer: Peer, aim: Aim) -> None:
    """Requests that are none, or of which bits are others, or that would write."""
    await peer.answer(BROKER)
    dice = peer.dice
    asked = bytearray(fetch(aim, 1 << 20))
    for _ in range(dice.randint(1, 6)):
        asked[dice.randrange(4, len(asked))] ^= 1 << dice.randrange(8)
    said = (
        dice.randbytes(1_000),
        bytes(asked),
        struct.pack(">ihhi", 8, 0, 9, 1),  # Produce
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -5),
        struct.pack(">ihhi", 8, dice.choice((1, 2, 3, 18)), dice.randint(-1, 99), 1),
    )
    await peer.say(dice.choice(said))
    await peer.listen()


async def asks_and_does_not_read(peer: Peer, aim: Aim) -> None:
    """The broker is asked for as much as it has, again and again."""
    await peer.answer(BROKER)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await peer.say(fetch(aim, 2**31 - 1) * 40)
    await asyncio.sleep(PEER_SECONDS)


async def strange_probe(peer: Peer, _: Aim) -> None:
    """A load of nothing, two at once, bits that are others; or one that is never read."""
    await peer.answer(PROBE)
    load = {"seconds": 1, "settle_seconds": 0, "bytes_max": 1 << 32, "rate_max": None}
    dice = peer.dice
    said = dice.choice(
        (
            messages.say(probe.Up.LOAD, load | {"seconds": 1e308}),
            messages.say(probe.Up.LOAD, load) * 2,
            messages.message(probe.Up.LOAD, dice.randbytes(50)),
            protocol.ping(1) * 20_000,
            messages.say(probe.Up.LOAD, load),
            dice.randbytes(500),
        )
    )
    if dice.random() < 0.5:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.say(said)
        await asyncio.sleep(PEER_SECONDS / 2)
    else:
        await peer.say(said)
        await peer.listen()


ATTACKS: tuple[Attack, ...] = (
    noise,
    broken_request,
    strange_request,
    noise_in_a_stream,
    flipped,
    wrong_length,
    wrong_order,
    far_away,
    huge_claims,
    replayed,
    endless,
    never_reads,
    one_byte_at_a_time,
    half_closed,
    cut_off,
    joined_and_said,
    noise_to_a_broker,
    asks_and_does_not_read,
    strange_probe,
)


# -- all of them --------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(aim: Aim, dice: random.Random) -> AsyncIterator[Peer]:
    """A connection that is gone at the end of the block."""
    host, _, port = aim.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer, dice)
    finally:
        writer.transport.abort()


async def attack(one: Attack, aim: Aim, dice: random.Random) -> None:
    """Be one peer."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        async with asyncio.timeout(PEER_SECONDS), connected(aim, dice) as peer:
            await one(peer, aim)


async def go_on(aim: Aim, seed: int, seconds: float) -> dict[str, int]:
    """Attack for so long, :data:`AT_ONCE` peers at a time; each kind at least once.

    Returns:
        How many peers of each kind there were.
    """
    dice = random.Random(seed)
    ends_at = asyncio.get_running_loop().time() + seconds
    first = list(ATTACKS)
    dice.shuffle(first)
    met: dict[str, int] = dict.fromkeys((one.__name__ for one in ATTACKS), 0)

    async def some() -> None:
        while first or asyncio.get_running_loop().time() < ends_at:
            one = first.pop() if first else dice.choice(ATTACKS)
            met[one.__name__] += 1
            await attack(one, aim, random.Random(dice.getrandbits(64)))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return met


async def say_nothing(aim: Aim) -> None:
    """One connection, on which nothing is said until the relay has ended it.

    Raises:
        TimeoutError: It did not, in far more time than anybody has for a word.
    """
    async with asyncio.timeout(SAYS_NOTHING_SECONDS_MAX):
        with contextlib.suppress(OSError):
            async with connected(aim, random.Random(0)) as peer:
                await peer.listen()


async def crowd(aim: Aim, count: int) -> tuple[int, int]:
    """So many connections, :data:`AT_ONCE` more at a time, whose peers say who they are and nothing else.

    They stay, so that it does not matter how long it takes until they are too many.

    Returns:
        How many got one, and how many were told that there are too many.
    """

    async def come(stack: contextlib.AsyncExitStack, number: int) -> bytes:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            peer = await stack.enter_async_context(connected(aim, random.Random(0)))
            answer = await peer.answer(STREAM)
            if answer.startswith(LET_IN):
                await peer.say(hello(flow=f"crowd-{number}"))
            return answer
        return b""

    answers: list[bytes] = []
    async with contextlib.AsyncExitStack() as stack:
        for at in range(0, count, AT_ONCE):
            some = range(at, min(at + AT_ONCE, count))
            answers += await asyncio.gather(*(come(stack, number) for number in some))
    let_in = sum(answer.startswith(LET_IN) for answer in answers)
    return let_in, sum(answer.startswith(b"HTTP/1.1 503 ") for answer in answers)
