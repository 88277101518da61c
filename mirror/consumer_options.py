"""The settings of a cluster as options of Kafka's Java consumer, with which Spark reads it.

Secrets are read once, when the options are made: a job ends long before they change.

Java opens fewer kinds of private keys than the mirror. Those that it cannot open are refused here, by name.

Sources: Apache Kafka's documentation of consumer configs; KIP-651 (PEM), KIP-768 (OAUTHBEARER); RFC 8018
(PBES2); JDK-8231581.
"""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import Path

from mirror.config_cluster import ClusterSettings, ConnectionSettings, SaslSettings, SecuritySettings
from mirror.errors import AuthenticationError, UsageError
from mirror.kafka.secret import SecretSource

_LOGIN = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_CALLBACK = f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
_ENDS = re.compile(r'[\x00-\x1f"\\]')
"""Characters that end a value in a JAAS configuration, or begin an escape in it."""
_LOCKED = "ENCRYPTED PRIVATE KEY"
_PKCS8 = {"PRIVATE KEY", _LOCKED}
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----(.*?)-----END", re.DOTALL)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier of the scheme with which OpenSSL encrypts keys by default."""


def consumer_options(settings: ConnectionSettings) -> dict[str, str]:
    """Options by their names in Kafka, each with the prefix ``kafka.`` that Spark wants.

    Raises:
        AuthenticationError: A secret or a file cannot be read, or holds no private key.
        UsageError: The settings ask for something that Kafka's consumer cannot do.
    """
    if not isinstance(settings, ClusterSettings):
        raise UsageError(
            "Spark reads brokers directly, but these settings reach the source only through relays (link)",
            hint="use a folder that you carry: run twinsite reconcile scope here, and digest at each site, "
            "at the source with settings that have source instead of link",
        )
    options = {
        "bootstrap.servers": ",".join(settings.bootstrap_servers),
        "client.id": settings.client_id,
        "request.timeout.ms": str(round(settings.request_timeout_seconds * 1000)),
        "security.protocol": settings.security.protocol,
        **(_tls(settings.security) if settings.security.uses_tls else {}),
        **(_sasl(settings.security.sasl) if settings.security.sasl else {}),
    }
    return {f"kafka.{name}": value for name, value in options.items()}


def _tls(security: SecuritySettings) -> dict[str, str]:
    options = {} if security.verify_hostname else {"ssl.endpoint.identification.algorithm": ""}
    options |= _trusted(security.ca_file)
    if security.certificate_file is not None:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(security.certificate_file),
            **_key(security.key_file or security.certificate_file, security.key_password),
        }
    return options


def _trusted(ca_file: Path | None) -> dict[str, str]:
    """The authorities of a file; without one, those that came with Java."""
    if ca_file is None:
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(ca_file)}


def _key(path: Path, password: object) -> dict[str, str]:
    """A private key and, if it is encrypted, its password: for a key in plain text Java must get none."""
    text = _text(path)
    found = _PRIVATE_KEY.search(text)
    if found is None:
        raise AuthenticationError(f"{path} holds no private key")
    kind, body = found.groups()
    if kind not in _PKCS8:
        raise UsageError(
            f"{path} begins with {kind}: Kafka's Java consumer, which Spark uses, requires PKCS#8",
            hint=f"run openssl pkcs8 -topk8 -nocrypt -in {path} -out NEW, and set key_file to NEW "
            "for this job",
        )
    return {"ssl.keystore.key": text, **(_passphrase(path, body, password) if kind == _LOCKED else {})}


def _passphrase(path: Path, body: str, password: object) -> dict[str, str]:
    if password is None:
        raise AuthenticationError(f"{path} is encrypted, but key_password is not set")
    if _PBES2 in _decoded(path, body):
        raise UsageError(
            f"{path} is encrypted with PBES2: Kafka's Java consumer, which Spark uses, cannot open it",
            hint=f"run openssl pkcs8 -in {path} | openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -out NEW, "
            "and set key_file to NEW for this job",
        )
    return {"ssl.key.password": _read(password)}


def _decoded(path: Path, body: str) -> bytes:
    try:
        return b64decode(body)
    except ValueError:
        raise AuthenticationError(f"{path} holds no private key: it is not base64") from None


def _sasl(sasl: SaslSettings) -> dict[str, str]:
    options: dict[str, str] = {"sasl.mechanism": sasl.mechanism}
    if sasl.mechanism != "OAUTHBEARER":
        assert sasl.password is not None, "settings were checked"
        words = {"username": sasl.username, "password": _read(sasl.password)}
    elif sasl.token_endpoint is None:
        raise UsageError(
            "security.sasl.token: Kafka's Java consumer, which Spark uses, requests tokens itself",
            hint="set security.sasl.token_endpoint for this job",
        )
    else:
        endpoint = sasl.token_endpoint
        words = {"clientId": endpoint.client_id, "clientSecret": _read(endpoint.client_secret)}
        words |= {"scope": endpoint.scope} if endpoint.scope else {}
        words |= {f"extension_{name}": value for name, value in sasl.extensions.items()}
        words |= _trusted(endpoint.ca_file)
        options |= {
            "sasl.login.callback.handler.class": _OAUTH_CALLBACK,
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.login.connect.timeout.ms": str(round(endpoint.timeout_seconds * 1000)),
            "sasl.login.read.timeout.ms": str(round(endpoint.timeout_seconds * 1000)),
        }
    options["sasl.jaas.config"] = _jaas(_MODULES[sasl.mechanism], words)
    return options


def _jaas(module: str, words: dict[str, str]) -> str:
    """One line of a JAAS configuration; whatever would end a value is escaped."""
    quoted = (f'{name}="{_ENDS.sub(_escaped, value)}"' for name, value in words.items())
    return f"{module} required {' '.join(quoted)};"


def _escaped(character: re.Match[str]) -> str:
    return f"\\{ord(character[0]):03o}"


def _read(secret: object) -> str:
    assert isinstance(secret, SecretSource), "settings were checked"
    return secret.read()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise AuthenticationError(f"{path} cannot be read: {error.strerror}") from error
