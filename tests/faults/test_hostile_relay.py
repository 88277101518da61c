"""A mirror whose relay says what is not so, of every kind, before it comes to a sound one: real processes.

What is drawn is the same for the same seed, and a few frames of it are part of all tests. For longer::

    FUZZ_SEED=11 FUZZ_SECONDS=600 .venv/bin/python -m pytest -s tests/faults/test_hostile_relay.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of, writing
from tests.faults.hostile_relay import LIES, drawn, lying
from tests.faults.resident import resident_bytes
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import Relay, running_relay, through

SEED = int(os.environ.get("FUZZ_SEED", "1"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
LIES_A_SECOND = 2
pytestmark = pytest.mark.timeout(SECONDS * 4 + 200)

GROWTH_BYTES_MAX = 600 << 20
"""Of the mirror's memory: a frame of the largest there may be, once opened and once not, and buffers."""
LINE_MAX = 4_000


@pytest.fixture
def sound(source: KafkaCluster, tmp_path: Path) -> Iterator[Relay]:
    with running_relay(source, tmp_path) as running:
        yield running


async def test_a_mirror_believes_nothing_that_is_not_so(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, sound: Relay, tmp_path: Path
) -> None:
    """
    Each lie is refused with its reason, what was true before it is copied, and nothing else; memory stays
    bounded. In the end it goes on with a sound relay, and the copy is exact.
    """
    name = await topic(source, partitions=6, prefix="lied-to")
    lies = [*LIES, *drawn(SEED, int(SECONDS * LIES_A_SECOND))]
    await asyncio.to_thread(load, source.bootstrap, name, json_rows(1_500 * len(lies), 1_000))

    logged: list[Twinsite] = []
    async with lying(sound.address, lies, lambda: logged[0].stderr) as (liar, later):
        command = mirror_of(through(source, liar.address, later), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            logged.append(mirror)
            await mirror.wait_for(lambda: bool(mirror.status()), "it can be asked")
            before = most = resident_bytes(mirror)

            def done() -> bool:
                nonlocal most
                most = max(most, resident_bytes(mirror))
                return liar.done

            async with writing(source, name):  # a lie takes the place of records, so some have to come
                await mirror.wait_for(done, "all lies were told", 120 + SECONDS * 2)
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
            unheard = liar.unheard

    log = mirror.stderr
    print(f"seed {SEED}: {len(lies)} lies, growth {(most - before) >> 20} MiB, log of {len(log) >> 10} KiB")
    assert unheard == []
    assert "Traceback" not in log
    assert '"exception"' not in log
    assert max(map(len, log.splitlines())) < LINE_MAX
    assert most - before < GROWTH_BYTES_MAX
    assert_exact(source.bootstrap, target.bootstrap, [name])
