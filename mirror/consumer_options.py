"""The settings of a cluster as options of Kafka's Java consumer, for Spark to read it.

Secrets are read once, when the options are made: a job ends long before they change.

Sources: Apache Kafka's documentation of consumer configs; KIP-651 (PEM), KIP-768 (OAUTHBEARER).
"""

from __future__ import annotations

from pathlib import Path

from mirror.config_cluster import ClusterSettings, SaslSettings, SecuritySettings
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


def consumer_options(settings: ClusterSettings) -> dict[str, str]:
    """Options by their names in Kafka, each with the prefix ``kafka.`` that Spark wants.

    Raises:
        AuthenticationError: A secret or a file cannot be read.
        UsageError: Something is asked for that Kafka's consumer cannot do.
    """
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
    if security.ca_file is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security.ca_file)}
    if security.certificate_file is not None:
        key = security.key_file or security.certificate_file
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(security.certificate_file),
            "ssl.keystore.key": _text(key),
        }
    if security.key_password is not None:
        options["ssl.key.password"] = _read(security.key_password)
    return options


def _sasl(sasl: SaslSettings) -> dict[str, str]:
    options: dict[str, str] = {"sasl.mechanism": sasl.mechanism}
    if sasl.mechanism != "OAUTHBEARER":
        assert sasl.password is not None, "settings were checked"
        words = {"username": sasl.username, "password": _read(sasl.password)}
    elif sasl.token_endpoint is None:
        raise UsageError(
            "security.sasl.token: Kafka's Java consumer, with which Spark reads, asks for tokens itself",
            hint="give security.sasl.token_endpoint for this job",
        )
    else:
        endpoint = sasl.token_endpoint
        words = {"clientId": endpoint.client_id, "clientSecret": _read(endpoint.client_secret)}
        words |= {"scope": endpoint.scope} if endpoint.scope else {}
        words |= {f"extension_{name}": value for name, value in sasl.extensions.items()}
        options |= {
            "sasl.login.callback.handler.class": _OAUTH_CALLBACK,
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        }
    options["sasl.jaas.config"] = _jaas(_MODULES[sasl.mechanism], words)
    return options


def _jaas(module: str, words: dict[str, str]) -> str:
    """One line of a JAAS configuration; quotes and backslashes of values are escaped."""
    quoted = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"'))
        for name, value in words.items()
    )
    return f"{module} required {' '.join(quoted)};"


def _read(secret: object) -> str:
    assert isinstance(secret, SecretSource), "settings were checked"
    return secret.read()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise AuthenticationError(f"{path} cannot be read: {error.strerror}") from error
