"""Names become addresses, or an error that says what is wrong with the name."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from mirror.kafka.resolving import resolve


async def test_an_address_is_its_own_answer() -> None:
    """
    As :func:`socket.getaddrinfo` gives it.
    """
    found = await resolve("127.0.0.1", 9092)

    assert [(family, where) for family, *_, where in found] == [(socket.AF_INET, ("127.0.0.1", 9092))]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such-host.invalid", "Errno"),
        (f"{'a' * 64}.example", "not a host name"),
        ("a..b", "not a host name"),
    ],
)
async def test_a_name_that_cannot_be_resolved_is_an_error_of_the_system(name: str, words: str) -> None:
    """
    Also one that no name server would be asked for.
    """
    with pytest.raises(OSError, match=words):
        await asyncio.wait_for(resolve(name, 9092), 30)


async def test_giving_up_does_not_wait_for_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its answer, when it comes at last, is nobody's.
    """
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [answer.wait(10)])
    began_at = time.monotonic()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(resolve("east", 9092), 0.05)

    answer.set()
    assert time.monotonic() - began_at < 5
