"""Answers come from the source more slowly than they are waited for: the copy goes on all the same."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured
from tests.harness.checker import assert_exact
from tests.harness.daemon import HERE, free_ports
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.proxy import Proxy, proxy
from tests.harness.relay import listens, through

pytestmark = pytest.mark.timeout(120)

KIB = 1 << 10
RECORD_BYTES = 16_000
RECORDS, RELAYED_RECORDS, IN_A_BATCH = 48, 128, 60
"""A mirror asks for all of so many at once, and so does a relay where they are one batch. Else that begins
with little, and would come to a megabyte at once.
"""
BYTES_PER_SECOND = 190 * KIB
"""What is asked for at once takes four seconds: with less than three nobody would be taken for silent."""
PATIENCE_SECONDS = 3
"""Less than that, and more than a busy machine stands still between two pieces."""


LOST = "broker_not_read", "stream_lost"
SILENT = "source_unavailable"
"""A relay does not tell that a batch is on its way to it: to its mirrors the source is silent so long."""


class Slow:
    """Passes on what a broker answers, so many bytes a second, and says that the broker is where we are."""

    def __init__(self, broker: str) -> None:
        self.passed = 0
        self._broker = broker
        self.between: Proxy | None = None

    def __call__(self, _: int, __: int, data: bytes) -> bytes:
        assert self.between is not None
        self.passed += len(data)
        time.sleep(len(data) / BYTES_PER_SECOND)
        return data.replace(_placed(self._broker), _placed(self.between.address))


def _placed(address: str) -> bytes:
    """As a broker's metadata have it, but for the length of the host, which has to stay."""
    host, _, port = address.rpartition(":")
    return host.encode() + struct.pack(">i", int(port))


Reached = tuple[KafkaCluster, dict[str, Any], list[Twinsite]]
"""What a mirror is told to read, its settings for that, and who reads for it."""


@asynccontextmanager
async def by_itself(
    source: KafkaCluster, settings: dict[str, Any], _work_dir: Path
) -> AsyncIterator[Reached]:
    """The mirror is who reads brokers that are reached with such settings."""
    yield source, {"source": settings}, []


@asynccontextmanager
async def through_a_relay(
    source: KafkaCluster, settings: dict[str, Any], work_dir: Path
) -> AsyncIterator[Reached]:
    """A relay reads them, and the mirror waits for it hardly longer: it says a word every two seconds."""
    address = f"{HERE.host}:{free_ports(1)[0]}"
    file = work_dir / "relay.yaml"
    file.write_text(json.dumps({"cluster": settings}))
    command = ("relay", "--config", str(file), "--listen", address)
    with Twinsite.run(*command, work_dir=work_dir, listen=False) as relay:
        await listens(relay)
        link = {"relays": [address], "request_timeout_seconds": PATIENCE_SECONDS + 1}
        yield through(source, address), {"link": link}, [relay]


@pytest.mark.parametrize(
    ("way", "records", "at_once", "unsaid"),
    [
        (by_itself, RECORDS, 1, (*LOST, SILENT)),
        (through_a_relay, RELAYED_RECORDS, 1, (*LOST, SILENT)),
        (through_a_relay, IN_A_BATCH, IN_A_BATCH, LOST),
    ],
)
async def test_an_answer_that_comes_slowly_is_not_given_up_and_asked_for_again(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    way: Callable[..., AbstractAsyncContextManager[Reached]],
    records: int,
    at_once: int,
    unsaid: tuple[str, ...],
) -> None:
    """
    Whoever only looks at how long it takes never copies anything.

    Args:
        at_once: Records in a batch.
    """
    name = await topic(source)
    dice = random.Random(48)
    rows = (Row(key=None, value=dice.randbytes(RECORD_BYTES)) for _ in range(records))
    load(source.bootstrap, name, rows, batch_num_messages=at_once)
    slow = Slow(source.bootstrap)

    with proxy(source.bootstrap, slow, host=source.broker(1).host) as slow.between:
        settings = {"bootstrap_servers": slow.between.address, "request_timeout_seconds": PATIENCE_SECONDS}
        async with way(source, settings, tmp_path) as (read, sections, relays):
            command = configured(
                tmp_path, read, target, name,
                topics={"include": [name]}, lagging_after_seconds=1, **sections,
            )  # fmt: skip
            with Twinsite.run(*command, work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 30)
            said = [
                line for one in (mirror, *relays) for event in unsaid for line in events(one.stderr, event)
            ]

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert said == []
    assert slow.passed > records * RECORD_BYTES
