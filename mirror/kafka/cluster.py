"""The way to one Kafka cluster: whom to ask, over which connection, and what it looks like now.

Connections are opened when first needed and shared by purpose (a *lane*): bulk
data and small questions never wait for each other (``connection_pool``). What the
cluster looks like is a snapshot that is read again when a broker says it has changed.

Source: the Kafka protocol guide (Metadata).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from kafka.protocol.metadata import MetadataRequest

from mirror.errors import AuthenticationError, ConnectionFailedError, OtherClusterError, TwinsiteError
from mirror.kafka.cluster_info import ClusterInfo, cluster_info, newer_leaders
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import (
    ANY,
    CHANGES,
    CONTROL,
    SILENT_SECONDS,
    ConnectionPool,
    Key,
    speaks,
)
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.failures import BeforeSleep, retrying

OPENING_PAUSE_SECONDS = 0.5
"""After a broker refused a connection it is left alone for this long."""

METADATA_VERSION = 12

T = TypeVar("T")


class Cluster:
    """The way to one cluster. Use :meth:`start` before anything else and :meth:`close` at the end.

    Attributes:
        connections: Those that are open, or were.
        on_auth_failure: Told when a connection is not opened because one side does not accept the other.
        coordinators: The brokers that coordinate transactional ids, as far as they were looked up.

    Args:
        name: How people call it: ``source`` or ``target``.
        bootstrap: Addresses to begin with; any one that answers is enough.
        refresh_seconds: How old the snapshot may get; whoever watches the cluster reads it again then.
    """

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        options: ConnectionOptions,
        *,
        refresh_seconds: float = 30.0,
    ) -> None:
        self.name = name
        self.options = options
        self.connections = ConnectionPool()
        self.refresh_seconds = refresh_seconds
        self.info = ClusterInfo("", -1, {}, {})
        self.last_answer_at: float | None = None
        self._last_failure_at: float | None = None
        self.on_auth_failure: Callable[[AuthenticationError], None] | None = None
        self.coordinators: dict[str, int] = {}
        self._bootstrap = list(bootstrap)
        self._opening: dict[Key, asyncio.Lock] = {}
        self._refused: dict[Address, tuple[float, TwinsiteError]] = {}
        self._refreshing = asyncio.Lock()
        self._topics: tuple[str, ...] | None = ()
        self._begun: set[asyncio.Task[Any]] = set()

    async def start(self, *, timeout_seconds: float = 30.0, before_sleep: BeforeSleep | None = None) -> None:
        """Reach the cluster for the first time.

        Args:
            before_sleep: Told of each try that failed and is made again.

        Raises:
            ConnectionFailedError: None of the bootstrap addresses answers in time.
            AuthenticationError: The cluster does not accept us, or we do not accept it.
        """
        async for attempt in retrying(timeout_seconds, before_sleep=before_sleep):
            with attempt:
                await self.refresh()

    async def close(self) -> None:
        """Close all connections."""
        for task in self._begun:
            task.cancel()
        self.connections.close()

    # -- what the cluster looks like -------------------------------------------------------------

    def follow(self, topics: Iterable[str] | None) -> None:
        """Say which topics the snapshots are to hold from now on; None means all there are."""
        self._topics = None if topics is None else tuple(sorted(topics))

    async def refresh(self, *, not_older_than_seconds: float = 0.0) -> ClusterInfo:
        """Read the snapshot again. Many who want that while it is being read share the next question: in an
        answer that is on its way what was followed, or has changed, since it was asked for is missing.

        Args:
            not_older_than_seconds: What was asked for so long ago will do.

        Raises:
            ConnectionFailedError: No broker answers, or only such of another cluster.
        """
        wanted_at = time.monotonic()
        async with self._refreshing:
            if self.info.seen_at < wanted_at - not_older_than_seconds:
                self.info = newer_leaders(self.info, await self._read_metadata(self._topics))
            return self.info

    async def describe_topics(self, topics: Iterable[str] | None) -> ClusterInfo:
        """A snapshot with the topics named, or all; the one followed stays as it is."""
        return await self._read_metadata(None if topics is None else tuple(topics))

    async def _read_metadata(self, topics: tuple[str, ...] | None) -> ClusterInfo:
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=t) for t in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        asked_at = time.monotonic()
        answer, connection = await self._ask_any(request, METADATA_VERSION)
        self._see_whose(answer.cluster_id, connection)
        info = cluster_info(answer, seen_at=asked_at)
        self.connections.forget_gone(info.brokers, (*info.brokers.values(), *self._bootstrap))
        return info

    def _see_whose(self, cluster_id: str | None, connection: Connection) -> None:
        """An address may lead to another cluster than before, and so may a relay.

        Raises:
            OtherClusterError: It does. The connection is closed, and others are asked first.
        """
        ours = self.info.cluster_id
        if not ours or not cluster_id or cluster_id == ours:
            return
        relays = self.options.relays
        if relays is not None:
            relays.failed(connection.address if connection.address in relays else relays.in_turn()[0])
        self._last_failure_at = time.monotonic()
        words = f"leads to cluster {cluster_id}, not to {ours} as before"
        connection.close(words)
        raise OtherClusterError(f"{connection.address} {words}")

    def note_failure(self) -> None:
        """A question was not answered."""
        self._last_failure_at = time.monotonic()

    @property
    def up(self) -> bool | None:
        """Whether the last question was answered, by whichever broker; None while nothing was asked."""
        if self.last_answer_at is None:
            return None if self._last_failure_at is None else False
        return self._last_failure_at is None or self.last_answer_at > self._last_failure_at

    # -- talking to it ---------------------------------------------------------------------------

    async def call(
        self, request: Any, *, node: int | None = None, highest: int | None = None, lane: str = CONTROL
    ) -> Any:
        """Ask one broker, or any, with a generated request of kafka-python.

        Args:
            lane: Over which of the connections to that broker. It answers what comes over each in turn.

        Raises:
            ConnectionFailedError: It could not be asked, or did not answer.
        """
        if node is None:
            return (await self._ask_any(request, highest))[0]
        return await self._call(await self.connection(node, lane), request, highest)

    async def _ask_any(self, request: Any, highest: int | None) -> tuple[Any, Connection]:
        """Ask what any broker knows; while one is silent another is asked, too, and the first answer counts.

        As many are asked as there are addresses, at most. What is not needed any more ends by itself.

        Returns:
            The answer, and over which connection it came.

        Raises:
            ConnectionFailedError: None answers.
        """
        asked: list[Connection] = []

        async def ask() -> tuple[Any, Connection]:
            connection = await self.any_connection(but=[one.address for one in asked])
            asked.append(connection)
            return await self._call(connection, request, highest), connection

        begun, asking = 1, {self._begin(ask())}
        while True:
            done, asking = await asyncio.wait(
                asking, timeout=SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            answered = [one for one in done if one.exception() is None]
            if answered or not asking:
                return (answered or list(done))[0].result()
            if not done and begun < len(self._addresses()) and not any(map(speaks, asked)):
                begun += 1
                asking.add(self._begin(ask()))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin what nobody has to wait for; what fails is met by who needs it."""
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # it is known now, and no warning

    async def _call(self, connection: Connection, request: Any, highest: int | None) -> Any:
        try:
            answer = await connection.call(request, highest)
        except ConnectionFailedError:
            self._last_failure_at = time.monotonic()
            raise
        self.last_answer_at = time.monotonic()
        return answer

    async def call_controller(self, request: Any) -> Any:
        """Ask the controller (with KRaft any broker passes the request on). Nothing else waits behind that.

        Cancelled it closes the connection: what is asked for next is not to wait behind it.

        Raises:
            ConnectionFailedError: It could not be asked, or did not answer.
        """
        node = self._controller()
        if node is None:
            return await self._call(await self.any_connection(), request, None)
        connection = await self.connection(node, CHANGES)
        try:
            return await self._call(connection, request, None)
        except asyncio.CancelledError:
            connection.close("no answer in the time there was")
            raise

    def _controller(self) -> int | None:
        """The broker to be asked for changes; None while none is known."""
        brokers, silent = self.info.brokers, self.connections.silent()
        if self.info.controller in brokers:
            return self.info.controller
        return min(brokers, key=lambda node: brokers[node] in silent, default=None)

    async def connection(self, node: int, lane: str = CONTROL) -> Connection:
        """The connection to a broker for one purpose, opened if there is none.

        Raises:
            ConnectionFailedError: The broker is unknown or cannot be reached.
            AuthenticationError: It does not accept us, or we do not accept it.
        """
        key = (node, lane)
        existing = self.connections.get(key)
        if existing is not None:
            return existing
        async with self._opening.setdefault(key, asyncio.Lock()):
            existing = self.connections.get(key)
            if existing is not None:
                return existing
            address = self.info.brokers.get(node)
            if address is None:
                raise ConnectionFailedError(f"{self.name}: broker {node} is not in the cluster just now")
            opened = self._open(address) if self.options.relays is None else self._open_any(address)
            return self.connections.keep(key, await opened)

    def open_ahead(self, nodes: Iterable[int]) -> None:
        """Open connections that will be needed soon. Returns at once; what fails is met by who needs it."""
        for node in nodes:
            self._begin(self.connection(node))

    async def any_connection(self, *, but: Collection[Address] = ()) -> Connection:
        """A connection to whichever broker answers; if there is a choice, to one that did so lately.

        Args:
            but: Brokers that are asked already: these are taken where there is no other.

        Raises:
            ConnectionFailedError: None of the known brokers and bootstrap addresses answers.
        """
        silent, best = {*self.connections.silent(), *but}, self.connections.heard_last(but)
        if best is not None and best.address not in silent:
            return best
        failures: list[TwinsiteError] = []
        for address in sorted(self._addresses(), key=lambda address: address in but):
            key = (ANY, str(address))
            async with self._opening.setdefault(key, asyncio.Lock()):
                existing = self.connections.get(key)
                if existing is not None:
                    return existing
                try:
                    return self.connections.keep(key, await self._open_any(address))
                except TwinsiteError as error:
                    failures.append(error)
        raise self._worst(failures)

    async def open_any(self) -> Connection:
        """A connection for whoever asks for one, to whichever broker answers; it is his to close.

        Raises:
            ConnectionFailedError: None of the known brokers and bootstrap addresses answers.
        """
        failures: list[TwinsiteError] = []
        addresses = self._addresses()
        for address in addresses:
            last = address == addresses[-1]
            try:
                async with asyncio.timeout(None if last else SILENT_SECONDS):
                    return await self._open_any(address)
            except TimeoutError:
                failures.append(ConnectionFailedError(f"{address}: no answer for {SILENT_SECONDS:g} s"))
            except TwinsiteError as error:
                failures.append(error)
        raise self._worst(failures)

    def _worst(self, failures: Sequence[TwinsiteError]) -> TwinsiteError:
        worst = next(
            (f for f in failures if not f.retriable or isinstance(f, OtherClusterError)), failures[-1]
        )
        return type(worst)(f"{self.name}: {worst}", hint=worst.hint)

    def _addresses(self) -> list[Address]:
        """Where somebody may answer; last where nobody did, or opening a connection has failed."""
        doubtful = self.connections.silent() | self._refused.keys()
        addresses = dict.fromkeys([*self.info.brokers.values(), *self._bootstrap])
        return sorted(addresses, key=lambda address: address in doubtful)

    async def _open_any(self, address: Address) -> Connection:
        """To whoever answers there, or behind a relay. Once it is known which cluster this is, only to one of
        its brokers.
        """
        opened = await self._open(address)
        if self.info.cluster_id:
            try:
                request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
                answer = await self._call(opened, request, METADATA_VERSION)
                self._see_whose(answer.cluster_id, opened)
            except BaseException:
                self.connections.count_in(opened)
                opened.close()
                raise
        return opened

    async def _open(self, address: Address) -> Connection:
        refused = self._refused.get(address)
        if refused is not None and time.monotonic() < refused[0]:
            raise type(refused[1])(str(refused[1]), hint=refused[1].hint)
        try:
            opened = await Connection.open(address, self.options)
        except asyncio.CancelledError:
            slow = ConnectionFailedError(f"{address}: no connection in the time there was")
            self._refused[address] = (time.monotonic() + OPENING_PAUSE_SECONDS, slow)
            raise
        except TwinsiteError as error:
            self._last_failure_at = time.monotonic()
            self._refused[address] = (time.monotonic() + OPENING_PAUSE_SECONDS, error)
            if isinstance(error, AuthenticationError) and self.on_auth_failure is not None:
                self.on_auth_failure(error)
            raise
        self._refused.pop(address, None)
        self.last_answer_at = time.monotonic()
        return opened
