"""Who comes in at a relay: TLS 1.3, and certificates of both sides."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror import service
from mirror.config import load as load_settings
from mirror.errors import TwinsiteError
from tests.conftest import TopicFactory
from tests.faults.flows import complete, copied, partition, partitions
from tests.harness.checker import assert_exact
from tests.harness.daemon import HERE, HOST, Site, free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Finished, Twinsite, events, twinsite
from tests.harness.proxy import Last, proxy
from tests.harness.relay import Relay, listens
from tests.harness.security import Authority, Identity

PASSWORD = "locked-horse-staple"
LITTLE_PATIENCE_SECONDS = 1.0
MANY, SLOWLY = 40_000, "8 Mbit/s"
"""Records of a kilobyte, and a limit within which they take some ten seconds."""


@contextmanager
def secured_relay(
    source: KafkaCluster,
    authority: Authority,
    folder: Path,
    name: str = "relay",
    site: Site = HERE,
    valid_for: timedelta = timedelta(days=1),
) -> Iterator[Relay]:
    """A relay that lets in whom an authority has signed; its own key is encrypted."""
    server = authority.issue(name, hosts_of(site), password=PASSWORD, valid_for=valid_for)
    address = f"{site.host}:{free_ports(1)[0]}"
    listen = {
        "address": address,
        "certificate_file": str(server.certificate),
        "key_file": str(server.key),
        "key_password": PASSWORD,
        "client_ca_file": str(authority.certificate),
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"cluster": {"bootstrap_servers": source.bootstrap}, "listen": listen}))
    command = "relay", "--config", str(file)
    with Twinsite.run(*command, work_dir=folder, listen=False, inside=site.inside) as process:
        asyncio.run(listens(process))
        yield Relay(process, address)


def hosts_of(site: Site) -> list[str]:
    """Where a relay is dialled: there, or where a proxy stands in between."""
    return [site.host, HOST]


def mirror_through(
    relay: Relay, target: KafkaCluster, topic: str, folder: Path, security: dict[str, Any], **link: object
) -> tuple[str, ...]:
    """The command line of a mirror; ``link`` is more of that section."""
    document = {
        "flow": topic,
        "link": {"relays": relay.address, "security": security, **link},
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [topic]},
        "lagging_after_seconds": 2,
    }
    file = folder / "mirror.yaml"
    file.write_text(yaml.safe_dump(document))
    return ("mirror", "--config", str(file))


def copy_through(
    relay: Relay, target: KafkaCluster, topic: str, folder: Path, security: dict[str, Any]
) -> Finished:
    """A copy to its end, and what became of it."""
    command = mirror_through(relay, target, topic, folder, security)
    return asyncio.run(twinsite(*command, "--once", "-o", "json", work_dir=folder))


def as_client(authority: Authority, identity: Identity) -> dict[str, Any]:
    """Settings of a mirror that has a certificate."""
    return {
        "protocol": "SSL",
        "ca_file": str(authority.certificate),
        "certificate_file": str(identity.certificate),
        "key_file": str(identity.key),
    }


def test_a_mirror_with_a_certificate_copies_through_tls(
    source: KafkaCluster, target: KafkaCluster, relay_site: Site, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Control calls and the stream; nothing older than TLS 1.3 is spoken, and no secret is printed.
    """
    name = asyncio.run(topic(source, partitions=2, prefix="mtls"))
    load(source.bootstrap, name, json_rows(20_000, 1_000), "lz4")
    authority = Authority(tmp_path)
    mirror = authority.issue("mirror")
    with secured_relay(source, authority, tmp_path, site=relay_site) as relay:
        done = copy_through(relay, target, name, tmp_path, as_client(authority, mirror))
        old = ssl.create_default_context(cafile=str(authority.certificate))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        host, _, port = relay.address.rpartition(":")
        with socket.create_connection((host, int(port))) as sock, pytest.raises(ssl.SSLError):
            old.wrap_socket(sock, server_hostname=host)
        printed = relay.process.stdout + relay.process.stderr

    assert done.code == 0, done.stderr
    assert len(events(printed, "stream_begun")) == 1
    assert PASSWORD not in printed + done.stdout + done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("nobody", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("a stranger", "unable to get local issuer certificate"),
        ("one whose time is over", "certificate has expired"),
    ],
)
def test_whom_the_relay_does_not_know_gets_nothing(
    source: KafkaCluster,
    target: KafkaCluster,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    reason: str,
) -> None:
    """
    Without a certificate, with one of another authority, with an expired one: the relay says which it is, and
    the mirror where to look, once it has tried again for long enough.
    """
    monkeypatch.setattr(service, "START_SECONDS", LITTLE_PATIENCE_SECONDS)
    name = asyncio.run(topic(source, prefix="stranger"))
    load(source.bootstrap, name, json_rows(10, 100))
    authority = Authority(tmp_path)
    identity = {
        "nobody": None,
        "a stranger": Authority(tmp_path, "elsewhere").issue("mirror"),
        "one whose time is over": authority.issue("late", valid_for=timedelta(hours=-1)),
    }[who]
    security = {"protocol": "SSL", "ca_file": str(authority.certificate)}
    if identity is not None:
        security = as_client(authority, identity)
    with secured_relay(source, authority, tmp_path, site=relay_site) as relay:
        _, _, file = mirror_through(relay, target, name, tmp_path, security)
        with pytest.raises(TwinsiteError) as refused:
            asyncio.run(service.run(load_settings(Path(file)), stop=asyncio.Event(), once=True))
        printed = relay.process.stderr

    assert refused.value.exit_code == 1
    assert "tls_refused in its log" in f"{refused.value} {refused.value.hint}"
    assert {json.loads(line)["reason"] for line in events(printed, "tls_refused")} == {reason}
    assert events(printed, "stream_begun") == []


def test_a_relay_that_the_mirror_does_not_know_is_not_believed(
    source: KafkaCluster, target: KafkaCluster, relay_site: Site, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Its certificate is of an authority that the mirror was not told of.
    """
    name = asyncio.run(topic(source, prefix="impostor"))
    authority, other = Authority(tmp_path), Authority(tmp_path, "elsewhere")
    security = as_client(other, authority.issue("mirror"))
    with secured_relay(source, authority, tmp_path, site=relay_site) as relay:
        done = copy_through(relay, target, name, tmp_path, security)

    assert done.code == 4
    assert "certificate" in done.stderr


def test_certificates_are_rotated_without_a_cut(
    source: KafkaCluster, target: KafkaCluster, relay_site: Site, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Another authority's files take the place of the relay's in the middle of a catch-up over several
    connections: those go on, to its end and behind it, and what comes is judged anew.
    """
    name = asyncio.run(topic(source, partitions=2, prefix="rotated"))
    load(source.bootstrap, name, json_rows(MANY, 1_000))
    for folder in ("old", "new", "mirror"):
        (tmp_path / folder).mkdir()
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    before, after = as_client(old, old.issue("mirror")), as_client(new, new.issue("mirror"))
    relay_of_new = new.issue("relay", hosts_of(relay_site), password=PASSWORD)
    slowly = {"limits": [{"rate": SLOWLY}], "connections": 3}
    with secured_relay(source, old, tmp_path / "old", site=relay_site) as relay:
        command = mirror_through(relay, target, name, tmp_path / "mirror", before, **slowly)
        with Twinsite.run(*command, work_dir=tmp_path / "mirror") as mirror:
            asyncio.run(mirror.wait_for(lambda: copied(mirror) > 0 and joined(mirror) == 3, "it catches up"))
            for file in (relay_of_new.certificate, relay_of_new.key, new.certificate):
                shutil.copy(file, tmp_path / "old")
            assert not is_let_in(relay, new.certificate, before)
            swapped_at = copied(mirror)
            asyncio.run(mirror.wait_for(lambda: copied(mirror) == MANY, "the catch-up goes on", 60))
            load(source.bootstrap, name, json_rows(50, 100, seed=2))
            asyncio.run(mirror.wait_for(lambda: copied(mirror) == MANY + 50, "the stream goes on"))
            assert joined(mirror) == 3
            assert len(events(mirror.stderr, "stream_begun")) == 1
            assert events(mirror.stderr, "stream_lost") == []
        done = copy_through(relay, target, name, tmp_path / "mirror", after)
        assert is_let_in(relay, new.certificate, after)

    assert 0 < swapped_at < MANY
    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


def joined(mirror: Twinsite) -> int:
    """Over how many connections its stream goes."""
    link: dict[str, Any] = mirror.status().get("link") or {}
    return int(link.get("connections", 0))


@pytest.mark.parametrize(
    ("whose", "at_mirror", "at_relay"),
    [
        ("relay", "its certificate, or one above it in the chain, has expired; it shows CN=relay", ""),
        ("mirror", "mirror.crt: CN=mirror, signed by CN=authority, expired on", "certificate has expired"),
    ],
)
def test_a_copy_whose_certificate_has_expired_goes_on_when_it_is_renewed(
    source: KafkaCluster,
    target: KafkaCluster,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    whose: str,
    at_mirror: str,
    at_relay: str,
) -> None:
    """
    What is open stays open. The next connection is refused by the other side, whose log says why; the status
    says that nothing comes and what to look at. New files in place are enough, on either side.
    """
    name = asyncio.run(topic(source, prefix="expired"))
    load(source.bootstrap, name, json_rows(100, 100))
    authority = Authority(tmp_path)
    client = as_client(authority, authority.issue("mirror"))
    cutting = threading.Event()

    def cut(_: int, __: int, data: bytes) -> bytes:
        return Last() if cutting.is_set() else data

    def issue(valid_for: timedelta) -> None:
        of_relay: dict[str, Any] = {"hosts": hosts_of(relay_site), "password": PASSWORD}
        authority.issue(whose, valid_for=valid_for, **(of_relay if whose == "relay" else {}))

    with (
        secured_relay(source, authority, tmp_path, site=relay_site) as relay,
        proxy(relay.address, cut) as between,
    ):
        command = mirror_through(Relay(relay.process, between.address), target, name, tmp_path, client)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied"))
            issue(timedelta(hours=-1))
            load(source.bootstrap, name, json_rows(50, 100, seed=2))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "the stream goes on"))
            cutting.set()
            asyncio.run(mirror.wait_for(lambda: bool(events(mirror.stderr, "stream_lost")), "it is cut"))
            cutting.clear()
            load(source.bootstrap, name, json_rows(50, 100, seed=3))
            asyncio.run(mirror.wait_for(lambda: at_mirror in told(mirror, name), "the status says why", 60))
            logged = "".join(events(mirror.stderr, "stream_lost"))
            refused = {json.loads(line)["reason"] for line in events(relay.process.stderr, "tls_refused")}
            copied_meanwhile = copied(mirror)
            issue(timedelta(days=1))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "it goes on", 60))

    assert at_mirror in logged
    assert at_relay in "".join(refused)
    assert copied_meanwhile == 150
    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_a_relay_whose_certificate_has_expired_is_passed_over(
    source: KafkaCluster, target: KafkaCluster, relay_site: Site, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Any one that can be believed is enough.
    """
    name = asyncio.run(topic(source, prefix="passed-over"))
    load(source.bootstrap, name, json_rows(100, 100))
    authority = Authority(tmp_path)
    client = as_client(authority, authority.issue("mirror"))
    with ExitStack() as stack:
        late = stack.enter_context(
            secured_relay(source, authority, tmp_path, "late", relay_site, timedelta(hours=-1))
        )
        good = stack.enter_context(secured_relay(source, authority, tmp_path, site=relay_site))
        both = Relay(late.process, f"{late.address},{good.address}")
        done = copy_through(both, target, name, tmp_path, client)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


def told(mirror: Twinsite, topic: str) -> str:
    """What the status says of a partition that is not read."""
    found = partition(partitions(mirror), topic)
    return str(found["detail"]) if found.get("state") in {"LAGGING", "BLOCKED"} else ""


def is_let_in(relay: Relay, ca_file: Path, client: dict[str, Any]) -> bool:
    """Whether a client with this certificate gets an answer."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.load_cert_chain(client["certificate_file"], client["key_file"])
    host, _, port = relay.address.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as sock,
        context.wrap_socket(sock, server_hostname=host) as tls,
    ):
        try:
            tls.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            return tls.recv(100).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False
