"""The security settings of a cluster as one value."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.config import SecuritySettings
from mirror.errors import AuthenticationError, ConnectionFailedError, UsageError
from mirror.kafka.security import (
    SaslMechanism,
    SaslOptions,
    SecretSource,
    Security,
    SecurityProtocol,
    TlsOptions,
    reauthenticate_after_seconds,
)
from tests.harness.security import Authority

PASSWORD = SecretSource(value="pencil")


def sasl(mechanism: SaslMechanism) -> SaslOptions:
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslOptions(mechanism, token=SecretSource(value="abc"))
    return SaslOptions(mechanism, username="alice", password=PASSWORD)


async def test_without_settings_there_is_neither_tls_nor_sasl() -> None:
    """
    The default is plain text and nobody in particular.
    """
    security = Security()
    await security.prepare()

    assert (security.ssl_context(), security.sasl()) == (None, None)


@pytest.mark.parametrize("mechanism", SaslMechanism)
async def test_every_authentication_gets_an_exchange_of_its_own(mechanism: SaslMechanism) -> None:
    """
    The same value serves many connections; an exchange is never shared.
    """
    security = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=sasl(mechanism))
    await security.prepare()

    first, second = security.sasl(), security.sasl()

    assert first is not None
    assert first is not second
    assert first.mechanism == mechanism


def test_a_rotated_password_is_used_at_once(tmp_path: Path) -> None:
    """
    The file is read for each authentication.
    """
    file = tmp_path / "password"
    file.write_text("old")
    options = SaslOptions(SaslMechanism.PLAIN, username="alice", password=SecretSource(path=file))
    security = Security(SecurityProtocol.SASL_SSL, sasl_options=options)
    file.write_text("new")

    exchange = security.sasl()

    assert exchange is not None
    assert exchange.first() == b"\0alice\0new"


@pytest.mark.parametrize("protocol", SecurityProtocol)
def test_the_protocol_decides_what_is_used(tmp_path: Path, protocol: SecurityProtocol) -> None:
    """
    Settings for TLS or SASL do nothing under a protocol without it.
    """
    tls = TlsOptions(Authority(tmp_path).certificate)
    security = Security(protocol, tls, sasl(SaslMechanism.PLAIN))

    assert (security.ssl_context() is not None) == protocol.endswith("SSL")
    assert (security.sasl() is not None) == protocol.startswith("SASL")


def test_what_is_missing_is_found_when_the_value_is_made() -> None:
    """
    Nothing is started with settings that cannot work.
    """
    with pytest.raises(UsageError, match="needs a SASL mechanism"):
        Security(SecurityProtocol.SASL_SSL)
    with pytest.raises(UsageError, match="user name and a password"):
        SaslOptions(SaslMechanism.SCRAM_SHA_512, username="alice")
    with pytest.raises(UsageError, match="needs a token"):
        SaslOptions(SaslMechanism.OAUTHBEARER)


def test_a_refusal_tells_where_to_look_and_shows_no_secret() -> None:
    """
    The user name and the source of the password are in the message and its hint, the password is not.
    """
    security = Security(SecurityProtocol.SASL_SSL, sasl_options=sasl(SaslMechanism.PLAIN))

    refused = security.credentials_refused("broker:9093", "Authentication failed")
    not_enabled = security.handshake_refused("broker:9093", 33, ["GSSAPI", "SCRAM-SHA-512"])
    no_sasl = security.handshake_refused("broker:9092", 34, [])

    assert str(refused) == "broker:9093: PLAIN as 'alice': Authentication failed"
    assert "the settings" in refused.hint
    assert "GSSAPI, SCRAM-SHA-512" in str(not_enabled)
    assert "does not use SASL" in str(no_sasl)
    assert "pencil" not in repr(security) + str(refused) + refused.hint


def test_a_session_that_cannot_be_renewed_is_worth_a_new_connection() -> None:
    """
    Nothing is wrong with the settings: the listener used SASL before. A mechanism that is gone is.
    """
    security = Security(SecurityProtocol.SASL_SSL, sasl_options=sasl(SaslMechanism.PLAIN))

    again = security.handshake_refused("broker:9093", 34, [], again=True)
    gone = security.handshake_refused("broker:9093", 33, ["GSSAPI"], again=True)

    assert isinstance(again, ConnectionFailedError)
    assert str(again) == "broker:9093: the session could not be renewed"
    assert isinstance(gone, AuthenticationError)


def test_a_session_is_renewed_before_it_ends() -> None:
    """
    At 85 % of its life: early enough for a slow broker, late enough not to waste work.
    """
    assert reauthenticate_after_seconds(3_600_000) == pytest.approx(3060)


@pytest.mark.parametrize(("lifetime_ms", "seconds"), [(1_200, 1.1), (1_100, None), (270, None), (0, None)])
def test_a_session_is_not_renewed_twice_within_a_second(lifetime_ms: int, seconds: float | None) -> None:
    """
    A broker refuses that; one that would end before ends with its connection. A life of 0 is one without end.
    """
    assert reauthenticate_after_seconds(lifetime_ms) == seconds


def test_settings_become_security(tmp_path: Path) -> None:
    """
    Every key of ``security`` reaches its place; secrets stay sources.
    """
    authority = Authority(tmp_path)
    client = authority.issue("client", password="pencil")
    settings = SecuritySettings.model_validate(
        {
            "protocol": "SASL_SSL",
            "ca_file": str(authority.certificate),
            "certificate_file": str(client.certificate),
            "key_file": str(client.key),
            "key_password": {"env": "KEY_PASSWORD"},
            "verify_hostname": False,
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": "alice", "password": "pencil"},
        }
    )

    security = Security.from_settings(settings)

    assert security.protocol is SecurityProtocol.SASL_SSL
    assert security.tls == TlsOptions(
        authority.certificate, client.certificate, client.key, SecretSource(variable="KEY_PASSWORD"), False
    )
    assert security.sasl_options == SaslOptions(SaslMechanism.SCRAM_SHA_512, "alice", PASSWORD)
    assert "pencil" not in repr(security)


async def test_settings_of_a_token_endpoint_become_one() -> None:
    """
    The mirror asks for the token before it connects, not while it reads its settings.
    """
    endpoint = {"url": "http://127.0.0.1:9/token", "client_id": "mirror", "client_secret": "pencil"}
    settings = SecuritySettings.model_validate(
        {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "OAUTHBEARER", "token_endpoint": endpoint}}
    )

    security = Security.from_settings(settings)

    with pytest.raises(AuthenticationError, match="no token has been requested yet"):
        security.sasl()
    with pytest.raises(ConnectionFailedError, match=r"http://127.0.0.1:9/token: no token"):
        await security.prepare()
    assert "pencil" not in repr(security)
