"""The names of a mirror: those in the certificate that it has shown.

They are tried in this order, and the first one that is known is the identity: the URIs of the subject
alternative names (a SPIFFE id is one), the DNS names there in lower case, the subject as RFC 2253 writes it,
which is what Kafka makes a principal of, and the subject's common name alone. A wildcard is a name like any
other: it matches no other name.

Pure. The certificate was verified before; what OpenSSL decoded of it counts here.

Sources: RFC 2253 (distinguished names), RFC 5280 (alternative names), KIP-371 (principals from certificates),
the SPIFFE X.509-SVID specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Attributes for which RFC 2253 has short names; others keep OpenSSL's name."""
_ESCAPED = frozenset(',+"\\<>;')


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a certificate, in the order above and without repeats; empty if it has none.

    Args:
        certificate: As ``ssl`` decodes it (``getpeercert()``).
    """
    return tuple(dict.fromkeys(_names(certificate)))


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    alternative = certificate.get("subjectAltName", ())
    yield from (value for kind, value in alternative if kind == "URI" and value)
    yield from (value.lower() for kind, value in alternative if kind == "DNS" and value)
    subject = certificate.get("subject", ())
    if subject:
        yield distinguished_name(subject)
    yield from (value for entry in subject for name, value in entry if name == "commonName" and value)


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A subject as ``CN=mirror-west,OU=data,O=Example``: the last entry of the certificate comes first."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in entry)
        for entry in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in value)
    if value[:1] in {"#", " "}:
        text = f"\\{text}"
    if value[-1:] == " " and len(value) > 1:
        text = f"{text[:-1]}\\ "
    return text
