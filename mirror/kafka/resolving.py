"""Resolves host names, in a thread that nobody has to wait for.

A resolver whose servers do not answer keeps a thread for many seconds. At its end the
process waits for the threads of the event loop's own pool; for these it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

Found = list[tuple[Any, ...]]
"""As from :func:`socket.getaddrinfo`."""


async def resolve(host: str, port: int) -> Found:
    """The addresses of a host name.

    Raises:
        OSError: The name has no address, or no server could be asked.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()
    threading.Thread(
        target=_ask, args=(host, port, loop, answer), name=f"resolve {host}", daemon=True
    ).start()
    return await answer


def _ask(host: str, port: int, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Found]) -> None:
    found: Found | OSError
    try:
        found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except OSError as error:
        found = error
    except UnicodeError as error:
        found = OSError(f"not a host name: {error}")
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_tell, answer, found)


def _tell(answer: asyncio.Future[Found], found: Found | OSError) -> None:
    if answer.done():
        return
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)
