"""Several mirrors append the same batches to one partition at once, and nobody is the owner.

Mirrors do not do that: one of a flow hands over to the next. Where two believe that they are the owner, the
conditional append keeps the copy exact: all write with one producer id and epoch, and the sequence is the
number of the record. Here it is raced, with nothing in front of it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest

from checkpoint.batches import NOBODY, batch_of
from mirror.broker_codes import OUT_OF_ORDER_SEQUENCE_NUMBER
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.kafka.record_batch import seal
from mirror.kafka.transactions import init_producer_id
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.contract.connected import BROKERS, connected
from tests.contract.test_markers import leader
from tests.harness.checker import read_partition
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)

APPENDERS, BATCHES, RECORDS = 3, 300, 2
END = BATCHES * RECORDS
IN_FLIGHT_MAX = 5
"""Batches after the first that nobody waits for, as a mirror has them."""
LOOKS_AGO = 8

Seal = Callable[[memoryview, int], None]
"""Makes a batch the one that is to be at an offset, as its writer sends it."""
Seals = Callable[[list[Cluster], str], Awaitable[list[Seal]]]
Answer = tuple[int, Outcome]
"""With the offset at which the batch was to be."""


async def shared(clusters: list[Cluster], name: str) -> list[Seal]:
    """As mirrors write: with one producer id, and with the sequence that the offset says."""
    token = await init_producer_id(clusters[0], f"raced.{name}")
    return [lambda view, offset: seal(view, *token, offset)] * len(clusters)


async def without_sequences(clusters: list[Cluster], _: str) -> list[Seal]:
    """As a producer that is not idempotent writes."""
    return [lambda _, __: None] * len(clusters)


async def each_its_own(clusters: list[Cluster], name: str) -> list[Seal]:
    """As idempotent producers write that know nothing of each other."""

    async def own(number: int, cluster: Cluster) -> Seal:
        token = await init_producer_id(cluster, f"raced-{number}.{name}")
        sequences = itertools.count(0, RECORDS)
        return lambda view, _: seal(view, *token, next(sequences))

    return [await own(number, cluster) for number, cluster in enumerate(clusters)]


def value_at(offset: int) -> bytes:
    """Of the record that is to be at an offset."""
    return b"record %d" % offset


def batch_at(offset: int) -> memoryview:
    """The source batch that is to be at an offset, by nobody yet."""
    items = [(str(at), value_at(at)) for at in range(offset, offset + RECORDS)]
    return memoryview(bytearray(batch_of(items, NOBODY, -1, timestamp_ms=int(time.time() * 1000))[0]))


async def append(cluster: Cluster, tp: TopicPartition, node: int, sealed: Seal, offset: int) -> Answer:
    """Send the batch that is to be at an offset, and return what the broker says of it."""
    connection = await cluster.connection(node, "append")
    view = batch_at(offset)
    sealed(view, offset)
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX)
    answer = await connection.send(PRODUCE, version, encode_request([(tp, view)], 10_000))
    return offset, decode_answer(answer)[tp]


async def append_all(
    cluster: Cluster, tp: TopicPartition, sealed: Seal, begin: asyncio.Barrier, dice: random.Random
) -> list[Answer]:
    """Append what the log lacks, until it lacks nothing: look where it ends, append from there on, and so on.

    The first batch after a look is in flight alone; if it was taken, several follow at once. Every fourth
    time or so we have stood still since an earlier look, and go on by that.
    """
    node = await leader(cluster, tp)
    send = partial(append, cluster, tp, node, sealed)
    answers: list[Answer] = []
    looks = [0]
    await begin.wait()
    while looks[-1] < END:
        end = looks[-1] if dice.randrange(4) else dice.choice(looks[-LOOKS_AGO:])
        first = await send(end)
        answers.append(first)
        if first[1].error_code == 0:
            begins = range(end + RECORDS, END, RECORDS)[: dice.randint(0, IN_FLIGHT_MAX)]
            answers += await asyncio.gather(*map(send, begins))
        found = (await list_offsets(cluster, [tp], LATEST, leader=node))[tp]
        assert isinstance(found, int), found
        looks.append(found)
    return answers


async def race(brokers: KafkaCluster, name: str, seals: Seals) -> tuple[list[Answer], list[bytes | None]]:
    """All answers that three appenders got, and the values that the log holds then."""
    tp, begin = TopicPartition(name, 0), asyncio.Barrier(APPENDERS)
    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(connected(brokers)) for _ in range(APPENDERS)]
        sealed = await seals(clusters, name)
        async with asyncio.TaskGroup() as group:
            racing = [
                group.create_task(append_all(cluster, tp, one, begin, random.Random(number)))
                for number, (cluster, one) in enumerate(zip(clusters, sealed, strict=True))
            ]
    answers = [answer for task in racing for answer in task.result()]
    return answers, [record.value for record in read_partition(brokers.bootstrap, name, 0)]


@pytest.mark.parametrize("version", list(BROKERS))
async def test_of_three_that_append_the_same_each_batch_is_taken_once_and_in_order(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Who is second is told where the batch is; who is later is refused as out of turn, and with no other word.
    """
    brokers = source if version == "3.9" else target
    name = await topic(brokers)

    answers, values = await race(brokers, name, shared)

    assert values == [value_at(offset) for offset in range(END)]
    taken = [(offset, said) for offset, said in answers if said.error_code == 0]
    assert {said.error_code for _, said in answers} == {0, OUT_OF_ORDER_SEQUENCE_NUMBER}
    assert [said.base_offset for _, said in taken] == [offset for offset, _ in taken]
    assert sorted(offset for offset, said in taken if said.time_ms < 0) == [*range(0, END, RECORDS)]
    assert len(taken) > BATCHES, "nobody was second"


@pytest.mark.parametrize("version", list(BROKERS))
@pytest.mark.parametrize("seals", [without_sequences, each_its_own])
async def test_without_a_producer_id_that_they_share_the_same_race_doubles_batches(
    version: str, seals: Seals, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    So the test before this one sees it when the broker takes a batch twice.
    """
    brokers = source if version == "3.9" else target
    name = await topic(brokers)

    answers, values = await race(brokers, name, seals)

    assert {said.error_code for _, said in answers} == {0}
    assert values.count(value_at(0)) == APPENDERS
    assert values != [value_at(offset) for offset in range(END)]
