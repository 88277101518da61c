"""What goes on beside all streams of a relay goes on after a mistake, and is not silent about it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from mirror.config_relay import ListenSettings
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import ConnectionOptions
from mirror.relay import lasting, pacing, sharing
from mirror.relay.server import RelayServer
from mirror.relay.sharing import Sharing

MISTAKE = ZeroDivisionError("a mistake of ours")


class Looked:
    """Is called again and again, and fails the first times.

    Attributes:
        again: Called once more after that.
    """

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.again = asyncio.Event()

    def __call__(self, *_: object) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise MISTAKE
        self.again.set()


@pytest.mark.parametrize("work", ["sharing", "calendar"])
async def test_a_mistake_is_logged_and_the_work_begins_again(
    monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """
    As often as that happens; and a relay that is closed ends it.
    """
    looked = Looked(2)
    monkeypatch.setattr(lasting, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 0.001)
    if work == "sharing":
        monkeypatch.setattr(Sharing, "look", looked)
    else:
        monkeypatch.setattr(pacing, "rate_at", looked)
    nobody = Cluster("source", [], cast(ConnectionOptions, None))
    before = asyncio.all_tasks()

    with capture_logs() as logged:
        server = RelayServer(nobody, ListenSettings())
        await server.take("127.0.0.1", 0, None)
        await server.start()
        async with asyncio.timeout(5):
            await looked.again.wait()
        await server.close()

    said = [(line["event"], line["log_level"], line.get("work"), line.get("error")) for line in logged]
    assert said == [("work_broken", "error", work, repr(MISTAKE))] * 2
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
