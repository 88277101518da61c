"""A connection that is being opened, and given up."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.kafka.opening import Opening

ADDRESS = Address("east", 1)
OPENED = cast(Connection, object())


async def opened(there: asyncio.Event) -> Connection:
    await there.wait()
    return OPENED


@pytest.mark.parametrize("before", [True, False], ids=["before it is waited for", "while it is"])
async def test_whoever_waits_for_what_is_given_up_is_told_why(before: bool) -> None:
    """
    Given up once more nothing changes.
    """
    opening = Opening(ADDRESS)
    if before:
        opening.give_up("it has left")
    waiting = asyncio.create_task(opening.wait(opened(asyncio.Event())))
    await asyncio.sleep(0)

    opening.give_up("it is late")

    with pytest.raises(ConnectionFailedError, match="it has left" if before else "it is late"):
        await asyncio.wait_for(waiting, 5)


async def test_what_is_open_is_given_up_no_more() -> None:
    opening, there = Opening(ADDRESS), asyncio.Event()
    there.set()

    connection = await opening.wait(opened(there))
    opening.give_up("it is late")
    await asyncio.sleep(0)

    assert connection is OPENED
