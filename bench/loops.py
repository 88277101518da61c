"""asyncio's event loop, uvloop's, or threads: the same bare pass-through in three ways.

``python -m bench.loops KIND SOURCE TARGET TOPIC`` fetches, seals and appends the batches of a topic with the
mirror's own codecs and nothing of its flow, and prints seconds and CPU seconds as JSON. KIND is ``asyncio``,
``uvloop`` (which must be installed by hand; the mirror does not need it) or ``threads``: one that fetches and
one that appends, on blocking sockets. docs/decisions/0001 has the results.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import queue
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from mirror.clusters import connected
from mirror.config import ClusterSettings
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.kafka.fetch import FETCH, FETCH_VERSION, FetchLimits, FetchSession, Key, Want
from mirror.kafka.fetch import decode_answer as decode_fetched
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.kafka.record_batch import crc_matches, seal, walk
from mirror.kafka.transactions import Token, init_producer_id
from mirror.model import TopicPartition

IN_FLIGHT = 5
ANSWERS_AHEAD = 3
"""Fetch answers that wait to be appended."""
PARTITION_BYTES = 1 << 20
LIMITS = FetchLimits(bytes_max=4 << 20)
TIMEOUT_MS = 30_000

T = TypeVar("T")
Request = list[tuple[TopicPartition, memoryview]]


@dataclass(slots=True)
class Copy:
    """The state of a copy: what to fetch next, and the sequences to send with."""

    topic: str
    topic_id: bytes
    ends: dict[int, int]
    token: Token
    session: FetchSession = field(default_factory=FetchSession)
    sequences: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        for partition, end in self.ends.items():
            self.sequences[partition] = 0
            if end:
                self.session.want(Key(self.topic_id, partition), Want(0, -1, -1, PARTITION_BYTES))

    @property
    def more(self) -> bool:
        """Whether anything is still to be fetched."""
        return bool(self.session.wanted)

    def taken(self, body: memoryview) -> Iterable[Request]:
        """Requests with the batches of a Fetch answer: one batch of each partition in each."""
        answer = decode_fetched(body)
        self.session.answered(answer)
        queues = [self._sealed(f.key, f.records) for f in answer.partitions if len(f.records)]
        while queues:
            yield [q.popleft() for q in queues]
            queues = [q for q in queues if q]

    def _sealed(self, key: Key, records: memoryview) -> deque[tuple[TopicPartition, memoryview]]:
        tp, sequence = TopicPartition(self.topic, key.partition), self.sequences[key.partition]
        sealed: deque[tuple[TopicPartition, memoryview]] = deque()
        for header, view in walk(records):
            if not crc_matches(header, view):
                raise click.ClickException(f"{tp}: a batch is damaged")
            seal(view, self.token.producer_id, self.token.epoch, sequence)
            sequence += header.records
            sealed.append((tp, view))
        self.sequences[key.partition] = sequence
        if sequence >= self.ends[key.partition]:
            self.session.forget(key)
        else:
            self.session.want(key, Want(sequence, -1, -1, PARTITION_BYTES))
        return sealed


def checked(body: memoryview) -> None:
    """Check a Produce answer.

    Raises:
        ClickException: The target refused a batch.
    """
    for tp, outcome in decode_answer(body).items():
        if outcome.error_code:
            raise click.ClickException(f"{tp}: the target answers {outcome}")


# -- one event loop ------------------------------------------------------------------------------


async def on_a_loop(copy: Copy, source: Connection, target: Connection) -> None:
    """Fetch the next answer while the one before is appended."""
    waiting: deque[asyncio.Future[memoryview]] = deque()
    version = target.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    answer = source.send(FETCH, FETCH_VERSION, [copy.session.request(LIMITS)])
    more = True
    while more:
        requests = list(copy.taken(await answer))
        more = copy.more
        if more:
            answer = source.send(FETCH, FETCH_VERSION, [copy.session.request(LIMITS)])
        for request in requests:
            if len(waiting) >= IN_FLIGHT:
                checked(await waiting.popleft())
            waiting.append(target.send(PRODUCE, version, encode_request(request, TIMEOUT_MS)))
    while waiting:
        checked(await waiting.popleft())


# -- two threads ---------------------------------------------------------------------------------


class Blocking:
    """A connection on a blocking socket."""

    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection(address)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, api_key: int, version: int, parts: Sequence[memoryview | bytes]) -> None:
        size = sum(len(part) for part in parts) + 13
        head = struct.pack(">ihhih2sb", size, api_key, version, 1, 2, b"tw", 0)
        views = [memoryview(part) for part in (head, *parts)]
        while views:
            sent = self._sock.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def receive(self) -> memoryview:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)[5:]

    def _exactly(self, size: int) -> memoryview:
        buffer = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            count = self._sock.recv_into(buffer[filled:])
            if not count:
                raise click.ClickException("the broker closed the connection")
            filled += count
        return buffer


def with_threads(copy: Copy, source: Blocking, target: Blocking, version: int) -> None:
    """One thread fetches and seals, this one appends."""
    ahead: queue.Queue[list[Request] | None] = queue.Queue(ANSWERS_AHEAD)
    fetcher = threading.Thread(target=_fetch_all, args=(copy, source, ahead), daemon=True)
    fetcher.start()
    in_flight = 0
    while (requests := ahead.get()) is not None:
        for request in requests:
            if in_flight >= IN_FLIGHT:
                checked(target.receive())
                in_flight -= 1
            target.send(PRODUCE, version, encode_request(request, TIMEOUT_MS))
            in_flight += 1
    for _ in range(in_flight):
        checked(target.receive())


def _fetch_all(copy: Copy, source: Blocking, ahead: queue.Queue[list[Request] | None]) -> None:
    while copy.more:
        source.send(FETCH, FETCH_VERSION, [copy.session.request(LIMITS)])
        ahead.put(list(copy.taken(source.receive())))
    ahead.put(None)


# -- running it ----------------------------------------------------------------------------------


async def prepared(source: Cluster, target: Cluster, topic: str) -> Copy:
    """Find out all that a copy needs to know."""
    for cluster in source, target:
        cluster.follow([topic])
        await cluster.refresh()
    info = source.info.topics[topic]
    tps = [TopicPartition(topic, partition) for partition in info.partitions]
    found = await list_offsets(source, tps, LATEST)
    ends = {tp.partition: end for tp, end in found.items() if isinstance(end, int)}
    token = await init_producer_id(target, f"bench-loops-{time.time_ns()}")
    copy = Copy(topic, info.topic_id.bytes, ends, token)
    copy.begin()
    return copy


async def run(kind: str, source_address: str, target_address: str, topic: str) -> tuple[float, float]:
    """Copy once; returns seconds and CPU seconds."""
    async with (
        connected("source", ClusterSettings(bootstrap_servers=(source_address,))) as source,
        connected("target", ClusterSettings(bootstrap_servers=(target_address,))) as target,
    ):
        copy = await prepared(source, target, topic)
        reading = source.info.topics[topic].partitions[0].leader
        writing = target.info.topics[topic].partitions[0].leader
        fetch, append = await source.connection(reading, "fetch"), await target.connection(writing, "append")
        began, used = time.monotonic(), time.process_time()
        if kind == "threads":
            version = append.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
            with_threads(copy, Blocking(fetch.address), Blocking(append.address), version)
        else:
            await on_a_loop(copy, fetch, append)
        return time.monotonic() - began, time.process_time() - used


def runner(kind: str) -> Callable[[Coroutine[Any, Any, T]], T]:
    """``asyncio.run`` or that of uvloop.

    Raises:
        ClickException: uvloop is not installed.
    """
    if kind != "uvloop":
        return asyncio.run
    try:
        return importlib.import_module("uvloop").run  # type: ignore[no-any-return]
    except ImportError as error:
        raise click.ClickException("uvloop is not installed: pip install uvloop") from error


@click.command()
@click.argument("kind", type=click.Choice(["asyncio", "uvloop", "threads"]))
@click.argument("source")
@click.argument("target")
@click.argument("topic")
def main(kind: str, source: str, target: str, topic: str) -> None:
    """Copy a topic at SOURCE into the empty topic of the same name at TARGET, in one of three ways."""
    seconds, cpu = runner(kind)(run(kind, source, target, topic))
    json.dump({"kind": kind, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}, sys.stdout)
    click.echo()


if __name__ == "__main__":
    main()
