"""Brokers that authenticate clients: certificates, users and tokens made for one test run.

:class:`Authority` signs certificates, :class:`TokenIssuer` signs bearer tokens, and
:class:`BrokerSecurity` makes the settings of a broker that opens more listeners than
the inner one: one broker with all of them serves a whole file of tests.

Everything is written as PEM and JSON, which brokers read as they are.

Sources: KIP-651 (PEM), KIP-768 (OAUTHBEARER), KIP-801 (StandardAuthorizer).
"""

from __future__ import annotations

import base64
import ipaddress
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
HOST, SECURED_HOST = "127.0.0.1", "localhost"
"""Hosts of the inner listeners and of the others: certificates are issued for a name."""
TOKEN_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A Java system property: without it brokers 4.x do not read keys from any URL."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its private key, each in a PEM file."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for brokers and clients of one test.

    Args:
        folder: Where the PEM files go.
        name: Common name of the authority; also the name of its file.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        certificate = self._sign(self._name, self._key, now - timedelta(days=1), now + timedelta(days=1), [])
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        valid_for: timedelta = timedelta(days=1),
        password: str | None = None,
        file: str | None = None,
    ) -> Identity:
        """Sign a certificate and write it, with its key.

        Args:
            name: Common name; a broker sees a client as ``User:CN=<name>``.
            hosts: Host names and addresses a certificate is for; URIs too.
            valid_for: From now; negative for one that ended that long ago.
            password: Encrypts the private key.
            file: Name of the files without ending; the common name by default.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.now(UTC) + valid_for
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, until - timedelta(days=2), until, hosts)
        identity = Identity(self._folder / f"{file or name}.crt", self._folder / f"{file or name}.key")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        identity.key.write_bytes(_key_pem(key, password))
        return identity

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        not_before: datetime,
        not_after: datetime,
        hosts: Sequence[str],
    ) -> x509.Certificate:
        is_authority = subject == self._name
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(not_before)
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


class TokenIssuer:
    """Signs bearer tokens; a broker checks them with the key set written to :attr:`key_set`."""

    issuer = "https://issuer.test"
    audience = "kafka"

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key().public_numbers()
        key = {"kty": "EC", "crv": "P-256", "kid": "test", "use": "sig", "alg": "ES256"}
        key |= {"x": _base64(public.x.to_bytes(32, "big")), "y": _base64(public.y.to_bytes(32, "big"))}
        self.key_set = folder / "jwks.json"
        self.key_set.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, *, lives_seconds: float = 3600) -> str:
        """A signed JSON Web Token; negative ``lives_seconds`` for one that has expired."""
        now = time.time()
        claims: dict[str, str | int] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "scope": "kafka",
        }
        claims |= {"iat": int(now - 3600), "exp": int(now + lives_seconds)}
        header = {"alg": "ES256", "kid": "test", "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Listener:
    """One more listener of a broker.

    Attributes:
        protocol: ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
        mechanisms: SASL mechanisms enabled there.
        reauthenticate_ms: ``connections.max.reauth.ms``; 0 lets sessions live for ever.
        identity: The broker's certificate on this listener where TLS is used.
        client_certificate: Whether clients must show one.
    """

    name: str
    port: int
    protocol: str
    mechanisms: tuple[str, ...] = ()
    reauthenticate_ms: int = 0
    identity: Identity | None = None
    client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """The security settings of a broker: listeners in addition to the inner one, users, keys, authorizer.

    Attributes:
        users: Names and passwords for PLAIN. SCRAM users live in the cluster: an admin client adds them.
        super_users: Principals that may do anything; None: there is no authorizer.
    """

    listeners: tuple[Listener, ...]
    authority: Authority | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    tokens: TokenIssuer | None = None
    super_users: tuple[str, ...] | None = None

    def broker_properties(self, inner_port: int, controller_port: int) -> dict[str, str]:
        """The settings with which a node of the harness opens these listeners in addition to its own two.

        Args:
            inner_port: The plain text listener, where everybody is ``User:ANONYMOUS``.
        """
        inner = {"PLAINTEXT": f"{HOST}:{inner_port}"}
        outer = {listener.name: f"{SECURED_HOST}:{listener.port}" for listener in self.listeners}
        controller = {"CONTROLLER": f"{HOST}:{controller_port}"}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        protocols |= {listener.name: listener.protocol for listener in self.listeners}
        properties = {
            "listeners": _joined(inner | outer | controller, "://"),
            "advertised.listeners": _joined(inner | outer, "://"),
            "listener.security.protocol.map": _joined(protocols, ":"),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        for listener in self.listeners:
            properties |= self._listener_properties(listener)
        if self.super_users is not None:
            properties |= {"authorizer.class.name": AUTHORIZER, "super.users": ";".join(self.super_users)}
        return properties

    def jvm_flags(self) -> tuple[str, ...]:
        """Flags of the broker's JVM, in addition to its usual ones."""
        return (f"-D{ALLOWED_URLS}={self.tokens.key_set.as_uri()}",) if self.tokens else ()

    def _listener_properties(self, listener: Listener) -> dict[str, str]:
        prefix = f"listener.name.{listener.name.lower()}."
        properties = self._tls_properties(listener) if listener.protocol.endswith("SSL") else {}
        if listener.protocol.startswith("SASL"):
            properties["sasl.enabled.mechanisms"] = ",".join(listener.mechanisms)
            for mechanism in listener.mechanisms:
                properties |= self._mechanism_properties(mechanism, listener.reauthenticate_ms)
        return {prefix + name: value for name, value in properties.items()}

    def _tls_properties(self, listener: Listener) -> dict[str, str]:
        assert listener.identity is not None
        assert self.authority is not None
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": _one_line(listener.identity.key),
            "ssl.keystore.certificate.chain": _one_line(listener.identity.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _one_line(self.authority.certificate),
            "ssl.client.auth": "required" if listener.client_certificate else "none",
        }

    def _mechanism_properties(self, mechanism: str, reauthenticate_ms: int) -> dict[str, str]:
        login = f"{LOGIN_MODULES[mechanism]} required"
        if mechanism == "PLAIN":
            login += "".join(f' user_{name}="{password}"' for name, password in self.users.items())
        properties = {"sasl.jaas.config": f"{login};"}
        if reauthenticate_ms:
            properties["connections.max.reauth.ms"] = str(reauthenticate_ms)
        if mechanism == "OAUTHBEARER":
            assert self.tokens is not None
            properties |= {
                "sasl.server.callback.handler.class": TOKEN_VALIDATOR,
                "sasl.oauthbearer.jwks.endpoint.url": self.tokens.key_set.as_uri(),
                "sasl.oauthbearer.expected.issuer": self.tokens.issuer,
                "sasl.oauthbearer.expected.audience": self.tokens.audience,
            }
        return {f"{mechanism.lower()}.{name}": value for name, value in properties.items()}


def _joined(pairs: Mapping[str, str], between: str) -> str:
    return ",".join(f"{name}{between}{value}" for name, value in pairs.items())


def _one_line(path: Path) -> str:
    """A PEM file as the value of a Java property."""
    return path.read_text().strip().replace("\n", " ")
