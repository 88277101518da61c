"""The names in a mirror's certificate, held against another reader of certificates."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from mirror.cli.settings_page import page
from mirror.relay.identity import distinguished_name, names_of
from tests.harness.security import Authority

KEY = ec.generate_private_key(ec.SECP256R1())
KINDS = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.DOMAIN_COMPONENT,
    NameOID.USER_ID,
    NameOID.STREET_ADDRESS,
)
ATTRIBUTES = st.builds(
    x509.NameAttribute,
    st.sampled_from(KINDS),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12),
)
SUBJECTS = st.lists(
    st.lists(ATTRIBUTES, min_size=1, max_size=2, unique_by=lambda one: one.oid).map(
        x509.RelativeDistinguishedName
    ),
    min_size=1,
    max_size=4,
).map(x509.Name)


def read(subject: x509.Name, *alternative: x509.GeneralName) -> dict[str, Any]:
    """A certificate as Python's ``ssl`` reads it."""
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        subject, subject, KEY.public_key(), 7, now - timedelta(days=1), now + timedelta(days=1)
    )
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    pem = builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.pem"
        file.write_bytes(pem)
        return dict(ssl._ssl._test_decode_cert(str(file)))  # type: ignore[attr-defined]


@given(SUBJECTS)
def test_a_subject_is_written_as_rfc_2253_has_it(subject: x509.Name) -> None:
    """
    Whatever stands in it: another program that knows the rules says the same.
    """
    found = distinguished_name(read(subject)["subject"])

    assert sorted(found) == sorted(subject.rfc4514_string())
    if all(len(entry) == 1 for entry in subject.rdns):
        assert found == subject.rfc4514_string()


def test_names_come_in_the_order_that_is_documented() -> None:
    """
    What was made to name a program first, what anybody may have last; nothing else counts.
    """
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            x509.NameAttribute(NameOID.COMMON_NAME, "mirror-west"),
        ]
    )
    certificate = read(
        subject,
        x509.DNSName("Mirror.WEST.example.org"),
        x509.RFC822Name("ops@example.org"),
        x509.UniformResourceIdentifier("spiffe://example.org/mirror/west"),
    )

    assert names_of(certificate) == (
        "spiffe://example.org/mirror/west",
        "mirror.west.example.org",
        r"CN=mirror-west,O=Example\, Inc.",
        "mirror-west",
    )


@pytest.mark.parametrize("certificate", [{}, {"subject": ()}, {"subject": ((("commonName", ""),),)}])
def test_a_certificate_that_says_nothing_names_nobody(certificate: dict[str, Any]) -> None:
    """
    An empty name is none that could stand in the settings.
    """
    assert "" not in names_of(certificate)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_the_command_in_the_settings_page_prints_the_name_that_counts(tmp_path: Path) -> None:
    """
    Also where it has letters that are not of ASCII, and marks that are escaped.
    """
    [options] = re.findall(r"-nameopt (\S+)`", page())
    authority = Authority(tmp_path)
    issued = authority.issue("mirror-k\u00f6ln, west")

    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", options, "-in", str(issued.certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    decoded = ssl._ssl._test_decode_cert(str(issued.certificate))  # type: ignore[attr-defined]
    printed = done.stdout.strip().removeprefix("subject=").strip()
    assert "k\u00f6ln" in printed
    assert printed in names_of(decoded)
