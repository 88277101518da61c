"""A relay that answers what a test says, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.link import messages
from mirror.link.protocol import PROTOCOL, Down

Answer = Callable[[str], bytes]
"""What is answered to whoever asks for a path. Where that is :data:`SWITCHING` the connection stays open."""

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
BYE_AFTER_SECONDS = 0.1
KEY = bytes(range(32))
OF_ITS_OWN = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\nnot found"
"""Of what stands before a relay."""


def problem(status: int, code: str, detail: str = "no") -> bytes:
    """As a relay answers that does not do what it is asked for."""
    body = json.dumps({"code": code, "detail": detail}).encode()
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def welcome(**changes: object) -> bytes:
    """What a stream begins with."""
    document = {
        "relay": "0.1.0",
        "congestion": "bbr",
        "keys": [KEY.hex(), KEY.hex()],
        "steady_us": 5_000_000,
        "token": "00",
    }
    return messages.say(Down.WELCOME, document | changes)


@asynccontextmanager
async def fake_relay(
    answer: Answer, *said: bytes, bye: bytes | None = None
) -> AsyncIterator[ConnectionOptions]:
    """On a stream it says these things and then nothing, whatever it hears.

    Args:
        bye: If not None, each further connection is ended at once, and a moment later this is said over the
            first one, which stays open.
    """
    over, ending = asyncio.Event(), asyncio.Event()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()  # who came was given up before he could ask
            return
        path = request.decode().split()[1]
        answered = answer(path)
        writer.write(answered)
        if answered == SWITCHING:
            if "?" not in path:
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(b"".join(said))
                if bye is not None:
                    await ending.wait()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), BYE_AFTER_SECONDS)
                    writer.write(bye)
            elif bye is not None:
                ending.set()
                writer.close()
                return
            await over.wait()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield ConnectionOptions(relays=Relays([Address("127.0.0.1", port)]))
    finally:
        over.set()
        server.close()
