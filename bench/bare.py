"""The broker's ceiling: batches fetched beforehand, handed to the target as fast as it takes them.

``python -m bench.bare SOURCE TARGET TOPIC`` reads the topic's batches into memory, then appends them to
the topic of the same name at the target: one batch of each partition in a request, five requests in flight,
nothing else. No mirror can be faster than this through one connection.
"""

from __future__ import annotations

import asyncio
from collections import deque

import click

from mirror.clusters import connected
from mirror.config import ClusterSettings
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import FETCH, FETCH_VERSION, FetchLimits, Key, Want
from mirror.kafka.fetch import decode_answer as decode_fetched
from mirror.kafka.fetch import encode_request as encode_fetch
from mirror.kafka.record_batch import seal, walk
from mirror.kafka.transactions import Token, init_producer_id
from mirror.model import TopicPartition

IN_FLIGHT = 5
REQUEST_BYTES = 1 << 20
PARTITION_BYTES = 4 << 20
TIMEOUT_MS = 30_000

Batches = dict[TopicPartition, deque[tuple[int, memoryview]]]
"""The batches of each partition that are still to be sent, each with its number of records."""


async def preload(source: Cluster, topic: str) -> Batches:
    """Every batch of a topic, copied into memory of its own."""
    info = source.info.topics[topic]
    batches: Batches = {}
    for partition, where in info.partitions.items():
        connection = await source.connection(where.leader, "fetch")
        key = Key(info.topic_id.bytes, partition)
        batches[TopicPartition(topic, partition)] = await _read(connection, key)
    return batches


async def _read(connection: Connection, key: Key) -> deque[tuple[int, memoryview]]:
    found: deque[tuple[int, memoryview]] = deque()
    offset, end = 0, 1
    while offset < end:
        want = Want(offset, -1, -1, PARTITION_BYTES)
        request = encode_fetch(FetchLimits(), session=(0, -1), changed={key: want}, forgotten=())
        body = await connection.send(FETCH, FETCH_VERSION, [request])
        fetched = decode_fetched(body).partitions[0]
        end = fetched.high_watermark
        for header, view in walk(fetched.records):
            found.append((header.records, memoryview(bytearray(view))))
            offset = header.next_offset
    return found


def seal_all(batches: Batches, token: Token) -> None:
    """Give every batch our producer id and the sequence that follows the batch before."""
    for of in batches.values():
        sequence = 0
        for records, view in of:
            seal(view, token.producer_id, token.epoch, sequence)
            sequence += records


async def pour(connection: Connection, batches: Batches) -> None:
    """Send all batches.

    Raises:
        ClickException: The broker refused a batch.
    """
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    waiting: deque[asyncio.Future[memoryview]] = deque()
    turns = deque(batches.items())
    while turns or waiting:
        if turns and len(waiting) < IN_FLIGHT:
            waiting.append(connection.send(PRODUCE, version, encode_request(_gather(turns), TIMEOUT_MS)))
            continue
        for tp, outcome in decode_answer(await waiting.popleft()).items():
            if outcome.error_code:
                raise click.ClickException(f"{tp}: the target answers {outcome}")


def _gather(
    turns: deque[tuple[TopicPartition, deque[tuple[int, memoryview]]]],
) -> list[tuple[TopicPartition, memoryview]]:
    """One batch of each partition in turn, up to the size of a request."""
    request: list[tuple[TopicPartition, memoryview]] = []
    room = REQUEST_BYTES
    for _ in range(len(turns)):
        tp, left = turns.popleft()
        if room > 0 and left:
            request.append((tp, left.popleft()[1]))
            room -= len(request[-1][1])
        if left:
            turns.append((tp, left))
    return request


async def run(source_address: str, target_address: str, topic: str) -> None:
    async with (
        connected("source", ClusterSettings(bootstrap_servers=(source_address,))) as source,
        connected("target", ClusterSettings(bootstrap_servers=(target_address,))) as target,
    ):
        for cluster in source, target:
            cluster.follow([topic])
            await cluster.refresh()
        batches = await preload(source, topic)
        token = await init_producer_id(target, f"bench-bare-{topic}")
        seal_all(batches, token)
        leader = target.info.topics[topic].partitions[0].leader
        await pour(await target.connection(leader, "append"), batches)


@click.command()
@click.argument("source")
@click.argument("target")
@click.argument("topic")
def main(source: str, target: str, topic: str) -> None:
    """Append the batches of a topic at SOURCE to the empty topic of the same name at TARGET."""
    asyncio.run(run(source, target, topic))


if __name__ == "__main__":
    main()
