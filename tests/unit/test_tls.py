"""TLS contexts: made of files, remade when the files change; and errors with a way out."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mirror.errors import AuthenticationError, ConnectionFailedError, TlsRefusedError
from mirror.kafka.secret import SecretSource
from mirror.kafka.tls import ContextCache, TlsOptions, make_context
from mirror.kafka.tls_errors import RELAY, is_tls_alert, rename_ssl_error
from tests.harness.security import Authority, Identity


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def client(authority: Authority) -> Identity:
    return authority.issue("client")


@pytest.fixture
def options(authority: Authority, client: Identity) -> TlsOptions:
    return TlsOptions(authority.certificate, client.certificate, client.key)


def move_over(new: Path, old: Path) -> None:
    """Replace a file as a careful rotation does: at once."""
    os.replace(new, old)


def test_a_context_asks_for_what_the_settings_say(options: TlsOptions) -> None:
    """
    TLS 1.2 at least, a trusted certificate always, the right name unless switched off; no keys are logged.
    """
    context = make_context(options)
    lenient = make_context(replace(options, check_hostname=False))

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (lenient.verify_mode, lenient.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert context.keylog_filename is None


def test_only_the_given_authority_is_trusted(options: TlsOptions) -> None:
    """
    The system's authorities are not added to ours.
    """
    assert make_context(options).cert_store_stats()["x509_ca"] == 1


def test_the_context_is_kept_while_its_files_stay(options: TlsOptions) -> None:
    """
    A thousand connections do not read the files a thousand times.
    """
    cache = ContextCache()

    assert cache.get(options) is cache.get(options)


def test_a_rotated_certificate_makes_a_new_context(authority: Authority, options: TlsOptions) -> None:
    """
    New certificate and key are used by the next connection, without a restart.
    """
    cache = ContextCache()
    before = cache.get(options)
    fresh = authority.issue("client", file="fresh")
    assert options.certificate_file is not None
    assert options.key_file is not None

    move_over(fresh.certificate, options.certificate_file)
    move_over(fresh.key, options.key_file)

    assert cache.get(options) is not before


def test_half_a_rotation_keeps_the_earlier_context_and_says_so_once(
    authority: Authority, options: TlsOptions
) -> None:
    """
    A new certificate whose key has not come yet does no harm; the next look at complete files uses them.
    """
    cache = ContextCache()
    before = cache.get(options)
    fresh = authority.issue("client", file="fresh")
    assert options.certificate_file is not None
    assert options.key_file is not None

    move_over(fresh.certificate, options.certificate_file)
    with capture_logs() as events:
        during = [cache.get(options) for _ in range(5)]
    move_over(fresh.key, options.key_file)

    assert all(context is before for context in during)
    assert [event["event"] for event in events] == ["tls_files_not_usable"]
    assert cache.get(options) is not before


def test_a_certificate_ends_as_the_one_that_is_shown_does(authority: Authority, options: TlsOptions) -> None:
    """
    Not as the one in a file whose key was forgotten: that one would be said to be good for a month longer.
    """
    cache = ContextCache()
    short, long = timedelta(hours=2), timedelta(days=30)
    old = authority.issue("client", file="old", valid_for=short)
    new = authority.issue("client", file="new", valid_for=long)
    now = time.time()
    shown = replace(options, certificate_file=old.certificate, key_file=old.key)

    before = cache.valid_until(shown)
    move_over(new.certificate, old.certificate)
    during = cache.valid_until(shown)
    move_over(new.key, old.key)
    after = cache.valid_until(shown)

    assert before is not None
    assert after is not None
    assert before == during == pytest.approx(now + short.total_seconds(), abs=60)
    assert after == pytest.approx(now + long.total_seconds(), abs=60)


def test_what_cannot_be_shown_has_no_end(options: TlsOptions, tmp_path: Path) -> None:
    """
    Neither where there is no certificate, nor where it cannot be used.
    """
    assert ContextCache().valid_until(replace(options, certificate_file=None, key_file=None)) is None
    assert ContextCache().valid_until(replace(options, key_file=tmp_path / "gone")) is None


def test_an_encrypted_key_is_opened_with_its_password(authority: Authority, options: TlsOptions) -> None:
    """
    The password comes from its own source; a wrong or missing one is named, and not shown.
    """
    locked = authority.issue("locked", password="pencil")
    wanted = TlsOptions(authority.certificate, locked.certificate, locked.key, SecretSource(value="pencil"))
    assert make_context(wanted)

    for password in (None, SecretSource(value="pen")):
        with pytest.raises(AuthenticationError, match="password is missing or wrong") as refused:
            make_context(replace(wanted, key_password=password))
        assert str(locked.key) in str(refused.value)


def test_a_password_too_long_for_any_key_is_refused(authority: Authority, tmp_path: Path) -> None:
    """
    Its file is another one, and the key is named.
    """
    locked = authority.issue("locked", password="pencil")
    long = tmp_path / "password"
    long.write_text("x" * 2000)

    with pytest.raises(TlsRefusedError, match="cannot be opened: password cannot be longer than") as refused:
        make_context(
            TlsOptions(authority.certificate, locked.certificate, locked.key, SecretSource(path=long))
        )

    assert str(locked.key) in str(refused.value)


def test_files_that_do_not_fit_are_named(
    tmp_path: Path, authority: Authority, client: Identity, options: TlsOptions
) -> None:
    """
    Each wrong file is told by its path and what is wrong with it.
    """
    other = authority.issue("other")
    gone, rubbish = tmp_path / "gone.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("nothing of use")
    cases = {
        "gone.pem cannot be read: No such file": replace(options, ca_file=gone),
        "rubbish.pem holds no PEM certificates": replace(options, ca_file=rubbish),
        "gone.pem cannot be read: No such file or": replace(options, certificate_file=gone),
        "gone.pem cannot be read: No such": replace(options, key_file=gone),
        "rubbish.pem and .* do not hold a PEM": replace(options, certificate_file=rubbish),
        "other.key does not belong to the certificate in .*client.crt": replace(options, key_file=other.key),
        "client.crt do not hold": replace(options, key_file=client.certificate),
    }

    for reason, wrong in cases.items():
        with pytest.raises(AuthenticationError, match=reason) as refused:
            make_context(wrong)
        assert ("openssl pkcs12" in refused.value.hint) == ("PEM" in str(refused.value))


@pytest.mark.parametrize(
    ("error", "renamed", "reason"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), ConnectionFailedError, "reset by peer"),
        (ssl.SSLEOFError(8, "EOF occurred"), ConnectionFailedError, "ended during the TLS handshake"),
        (ssl.SSLZeroReturnError(6, "closed (EOF)"), ConnectionFailedError, "ended during the TLS handshake"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), TlsRefusedError, "does not speak TLS"),
        (ssl.SSLError(1, "TLSV1_ALERT_PROTOCOL_VERSION"), TlsRefusedError, "no TLS version in common"),
        (ssl.SSLError(1, "TLSV13_ALERT_CERTIFICATE_REQUIRED"), TlsRefusedError, "certificate required"),
        (ssl.SSLError(1, "TLSV1_ALERT_UNKNOWN_CA"), TlsRefusedError, "unknown ca"),
        (ssl.SSLError(1, "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), ConnectionFailedError, "TLS failed"),
    ],
)
def test_an_error_of_the_socket_gets_its_name(error: OSError, renamed: type[Exception], reason: str) -> None:
    """
    What passes by itself may be tried again; what an operator must mend is a TlsRefusedError.
    """
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        error.reason = str(error.args[1])

    named = rename_ssl_error(error, "broker:9093")

    assert type(named) is renamed
    assert str(named).startswith("broker:9093: ")
    assert reason in str(named)
    assert named.hint


def of_verification(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "verify failed"
    return error


def of_tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (of_verification(10), "renew the certificate of the relay"),
        (of_verification(20), "link.security.ca_file"),
        (of_verification(62), "link.relays"),
        (of_tls("WRONG_VERSION_NUMBER"), "listen.certificate_file"),
        (of_tls("TLSV1_ALERT_PROTOCOL_VERSION"), "a relay speaks TLS 1.3"),
        (of_tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "link.security.certificate_file"),
        (ssl.SSLEOFError(8, "EOF occurred"), "listen.address"),
    ],
)
def test_the_way_out_at_a_relay_is_not_that_at_a_broker(error: OSError, way_out: str) -> None:
    """
    A relay advertises no listeners and has no truststore: the hints name the settings of the link.
    """
    named = rename_ssl_error(error, "relay east:9650", other=RELAY)

    assert way_out in named.hint
    assert "broker" not in f"{named} {named.hint}"


def test_a_relay_that_does_not_accept_our_certificate_is_told_which(options: TlsOptions) -> None:
    """
    Where the handshake itself says so, as with TLS 1.2 in between.
    """
    named = rename_ssl_error(of_tls("TLSV1_ALERT_UNKNOWN_CA"), "relay east:9650", options, RELAY)

    assert "the relay does not accept our certificate (unknown ca): " in str(named)
    assert "listen.client_ca_file" in named.hint


def test_an_empty_file_is_no_certificate(authority: Authority, client: Identity, tmp_path: Path) -> None:
    """
    As half way through being written; OpenSSL has no reason for it.
    """
    empty = tmp_path / "empty.pem"
    empty.touch()

    with pytest.raises(TlsRefusedError, match=r"do not hold a PEM certificate and its private key$"):
        make_context(TlsOptions(authority.certificate, empty, client.key))


def test_an_alert_is_told_from_an_answer() -> None:
    """
    A TLS listener that was spoken to in the clear says so in four bytes.
    """
    assert is_tls_alert(b"\x15\x03\x03\x00")
    assert not is_tls_alert(b"\x00\x00\x00\x15")
