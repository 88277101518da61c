"""What an operator wants to know about a certificate: whose it is, who signed it, how long it is valid.

Python's ``ssl`` decodes a certificate only after it has been verified, and operators
ask about the others. So the few fields needed are read here from DER. Nothing is
decided by them: trust is left to OpenSSL.

Sources: RFC 5280 (certificates), X.690 (DER).
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

SEQUENCE, EXPLICIT_VERSION, EXPLICIT_EXTENSIONS = 0x30, 0xA0, 0xA3
UTC_TIME = 0x17
DNS_NAME, IP_ADDRESS = 0x82, 0x87
SUBJECT_ALT_NAME = bytes.fromhex("551d11")
ATTRIBUTES = {"550403": "CN", "55040b": "OU", "55040a": "O", "550407": "L", "550408": "ST", "550406": "C"}
LOOKED_AT_BYTES = 1 << 20
"""How much of a file is looked at: a setting may name any file."""
PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The readable part of one X.509 certificate.

    Attributes:
        names: Host names and IP addresses it is valid for.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    @classmethod
    def from_der(cls, der: bytes) -> Certificate:
        """Read one certificate.

        Raises:
            ValueError: The bytes are not a certificate.
        """
        try:
            return _parse(der)
        except (IndexError, KeyError, StopIteration, UnicodeDecodeError) as error:
            raise ValueError("not an X.509 certificate") from error

    @classmethod
    def from_pem_file(cls, path: Path) -> Certificate:
        """Read the first certificate of a PEM file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It holds no certificate, or not within LOOKED_AT_BYTES.
        """
        found = PEM.search(_beginning(path))
        if found is None:
            raise ValueError(f"{path} holds no certificate")
        return cls.from_der(ssl.PEM_cert_to_DER_cert(found[0]))

    @classmethod
    def all_from_pem_file(cls, path: Path) -> Sequence[Certificate]:
        """Read all certificates within the first LOOKED_AT_BYTES of a PEM file.

        Raises:
            OSError: The file cannot be read.
            ValueError: Something in it is not a certificate.
        """
        return [cls.from_der(ssl.PEM_cert_to_DER_cert(one)) for one in PEM.findall(_beginning(path))]

    def __str__(self) -> str:
        names = f" for {', '.join(self.names)}" if self.names else ""
        return f"{self.subject}{names}, signed by {self.issuer}, {self.validity(datetime.now(UTC))}"

    def validity(self, now: datetime) -> str:
        """The period of validity in words, as of ``now``."""
        if now > self.not_after:
            return f"expired on {self.not_after:%Y-%m-%d %H:%M:%S} UTC"
        if now < self.not_before:
            return f"not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC"
        return f"valid until {self.not_after:%Y-%m-%d %H:%M:%S} UTC"


def valid_until(path: Path) -> float | None:
    """When the first certificate of a PEM file expires, in seconds since 1970; None if it cannot be read."""
    try:
        return Certificate.from_pem_file(path).not_after.timestamp()
    except (OSError, ValueError):
        return None


def expired(path: Path) -> Sequence[Certificate]:
    """The certificates of a PEM file that have expired; none if they cannot be read."""
    now = datetime.now(UTC)
    try:
        return [one for one in Certificate.all_from_pem_file(path) if one.not_after < now]
    except (OSError, ValueError):
        return ()


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LOOKED_AT_BYTES).decode("ascii", errors="replace")


def _parse(der: bytes) -> Certificate:
    _, certificate = next(_elements(der))
    _, signed = next(_elements(certificate))
    fields = [element for element in _elements(signed) if element[0] != EXPLICIT_VERSION]
    _serial, _algorithm, issuer, validity, subject, _key, *others = fields
    not_before, not_after = (_time(tag, value) for tag, value in _elements(validity[1]))
    extensions = next((value for tag, value in others if tag == EXPLICIT_EXTENSIONS), b"")
    return Certificate(
        _name(subject[1]), _name(issuer[1]), tuple(_alt_names(extensions)), not_before, not_after
    )


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the tag and the value of each element.

    Raises:
        IndexError: An element goes beyond the end of the data.
    """
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise IndexError("the element ends after the data")
        yield tag, data[at : at + size]
        at += size


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _name(name: bytes) -> str:
    """A distinguished name as ``CN=a,O=b``, safe to print."""
    parts = []
    for _, attributes in _elements(name):
        for _, attribute in _elements(attributes):
            (_, kind), (_, value) = _elements(attribute)
            parts.append(f"{ATTRIBUTES.get(kind.hex(), kind.hex())}={_printable(value)}")
    return ",".join(parts) or "(no name)"


def _alt_names(extensions: bytes) -> Iterator[str]:
    for _, extension in _elements(b"".join(value for _, value in _elements(extensions))):
        (_, kind), *_, (_, content) = _elements(extension)
        if kind != SUBJECT_ALT_NAME:
            continue
        for tag, value in _elements(next(_elements(content))[1]):
            if tag == DNS_NAME:
                yield _printable(value)
            elif tag == IP_ADDRESS:
                yield str(ipaddress.ip_address(value))


def _printable(value: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in value.decode(errors="replace"))
