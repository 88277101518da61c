"""Two mirrors of one flow with mapped offsets, and the one that writes the map dies."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of, owns, pairs, reached, translate
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(180)


async def test_the_map_stays_exact_when_its_owner_is_killed_in_the_middle(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The other one takes over while the source is written on. In the end every offset of the source is either
    that of one record at the target and back, or refused.
    """
    name = await topic(source, partitions=2)
    load_transactions(source.bootstrap, name, json_rows(300, 100), per_transaction=20)
    command = mirror_of(source, target, name, name, "--offsets", "mapped")
    with ExitStack() as stack:
        pair = [stack.enter_context(Twinsite.run(*command, work_dir=tmp_path)) for _ in range(2)]
        for mirror in pair:
            await mirror.wait_for(partial(complete, mirror, source, [name]), "both know what is there")
        owner, standby = await owner_first(pair)
        writing = asyncio.create_task(asyncio.to_thread(write_on, source, name))
        await owner.wait_for(lambda: reached(owner, name) > 300, "the owner is in the middle of it")
        owner.kill()
        await writing
        await standby.wait_for(partial(complete, standby, source, [name]), "the other one goes on", 60)

        assert standby.status()["owner"]
        for number in (0, 1):
            assert translated(standby, source, name, number) == pairs(source, target, name, number)

    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


async def test_an_owner_that_wakes_up_after_a_takeover_does_no_harm_beside_two_others(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Three mirrors of one flow: one writes, the others stand by. The owner stands still in the middle of it,
    another one takes over, and while the source is written on the first one finds out. Then one of them owns
    the flow, all know what is there, and the map is that of what was copied, once and in order.
    """
    name = await topic(source, partitions=2)
    load_transactions(source.bootstrap, name, json_rows(300, 100), per_transaction=20)
    command = mirror_of(source, target, name, name, "--offsets", "mapped")
    with ExitStack() as stack:
        trio = [stack.enter_context(Twinsite.run(*command, work_dir=tmp_path)) for _ in range(3)]
        for mirror in trio:
            await mirror.wait_for(partial(complete, mirror, source, [name]), "all know what is there")
        owner = await owner_of(trio)
        others = [mirror for mirror in trio if mirror is not owner]
        writing = asyncio.create_task(asyncio.to_thread(write_on, source, name))
        await owner.wait_for(lambda: reached(owner, name) > 300, "the owner is in the middle of it")
        owner.freeze()
        await writing
        successor = await owner_of(others, 60)
        await successor.wait_for(partial(complete, successor, source, [name]), "another one goes on", 60)
        writing = asyncio.create_task(asyncio.to_thread(write_on, source, name))
        owner.thaw()
        await writing
        for mirror in trio:
            await mirror.wait_for(partial(complete, mirror, source, [name]), "all know what is there", 60)
        last = await owner_of(trio)

        expected = pairs(source, target, name, 1)
        assert translated(last, source, name, 1) == expected
        newest = max(expected)
        url = f"http://127.0.0.1:{last.port}"
        about = f"--topic={name}", "--partition=1", f"--offset={newest}", f"--url={url}"
        told = await twinsite("offsets", "translate", *about, work_dir=tmp_path)

    assert told.stdout.split() == [str(expected[newest])], told.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


async def owner_of(mirrors: list[Twinsite], seconds: float = 30.0) -> Twinsite:
    """The one of them that owns the flow, once it is one."""
    await mirrors[0].wait_for(lambda: sum(map(owns, mirrors)) == 1, "one of them is the owner", seconds)
    return next(mirror for mirror in mirrors if owns(mirror))


async def owner_first(pair: list[Twinsite]) -> tuple[Twinsite, Twinsite]:
    """The two mirrors, the owner before the other one."""
    await pair[0].wait_for(lambda: sum(owns(mirror) for mirror in pair) == 1, "one of them is the owner")
    one, other = pair
    return (one, other) if owns(one) else (other, one)


def write_on(source: KafkaCluster, topic: str) -> None:
    """Transactions, some aborted, with plain records between them."""
    for turn in range(6):
        rows = json_rows(100, 100, seed=turn)
        load_transactions(source.bootstrap, topic, rows, per_transaction=10, aborted_every=3)
        load(source.bootstrap, topic, json_rows(50, 100, seed=turn))


def translated(mirror: Twinsite, source: KafkaCluster, topic: str, partition: int) -> dict[int, int]:
    """What the mirror makes of every offset of the source, where it does not refuse; and the way back."""
    start, end = watermarks(source.bootstrap, topic)[partition]
    found: dict[int, int] = {}
    for offset in range(start, end):
        copy = translate(mirror, topic, partition, offset, "target_offset")
        if copy is not None:
            found[offset] = copy
            assert translate(mirror, topic, partition, copy, "source_offset", "&reverse=true") == offset
    return found
