"""Access to one Kafka cluster: which broker to ask, over which connection, and a snapshot of the cluster.

Connections are opened when first needed and shared by purpose (a *lane*): bulk
data and small requests never wait for each other (``connection_pool``). The snapshot
is read again when a broker says that the cluster has changed.

Source: the Kafka protocol guide (Metadata).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from kafka.protocol.metadata import MetadataRequest

from mirror.errors import AuthenticationError, ConnectionFailedError, OtherClusterError, TwinsiteError
from mirror.kafka.cluster_info import ClusterInfo, cluster_info, newer_leaders
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import (
    ANY,
    CHANGES,
    CLOSED,
    CONTROL,
    GONE,
    SILENT_SECONDS,
    ConnectionPool,
    Key,
    speaks,
)
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.failures import BeforeSleep, retrying
from mirror.kafka.refused import Refused, copy_of

SLOW_OPENING_SECONDS = 1.0
"""If a connection takes longer to open, other brokers are tried first. Less than ``SILENT_SECONDS``, after
which another one is asked.
"""

METADATA_VERSION = 12

T = TypeVar("T")


class Cluster:
    """Access to one cluster. Call :meth:`start` before anything else and :meth:`close` at the end.

    Attributes:
        connections: The open connections, and closed ones that were not replaced yet.
        on_auth_failure: Called when a connection cannot be opened because one side does not accept the other.
        coordinators: Broker ids of the coordinators of transactional ids, as far as they were looked up.

    Args:
        name: ``source`` or ``target``, for messages.
        bootstrap: Addresses to begin with; one that answers is enough.
        refresh_seconds: How old the snapshot may get. Nothing here enforces it: the code that watches the
            cluster reads it again.
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
        self._refused = Refused()
        self._refreshing = asyncio.Lock()
        self._not_refreshed: tuple[float, TwinsiteError] = (-math.inf, TwinsiteError(""))
        """When the last request for a snapshot that failed was begun, and why it failed."""
        self._topics: tuple[str, ...] | None = ()
        self._brokers_seen_at = -math.inf
        """When the answer was asked for that the brokers of ``info`` are from."""
        self._begun: set[asyncio.Task[Any]] = set()

    async def start(self, *, timeout_seconds: float = 30.0, before_sleep: BeforeSleep | None = None) -> None:
        """Reach the cluster for the first time.

        Args:
            timeout_seconds: How long to retry.
            before_sleep: Called after each failed attempt that is retried.

        Raises:
            ConnectionFailedError: None of the bootstrap addresses answers in time.
            AuthenticationError: The cluster does not accept us, or we do not accept it.
            UnsupportedVersionError: There is no version of the protocol in common.
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
        """Set which topics the snapshots hold from now on; None means all."""
        self._topics = None if topics is None else tuple(sorted(topics))

    async def refresh(self, *, not_older_than_seconds: float = 0.0) -> ClusterInfo:
        """Read the snapshot again.

        Callers that come while one is being read share the next request, even if it fails: an answer in
        flight may lack topics that were followed, and changes that were made, since it was requested.

        Args:
            not_older_than_seconds: Return the snapshot at hand if it was requested at most so long ago.

        Raises:
            ConnectionFailedError: No broker answers, or only brokers of another cluster do.
        """
        wanted_at = time.monotonic()
        async with self._refreshing:
            if self.info.seen_at >= wanted_at - not_older_than_seconds:
                return self.info
            failed_at, failure = self._not_refreshed
            if failed_at > wanted_at:
                raise copy_of(failure)
            asked_at = time.monotonic()
            try:
                self.info = newer_leaders(self.info, await self._read_metadata(self._topics))
            except TwinsiteError as error:
                self._not_refreshed = asked_at, copy_of(error)
                raise
            return self.info

    async def describe_topics(self, topics: Iterable[str] | None) -> ClusterInfo:
        """Read a snapshot with the topics named, or with all (None); of ``info`` only the brokers change.

        Raises:
            ConnectionFailedError: As for :meth:`refresh`.
        """
        return await self._read_metadata(None if topics is None else tuple(topics))

    async def _read_metadata(self, topics: tuple[str, ...] | None) -> ClusterInfo:
        """Read a snapshot; where the brokers are says the answer that was asked for last."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=t) for t in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        wanted_at = time.monotonic()
        answer, connection, asked_at = await self._ask_any(request, METADATA_VERSION)
        self._see_whose(answer.cluster_id, connection)
        info = cluster_info(answer, seen_at=wanted_at)
        if asked_at < self._brokers_seen_at:
            return replace(info, brokers=self.info.brokers)
        self._brokers_seen_at = asked_at
        if info.brokers != self.info.brokers:
            self._refused.try_now({*info.brokers.values()} - {*self.info.brokers.values()})
            self.info = replace(self.info, brokers=info.brokers)
        self.connections.forget_gone(info.brokers, self._bootstrap)
        return info

    def _see_whose(self, cluster_id: str | None, connection: Connection) -> None:
        """Check that an address, or a relay, still leads to the same cluster as before.

        Raises:
            OtherClusterError: It leads to another one. The connection is closed, and from now on other
                addresses, or relays, are tried first.
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

    @property
    def left_alone_seconds(self) -> float:
        """For how much longer no connection is tried, as all addresses, or all relays, have refused one; 0 if
        one may be.
        """
        relays = self.options.relays
        through = relays.left_alone_seconds if relays is not None else 0.0
        return max(through, min(map(self._refused.seconds, self._addresses())))

    def left_alone_seconds_of(self, node: int) -> float:
        """For how many more seconds no connection to a broker is tried, as its address, or all relays, have
        refused one; 0 if one may be.
        """
        address, relays = self.info.brokers.get(node), self.options.relays
        through = relays.left_alone_seconds if relays is not None else 0.0
        return max(through, self._refused.seconds(address) if address is not None else 0.0)

    def try_now(self) -> None:
        """Try new connections as soon as they are wanted, whatever has refused one: somebody asks for it."""
        self._refused.try_now()
        if self.options.relays is not None:
            self.options.relays.refused.try_now()

    def note_failure(self) -> None:
        """Note that a request was not answered; see :attr:`up`."""
        self._last_failure_at = time.monotonic()

    @property
    def up(self) -> bool | None:
        """Whether the last request was answered, by whichever broker; None before the first one."""
        if self.last_answer_at is None:
            return None if self._last_failure_at is None else False
        return self._last_failure_at is None or self.last_answer_at > self._last_failure_at

    # -- talking to it ---------------------------------------------------------------------------

    async def call(
        self, request: Any, *, node: int | None = None, highest: int | None = None, lane: str = CONTROL
    ) -> Any:
        """Send a generated request of kafka-python to one broker, or to any, and return its answer.

        Args:
            node: The id of the broker; None: any broker.
            highest: Upper bound of the version to use; the newest known by default.
            lane: Over which of the connections to that broker. A broker answers the requests of a connection
                one after the other.

        Raises:
            ConnectionFailedError: It could not be asked, or did not answer.
            AuthenticationError: One side does not accept the other.
            UnsupportedVersionError: No version in common.
        """
        if node is None:
            return (await self._ask_any(request, highest))[0]
        return await self._call(await self.connection(node, lane), request, highest)

    async def hear_from(self, node: int) -> None:
        """Return when a broker has answered a request that it took from its queue: by then it has begun all
        that it received before. A greeting does not show that: under SASL a broker answers it ahead of the
        queue.

        Raises:
            TwinsiteError: As for :meth:`call`.
        """
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        await self.call(request, node=node, highest=METADATA_VERSION)

    async def _ask_any(self, request: Any, highest: int | None) -> tuple[Any, Connection, float]:
        """Ask what any broker knows. While one is silent, another is asked in parallel.

        The first answer counts. At most as many are asked as there are addresses. Requests that are no longer
        needed run to their end.

        Returns:
            The answer, the connection over which it came, and when it was asked for there, in monotonic
            seconds.

        Raises:
            ConnectionFailedError: None answers, or the cluster is closed meanwhile.
        """
        asked: list[Connection] = []

        async def ask() -> tuple[Any, Connection, float]:
            connection = await self.any_connection(but=[one.address for one in asked])
            asked.append(connection)
            asked_at = time.monotonic()
            return await self._call(connection, request, highest), connection, asked_at

        begun, asking = 1, {self._begin(ask())}
        while True:
            done, asking = await asyncio.wait(
                asking, timeout=SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            ended = [one for one in done if not one.cancelled()]
            answered = [one for one in ended if one.exception() is None]
            if answered or (ended and not asking):
                return (answered or ended)[0].result()
            if not asking:
                raise ConnectionFailedError(f"{self.name}: {CLOSED}")
            if not done and begun < len(self._addresses()) and not any(map(speaks, asked)):
                begun += 1
                asking.add(self._begin(ask()))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that may be left alone: its error matters only to a caller that needs the result."""
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn

    async def _call(self, connection: Connection, request: Any, highest: int | None) -> Any:
        try:
            answer = await connection.call(request, highest)
        except ConnectionFailedError:
            self._last_failure_at = time.monotonic()
            raise
        self.last_answer_at = time.monotonic()
        return answer

    async def call_controller(self, request: Any) -> Any:
        """Ask the controller (with KRaft any broker forwards the request), over a connection of its own.

        When cancelled it closes that connection, so that the next request does not wait behind this one.

        Raises:
            ConnectionFailedError: It could not be asked, or did not answer.
            AuthenticationError: One side does not accept the other.
            UnsupportedVersionError: No version in common.
        """
        node = self._controller()
        if node is None:
            return await self._call(await self.any_connection(), request, None)
        connection = await self.connection(node, CHANGES)
        try:
            return await self._call(connection, request, None)
        except asyncio.CancelledError:
            connection.close("no answer in time")
            raise

    def _controller(self) -> int | None:
        """The broker to ask for changes; None while no broker is known."""
        brokers, silent = self.info.brokers, self.connections.silent()
        if self.info.controller in brokers:
            return self.info.controller
        return min(brokers, key=lambda node: brokers[node] in silent, default=None)

    async def connection(self, node: int, lane: str = CONTROL) -> Connection:
        """The connection to a broker for one purpose, opened if there is none.

        Raises:
            ConnectionFailedError: The broker is unknown or cannot be reached.
            AuthenticationError: It does not accept us, or we do not accept it.
            UnsupportedVersionError: It speaks no version that we know.
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
                raise ConnectionFailedError(f"{self.name}: broker {node} is currently not in the cluster")
            work = self._open(address) if self.options.relays is None else self._open_any(address)
            return self.connections.keep(key, await self._opened(key, address, work))

    async def _opened(self, key: Key, address: Address, work: Coroutine[Any, Any, Connection]) -> Connection:
        """Run what opens a connection. It is given up if the address goes out of use, or all are closed.

        Raises:
            ConnectionFailedError: It was given up.
            TwinsiteError: Whatever ``work`` raises.
        """
        opening = self.connections.begin(key, address)
        try:
            return await opening.wait(work)
        finally:
            del self.connections.opening[key]
            if opening.given_up:
                self._refused.forget(address)  # nobody there has refused it

    def open_ahead(self, nodes: Iterable[int]) -> None:
        """Open connections that will be needed soon, in the background.

        A failure is met by the next caller that needs the connection.
        """
        for node in nodes:
            self._begin(self.connection(node))

    async def any_connection(self, *, but: Collection[Address] = ()) -> Connection:
        """A connection to any broker that answers, preferably to the one that answered most recently.

        Args:
            but: Brokers that are being asked already; they are used only if there is no other.

        Raises:
            ConnectionFailedError: None of the known brokers and bootstrap addresses answers.
            AuthenticationError, UnsupportedVersionError: None can be used, and with at least one of them
                trying again does not help.
        """
        silent, best = {*self.connections.silent(), *but}, self.connections.heard_last(but)
        if best is not None and best.address not in silent:
            return best
        failures: list[TwinsiteError] = []
        for address in sorted(self._addresses(), key=lambda one: (one in but, self._opens_slowly(one))):
            key = (ANY, str(address))
            async with self._opening.setdefault(key, asyncio.Lock()):
                existing = self.connections.get(key)
                if existing is not None:
                    return existing
                if address not in self._addresses():
                    failures.append(ConnectionFailedError(f"{address}: {GONE}"))
                    continue
                try:
                    opened = await self._opened(key, address, self._open_any(address))
                except TwinsiteError as error:
                    failures.append(error)
                    continue
                return self.connections.keep(key, opened)
        raise self._worst(failures)

    def _opens_slowly(self, address: Address) -> bool:
        """Whether :meth:`any_connection` has been opening one there for long: nobody may be there even to
        refuse it.
        """
        opening = self.connections.opening.get((ANY, str(address)))
        return opening is not None and opening.seconds > SLOW_OPENING_SECONDS

    async def open_any(self) -> Connection:
        """Open a new connection to any broker that answers; the caller closes it.

        Raises:
            TwinsiteError: As for :meth:`any_connection`.
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
        """The addresses to try; silent ones, and those where opening a connection failed, come last."""
        doubtful = self.connections.silent() | self._refused.addresses
        addresses = dict.fromkeys([*self.info.brokers.values(), *self._bootstrap])
        return sorted(addresses, key=lambda address: address in doubtful)

    async def _open_any(self, address: Address) -> Connection:
        """Open a connection to the broker at an address, or to one behind a relay.

        Raises:
            OtherClusterError: The broker belongs to another cluster than those before.
            TwinsiteError: As for :meth:`Connection.open`.
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
        opened = await self._refused.attempt(address, partial(self._try, address))
        if isinstance(opened, TwinsiteError):
            raise opened
        return opened

    async def _try(self, address: Address) -> Connection | TwinsiteError:
        """A new connection; or why not, if that is no fault of the broker: no relay answers, or all are left
        alone and were not tried.

        Raises:
            TwinsiteError: As for :meth:`Connection.open`.
        """
        relays = self.options.relays
        tried_before = relays.refused.attempts if relays is not None else -1
        try:
            opened = await Connection.open(address, self.options)
        except asyncio.CancelledError:
            slow = ConnectionFailedError(f"{address}: no connection in time")
            self._refused.given_up(address, slow)
            raise
        except TwinsiteError as error:
            self._last_failure_at = time.monotonic()
            tried = relays is None or relays.refused.attempts > tried_before
            if tried and isinstance(error, AuthenticationError) and self.on_auth_failure is not None:
                self.on_auth_failure(error)
            if relays is not None and relays.left_alone_seconds:
                return error
            raise
        self.last_answer_at = time.monotonic()
        return opened
