"""Which broker is asked what any of them knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from uuid import UUID

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from mirror.errors import ConnectionFailedError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import PartitionInfo, TopicInfo
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import CLOSED, GONE, PROMPT
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.offsets import LATEST, delete_records, list_offsets
from mirror.kafka.topics import describe_configs, set_configs
from mirror.model import TopicPartition
from tests.harness.daemon import until

ORDERS_0 = TopicPartition("orders", 0)
ONE, TWO, THREE = (Address("east", port) for port in (1, 2, 3))


class Asked:
    """A connection to a broker that answers one question after the other, at once; of what it has not
    answered a test says.
    """

    brokers: ClassVar[Mapping[int, Address]] = {}
    """What all of them say of who is there."""
    others: ClassVar[Mapping[Address, str]] = {}
    """Addresses that lead to another cluster than the usual one, and to which."""
    hanging: ClassVar[set[str]] = set()
    """What is not answered, by the names of requests."""
    frozen: ClassVar[set[Address]] = set()
    """Brokers that answer nothing, on no connection."""
    refusing: ClassVar[set[Address]] = set()
    """Where no connection can be opened."""
    tried: ClassVar[list[Address]] = []
    """Where one was to be opened, in order."""
    given_up: ClassVar[set[Address]] = set()
    """Brokers whose connections end a while after they were asked."""
    asked: ClassVar[list[Address]] = []
    """Who was asked, in order."""
    requests: ClassVar[list[Any]] = []
    """And what."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.answered_at = time.monotonic()
        self.closed = self.guarded = False
        self.closed_at: float | None = None
        self.unanswered = 0
        self.unanswered_seconds = 0.0
        self.bytes_received = self.bytes_sent = 0
        self.certificate_valid_until: float | None = None
        self._turn = asyncio.Lock()
        self.looks = 0
        self.came_last_at: Callable[[], float | None] = lambda: None

    @property
    def arriving_at(self) -> float | None:
        self.looks += 1
        return self.came_last_at()

    async def call(self, request: object, *_: object) -> SimpleNamespace:
        self.asked.append(self.address)
        self.requests.append(request)
        if self.address in self.given_up:
            await asyncio.sleep(0.2)
            raise ConnectionFailedError(f"{self.address}: no answer")
        if self.address in self.frozen:
            self.waits(10)
            await asyncio.Event().wait()
        async with self._turn:
            if type(request).__name__ in self.hanging:
                await asyncio.Event().wait()
        self.answered_at = time.monotonic()
        brokers = [SimpleNamespace(node_id=n, host=a.host, port=a.port) for n, a in self.brokers.items()]
        cluster = self.others.get(self.address, "c")
        return SimpleNamespace(cluster_id=cluster, controller_id=1, brokers=brokers, topics=[], results=[])

    def waits(self, seconds: float) -> None:
        """A question is on its way for so long."""
        self.unanswered, self.unanswered_seconds = 1, seconds

    def close(self, _: str = "") -> None:
        self.closed, self.closed_at = True, time.monotonic()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Connections in the order in which they are opened."""
    made: list[Asked] = []

    async def open_one(address: Address, _: ConnectionOptions) -> Asked:
        Asked.tried.append(address)
        await asyncio.sleep(0)
        if address in Asked.frozen:
            await asyncio.Event().wait()
        if address in Asked.refusing:
            raise ConnectionFailedError(f"{address}: nobody there")
        made.append(Asked(address))
        return made[-1]

    monkeypatch.setattr(Connection, "open", open_one)
    monkeypatch.setattr(Asked, "brokers", {1: ONE, 2: TWO, 3: THREE})
    monkeypatch.setattr(Asked, "hanging", set())
    monkeypatch.setattr(Asked, "frozen", set())
    monkeypatch.setattr(Asked, "refusing", set())
    monkeypatch.setattr(Asked, "tried", [])
    monkeypatch.setattr(Asked, "given_up", set())
    monkeypatch.setattr(Asked, "asked", [])
    monkeypatch.setattr(Asked, "requests", [])
    return made


async def test_a_frozen_broker_that_is_fenced_is_not_asked_in_the_place_of_another(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The list of addresses is another one by then; the connection that was opened to the first of it is not.
    """
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(10)
    monkeypatch.setattr(Asked, "brokers", {2: TWO, 3: THREE})
    await cluster.refresh()
    opened[1].waits(0.1)

    asked = await cluster.any_connection()

    assert [one.address for one in opened] == [ONE, TWO]
    assert asked.address == TWO


async def test_what_was_asked_for_before_is_not_the_answer_to_those_who_ask_meanwhile(
    opened: list[Asked],
) -> None:
    """
    It lacks what was followed since, and what was made. However many they are, they share the next one.
    """
    cluster = Cluster("source", [ONE], ConnectionOptions())
    cluster.follow(["old"])
    await cluster.refresh()

    async with opened[0]._turn:
        on_its_way = asyncio.create_task(cluster.refresh())
        await until(lambda: len(Asked.asked) == 2, "it is asked for", 5)
        cluster.follow(["new", "old"])
        asking = [asyncio.create_task(cluster.refresh()) for _ in range(5)]
        await asyncio.sleep(0)
    known = await asyncio.gather(on_its_way, *asking)

    wanted = [[topic.name for topic in request.topics] for request in Asked.requests]
    assert wanted == [["old"], ["old"], ["new", "old"]]
    assert known[1:] == [cluster.info] * 5


async def test_those_who_ask_meanwhile_share_the_next_answer_even_if_there_is_none(
    opened: list[Asked],
) -> None:
    """
    Each of them would else wait for the timeouts of all before it.
    """
    cluster = Cluster("source", [ONE], ConnectionOptions())
    await cluster.refresh()
    Asked.given_up |= {ONE, TWO, THREE}
    asked = len(Asked.asked)
    on_its_way = asyncio.create_task(cluster.refresh())
    await until(lambda: len(Asked.asked) > asked, "it is asked for", 5)

    asking = [asyncio.create_task(cluster.refresh()) for _ in range(20)]
    ends = await asyncio.gather(on_its_way, *asking, return_exceptions=True)
    tries = len(Asked.asked) - asked
    Asked.given_up.clear()
    known = await cluster.refresh()

    assert {type(end) for end in ends} == {ConnectionFailedError}
    assert len({str(end) for end in ends[1:]}) == 1
    assert tries == 2
    assert known is cluster.info


async def test_a_connection_that_may_be_used_in_our_turn_only_is_not_for_questions(
    opened: list[Asked],
) -> None:
    """
    Whose turn it is would be asked there, and not be told.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    await cluster.connection(2, "append-0")
    before = (await cluster.any_connection()).address
    opened[1].guarded = True

    assert (before, (await cluster.any_connection()).address) == (TWO, ONE)


async def test_of_an_address_the_certificate_counts_that_was_shown_last(opened: list[Asked]) -> None:
    """
    A connection that was made before it was rotated says nothing of those that are made now.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    for node, lane in ((2, "control"), (2, "append-0"), (3, "control")):
        await cluster.connection(node, lane)
    opened[1].close()
    await cluster.connection(2, "control")

    ends = [5000.0, 7000.0, 1000.0, 6000.0, 4000.0]
    for one, end in zip(opened, ends, strict=True):
        one.certificate_valid_until = end

    assert [one.address for one in opened] == [ONE, TWO, TWO, THREE, TWO]
    assert cluster.connections.certificate_valid_until == 4000.0


async def test_what_may_take_long_does_not_go_where_prompt_answers_are_wanted(opened: list[Asked]) -> None:
    """
    A broker passes some questions on to the controller, and answers nothing else there meanwhile.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    await cluster.connection(2, "state")
    usual = (await cluster.any_connection()).address
    opened[1].close()
    await cluster.connection(3, PROMPT)

    assert (usual, (await cluster.any_connection()).address) == (TWO, ONE)


async def test_a_connection_to_an_address_that_is_nobodys_any_more_is_closed(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Brokers come and go with new addresses; those the settings name stay.
    """
    cluster = Cluster("source", [TWO], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(0.1)
    await cluster.any_connection()
    monkeypatch.setattr(Asked, "brokers", {3: THREE})

    await cluster.refresh()

    assert [(one.address, one.closed) for one in opened] == [(TWO, False), (ONE, True)]


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_connection_that_is_being_opened_while_the_cluster_is_closed_is_given_up(
    frozen: bool, opened: list[Asked]
) -> None:
    """
    Whoever waits for it is told so at once, and nobody else is tried, however long that would take.
    """
    cluster = Cluster("source", [ONE, TWO], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(10)
    Asked.frozen |= {TWO, THREE} if frozen else set()
    waiting = asyncio.gather(cluster.connection(2), cluster.any_connection(), return_exceptions=True)
    await asyncio.sleep(0)

    await cluster.close()
    late = await asyncio.wait_for(waiting, 5)

    assert [type(one) for one in late] == [ConnectionFailedError] * 2
    assert {str(one).rpartition(": ")[2] for one in late} == {CLOSED}
    assert [one.closed for one in opened] == [True] * (1 if frozen else 3)


@pytest.mark.parametrize("connected", [True, False])
async def test_who_waits_for_an_answer_while_the_cluster_is_closed_is_told(
    connected: bool, opened: list[Asked]
) -> None:
    """
    It was not cancelled itself, and is not to end as if it were.
    """
    cluster = Cluster("source", [ONE, TWO], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen |= {ONE, TWO, THREE}
    if not connected:
        opened[0].waits(10)
    request = MetadataRequest(topics=[])
    questions = cluster.refresh(), cluster.describe_topics([]), cluster.call(request, highest=12)
    waiting = asyncio.gather(*questions, return_exceptions=True)
    await asyncio.sleep(0.01)

    await cluster.close()
    told = await asyncio.wait_for(waiting, 5)

    assert [type(one) for one in told] == [ConnectionFailedError] * 3


async def test_a_broker_that_has_moved_is_reached_where_it_is_now(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nobody may be left at its old address to end a connection. While it still answers there, that is waited
    for: what was sent would be in doubt otherwise.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    lanes = "idle", "silent", "answering", "slow link"
    idle, silent, answering, slow = [cast(Asked, await cluster.connection(2, lane)) for lane in lanes]
    other = await cluster.connection(3)
    for one, seconds in ((silent, 10.0), (answering, 0.1), (slow, 10.0)):
        one.waits(seconds)
    slow.came_last_at = time.monotonic
    idle.bytes_received = 7
    monkeypatch.setattr(Asked, "brokers", {1: ONE, 2: Address("west", 2), 3: THREE})

    await cluster.refresh()
    closed = [one.closed for one in (idle, silent, answering, slow, other)]
    now = [(await cluster.connection(2, lane)).address.host for lane in lanes]
    answering.waits(10)
    slow.unanswered, slow.unanswered_seconds = 0, 0.0
    await cluster.refresh()

    assert closed == [True, True, False, False, False]
    assert now == ["west", "west", "east", "east"]
    assert (answering.closed, slow.closed) == (True, True)
    assert cluster.connections.bytes_received == 7


@pytest.mark.parametrize("describes", [False, True], ids=["a snapshot", "a look at topics"])
async def test_where_a_broker_is_says_what_was_asked_for_last(
    describes: bool, opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whatever it was asked for with: what is sent next goes there. An answer from before, which comes later,
    changes nothing.
    """

    async def look_again() -> None:
        await (cluster.describe_topics([]) if describes else cluster.refresh())

    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    answered, held = opened[0].call, asyncio.Event()

    async def answers_late(*asked: Any) -> SimpleNamespace:
        answer = await answered(*asked)
        opened[0].unanswered = 1
        await held.wait()
        return answer

    with monkeypatch.context() as slow:
        slow.setattr(opened[0], "call", answers_late)
        early = asyncio.create_task(cluster.describe_topics([]))
        await until(lambda: opened[0].unanswered == 1, "it was asked for", 5)
    moved = {1: ONE, 2: Address("west", 2), 3: THREE}
    monkeypatch.setattr(Asked, "brokers", moved)
    await look_again()
    now = cast(Asked, await cluster.connection(2))
    held.set()
    late = await early

    assert now.address == Address("west", 2)
    assert not now.closed
    assert (cluster.info.brokers, late.brokers) == (moved, moved)


async def test_what_waited_for_a_connection_was_asked_for_once_it_was_there(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its answer is newer than one that was asked for meanwhile, though it was wanted before.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(10)
    held = asyncio.Event()
    opened_after(monkeypatch, held, TWO)
    early = asyncio.create_task(cluster.describe_topics([]))
    await asyncio.sleep(0.01)
    opened[0].unanswered = 0
    opened[0].unanswered_seconds = 0.0
    await cluster.refresh()
    moved = {1: ONE, 2: Address("west", 2), 3: THREE}
    monkeypatch.setattr(Asked, "brokers", moved)
    held.set()

    await early

    assert [one.address for one in opened] == [ONE, TWO]
    assert cluster.info.brokers == moved


@pytest.mark.parametrize("relayed", [True, False])
async def test_an_address_that_leads_to_another_cluster_is_not_asked(
    relayed: bool, opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Neither what there is nor anything else, though nobody else is left: its topics would be taken for those
    of the same name that are copied. When the first one is back all goes on.
    """
    relays = Relays([ONE, TWO]) if relayed else None
    cluster = Cluster("source", [ONE, TWO], ConnectionOptions(relays=relays))
    monkeypatch.setattr(Asked, "brokers", {})
    known = await cluster.refresh()
    monkeypatch.setattr(Asked, "others", {TWO: "staging"})
    opened[0].close()
    Asked.refusing.add(ONE)

    with pytest.raises(
        ConnectionFailedError, match="leads to cluster staging, not to c as before"
    ) as refused:
        await cluster.refresh()
    with pytest.raises(ConnectionFailedError, match="staging"):
        await cluster.any_connection()
    meanwhile = cluster.info, cluster.up, [one.closed for one in opened]
    Asked.refusing.clear()
    cluster.try_now()
    await cluster.refresh()

    assert refused.value.retriable
    assert meanwhile == (known, False, [True, True, True])
    assert (cluster.info.cluster_id, cluster.up) == ("c", True)
    assert relays is None or relays.in_turn()[0] == ONE


async def test_a_broker_that_has_become_one_of_another_cluster_is_not_believed(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Through a relay that reads another one, where brokers have the same addresses.
    """
    relays = Relays([TWO, THREE])
    cluster = Cluster("source", [TWO, THREE], ConnectionOptions(relays=relays))
    monkeypatch.setattr(Asked, "brokers", {1: ONE})
    known = await cluster.refresh()
    opened[0].close()
    await cluster.connection(1)
    monkeypatch.setattr(Asked, "others", {ONE: "staging"})

    with pytest.raises(ConnectionFailedError, match="east:1 leads to cluster staging, not to c as before"):
        await cluster.refresh()

    assert cluster.info == known
    assert opened[1].closed
    assert relays.in_turn() == [THREE, TWO]


async def test_a_broker_behind_a_relay_that_reads_another_cluster_is_asked_nothing(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its brokers may have the addresses of ours, and its topics the same names: they end elsewhere than ours.
    """
    cluster = Cluster("source", [ONE, TWO], ConnectionOptions(relays=Relays([ONE, TWO])))
    await cluster.refresh()
    monkeypatch.setattr(Asked, "others", {THREE: "staging"})

    with pytest.raises(ConnectionFailedError, match="east:3 leads to cluster staging, not to c as before"):
        await cluster.connection(3)

    assert [(one.address, one.closed) for one in opened] == [(ONE, False), (THREE, True)]


# -- a broker that freezes -----------------------------------------------------------------------------------


def silent_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A broker that does not answer for so long counts as silent, wherever that is asked."""
    for module in ("cluster", "connection_pool"):
        monkeypatch.setattr(f"mirror.kafka.{module}.SILENT_SECONDS", seconds)
    monkeypatch.setattr("mirror.kafka.cluster.SLOW_OPENING_SECONDS", seconds / 3)


async def look(cluster: Cluster) -> None:
    await cluster.refresh()


async def settings_of(cluster: Cluster) -> None:
    await describe_configs(cluster, ["orders"])


@pytest.mark.parametrize("asks", [look, settings_of], ids=["who leads what", "settings"])
async def test_while_a_broker_is_silent_another_one_is_asked(
    asks: Callable[[Cluster], Coroutine[Any, Any, None]],
    opened: list[Asked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It was the one that had answered last; a new leader is known as soon as there is one.
    """
    silent_after(monkeypatch, 0.05)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen.add(ONE)

    await asyncio.wait_for(asks(cluster), 5)

    assert [one.address for one in opened] == [ONE, TWO]


async def test_where_none_answers_that_is_said_once_each_was_asked(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As when the way to all of them is cut: whoever waits for it would wait as long as that lasts.
    """
    silent_after(monkeypatch, 0.05)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.given_up |= {ONE, TWO, THREE}
    Asked.asked.clear()

    with pytest.raises(ConnectionFailedError):
        await asyncio.wait_for(cluster.refresh(), 5)

    assert sorted(set(Asked.asked)) == [ONE, TWO, THREE]
    assert len(Asked.asked) <= 9  # on a new connection it is asked first which cluster that is


async def test_brokers_that_refuse_are_not_asked_again_and_again_while_another_is_silent(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A processor would do nothing else.
    """
    silent_after(monkeypatch, 0.02)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.given_up |= {ONE}
    tries = 0

    async def refuse(address: Address, _: ConnectionOptions) -> Asked:
        nonlocal tries
        tries += 1
        raise ConnectionFailedError(f"{address}: refused")

    monkeypatch.setattr(Connection, "open", refuse)

    with pytest.raises(ConnectionFailedError):
        await asyncio.wait_for(cluster.refresh(), 5)

    assert tries <= 9


async def test_a_broker_that_has_begun_to_answer_is_not_silent(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Over a slow link all would be asked for the same long answer.
    """
    silent_after(monkeypatch, 0.01)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen.add(ONE)
    opened[0].came_last_at = time.monotonic

    looking = asyncio.create_task(cluster.refresh())
    await until(lambda: opened[0].looks > 3, "it is waited for", 5)
    looking.cancel()

    assert [one.address for one in opened] == [ONE]


async def test_a_broker_that_says_no_more_in_the_middle_of_its_answer_is_silent(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It froze just then: nobody waits for the rest, others know it too.
    """
    silent_after(monkeypatch, 0.05)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen.add(ONE)
    began = time.monotonic()
    opened[0].came_last_at = lambda: began

    await asyncio.wait_for(cluster.refresh(), 5)

    assert [one.address for one in opened] == [ONE, TWO]


async def test_whoever_wants_any_broker_gets_one_that_answers(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Such as mirrors that come to a relay, each of which has a connection of its own.
    """
    silent_after(monkeypatch, 0.05)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen.add(ONE)

    first, second = [await asyncio.wait_for(cluster.open_any(), 5) for _ in range(2)]

    assert (first.address, second.address) == (TWO, TWO)
    assert first is not second


async def test_a_broker_to_which_no_connection_was_opened_is_tried_after_the_others(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It was frozen before the mirror began: each question that met a busy connection tried it again, for long.
    """
    Asked.refusing.add(ONE)
    monkeypatch.setattr("mirror.kafka.refused.FIRST_PAUSE_SECONDS", 0.0)
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(0.1)

    asked = await cluster.any_connection()
    given = await cluster.open_any()

    assert (asked.address, given.address) == (TWO, TWO)
    assert Asked.tried == [ONE, TWO, TWO]


async def test_a_broker_that_the_metadata_shows_anew_is_tried_at_once(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The cluster counts as its brokers those that are up. Until then it was tried ever less often.
    """
    monkeypatch.setattr("mirror.kafka.refused.FIRST_PAUSE_SECONDS", 60.0)
    cluster = Cluster("source", [ONE], ConnectionOptions())
    await cluster.refresh()
    Asked.refusing.add(TWO)
    for _ in range(3):
        with pytest.raises(ConnectionFailedError, match="nobody there"):
            await cluster.connection(2)
    tries = Asked.tried.count(TWO)
    Asked.refusing.clear()
    for brokers in ({1: ONE}, {1: ONE, 2: TWO}):
        monkeypatch.setattr(Asked, "brokers", brokers)
        await cluster.refresh()

    connection = await cluster.connection(2)

    assert (tries, connection.address) == (1, TWO)


async def test_while_a_connection_is_being_opened_to_one_broker_another_is_asked(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nobody may be left at that address to refuse it. Where there is no other, that one is waited for.
    """
    silent_after(monkeypatch, 0.05)
    monkeypatch.setattr(Asked, "brokers", {1: ONE})
    monkeypatch.setattr(Asked, "frozen", {ONE})
    cluster = Cluster("source", [ONE, TWO], ConnectionOptions())

    await asyncio.wait_for(cluster.refresh(), 5)
    alone = asyncio.create_task(Cluster("source", [ONE], ConnectionOptions()).any_connection())
    await asyncio.sleep(0.1)
    waits = not alone.done()
    alone.cancel()

    assert [one.address for one in opened] == [TWO]
    assert waits


def opened_after(monkeypatch: pytest.MonkeyPatch, held: asyncio.Event, at: Address) -> None:
    """Connections to one address are opened once this is set."""
    open_one = Connection.open

    async def open_later(address: Address, options: ConnectionOptions) -> Connection:
        if address == at:
            await held.wait()
        return await open_one(address, options)

    monkeypatch.setattr(Connection, "open", open_later)


async def test_a_broker_that_is_silent_is_not_asked_while_a_connection_to_another_is_being_opened(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its connection is there, but what is asked over it is not answered: the other one takes a moment only.
    """
    cluster = Cluster("source", [TWO], ConnectionOptions())
    await cluster.refresh()
    opened[0].waits(10)
    held = asyncio.Event()
    opened_after(monkeypatch, held, ONE)

    asking = [asyncio.create_task(cluster.any_connection()) for _ in range(5)]
    await asyncio.sleep(0.01)
    held.set()
    asked = await asyncio.gather(*asking)

    assert {one.address for one in asked} == {ONE}
    assert [one.address for one in opened] == [TWO, ONE]


async def test_those_who_ask_at_once_share_a_connection_that_is_being_opened(opened: list[Asked]) -> None:
    """
    Each one more would stay; through a relay it counts against what an identity may have.
    """
    cluster = Cluster("source", [ONE, TWO, THREE], ConnectionOptions())

    await asyncio.gather(*(cluster.any_connection() for _ in range(20)))

    assert [one.address for one in opened] == [ONE]


async def test_a_broker_that_has_moved_is_not_waited_for_where_a_connection_is_being_opened(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nobody may be left there even to refuse it. Nor is one that has left the cluster waited for.
    """
    cluster = Cluster("source", [ONE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen |= {TWO, THREE}
    waiting = [asyncio.create_task(cluster.connection(node)) for node in (2, 2, 3)]
    await asyncio.sleep(0.01)
    monkeypatch.setattr(Asked, "brokers", {1: ONE, 2: Address("west", 2)})

    await cluster.refresh()
    told, moved, gone = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)

    assert isinstance(told, ConnectionFailedError)
    assert isinstance(moved, Asked)
    assert moved.address == Address("west", 2)
    assert isinstance(gone, ConnectionFailedError)
    assert cluster.connections.opening == {}


async def test_an_address_that_another_broker_has_now_has_refused_nobody(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What was given up there was meant for the broker before.
    """
    cluster = Cluster("source", [ONE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen |= {TWO}
    waiting = asyncio.create_task(cluster.connection(2))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(Asked, "brokers", {1: ONE, 2: Address("west", 2), 3: TWO})
    await cluster.refresh()
    with pytest.raises(ConnectionFailedError, match=GONE):
        await asyncio.wait_for(waiting, 5)
    Asked.frozen -= {TWO}

    connection = await cluster.connection(3)

    assert connection.address == TWO


async def test_an_address_out_of_use_is_not_tried_by_those_who_knew_it_before(
    opened: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While they waited, for another address or for who was first there, its broker has left.
    """
    monkeypatch.setattr(Asked, "brokers", {1: ONE, 2: TWO})
    cluster = Cluster("source", [THREE], ConnectionOptions())
    await cluster.refresh()
    Asked.frozen |= {ONE, TWO}
    opened[0].waits(1)
    tried: list[Address] = []
    open_one = Connection.open

    async def noted(address: Address, options: ConnectionOptions) -> Connection:
        tried.append(address)
        return await open_one(address, options)

    monkeypatch.setattr(Connection, "open", noted)
    waiting = [asyncio.create_task(cluster.any_connection()) for _ in range(3)]
    await asyncio.sleep(0.01)
    cluster.info = replace(cluster.info, brokers={})
    cluster.connections.forget_gone({}, [THREE])
    found = await asyncio.wait_for(asyncio.gather(*waiting), 5)

    assert {one.address for one in found} == {THREE}
    assert tried == [ONE]


# -- what others are waited for with -------------------------------------------------------------------------


async def change(cluster: Cluster) -> None:
    await set_configs(cluster, "orders", {"retention.ms": "5"})


async def delete(cluster: Cluster) -> None:
    await delete_records(cluster, {ORDERS_0: 7})


@pytest.mark.parametrize(
    ("asks", "request_name"),
    [(change, "IncrementalAlterConfigsRequest"), (delete, "DeleteRecordsRequest")],
    ids=["a change", "a deletion"],
)
async def test_behind_what_a_broker_waits_for_others_with_no_question_waits(
    asks: Callable[[Cluster], Coroutine[Any, Any, None]], request_name: str, opened: list[Asked]
) -> None:
    """
    The controller hangs, or another replica; the broker that is asked lives, and is not called silent.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    cluster.info = replace(cluster.info, topics=led_by(1))
    Asked.hanging.add(request_name)

    asking = asyncio.create_task(asks(cluster))
    await until(lambda: len(opened) == 2, "the broker is asked", 5)
    opened[1].waits(10)
    ends = await asyncio.wait_for(list_offsets(cluster, [ORDERS_0], LATEST), 5)
    answering = await cluster.any_connection()
    waits = not asking.done()
    asking.cancel()

    assert waits
    assert list(ends) == [ORDERS_0]
    assert answering.address == ONE


async def test_a_change_that_was_given_up_holds_up_no_further_one(opened: list[Asked]) -> None:
    """
    On the same connection it would be answered first, half a minute later.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    request = CreateTopicsRequest(topics=[], timeout_ms=1)
    Asked.hanging.add("CreateTopicsRequest")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await cluster.call_controller(request)
    Asked.hanging.clear()
    await asyncio.wait_for(cluster.call_controller(request), 5)

    assert [one.closed for one in opened] == [False, True, False]


@pytest.mark.parametrize("controller", [1, -1], ids=["known", "not known"])
async def test_where_changes_are_asked_for_nothing_else_is(controller: int, opened: list[Asked]) -> None:
    """
    Also while a cluster has no controller that it tells: then it is a broker that answers.
    """
    cluster = Cluster("target", [ONE], ConnectionOptions())
    await cluster.refresh()
    cluster.info = replace(cluster.info, controller=controller)
    await cluster.call_controller(CreateTopicsRequest(topics=[], timeout_ms=1))
    opened[0].waits(0.1)

    usual: object = await cluster.any_connection()

    assert [one.address for one in opened] == [ONE, ONE]
    assert usual is opened[0]


def led_by(node: int) -> dict[str, TopicInfo]:
    return {"orders": TopicInfo("orders", UUID(int=7), False, {0: PartitionInfo(node, 0, (node,), (node,))})}
