"""Comparisons of clusters that ask who is there, and allow no more than docs/permissions.md says.

Both authorizers are switched on; the mirror that made the copy came in by the inner door.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.harness.acls import Grant, allow_only, grants_on_the_page
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.secured_broker import add_scram_users, running_with
from tests.harness.security import Authority, BrokerSecurity, Identity, Listener, TokenIssuer
from tests.spark.commands import Command
from tests.spark.test_mapped import copy

PROVER, BY_CERTIFICATE = "User:twinsite-prover", "User:CN=twinsite-prover"
PASSWORD = "correct-horse-battery"
ODD_PASSWORD = 'a "b" \\c\n1 = ö'
"""Of everything that could end a value in a JAAS configuration."""
STATE = "__twinsite_state.east"


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with an authorizer, and how it is reached.

    Attributes:
        page: The rights that the page grants here.
        ways: Settings of the cluster, by what the user shows.
    """

    cluster: KafkaCluster
    page: Sequence[Grant]
    ways: dict[str, dict[str, Any]]

    def allow(self, grants: Sequence[Grant]) -> None:
        """These rights and no others, whatever the user has shown."""
        for principal in (PROVER, BY_CERTIFICATE):
            granted = [grant._replace(principal=principal) for grant in grants]
            allow_only(self.cluster.admin, principal, granted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def source(authority: Authority, folder: Path) -> Iterator[Site]:
    """A password or a token, over TLS."""
    tokens, identity = TokenIssuer(folder), authority.issue("broker", ["localhost"])
    (port,) = free_ports(1)
    door = Listener("SASLTLS", port, "SASL_SSL", ("SCRAM-SHA-512", "OAUTHBEARER"), identity=identity)
    security = BrokerSecurity((door,), authority, tokens=tokens, super_users=("User:ANONYMOUS",))
    with (
        running_with(security, "3.9", folder / "source") as cluster,
        token_endpoint(tokens, identity) as url,
    ):
        add_scram_users(cluster.admin, {PROVER.removeprefix("User:"): ODD_PASSWORD})
        ca = str(authority.certificate)
        endpoint = {"url": url, "client_id": "prover", "client_secret": "x", "ca_file": ca}
        password = {"username": PROVER.removeprefix("User:"), "password": ODD_PASSWORD}
        logins = {
            "password": {"mechanism": "SCRAM-SHA-512", **password},
            "token": {"mechanism": "OAUTHBEARER", "token_endpoint": endpoint},
        }
        ways = {
            way: reached(port, protocol="SASL_SSL", ca_file=ca, sasl=sasl) for way, sasl in logins.items()
        }
        yield Site(cluster, grants_on_the_page(only=["Proving: at the source"]), ways)


@pytest.fixture(scope="module")
def target(authority: Authority, folder: Path) -> Iterator[Site]:
    """A client certificate, or a password told to a broker that is called something else."""
    user, ca = PROVER.removeprefix("User:"), str(authority.certificate)
    client = authority.issue(user)
    identity, other = (authority.issue("target", [host], file=host) for host in ("localhost", "other.test"))
    ports = free_ports(2)
    doors = (
        Listener("MTLS", ports[0], "SSL", identity=identity, client_certificate=True),
        Listener("OTHERNAME", ports[1], "SASL_SSL", ("PLAIN",), identity=other),
    )
    security = BrokerSecurity(doors, authority, users={user: PASSWORD}, super_users=("User:ANONYMOUS",))
    with running_with(security, "4.3", folder / "target") as cluster:
        key = {"certificate_file": str(client.certificate), "key_file": str(client.key)}
        plain = {"mechanism": "PLAIN", "username": user, "password": PASSWORD}
        ways = {
            "certificate": reached(ports[0], protocol="SSL", ca_file=ca, key_password="not wanted", **key),
            "unverified": reached(
                ports[1], protocol="SASL_SSL", ca_file=ca, verify_hostname=False, sasl=plain
            ),
        }
        yield Site(cluster, grants_on_the_page(only=["Proving: at the target"]), ways)


def reached(port: int, **security: Any) -> dict[str, Any]:
    """Settings of a cluster."""
    return {"bootstrap_servers": f"localhost:{port}", "security": security}


@contextmanager
def token_endpoint(tokens: TokenIssuer, identity: Identity) -> Iterator[str]:
    """An authorisation server that only those trust who know its authority."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            token = tokens.token(PROVER.removeprefix("User:"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"access_token": token, "expires_in": 3600}).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the output of a test is its own."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def copied(source: Site, target: Site, folder: Path) -> None:
    """Two topics, at both sites."""
    for name in ("orders.eu", "orders.us"):
        asyncio.run(source.cluster.create_topic(name))
        load(source.cluster.bootstrap, name, json_rows(100, 100))
    asyncio.run(copy(source.cluster, target.cluster, r"orders\..*", "east", folder))


def settings_file(path: Path, source: dict[str, Any], target: dict[str, Any]) -> Path:
    document = {"flow": "east", "source": source, "target": target, "topics": {"include": [r"orders\..*"]}}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize(("way_in", "way_out"), [("password", "certificate"), ("token", "unverified")])
def test_with_the_rights_of_the_page_everything_is_compared_and_no_secret_is_told(
    way_in: str,
    way_out: str,
    source: Site,
    target: Site,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    reconcile: Command,
) -> None:
    source.allow(source.page)
    target.allow(target.page)
    settings = settings_file(tmp_path / "f.yaml", source.ways[way_in], target.ways[way_out])

    code = reconcile("--config", settings, "--folder", tmp_path / "runs", "-o", "json")

    said = capfd.readouterr()
    assert (code, json.loads(said.out)["source"]["records"]) == (0, 200), said.err
    left = "".join(file.read_text() for file in (tmp_path / "runs").rglob("*.[jh]*"))
    assert [secret for secret in (PASSWORD, ODD_PASSWORD, "PRIVATE KEY") if secret in f"{said}{left}"] == []


def on_orders(*operations: str) -> list[Grant]:
    return [Grant(PROVER, operation, "topic", "orders.", prefixed=True) for operation in operations]


def on(topic: str, operation: str) -> Grant:
    return Grant(PROVER, operation, "topic", topic)


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize(
    ("site", "granted", "code", "said"),
    [
        ("source", on_orders("Describe", "DescribeConfigs"), 1, "orders.eu-0: not authorized to read it: Re"),
        ("source", on_orders("Read"), 1, "orders.eu-0: not authorized to read cleanup.policy: DescribeConf"),
        ("source", [on("orders.us", "Describe")], 1, "orders.eu-0: the source does not list it"),
        ("source", [], 2, "a topic without Describe, or outside the mirror's role at a relay, is hidden"),
        ("target", [*on_orders("Describe"), on(STATE, "Read")], 1, "Read on orders.eu is needed at the targ"),
        ("target", [on(STATE, "Read")], 1, "orders.eu-0: the target has no such partition, or Describe is "),
        (
            "target",
            [*on_orders("Read"), on(STATE, "Describe")],
            1,
            f"Fetch of {STATE}-0: TOPIC_AUTHORIZATION",
        ),
        (
            "target",
            on_orders("Read"),
            2,
            f"topic {STATE} does not exist, or the right to describe it is missing",
        ),
    ],
)
def test_a_right_that_is_missing_is_named_and_nothing_matches(
    site: str,
    granted: Sequence[Grant],
    code: int,
    said: str,
    source: Site,
    target: Site,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reconcile: Command,
) -> None:
    """
    At one site it is missing, at the other all rights are there.
    """
    for called, one in (("source", source), ("target", target)):
        one.allow(granted if called == site else one.page)
    settings = settings_file(tmp_path / "f.yaml", source.ways["password"], target.ways["certificate"])

    assert reconcile("--config", settings, "--folder", tmp_path / "runs") == code

    assert said in "".join(capsys.readouterr())
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    assert json.loads(summary.read_text())["outcome"] in {"incomplete", "failed"}


@pytest.mark.usefixtures("copied")
def test_a_right_that_is_taken_away_while_spark_reads_is_named(
    source: Site, target: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], reconcile: Command
) -> None:
    """
    Between the questions and the answers of a folder that is carried.
    """
    source.allow(source.page)
    target.allow(target.page)
    settings = settings_file(tmp_path / "f.yaml", source.ways["password"], target.ways["certificate"])
    assert reconcile("scope", "--config", settings, tmp_path / "proof") == 0
    source.allow([Grant(PROVER, "Describe", "topic", "orders.", prefixed=True)])

    code = reconcile("digest", "--config", settings, "--site", "source", tmp_path / "proof")

    assert code == 1
    said = capsys.readouterr().err
    assert "Not authorized to access topics: [orders." in said
    assert "needs Read on these topics" in said
