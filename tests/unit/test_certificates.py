"""Certificates, read for people."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.certificates import LOOKED_AT_BYTES, Certificate, valid_until
from tests.harness.security import Authority


def test_a_certificate_says_whose_it_is_and_until_when(tmp_path: Path) -> None:
    """
    Subject, issuer, names, addresses and validity are those the authority wrote.
    """
    hosts = ["kafka-1.example", "10.1.2.3", "2001:db8::1"]
    issued = Authority(tmp_path, "our-ca").issue("kafka-1", hosts, valid_for=timedelta(hours=5))

    read = Certificate.from_pem_file(issued.certificate)

    assert (read.subject, read.issuer, read.names) == ("CN=kafka-1", "CN=our-ca", tuple(hosts))
    assert abs(read.not_after - datetime.now(UTC) - timedelta(hours=5)) < timedelta(seconds=30)
    assert str(read).startswith(f"CN=kafka-1 for {', '.join(hosts)}, signed by CN=our-ca, valid until 20")


def test_of_a_file_that_is_too_large_only_the_beginning_is_read(tmp_path: Path) -> None:
    """
    It is named by a setting, and may be anything.
    """
    issued = Authority(tmp_path).issue("mirror")
    large = tmp_path / "large"
    large.write_bytes(b"\n" * LOOKED_AT_BYTES + issued.certificate.read_bytes())

    assert valid_until(large) is None


def test_validity_is_told_from_where_now_is(tmp_path: Path) -> None:
    """
    Ended, not begun and good are three different sentences.
    """
    issued = Authority(tmp_path).issue("old", valid_for=-timedelta(hours=3))
    read = Certificate.from_pem_file(issued.certificate)

    assert read.validity(datetime.now(UTC)) == f"expired on {read.not_after:%Y-%m-%d %H:%M:%S} UTC"
    assert read.validity(read.not_before - timedelta(seconds=1)).startswith("not valid before")
    assert read.validity(read.not_after).startswith("valid until")


def test_a_name_cannot_write_into_the_log(tmp_path: Path) -> None:
    """
    A stranger chooses what its certificate is called: line breaks and escapes do not get through.
    """
    issued = Authority(tmp_path).issue("a\nERROR fake\x1b[31m", file="odd")

    assert Certificate.from_pem_file(issued.certificate).subject == "CN=a?ERROR fake?[31m"


def test_a_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    """
    A private key is PEM too.
    """
    issued = Authority(tmp_path).issue("client")

    with pytest.raises(ValueError, match="holds no certificate"):
        Certificate.from_pem_file(issued.key)


def test_when_a_certificate_ends_is_not_known_of_a_file_that_holds_none(tmp_path: Path) -> None:
    """
    One that is missing, or a key: whoever looks at it goes on without.
    """
    issued = Authority(tmp_path).issue("client", valid_for=timedelta(hours=5))

    ends = valid_until(issued.certificate)

    assert ends == Certificate.from_pem_file(issued.certificate).not_after.timestamp()
    assert valid_until(issued.key) is None
    assert valid_until(tmp_path / "missing.pem") is None


@given(st.binary(max_size=200))
def test_what_is_not_a_certificate_is_a_value_error(data: bytes) -> None:
    """
    Whatever a stranger sends, reading ends with a certificate or a ValueError.
    """
    with pytest.raises(ValueError, match=r".*"):
        Certificate.from_der(data)


def test_a_certificate_cut_short_or_bent_never_fails_otherwise(tmp_path: Path) -> None:
    """
    Every prefix, and every certificate with one byte changed, is read or refused, nothing else.
    """
    issued = Authority(tmp_path).issue("client", ["localhost"])
    der = ssl.PEM_cert_to_DER_cert(issued.certificate.read_text())
    bent = [der[:at] + bytes([der[at] ^ 0xFF]) + der[at + 1 :] for at in range(len(der))]

    refused = 0
    for data in [*(der[:at] for at in range(len(der))), *bent]:
        try:
            Certificate.from_der(data)
        except ValueError:
            refused += 1

    assert refused >= len(der)
