"""One broker with a listener for each way in, and one for each way to be refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.harness.daemon import free_ports
from tests.harness.jvm import FAST_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.node import new_id, prepare_node
from tests.harness.security import Authority, BrokerSecurity, Identity, Listener, TokenIssuer

USER, PASSWORD = "alice", "correct-horse-battery"
ODD_USER, ODD_PASSWORD = "a,b=c=2C", "pa,ss=wörd ª\u00ad"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS, SESSION_UNDER_TLS_MS = 5000, 3000


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running broker and everything needed to get in.

    Attributes:
        stranger: An authority that the broker does not trust.
        session_seconds: How long a session lives on the listener ``SHORT``.
    """

    cluster: KafkaCluster
    authority: Authority
    stranger: Authority
    tokens: TokenIssuer
    client: Identity
    listeners: dict[str, Listener]
    session_seconds: float = SESSION_MS / 1000

    def port(self, listener: str) -> int:
        return self.cluster.broker(1).port if listener == "PLAINTEXT" else self.listeners[listener].port

    def protocol(self, listener: str) -> str:
        return self.listeners[listener].protocol

    def client_config(self, listener: str, mechanism: str) -> dict[str, Any]:
        """Settings of confluent-kafka for one listener and mechanism."""
        config: dict[str, Any] = {
            "bootstrap.servers": f"localhost:{self.port(listener)}",
            "security.protocol": self.protocol(listener),
            "sasl.mechanism": mechanism,
            "group.id": "independent",
        }
        if self.protocol(listener).endswith("SSL"):
            config["ssl.ca.location"] = str(self.authority.certificate)
        if mechanism == "OAUTHBEARER":
            config["oauth_cb"] = lambda _: (self.tokens.token(USER), time.time() + 300)
        else:
            config |= {"sasl.username": USER, "sasl.password": PASSWORD}
        return config


@asynccontextmanager
async def start_with(security: BrokerSecurity, version: str, folder: Path) -> AsyncIterator[KafkaCluster]:
    """A cluster of one node with the listeners given; it ends with the block."""
    cluster = _prepared(security, version, folder)
    try:
        await cluster.launch()
        yield cluster
    finally:
        cluster.close()


@contextmanager
def running_with(security: BrokerSecurity, version: str, folder: Path) -> Iterator[KafkaCluster]:
    """The same for tests without an event loop."""
    cluster = _prepared(security, version, folder)
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()


def _prepared(security: BrokerSecurity, version: str, folder: Path) -> KafkaCluster:
    taken = {listener.port for listener in security.listeners}
    inner, controller = [port for port in free_ports(len(taken) + 2) if port not in taken][:2]
    node = prepare_node(
        version,
        1,
        {1: (inner, controller)},
        new_id(),
        folder,
        security.broker_properties(inner, controller),
        (*FAST_JVM, *security.jvm_flags()),
    )
    return KafkaCluster("secured", version, {1: node})


@asynccontextmanager
async def start_secured_broker(version: str, folder: Path) -> AsyncIterator[SecuredBroker]:
    """The broker with all listeners and its users."""
    authority, tokens = Authority(folder), TokenIssuer(folder)
    listeners = _all_listeners(authority)
    security = BrokerSecurity(listeners, authority, {USER: PASSWORD}, tokens)
    async with start_with(security, version, folder / "node") as cluster:
        add_scram_users(cluster.admin, {USER: PASSWORD, ODD_USER: ODD_PASSWORD})
        yield SecuredBroker(
            cluster,
            authority,
            Authority(folder, "stranger"),
            tokens,
            authority.issue("client"),
            {listener.name: listener for listener in listeners},
        )


def _all_listeners(authority: Authority) -> tuple[Listener, ...]:
    broker = authority.issue("broker", ["localhost", "127.0.0.1"])
    expired = authority.issue("broker", ["localhost"], valid_for=-timedelta(hours=1), file="expired")
    other = authority.issue("broker", ["other.test"], file="other")
    mtls, old, named, sasl, tls, plain, short, short_tls = free_ports(8)
    return (
        Listener("MTLS", mtls, "SSL", identity=broker, client_certificate=True),
        Listener("EXPIRED", old, "SSL", identity=expired),
        Listener("OTHERNAME", named, "SSL", identity=other),
        Listener("SASL", sasl, "SASL_PLAINTEXT", MECHANISMS),
        Listener("SASLTLS", tls, "SASL_SSL", MECHANISMS, identity=broker),
        Listener("PLAINONLY", plain, "SASL_PLAINTEXT", ("PLAIN",)),
        Listener("SHORT", short, "SASL_PLAINTEXT", MECHANISMS, reauthenticate_ms=SESSION_MS),
        Listener("SHORTTLS", short_tls, "SASL_SSL", MECHANISMS, SESSION_UNDER_TLS_MS, broker),
    )


def add_scram_users(admin: AdminClient, users: Mapping[str, str]) -> None:
    """Let these users in with both SCRAM mechanisms; a request may name a user only once."""
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for user, password in users.items()
        ]
        for done in admin.alter_user_scram_credentials(wanted).values():
            done.result()
