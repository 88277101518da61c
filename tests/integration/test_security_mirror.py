"""Mirrors at work over TLS, with every way to prove who one is.

Megabytes pass while sessions end every few seconds and are renewed on the same
connections; and whatever the mirror prints, no secret is in it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.faults import flows
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.secured_broker import (
    PASSWORD,
    SESSION_MS,
    USER,
    SecuredBroker,
    start_secured_broker,
)

pytestmark = pytest.mark.timeout(120)

PASSPHRASE, CLIENT_SECRET = "locked-horse-staple", "the-secret-of-the-client"
WRONG = "not-the-right-one"
AUTHENTICATION_FAILED = 4
BACKLOG = 20_000
"""Records of 1000 bytes that are there before the mirror starts."""
TOKEN_SECONDS = 8.0
"""A token lives for longer than a session, and for less long than the test."""
FROM_THE_ENVIRONMENT = ("SCRAM-SHA-512", "PLAIN")
"""Mechanisms whose password is in a variable here; that of the others is in a file."""
WRITING_SECONDS = TOKEN_SECONDS + SESSION_MS / 1000
"""Every connection authenticates twice more while records arrive, the last time with another token."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def source(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredBroker]:
    async with start_secured_broker("3.9", tmp_path_factory.mktemp("source")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredBroker]:
    async with start_secured_broker("4.3", tmp_path_factory.mktemp("target")) as running:
        yield running


@dataclass
class Keys:
    """Makes the settings of a cluster, and keeps every secret that went into them.

    Attributes:
        environment: The variables that hold secrets.
    """

    folder: Path
    secrets: set[str] = field(default_factory=set)
    environment: dict[str, str] = field(default_factory=dict)

    def settings(self, broker: SecuredBroker, way: str, issuer: str) -> dict[str, Any]:
        """How a cluster is reached: ``MTLS``, or the name of a SASL mechanism.

        Args:
            issuer: Where OAUTHBEARER tokens are asked for.
        """
        listener = way if way == "MTLS" else "SHORTTLS"
        security = self._certificate(broker) if way == "MTLS" else {"sasl": self._sasl(way, issuer)}
        security |= {"protocol": broker.protocol(listener), "ca_file": str(broker.authority.certificate)}
        return {"bootstrap_servers": f"localhost:{broker.port(listener)}", "security": security}

    def _certificate(self, broker: SecuredBroker) -> dict[str, Any]:
        """A client certificate; the passphrase of its key stands in the settings themselves."""
        locked = broker.authority.issue("locked", password=PASSPHRASE)
        self.secrets |= {PASSPHRASE, *locked.key.read_text().splitlines()[1:-1]}
        return {
            "certificate_file": str(locked.certificate),
            "key_file": str(locked.key),
            "key_password": PASSPHRASE,
        }

    def _sasl(self, mechanism: str, issuer: str) -> dict[str, Any]:
        if mechanism != "OAUTHBEARER":
            self.secrets.add(_base64(f"\0{USER}\0{PASSWORD}"))
            where = self.variable if mechanism in FROM_THE_ENVIRONMENT else self.file
            return {"mechanism": mechanism, "username": USER, "password": where("password", PASSWORD)}
        self.secrets.add(_base64(f"mirror:{CLIENT_SECRET}"))
        secret = self.file("client-secret", CLIENT_SECRET)
        endpoint = {"url": issuer, "client_id": "mirror", "client_secret": secret}
        return {"mechanism": mechanism, "token_endpoint": endpoint}

    def variable(self, name: str, secret: str) -> dict[str, str]:
        """Put a secret into the environment; answers how settings name it."""
        self.secrets.add(secret)
        self.environment[name.upper()] = secret
        return {"env": name.upper()}

    def file(self, name: str, secret: str) -> dict[str, str]:
        """The same with a file."""
        self.secrets.add(secret)
        (self.folder / name).write_text(secret + "\n")
        return {"file": str(self.folder / name)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@asynccontextmanager
async def token_endpoint(broker: SecuredBroker, given: set[str]) -> AsyncIterator[str]:
    """An authorisation server whose tokens a broker believes; every token it gave is added to ``given``."""

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"].startswith("Basic ")
        token = broker.tokens.token(USER, lives_seconds=TOKEN_SECONDS)
        given.add(token)
        return web.json_response({"access_token": token, "expires_in": TOKEN_SECONDS})

    app = web.Application()
    app.router.add_post("/token", answer)
    async with TestServer(app) as issuer:
        yield str(issuer.make_url("/token"))


def write_on(bootstrap: str, topic: str) -> None:
    """A few hundred records, again and again, until every session has ended twice."""
    until = time.monotonic() + WRITING_SECONDS
    for seed in itertools.count(2):
        load(bootstrap, topic, json_rows(200, 1000, seed=seed), "lz4")
        if time.monotonic() > until:
            return


def said(mirror: Twinsite) -> Iterator[str]:
    """Everything a mirror tells anybody."""
    yield from (mirror.stdout, mirror.stderr)
    yield from (mirror.get(path).decode() for path in ("/status", "/metrics", "/readyz?verbose"))


@pytest.mark.parametrize(
    ("way_in", "way_out"),
    [("SCRAM-SHA-512", "MTLS"), ("OAUTHBEARER", "SCRAM-SHA-256"), ("PLAIN", "OAUTHBEARER")],
)
async def test_a_mirror_copies_over_secured_connections_and_keeps_its_secrets(
    source: SecuredBroker, target: SecuredBroker, tmp_path: Path, way_in: str, way_out: str
) -> None:
    """
    Twenty megabytes, and more while sessions end: exact, sessions are renewed, no secret is printed.
    """
    topic, tokens, keys = f"orders-{way_in.lower()}", set[str](), Keys(tmp_path)
    await source.cluster.create_topic(topic, 4)
    await asyncio.to_thread(load, source.cluster.bootstrap, topic, json_rows(BACKLOG, 1000), "lz4")
    async with token_endpoint(source, tokens) as here, token_endpoint(target, tokens) as there:
        document = {
            "flow": topic,
            "source": keys.settings(source, way_in, here),
            "target": keys.settings(target, way_out, there),
            "topics": {"include": [re.escape(topic)]},
        }
        file = tmp_path / "flow.yaml"
        file.write_text(yaml.safe_dump(document))
        around: dict[str, Any] = {"work_dir": tmp_path, "environment": keys.environment}
        shown = await twinsite("config", "show", "--config", str(file), **around)

        command = ("mirror", "--config", str(file), "--log-level", "debug")
        with Twinsite.run(*command, **around) as mirror:
            await mirror.wait_for(lambda: flows.copied(mirror) > 0, "something is copied")
            await asyncio.to_thread(write_on, source.cluster.bootstrap, topic)
            await mirror.wait_for(lambda: flows.complete(mirror, source.cluster, [topic]), "all is copied")
            printed = "".join((shown.stdout, shown.stderr, *said(mirror)))

    assert assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, [topic]) > BACKLOG
    assert len(events(printed, "session_renewed")) > 1
    assert (len(tokens) > 1) == ("OAUTHBEARER" in {way_in, way_out})
    assert [secret for secret in keys.secrets | tokens if secret in printed] == []


@pytest.mark.parametrize("kept", [Keys.variable, Keys.file], ids=["environment", "file"])
async def test_a_password_that_is_refused_is_not_repeated(
    source: SecuredBroker, target: SecuredBroker, tmp_path: Path, kept: Callable[[Keys, str, str], Any]
) -> None:
    """
    The error says who was refused and where, and nothing of what was tried; no more do the settings shown.
    """
    keys = Keys(tmp_path)
    clusters = {
        "source": keys.settings(source, "SCRAM-SHA-512", ""),
        "target": keys.settings(target, "SCRAM-SHA-256", ""),
    }
    clusters["source"]["security"]["sasl"]["password"] = kept(keys, "mistaken", WRONG)
    file = tmp_path / "flow.yaml"
    file.write_text(yaml.safe_dump({"flow": "f", **clusters, "topics": {"include": ["orders"]}}))
    around: dict[str, Any] = {"work_dir": tmp_path, "environment": keys.environment}

    shown = await twinsite("config", "show", "--config", str(file), **around)
    refused = await twinsite("mirror", "--config", str(file), "--once", "--log-level", "debug", **around)

    printed = "".join((shown.stdout, shown.stderr, refused.stdout, refused.stderr))
    assert shown.code == 0
    assert refused.code == AUTHENTICATION_FAILED, refused.stderr
    assert re.search("source: .*SCRAM-SHA-512", refused.stderr)
    assert [secret for secret in keys.secrets if secret in printed] == []
