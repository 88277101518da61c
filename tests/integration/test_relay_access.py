"""Whom a relay lets in, what he may read there, and how long he may take: real relays, real certificates."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.admin import DescribeAclsRequest, DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    Fetched,
    FetchLimits,
    Key,
    Want,
    decode_answer,
    encode_request,
)
from mirror.kafka.security import Security, SecurityProtocol
from mirror.kafka.tls import TlsOptions
from mirror.link import protocol
from mirror.link.parts import Part
from mirror.link.protocol import Position
from tests.conftest import TopicFactory
from tests.faults.flows import copied, partition, partitions, says
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Finished, Twinsite, events, twinsite
from tests.harness.relay import Relay, configured_relay
from tests.harness.secured_broker import running_with
from tests.harness.security import Authority, BrokerSecurity, Identity
from tests.integration.test_relay_stream import Client, hello

pytestmark = pytest.mark.timeout(180)

NAME = "spiffe://example.org/mirror/west"
FRAMES = b"GET /v1/frames HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: twinsite-frames/1\r\n\r\n"
KAFKA = b"GET /v1/kafka HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: twinsite-kafka/1\r\n\r\n"
TOPIC, BROKER = 2, 4
MANY = 3_000


@dataclass(frozen=True, slots=True)
class Town:
    """An authority, a relay's certificate, and a folder for both."""

    folder: Path
    authority: Authority
    shown: Identity

    def listen(self, roles: Mapping[str, Any], identities: Mapping[str, str], **more: Any) -> dict[str, Any]:
        """The settings of a relay that tells mirrors apart."""
        return {
            "certificate_file": str(self.shown.certificate),
            "key_file": str(self.shown.key),
            "client_ca_file": str(self.authority.certificate),
            "roles": roles,
            "identities": identities,
            **more,
        }

    def security(self, client: Identity) -> dict[str, Any]:
        """Settings of a mirror with a certificate."""
        return {
            "protocol": "SSL",
            "ca_file": str(self.authority.certificate),
            "certificate_file": str(client.certificate),
            "key_file": str(client.key),
        }

    async def connection(self, relay: Relay, client: Identity) -> Connection:
        """A connection to a broker through a relay, as a mirror makes it."""
        tls = TlsOptions(self.authority.certificate, client.certificate, client.key)
        host, _, port = relay.address.rpartition(":")
        where = Address(host, int(port))
        options = ConnectionOptions(security=Security(SecurityProtocol.SSL, tls), relays=Relays([where]))
        return await Connection.open(where, options)

    def dial(self, relay: Relay, client: Identity) -> ssl.SSLSocket:
        """A connection to a relay on which nothing was said yet."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(client.certificate, client.key)
        host, _, port = relay.address.rpartition(":")
        return context.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=host)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    authority = Authority(tmp_path)
    return Town(tmp_path, authority, authority.issue("relay", ["127.0.0.1"]))


def a_role(*include: str, **more: Any) -> dict[str, Any]:
    return {"reader": {"include": list(include), **more}}


def head_of(sock: socket.socket) -> bytes:
    """The head of an answer, and nothing behind it."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and (more := sock.recv(1)):
        answer += more
    return answer


def problem(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the document of a refusal."""
    head, body = head_of(sock), b""
    while more := sock.recv(65536):
        body += more
    return int(head.split()[1]), json.loads(body)


def logged(relay: Relay, event: str) -> list[dict[str, Any]]:
    """The lines of a relay's log with an event of this name."""
    return [json.loads(line) for line in events(relay.process.stderr, event)]


def copy_through(
    town: Town, relay: Relay, target: KafkaCluster, client: Identity, flow: str, topics: list[str]
) -> Finished:
    """A copy to its end, and what became of it."""
    command = mirror_through(town, relay, target, client, flow, topics)
    return asyncio.run(twinsite(*command, "--once", "-o", "json", work_dir=town.folder))


def mirror_through(
    town: Town, relay: Relay, target: KafkaCluster, client: Identity, flow: str, topics: list[str]
) -> tuple[str, ...]:
    link = {
        "relays": [relay.address],
        "security": town.security(client),
        "metadata_refresh_seconds": 3600,
    }
    document = {
        "flow": flow,
        "link": link,
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": topics, "refresh_seconds": 3600},
    }
    file = town.folder / f"{flow}.yaml"
    file.write_text(json.dumps(document))
    return ("mirror", "--config", str(file))


# -- topics ------------------------------------------------------------------------------------------


def test_a_mirror_copies_the_topics_of_its_role_and_knows_of_no_others(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    It asks for everything, and all that it is told of arrives; who came in as what stands in the relay's log,
    and in the mirror's which pattern found nothing.
    """
    mine = asyncio.run(topic(source, partitions=3, prefix="role-mine", retention_ms=86_400_000))
    closed = asyncio.run(topic(source, prefix="role-closed"))
    for name in (mine, closed):
        load(source.bootstrap, name, json_rows(20_000, 500), "lz4")
    client = town.authority.issue("mirror-west", [NAME])
    listen = town.listen(a_role("role-.*", exclude=[closed]), {NAME: "reader"})
    with configured_relay(source, town.folder, listen) as relay:
        done = copy_through(town, relay, target, client, mine, [mine, closed])
        seen = [(one["identity"], one["role"], one["way"]) for one in logged(relay, "mirror_let_in")]

    assert done.code == 0, done.missing
    assert {one["topic"] for one in done.document["partitions"]} == {mine}
    assert_exact(source.bootstrap, target.bootstrap, [mine])
    assert closed not in target.admin.list_topics(timeout=10).topics
    unmatched = events(done.stderr, "include_matches_nothing")
    assert [json.loads(line)["include"] for line in unmatched] == [[closed]]
    assert {(name, role) for name, role, _ in seen} == {(NAME, "reader")}
    assert {"stream", "broker"} <= {way for _, _, way in seen} <= {"stream", "joined", "broker"}


def test_a_topic_that_is_taken_from_a_role_is_blocked_with_the_way_out(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    The other one goes on; the detail names the relay and its setting, the relay's log who wanted what.
    """
    kept = asyncio.run(topic(source, prefix="kept"))
    taken = asyncio.run(topic(source, prefix="taken"))
    client, port = town.authority.issue("mirror-west"), free_ports(1)[0]
    wide = town.listen(a_role("kept-.*", "taken-.*"), {"CN=mirror-west": "reader"})
    narrow = town.listen(a_role("kept-.*"), {"CN=mirror-west": "reader"})
    for name in (kept, taken):
        load(source.bootstrap, name, json_rows(100, 100))
    with configured_relay(source, town.folder, wide, port=port) as relay:
        command = mirror_through(town, relay, target, client, kept, [kept, taken])
        with Twinsite.run(*command, work_dir=town.folder) as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) == 200, "all is copied"))
            relay.process.kill()
            with configured_relay(source, town.folder, narrow, port=port) as after:
                for name in (kept, taken):
                    load(source.bootstrap, name, json_rows(100, 100, seed=2))
                found = asyncio.run(says(mirror, taken, "BLOCKED", "source_not_authorized"))
                asyncio.run(mirror.wait_for(lambda: copied(mirror) == 300, "the other one goes on"))
                refused = logged(after, "topics_refused")
                state = partition(partitions(mirror), kept)["state"]

    assert f"relay 127.0.0.1:{port}" in found["detail"]
    assert "listen.roles" in found["detail"]
    assert "listen.roles" in found["hint"]
    assert state == "ACTIVE"
    assert ("stream", [taken], "CN=mirror-west", "reader") in [
        (one["by"], one["topics"], one["identity"], one["role"]) for one in refused
    ]


@contextmanager
def two_topics(
    source: KafkaCluster, topic: TopicFactory, town: Town
) -> Iterator[tuple[str, str, Relay, Identity]]:
    """An open topic, a closed one, and a relay that knows the difference."""
    opened, closed = asyncio.run(topic(source, prefix="open")), asyncio.run(topic(source, prefix="closed"))
    for name in (opened, closed):
        load(source.bootstrap, name, json_rows(100, 100))
    client = town.authority.issue("mirror-west")
    listen = town.listen(a_role("open-.*"), {"mirror-west": "reader"})
    with configured_relay(source, town.folder, listen) as relay:
        yield opened, closed, relay, client


def test_a_stream_brings_nothing_of_a_closed_topic(
    source: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    Wanted by its id, whoever may have told it: Kafka's error for each partition, from the relay itself, and
    the same for those that there are not.
    """
    with two_topics(source, topic, town) as (opened, closed, relay, certificate):
        keys = [Key(asyncio.run(source.topic_id(name)).bytes, 0) for name in (opened, closed)]
        many = [Key(keys[1].topic_id, number) for number in range(1, MANY)]
        wanted = protocol.want([Position(key, 1, 0, -1, True) for key in (*keys, *many)])
        came: dict[Key, tuple[int, Part]] = {}
        sock = town.dial(relay, certificate)
        with Client(relay, hello(), wanted, sock=sock) as client:
            while len(came) < MANY + 1:
                channel, header, parts = client.next_frame()
                came |= {part.fetched.key: (header.node, part) for part in parts}
                client.took(channel)

    assert came.pop(keys[0])[1].fetched.error_code == 0
    for node, part in came.values():
        assert (node, part.fetched.error_code, len(part.fetched.records)) == (-1, 29, 0)
        assert (part.fetched.high_watermark, part.next_offset) == (-1, 0)


async def fetched(connection: Connection, *keys: Key) -> list[Fetched]:
    """What a broker answers to a Fetch of these partitions from their beginning."""
    wants = {key: Want(0, -1, -1, 1 << 20) for key in keys}
    request = encode_request(FetchLimits(), session=(0, -1), changed=wants, forgotten=())
    return decode_answer(await connection.send(FETCH, FETCH_VERSION, [request])).partitions


def offsets_of(*names: str) -> ListOffsetsRequest:
    topic = ListOffsetsRequest.ListOffsetsTopic
    entry = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic(name=name, partitions=[entry]) for name in names]
    )


def configs_of(*resources: tuple[int, str]) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [
        resource(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in resources
    ]
    return DescribeConfigsRequest(resources=wanted, include_synonyms=False, include_documentation=False)


def metadata_of(*names: str, makes: bool = False) -> MetadataRequest:
    topic = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[topic(name=name) for name in names] or None, allow_auto_topic_creation=makes
    )


def test_brokers_tell_nothing_of_a_closed_topic_through_a_relay(
    source: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    Whichever way it is asked for. What is said of the open one is what the broker says, word for word.
    """
    with two_topics(source, topic, town) as (opened, closed, relay, client):
        keys = [Key(asyncio.run(source.topic_id(name)).bytes, 0) for name in (opened, closed)]

        async def ask() -> None:
            broker = source.broker(1).address
            host, _, port = str(broker).rpartition(":")
            way = await town.connection(relay, client)
            direct = await Connection.open(Address(host, int(port)), ConnectionOptions())
            everything = await way.call(metadata_of(), 12)
            assert {one.name for one in everything.topics} >= {opened}
            assert all(one.name.startswith("open-") for one in everything.topics)
            named = (await way.call(metadata_of(opened, closed), 12)).topics
            assert {(one.name, one.error_code, len(one.partitions)) for one in named} == {
                (opened, 0, 1),
                (closed, 29, 0),
            }
            assert (await way.call(metadata_of(opened), 12)).encode() == (
                await direct.call(metadata_of(opened), 12)
            ).encode()
            offsets = (await way.call(offsets_of(opened, closed), 7)).topics
            assert {
                (one.name, one.partitions[0].error_code, one.partitions[0].offset) for one in offsets
            } == {
                (opened, 0, 100),
                (closed, 29, -1),
            }
            records = {one.key: one for one in await fetched(way, *keys)}
            assert (records[keys[1]].error_code, len(records[keys[1]].records)) == (29, 0)
            (alone,) = await fetched(way, keys[0])
            assert alone == (await fetched(direct, keys[0]))[0]
            assert len(records[keys[0]].records) == len(alone.records) > 0
            settings = (await way.call(configs_of((TOPIC, opened), (TOPIC, closed), (BROKER, "1")))).results
            assert [(one.error_code, bool(one.configs)) for one in settings] == [
                (0, True),
                (29, False),
                (31, False),
            ]
            assert "listen.roles" in settings[1].error_message
            for connection in (way, direct):
                connection.close()

        asyncio.run(ask())
        refused = {(one["by"], *one["topics"]) for one in logged(relay, "topics_refused")}

    assert refused == {(api, closed) for api in ("Metadata", "ListOffsets", "Fetch", "DescribeConfigs")}


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]), id="groups"),
        pytest.param(metadata_of("made-by-asking", makes=True), id="would make a topic"),
    ],
)
def test_what_is_not_for_a_role_ends_the_connection(
    source: KafkaCluster, topic: TopicFactory, town: Town, request_: Any
) -> None:
    """
    With the reason in the relay's log, and nothing of it reaches the broker; others go on.
    """
    with two_topics(source, topic, town) as (opened, _, relay, client):

        async def ask() -> None:
            way, other = await town.connection(relay, client), await town.connection(relay, client)
            way.api_versions |= {10: (0, 6)}
            with pytest.raises(ConnectionFailedError):
                await way.call(request_, 12)
            assert (await other.call(metadata_of(opened), 12)).topics[0].error_code == 0
            other.close()

        asyncio.run(ask())
        (refused,) = logged(relay, "request_refused")

    assert (refused["identity"], refused["role"]) == ("mirror-west", "reader")
    assert "made-by-asking" not in source.admin.list_topics(timeout=10).topics


def test_a_topic_that_was_just_made_is_read_at_once(
    source: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    The relay does not know its id when the first answer comes, and looks again before it says no.
    """
    client = town.authority.issue("mirror-west")
    listen = town.listen(a_role("fresh-.*"), {"mirror-west": "reader"})
    with configured_relay(source, town.folder, listen) as relay:
        name = asyncio.run(topic(source, prefix="fresh"))
        load(source.bootstrap, name, json_rows(10, 100))
        key = Key(asyncio.run(source.topic_id(name)).bytes, 0)

        async def ask() -> list[Fetched]:
            way = await town.connection(relay, client)
            try:
                return await fetched(way, key)
            finally:
                way.close()

        (found,) = asyncio.run(ask())

    assert (found.error_code, found.high_watermark) == (0, 10)


def test_of_rules_those_for_open_topics_are_told(topic: TopicFactory, town: Town) -> None:
    """
    By their names, by prefixes that fit one of them, and for all topics; nothing of groups and other topics.
    """
    rules = [
        ("open-", ResourcePatternType.PREFIXED, ResourceType.TOPIC),
        ("*", ResourcePatternType.LITERAL, ResourceType.TOPIC),
        ("closed-", ResourcePatternType.PREFIXED, ResourceType.TOPIC),
        ("open-to-nobody-yet-", ResourcePatternType.PREFIXED, ResourceType.TOPIC),
        ("open-", ResourcePatternType.PREFIXED, ResourceType.GROUP),
    ]
    client = town.authority.issue("mirror-west")
    listen = town.listen(a_role("open-.*"), {"mirror-west": "reader"})
    guarded = BrokerSecurity((), super_users=("User:ANONYMOUS",))
    with running_with(guarded, "3.9", town.folder / "node") as cluster:
        asyncio.run(topic(cluster, prefix="open"))
        asyncio.run(topic(cluster, prefix="closed"))
        bindings = [
            AclBinding(kind, name, pattern, "User:ann", "*", AclOperation.READ, AclPermissionType.ALLOW)
            for name, pattern, kind in rules
        ]
        for done in cluster.admin.create_acls(bindings).values():
            done.result()
        with configured_relay(cluster, town.folder, listen) as relay:

            async def ask() -> set[str]:
                way = await town.connection(relay, client)
                every = DescribeAclsRequest(
                    resource_type_filter=1,
                    resource_name_filter=None,
                    pattern_type_filter=1,
                    principal_filter=None,
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
                try:
                    return {one.resource_name for one in (await way.call(every)).resources}
                finally:
                    way.close()

            told = asyncio.run(ask())

    assert told == {"open-", "*"}


# -- identities --------------------------------------------------------------------------------------


def test_whom_the_relay_does_not_know_by_name_is_not_let_in(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, town: Town
) -> None:
    """
    His certificate is good and names nobody: mirror and relay say which names it has, and where to put one.
    """
    name = asyncio.run(topic(source, prefix="unnamed"))
    listen = town.listen(a_role(".*"), {NAME: "reader"})
    with configured_relay(source, town.folder, listen) as relay:
        done = copy_through(town, relay, target, town.authority.issue("other", ["other.west"]), name, [name])
        (refused, *_) = logged(relay, "mirror_not_let_in")
        let_in = logged(relay, "mirror_let_in")
        counted = relay.process.status()["refused"]["unknown_identity"]

    assert done.code == 4
    assert "no name of this certificate is in listen.identities of this relay" in done.stderr
    assert "other.west, CN=other, other" in done.stderr
    assert (refused["code"], refused["names"]) == ("unknown_identity", ["other.west", "CN=other", "other"])
    assert let_in == []
    assert counted >= 1


def test_no_session_is_resumed(source: KafkaCluster, town: Town) -> None:
    """
    With an old one somebody could come in whose certificate is not good any more.
    """
    client = town.authority.issue("mirror-west")
    with configured_relay(source, town.folder, town.listen(a_role(".*"), {"mirror-west": "reader"})) as relay:
        host, _, port = relay.address.rpartition(":")
        context = ssl.create_default_context(cafile=str(town.authority.certificate))
        context.load_cert_chain(client.certificate, client.key)
        resumed, session = [], None
        for _ in range(2):
            sock = socket.create_connection((host, int(port)), 10)
            with context.wrap_socket(sock, server_hostname=host, session=session) as tls:
                tls.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert tls.recv(100).startswith(b"HTTP/1.1 200 ")
                resumed.append(tls.session_reused)
                session = tls.session

    assert resumed == [False, False]


def test_an_identity_has_so_many_connections_and_streams(source: KafkaCluster, town: Town) -> None:
    """
    One that has as many as its role allows is told so; it keeps those, and another one comes in.
    """
    greedy, modest = town.authority.issue("greedy"), town.authority.issue("modest")
    listen = town.listen(
        a_role("open-.*", connections_max=3, streams_max=2), {"greedy": "reader", "modest": "reader"}
    )
    with configured_relay(source, town.folder, listen) as relay, ExitStack() as ends:
        held = [ends.enter_context(town.dial(relay, greedy)) for _ in range(5)]
        answers: list[object] = []
        for sock, asked in zip(held, (FRAMES, FRAMES, FRAMES, KAFKA, KAFKA), strict=True):
            sock.sendall(asked)
            answers.append(head_of(sock).split()[1])
        other = ends.enter_context(town.dial(relay, modest))
        other.sendall(FRAMES)
        assert head_of(other).startswith(b"HTTP/1.1 101 ")
        held[0].close()
        asyncio.run(
            relay.process.wait_for(
                lambda: relay.process.status().get("connections") == 3, "one connection ends"
            )
        )
        again = ends.enter_context(town.dial(relay, greedy))
        again.sendall(FRAMES)
        assert head_of(again).startswith(b"HTTP/1.1 101 ")
        full = ends.enter_context(town.dial(relay, greedy))
        full.sendall(KAFKA)
        status, document = problem(full)

    assert answers == [b"101", b"101", b"503", b"101", b"503"]
    assert (status, document["code"], document["retryable"]) == (503, "too_many_connections", True)
    assert "3 connections of greedy are open: role reader allows no more" in document["detail"]


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ({"identities": {"a": "b"}, "roles": {"b": {"include": ["x"]}}}, "identities needs client_ca_file"),
        ({"roles": {"b": {"include": ["x"]}}}, "roles needs identities"),
    ],
)
async def test_settings_that_would_let_everybody_in_are_refused_at_the_start(
    source: KafkaCluster, tmp_path: Path, listen: dict[str, Any], words: str
) -> None:
    """
    Before anything listens, with the reason.
    """
    file = tmp_path / "relay.yaml"
    file.write_text(json.dumps({"cluster": {"bootstrap_servers": source.bootstrap}, "listen": listen}))

    done = await twinsite("relay", "--config", str(file), work_dir=tmp_path)

    assert done.code == 2
    assert words in done.stderr


def test_a_mirror_that_is_not_let_in_is_told_so_as_an_error(source: KafkaCluster, town: Town) -> None:
    """
    One that trying again does not help.
    """
    listen = town.listen(a_role(".*"), {NAME: "reader"})
    client = town.authority.issue("stranger")
    with (
        configured_relay(source, town.folder, listen) as relay,
        pytest.raises(AuthenticationError, match=r"CN=stranger, stranger"),
    ):
        asyncio.run(town.connection(relay, client))
