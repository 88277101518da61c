"""Connections to a real broker that asks who is there.

One broker has a listener for each way in, and one for each way to be refused. What
confluent-kafka can do with the same settings, our connection must be able to do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from confluent_kafka import Consumer
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import WriteTxnMarkersRequest
from prometheus_client import CollectorRegistry

from mirror.errors import AuthenticationError, ConnectionFailedError, TwinsiteError
from mirror.kafka.certificates import Certificate
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.security import (
    SaslMechanism,
    SaslOptions,
    SecretSource,
    Security,
    SecurityProtocol,
    TlsOptions,
    TokenEndpoint,
    TokenEndpointOptions,
)
from mirror.kafka.transactions import Token, init_producer_id
from mirror.observing import expiries, instruments_of
from tests.harness.secured_broker import (
    ODD_PASSWORD,
    ODD_USER,
    PASSWORD,
    USER,
    SecuredBroker,
    start_secured_broker,
)
from tests.harness.security import Authority

pytestmark = pytest.mark.timeout(180)

MECHANISMS = tuple(SaslMechanism)
PASSWORD_MECHANISMS = tuple(m for m in MECHANISMS if m is not SaslMechanism.OAUTHBEARER)
WRONG = "wrong-horse-staple"
IO_THREADS = 8
"""What a broker has if nothing else is set."""
SOON_SECONDS = 5.0
"""Within this time a refusal must be there."""


def sasl(
    broker: SecuredBroker, mechanism: SaslMechanism, password: str = PASSWORD, user: str = USER
) -> SaslOptions:
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslOptions(mechanism, token=SecretSource(value=broker.tokens.token(USER)))
    return SaslOptions(mechanism, username=user, password=SecretSource(value=password))


def security(broker: SecuredBroker, listener: str, sasl_options: SaslOptions | None = None) -> Security:
    """The right settings for a listener, with a client certificate where it wants one."""
    tls = TlsOptions(broker.authority.certificate)
    if listener == "MTLS":
        tls = replace(tls, certificate_file=broker.client.certificate, key_file=broker.client.key)
    return Security(SecurityProtocol(broker.protocol(listener)), tls, sasl_options)


def a_cluster(broker: SecuredBroker, listener: str, sasl_options: SaslOptions | None = None) -> Cluster:
    """A cluster of the name of the listener, not yet reached."""
    options = ConnectionOptions(security=security(broker, listener, sasl_options))
    return Cluster(listener, [Address("localhost", broker.port(listener))], options)


async def open_connection(broker: SecuredBroker, listener: str, security: Security) -> Connection:
    options = ConnectionOptions(security=security, connect_timeout_seconds=SOON_SECONDS)
    return await Connection.open(Address("localhost", broker.port(listener)), options)


async def brokers_seen(connection: Connection) -> int:
    return len((await connection.call(MetadataRequest(topics=[]))).brokers)


async def ask_until(connection: Connection, until: float) -> int:
    """Ask without a pause; says how many answers came."""
    answers = 0
    while time.monotonic() < until:
        answers += await brokers_seen(connection)
    return answers


async def works(broker: SecuredBroker, listener: str, security: Security) -> bool:
    """Connect and ask something that only an accepted client is told."""
    connection = await open_connection(broker, listener, security)
    try:
        return await brokers_seen(connection) == 1
    finally:
        connection.close()


async def refused(broker: SecuredBroker, listener: str, security: Security) -> TwinsiteError:
    """The refusal; it must be there soon, and say where and what to do."""
    began = time.monotonic()
    with pytest.raises((AuthenticationError, ConnectionFailedError)) as caught:
        await works(broker, listener, security)
    assert time.monotonic() - began < SOON_SECONDS
    assert f":{broker.port(listener)}: " in str(caught.value)
    assert caught.value.hint
    return caught.value


def text(error: BaseException | None) -> str:
    """Everything an error could print: its message, its hint, and those of what caused it."""
    found = ""
    while error is not None:
        found += f"{error!r} {error} {getattr(error, 'hint', '')}\n"
        error = error.__cause__ or error.__context__
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredBroker]:
    async with start_secured_broker("4.3", tmp_path_factory.mktemp("secured")) as running:
        yield running


# -- ways in -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL", "SASLTLS"])
async def test_every_mechanism_works_in_the_clear_and_under_tls(
    broker: SecuredBroker, listener: str, mechanism: SaslMechanism
) -> None:
    """
    PLAIN, both SCRAMs and OAUTHBEARER, each over SASL_PLAINTEXT and SASL_SSL.
    """
    assert await works(broker, listener, security(broker, listener, sasl(broker, mechanism)))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL", "SASLTLS"])
def test_an_independent_client_gets_in_the_same_way(
    broker: SecuredBroker, listener: str, mechanism: SaslMechanism
) -> None:
    """
    confluent-kafka with the same certificates, passwords and tokens: the broker is set up as we believe.
    """
    client = Consumer(broker.client_config(listener, mechanism))
    try:
        client.poll(0)

        assert len(client.list_topics(timeout=SOON_SECONDS).brokers) == 1
    finally:
        client.close()


async def test_metrics_tell_until_when_certificates_are_valid(broker: SecuredBroker) -> None:
    """
    Ours from its file, and that of the broker as it was shown; without TLS there is nothing to tell.
    """
    secured, plain = a_cluster(broker, "MTLS"), a_cluster(broker, "SASL", sasl(broker, SaslMechanism.PLAIN))
    await secured.start(timeout_seconds=SOON_SECONDS)
    await plain.start(timeout_seconds=SOON_SECONDS)

    seen = {(expiry.cluster, expiry.cert): expiry.valid_until for expiry in expiries([secured, plain])}

    await secured.close()
    await plain.close()
    ours = Certificate.from_pem_file(broker.client.certificate)
    assert seen.keys() == {("MTLS", "client"), ("MTLS", "broker")}
    assert seen["MTLS", "client"] == ours.not_after.timestamp()
    assert time.time() < seen["MTLS", "broker"] < time.time() + timedelta(days=3660).total_seconds()


@pytest.mark.parametrize("reason", ["login", "tls"])
async def test_metrics_count_what_is_refused(broker: SecuredBroker, reason: str) -> None:
    """
    A password or a certificate that was changed on one side only shows while the mirror runs.
    """
    cluster = a_cluster(broker, "SASLTLS", sasl(broker, SaslMechanism.PLAIN, WRONG))
    if reason == "tls":
        tls = TlsOptions(broker.stranger.certificate)
        cluster.options = replace(cluster.options, security=replace(cluster.options.security, tls=tls))
    registry = CollectorRegistry()
    cluster.name = "target"
    instruments_of(registry, "f", [cluster])

    with pytest.raises(AuthenticationError):
        await cluster.start(timeout_seconds=SOON_SECONDS)

    counted = {
        one: registry.get_sample_value(
            "twinsite_auth_failures_total", {"flow": "f", "cluster": "target", "reason": one}
        )
        for one in ("login", "tls")
    }
    assert counted == {"login": 0, "tls": 0} | {reason: 1}


async def test_a_token_endpoint_is_asked_before_the_broker(broker: SecuredBroker) -> None:
    """
    The client credentials grant: the mirror fetches a token, the broker believes its signature.
    """

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"access_token": broker.tokens.token(USER), "expires_in": 300})

    app = web.Application()
    app.router.add_post("/token", answer)
    async with TestServer(app) as issuer:
        url, secret = str(issuer.make_url("/token")), SecretSource(value=PASSWORD)
        endpoint = TokenEndpoint(TokenEndpointOptions(url, "mirror", secret))
        options = SaslOptions(SaslMechanism.OAUTHBEARER, token=endpoint)

        assert await works(broker, "SASLTLS", security(broker, "SASLTLS", options))


async def test_a_client_certificate_gets_in(broker: SecuredBroker) -> None:
    """
    Mutual TLS, with the private key in the clear and encrypted.
    """
    locked = broker.authority.issue("locked", password=PASSWORD)
    plain = security(broker, "MTLS")
    encrypted = TlsOptions(
        broker.authority.certificate, locked.certificate, locked.key, SecretSource(value=PASSWORD)
    )

    assert await works(broker, "MTLS", plain)
    assert await works(broker, "MTLS", Security(SecurityProtocol.SSL, encrypted))


async def test_the_hostname_check_can_be_switched_off(broker: SecuredBroker) -> None:
    """
    A certificate for another name is good enough then; one of another authority is not.
    """
    lenient = TlsOptions(broker.authority.certificate, check_hostname=False)
    stranger = TlsOptions(broker.stranger.certificate, check_hostname=False)

    assert await works(broker, "OTHERNAME", Security(SecurityProtocol.SSL, lenient))
    await refused(broker, "OTHERNAME", Security(SecurityProtocol.SSL, stranger))


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS[1:])
async def test_scram_takes_names_and_passwords_with_anything_in_them(
    broker: SecuredBroker, mechanism: SaslMechanism
) -> None:
    """
    Commas and equal signs in the name; letters in the password that SASLprep would have changed.
    """
    odd = sasl(broker, mechanism, ODD_PASSWORD, ODD_USER)

    assert await works(broker, "SASL", security(broker, "SASL", odd))


# -- ways to be refused --------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
@pytest.mark.parametrize("user", [USER, "nobody"])
async def test_a_wrong_password_is_an_authentication_error_without_the_password(
    broker: SecuredBroker, mechanism: SaslMechanism, user: str
) -> None:
    """
    The error names the mechanism, the user and where the password came from.
    """
    error = await refused(broker, "SASL", security(broker, "SASL", sasl(broker, mechanism, WRONG, user)))

    assert isinstance(error, AuthenticationError)
    assert f"{mechanism} as '{user}'" in str(error)
    assert "password" in error.hint
    assert WRONG not in text(error)


async def test_an_expired_token_is_refused_with_the_time_it_expired(broker: SecuredBroker) -> None:
    """
    The broker says ``invalid_token``; the mirror adds what the token itself says, without the token.
    """
    token = broker.tokens.token(USER, lives_seconds=-600)
    options = SaslOptions(SaslMechanism.OAUTHBEARER, token=SecretSource(value=token))

    error = await refused(broker, "SASL", security(broker, "SASL", options))

    assert "invalid_token" in str(error)
    assert "it expired at" in str(error)
    assert token not in text(error)


async def test_a_mechanism_that_is_not_enabled_lists_those_that_are(broker: SecuredBroker) -> None:
    """
    The operator reads what to set instead.
    """
    wanted = security(broker, "PLAINONLY", sasl(broker, SaslMechanism.SCRAM_SHA_512))

    error = await refused(broker, "PLAINONLY", wanted)

    assert "SCRAM-SHA-512 is not enabled here; the broker offers: PLAIN" in str(error)


async def test_a_broker_of_another_authority_is_not_trusted(broker: SecuredBroker) -> None:
    """
    The file of authorities is named, and so is whoever signed what the broker shows.
    """
    wrong = Security(SecurityProtocol.SSL, TlsOptions(broker.stranger.certificate))

    error = await refused(broker, "EXPIRED", wrong)

    assert isinstance(error, AuthenticationError)
    assert f"not signed by any authority in {broker.stranger.certificate}" in str(error)
    assert "signed by CN=authority" in str(error)


async def test_an_expired_certificate_is_refused_with_the_time_it_expired(broker: SecuredBroker) -> None:
    """
    Since when, and whose it is.
    """
    error = await refused(broker, "EXPIRED", security(broker, "EXPIRED"))

    assert isinstance(error, AuthenticationError)
    assert "it shows CN=broker for localhost, signed by CN=authority, expired on 20" in str(error)


async def test_a_certificate_for_another_name_is_refused_with_its_names(broker: SecuredBroker) -> None:
    """
    The operator sees under which name the broker could be reached.
    """
    error = await refused(broker, "OTHERNAME", security(broker, "OTHERNAME"))

    assert isinstance(error, AuthenticationError)
    assert "for another name; it shows CN=broker for other.test" in str(error)


async def test_a_client_certificate_is_asked_for_when_there_is_none(broker: SecuredBroker) -> None:
    """
    A listener with ``ssl.client.auth=required``.
    """
    without = Security(SecurityProtocol.SSL, TlsOptions(broker.authority.certificate))

    error = await refused(broker, "MTLS", without)

    assert "no client certificate is configured" in str(error)


async def test_a_client_certificate_the_broker_does_not_take_is_named(broker: SecuredBroker) -> None:
    """
    The file, whose it is and since when it is expired; or who signed it.
    """
    old = broker.authority.issue("old-client", valid_for=-timedelta(hours=1))
    foreign = broker.stranger.issue("foreign-client")
    ours = broker.authority.certificate

    expired = await refused(
        broker, "MTLS", Security(SecurityProtocol.SSL, TlsOptions(ours, old.certificate, old.key))
    )
    unknown = await refused(
        broker, "MTLS", Security(SecurityProtocol.SSL, TlsOptions(ours, foreign.certificate, foreign.key))
    )

    assert f"{old.certificate}: CN=old-client" in str(expired)
    assert "expired on 20" in str(expired)
    assert "CN=foreign-client, signed by CN=stranger" in str(unknown)


@pytest.mark.parametrize("listener", ["MTLS", "SASLTLS"])
async def test_plain_text_to_a_tls_listener_is_told(broker: SecuredBroker, listener: str) -> None:
    """
    The broker's TLS alert is read as what it is.
    """
    error = await refused(broker, listener, Security())

    assert isinstance(error, AuthenticationError)
    assert "expects TLS" in str(error)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL"])
async def test_tls_to_a_plain_text_listener_is_told(broker: SecuredBroker, listener: str) -> None:
    """
    The broker just hangs up; a second look shows that it speaks without TLS.
    """
    error = await refused(
        broker, listener, Security(SecurityProtocol.SSL, TlsOptions(broker.authority.certificate))
    )

    assert isinstance(error, AuthenticationError)
    assert "does not speak TLS" in str(error)


async def test_sasl_where_there_is_none_and_none_where_there_is(broker: SecuredBroker) -> None:
    """
    Both mistakes point at security.protocol.
    """
    wanted = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=sasl(broker, SaslMechanism.PLAIN))

    too_much = await refused(broker, "PLAINTEXT", wanted)
    too_little = await refused(broker, "SASL", Security())

    assert "does not use SASL" in str(too_much)
    assert "security.protocol" in too_much.hint
    assert "security.protocol" in too_little.hint


# -- what a greeting does not show ---------------------------------------------------------------


async def test_a_broker_that_is_heard_has_started_on_what_it_received_before_and_one_that_greets_has_not(
    broker: SecuredBroker,
) -> None:
    """
    More requests than it has threads each take it a second or two, or many on a slow machine. A login comes
    ahead of them.
    """
    await broker.cluster.create_topic("busy", partitions=8)
    cluster = a_cluster(broker, "SASL", sasl(broker, SaslMechanism.SCRAM_SHA_256))
    cluster.options = replace(cluster.options, request_timeout_seconds=120.0)
    await cluster.start()
    token = await init_producer_id(cluster, "busy")
    lanes = [await cluster.connection(1, f"busy {number}") for number in range(2 * IO_THREADS)]
    markers, seen = many_markers(token, "busy", range(8)), list[str]()

    async def keep_busy(lane: Connection) -> None:
        await lane.send(WriteTxnMarkersRequest.API_KEY, 1, [markers])
        seen.append("is done with one")

    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(keep_busy(lane))
        await asyncio.sleep(0.3)
        await cluster.connection(1, "new")
        seen.append("greets")
        await cluster.hear_from(1)
        seen.append("is heard")
    await cluster.close()

    assert seen[:2] == ["greets", "is done with one"]
    assert "is heard" in seen[2:]


def many_markers(token: Token, topic: str, partitions: Iterable[int]) -> bytes:
    """The body of a request that keeps a thread of the broker busy: 4 000 markers for each partition."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    whole = marker.WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))
    one = marker(
        producer_id=token.producer_id,
        producer_epoch=token.epoch,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[whole],
    )
    request = WriteTxnMarkersRequest(markers=[one] * 4_000)
    request.API_VERSION = 1
    return bytes(request.encode())


# -- time passes ---------------------------------------------------------------------------------


async def test_sessions_are_renewed_on_the_same_connection_under_load(broker: SecuredBroker) -> None:
    """
    The broker ends sessions after a few seconds; askers that never pause see none of it, with any mechanism.
    """
    opened = [
        await open_connection(broker, "SHORT", security(broker, "SHORT", sasl(broker, mechanism)))
        for mechanism in MECHANISMS
    ]
    until = time.monotonic() + 2.2 * broker.session_seconds

    answers = await asyncio.gather(*(ask_until(connection, until) for connection in opened * 2))

    assert min(answers) > 100
    assert not any(connection.closed for connection in opened)
    for connection in opened:
        connection.close()


async def test_a_password_that_was_changed_is_read_anew_and_a_wrong_one_ends_the_connection(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    """
    Re-authentication reads the secret again: a broken file is an AuthenticationError for whoever asks next.
    """
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    options = SaslOptions(SaslMechanism.SCRAM_SHA_256, username=USER, password=SecretSource(path=file))
    connection = await open_connection(broker, "SHORT", security(broker, "SHORT", options))

    file.write_text(WRONG)
    with pytest.raises(AuthenticationError) as ended:
        await ask_until(connection, time.monotonic() + 3 * broker.session_seconds)

    assert str(file) in ended.value.hint
    assert WRONG not in text(ended.value)


async def test_a_rotated_client_certificate_is_used_by_the_next_connection(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    """
    An expired certificate is replaced on disk; the same Security value gets in, without a restart.
    """
    rotating = Authority(tmp_path, "unused").issue("rotating")
    old = broker.authority.issue("rotating-old", valid_for=-timedelta(hours=1))
    new = broker.authority.issue("rotating-new")
    wanted = Security(
        SecurityProtocol.SSL,
        TlsOptions(broker.authority.certificate, rotating.certificate, rotating.key),
    )

    os.replace(old.certificate, rotating.certificate)
    os.replace(old.key, rotating.key)
    before = await refused(broker, "MTLS", wanted)
    os.replace(new.certificate, rotating.certificate)
    os.replace(new.key, rotating.key)

    assert "expired on" in str(before)
    assert await works(broker, "MTLS", wanted)


async def test_a_rotated_authority_is_trusted_by_the_next_connection(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    """
    The bundle of authorities gets a second one before the brokers change over.
    """
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(broker.stranger.certificate.read_bytes())
    options = sasl(broker, SaslMechanism.PLAIN)
    wanted = Security(SecurityProtocol.SASL_SSL, TlsOptions(bundle), options)
    await refused(broker, "SASLTLS", wanted)

    bundle.write_bytes(broker.stranger.certificate.read_bytes() + broker.authority.certificate.read_bytes())

    assert await works(broker, "SASLTLS", wanted)
