"""What docs/permissions.md says, tried with the authorizer switched on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.security import SaslMechanism, SaslOptions, SecretSource, Security, SecurityProtocol
from mirror.kafka.topics import topic_defaults
from mirror.kafka.transactions import init_producer_id
from mirror.sync.target_requests import PROBE
from tests.harness.acls import (
    CLUSTER,
    Grant,
    allow,
    allow_nothing,
    grants_on_the_page,
    rights_on_the_page,
)
from tests.harness.daemon import free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.requests import HIGHEST, Requests, error_codes
from tests.harness.secured_broker import start_with
from tests.harness.security import BrokerSecurity, Listener

pytestmark = pytest.mark.timeout(180)

READER, WRITER = "User:twinsite-reader", "User:twinsite-writer"
PASSWORD = "correct-horse-battery"
TRANSACTIONAL_ID = "twinsite.east"
REFUSED = {29, 31, 53}
"""TOPIC_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
READ_ONLY = {"Read", "Describe", "DescribeConfigs"}


@dataclass(frozen=True, slots=True)
class Authorizing:
    """A broker that allows nothing to anybody but its administrator."""

    cluster: KafkaCluster
    address: Address

    @property
    def inner(self) -> Address:
        return Address("127.0.0.1", self.cluster.broker(1).port)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["3.9", "4.3"])
async def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Authorizing]:
    (port,) = free_ports(1)
    listener = Listener("SASL", port, "SASL_PLAINTEXT", ("PLAIN",))
    users = {READER.removeprefix("User:"): PASSWORD, WRITER.removeprefix("User:"): PASSWORD}
    security = BrokerSecurity((listener,), users=users, super_users=("User:ANONYMOUS",))
    async with start_with(security, request.param, tmp_path_factory.mktemp("authorizing")) as cluster:
        for topic in ("orders.eu", "payroll"):
            await cluster.create_topic(topic)
        yield Authorizing(cluster, Address("localhost", listener.port))


async def connect(address: Address, user: str) -> Connection:
    """A connection as one of the users."""
    return await Connection.open(address, login(user))


def login(user: str) -> ConnectionOptions:
    options = SaslOptions(
        SaslMechanism.PLAIN, username=user.removeprefix("User:"), password=SecretSource(value=PASSWORD)
    )
    return ConnectionOptions(security=Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=options))


async def ask(connection: Connection, requests: Requests, api: str) -> set[int]:
    """The error codes of the answer."""
    return error_codes(await connection.call(requests.build(api), HIGHEST.get(api)))


async def repeated(
    question: Callable[[], Awaitable[set[int]]], *, refused: bool, seconds: float = 10.0
) -> set[int]:
    """Ask until the broker has heard of the change; the last answer's error codes, in time or not."""
    until = time.monotonic() + seconds
    while True:
        codes = await question()
        if bool(codes & REFUSED) is refused or time.monotonic() > until:
            return codes
        await asyncio.sleep(0.02)


async def ask_until(connection: Connection, requests: Requests, api: str, *, refused: bool) -> set[int]:
    """Ask until the answer is a refusal, or until it is none."""
    return await repeated(lambda: ask(connection, requests, api), refused=refused)


@pytest_asyncio.fixture
async def requests(broker: Authorizing) -> Requests:
    """Requests for the topic and the transactional id, which exist."""
    admin = Cluster("admin", [broker.inner], ConnectionOptions())
    await admin.start()
    try:
        token = await init_producer_id(admin, TRANSACTIONAL_ID)
        topic = (await admin.describe_topics(["orders.eu"])).topics["orders.eu"]
    finally:
        await admin.close()
    return Requests("orders.eu", topic.topic_id, "orders.new", TRANSACTIONAL_ID, token.producer_id)


@pytest_asyncio.fixture
async def writer(broker: Authorizing) -> AsyncIterator[Connection]:
    """A connection of the writer, who is allowed nothing when the test begins."""
    allow_nothing(broker.cluster.admin, WRITER)
    connection = await connect(broker.address, WRITER)
    yield connection
    connection.close()


@pytest_asyncio.fixture
async def reader(broker: Authorizing) -> AsyncIterator[Connection]:
    """A connection of the reader, who is allowed nothing when the test begins."""
    allow_nothing(broker.cluster.admin, READER)
    connection = await connect(broker.address, READER)
    yield connection
    connection.close()


def resource(requests: Requests, api: str, kind: str) -> str:
    names = {"topic": requests.topic, "transactional-id": TRANSACTIONAL_ID, "cluster": CLUSTER}
    return requests.new_topic if api == "CreateTopics" else names[kind]


@pytest.mark.parametrize("api", rights_on_the_page())
async def test_a_request_needs_the_right_the_page_says_and_no_other(
    broker: Authorizing, writer: Connection, requests: Requests, api: str
) -> None:
    """
    Refused without any right; answered with exactly the one of the page's last table.
    """
    operation, kind = rights_on_the_page()[api]
    right = Grant(WRITER, operation, kind, resource(requests, api, kind))

    without = await ask_until(writer, requests, api, refused=True)
    allow(broker.cluster.admin, [right])
    with_it = await ask_until(writer, requests, api, refused=False)

    assert without & REFUSED
    assert with_it == set()


async def test_the_reader_can_look_at_everything_and_write_nothing(
    broker: Authorizing, reader: Connection, requests: Requests
) -> None:
    """
    With all commands of the page for the source: every request of a consumer is answered, no other one is.
    """
    grants = [grant for grant in grants_on_the_page() if grant.principal == READER]
    rights = rights_on_the_page()
    looking = {api for api in rights if rights[api][0] in READ_ONLY and rights[api][1] != "transactional-id"}
    allow(broker.cluster.admin, grants)

    answers = {api: await ask_until(reader, requests, api, refused=api not in looking) for api in rights}

    assert {grant.operation for grant in grants} <= READ_ONLY
    assert {api for api, codes in answers.items() if not codes} == looking
    assert all(answers[api] & REFUSED for api in rights.keys() - looking)


async def test_the_writer_can_do_all_it_must_and_nothing_to_other_topics(
    broker: Authorizing, writer: Connection, requests: Requests
) -> None:
    """
    With the page's commands for the target's topics, one outside the prefix stays out of reach.
    """
    grants = [grant for grant in grants_on_the_page() if grant.principal == WRITER]
    allow(broker.cluster.admin, [grant for grant in grants if grant.kind != "cluster"])
    elsewhere = Requests("payroll", requests.topic_id, "payroll.new", "someone.else", requests.producer_id)
    apis = [api for api, (_, kind) in rights_on_the_page().items() if kind != "cluster" and api != "Fetch"]

    ours = {api: await ask_until(writer, requests, api, refused=False) for api in apis}
    theirs = {api: await ask_until(writer, elsewhere, api, refused=True) for api in apis}

    assert {api for api, codes in ours.items() if codes} == set()
    assert {api for api, codes in theirs.items() if not codes & REFUSED} == set()


async def test_without_the_section_for_same_offsets_neither_markers_nor_deletes_are_allowed(
    broker: Authorizing, writer: Connection, requests: Requests
) -> None:
    """
    Who grants less for ``offsets: mapped`` gives away neither ClusterAction nor Delete.
    """
    less = grants_on_the_page(without=["With `offsets: same`", "With `sync_acls`"])
    allow(broker.cluster.admin, [grant for grant in less if grant.principal == WRITER])

    produced = await ask_until(writer, requests, "Produce", refused=False)
    refused = {
        api: await ask(writer, requests, api) for api in ("WriteTxnMarkers", "DeleteRecords", "CreateAcls")
    }

    assert produced == set()
    assert refused == {"WriteTxnMarkers": {31}, "DeleteRecords": {29}, "CreateAcls": {31}}


async def test_the_writer_may_ask_what_a_new_topic_would_get(broker: Authorizing, writer: Connection) -> None:
    """
    The defaults of the target are read by a creation that is only tried; without the right they stay unknown.
    """
    target = Cluster("target", [broker.address], login(WRITER))
    await target.start()
    try:
        without = await topic_defaults(target, PROBE)
        allow(broker.cluster.admin, [grant for grant in grants_on_the_page() if grant.name == PROBE])
        async with asyncio.timeout(10):
            with_it = await topic_defaults(target, PROBE)
            while with_it is None:
                with_it = await topic_defaults(target, PROBE)
        made = await target.describe_topics([PROBE])
    finally:
        await target.close()

    assert without is None
    assert "max.message.bytes" in with_it
    assert made.topics == {}
