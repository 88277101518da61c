"""How one cluster is reached, and how the mirror proves there who it is.

A leaf: it imports only leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, field_serializer, model_validator

from mirror.config_limits import RateLimitSettings
from mirror.config_values import (
    GIB,
    KIB,
    MIB,
    Addresses,
    Bytes,
    File,
    Flag,
    Pattern,
    Seconds,
    Secret,
    Section,
    Whole,
)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
ProtocolOfRelays = Literal["PLAINTEXT", "SSL"]
"""A relay knows mirrors by their certificates: there is no login."""
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    local = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if not parts.hostname or parts.scheme not in ({"https", "http"} if local else {"https"}):
        raise ValueError("must be an https address: a client secret is sent to it")
    if parts.username or parts.password:
        raise ValueError("must not contain a user or a password: set client_id and client_secret")
    return text


class TokenEndpointSettings(Section):
    """Where OAUTHBEARER tokens are requested, with the client credentials grant of OAuth 2.0."""

    url: Annotated[str, AfterValidator(_endpoint)] = Field(
        description="Token endpoint of the authorisation server; https, or http on this machine only."
    )
    client_id: str = Field(min_length=1, description="Client ID at the authorisation server.")
    client_secret: Secret = Field(description="Secret of this client.")
    scope: str = Field(default="", description="Scope to request; empty requests none.")
    ca_file: File | None = Field(
        default=None,
        description="PEM file with the authorities that may sign its certificate; by default the system's.",
    )
    timeout_seconds: Seconds = Field(default=10.0, ge=1, le=120, description="Timeout of one request.")


class SaslSettings(Section):
    """How the mirror authenticates: with user name and password, or with a bearer token."""

    mechanism: Mechanism = Field(description="A mechanism that is enabled on the listener.")
    username: str = Field(default="", description="For PLAIN and SCRAM.")
    password: Secret | None = Field(default=None, description="For PLAIN and SCRAM.")
    token: Secret | None = Field(
        default=None, description="For OAUTHBEARER: a token that something else keeps current."
    )
    token_endpoint: TokenEndpointSettings | None = Field(
        default=None, description="For OAUTHBEARER: where the mirror requests tokens itself."
    )
    extensions: dict[str, str] = Field(
        default_factory=dict,
        description="For OAUTHBEARER: names and values that a broker requires in addition to the token.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        named, has_token = bool(self.username or self.password), bool(self.token or self.token_endpoint)
        if self.mechanism == "OAUTHBEARER":
            if named:
                raise ValueError("OAUTHBEARER takes a token, not username and password")
            if bool(self.token) == bool(self.token_endpoint):
                raise ValueError("OAUTHBEARER needs either token or token_endpoint")
        elif not self.username or self.password is None:
            raise ValueError(f"{self.mechanism} needs username and password")
        elif has_token or self.extensions:
            raise ValueError(f"{self.mechanism} takes no token and no extensions")
        return self


class SecuritySettings(Section):
    """How a connection is protected."""

    protocol: Protocol = Field(default="PLAINTEXT", description="Protocol of the brokers' listener.")
    ca_file: File | None = Field(
        default=None,
        description="PEM file with the authorities that may sign a broker's certificate; by default the "
        "system's.",
    )
    certificate_file: File | None = Field(
        default=None, description="PEM file with the mirror's certificate and its chain."
    )
    key_file: File | None = Field(
        default=None, description="PEM file with its private key, unless that is in certificate_file."
    )
    key_password: Secret | None = Field(
        default=None, description="Password of the private key, if it is encrypted."
    )
    verify_hostname: Flag = Field(
        default=True, description="Whether a broker's certificate must be valid for the name connected to."
    )
    sasl: SaslSettings | None = Field(default=None, description="Required by SASL_PLAINTEXT and SASL_SSL.")

    @property
    def uses_tls(self) -> bool:
        return self.protocol in {"SSL", "SASL_SSL"}

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    @model_validator(mode="after")
    def _fits_protocol(self) -> Self:
        """What would have no effect is refused: most likely the protocol is not the one that was meant."""
        if self.uses_sasl != (self.sasl is not None):
            raise ValueError(
                f"{self.protocol} needs sasl" if self.uses_sasl else f"{self.protocol} does not use sasl"
            )
        files = [
            name for name in ("ca_file", "certificate_file", "key_file") if getattr(self, name) is not None
        ]
        if files and not self.uses_tls:
            raise ValueError(
                f"{self.protocol} does not use {', '.join(files)}: did you mean "
                f"{'SASL_SSL' if self.uses_sasl else 'SSL'}?"
            )
        if (self.key_file or self.key_password) and self.certificate_file is None:
            raise ValueError("a private key needs certificate_file")
        return self


ClientId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,200}$")]


class ConnectionSettings(Section):
    """How connections are made."""

    client_id: ClientId = Field(
        default="twinsite",
        description="Name of the mirror, or of the relay, in the brokers' logs, metrics and quotas.",
    )
    security: SecuritySettings = Field(
        default_factory=SecuritySettings, description="How a connection is protected."
    )
    request_timeout_seconds: Seconds = Field(
        default=30.0,
        ge=1,
        le=600,
        description="A connection on which an answer is due is given up if no byte arrives for this long. An "
        "answer that arrives slowly may take ten times as long.",
    )
    connect_timeout_seconds: Seconds = Field(
        default=10.0,
        ge=0.1,
        le=120,
        description="Timeout of opening a connection, including TLS and login. A token is requested before "
        "that.",
    )
    metadata_refresh_seconds: Seconds = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="Metadata of the cluster is read again when it is this old.",
    )

    @property
    def servers(self) -> tuple[str, ...]:
        """Where to begin: any one that answers is enough."""
        raise NotImplementedError


class ClusterSettings(ConnectionSettings):
    """One Kafka cluster."""

    bootstrap_servers: Addresses = Field(
        description="HOST:PORT of some brokers, as a list or with commas; one that answers is enough."
    )

    @property
    def servers(self) -> tuple[str, ...]:
        return self.bootstrap_servers


class LinkSettings(ConnectionSettings):
    """The source, reached through relays next to it."""

    client_id: ClientId = Field(
        default="twinsite",
        description="Name of the mirror in the brokers' logs, metrics and quotas, for requests that a relay "
        "passes on. A relay fetches what is copied under a name of its own, cluster.client_id in its "
        "settings.",
    )
    relays: Addresses = Field(
        description="HOST:PORT of relays, as a list or with commas; one that answers is enough."
    )

    window_bytes: Bytes = Field(
        default=16 * MIB,
        ge=256 * KIB,
        le=GIB,
        description="Compressed bytes that may be in flight: more than the link carries in a round trip, for "
        "example 15 MB at 400 Mbit/s and 300 ms. When the target is slower than the link, this much memory "
        "is used on top of limits.",
    )
    compression: Literal["auto"] | Annotated[Whole, Field(ge=1, le=19)] = Field(
        default="auto",
        description="zstd level for partitions that are behind. auto raises it while the link is full, and "
        "lowers it while a core of the relay is; it stays within listen.level_max of the relay, and does not "
        "compress at all while the relay is less than half a millisecond away and the link is not full. From "
        "level 3 on, and with auto where that makes less, repetitions are searched for over 16 MiB, not only "
        "nearby. Partitions that are caught up are sent at level 2, with this search; over 4 MiB where "
        "several mirrors share them.",
    )
    recode: Literal["auto", "never"] = Field(
        default="auto",
        description="Whether the relay may decompress lz4, gzip and snappy batches for the link, where zstd "
        "halves them again. Next to the target they are compressed to the same bytes again, as their CRC "
        "shows. Where that is not possible they are sent as they are: batches of encoders other than Kafka's "
        "and librdkafka's, gzip of a level other than 6 (or 1 or 9, where its header says so), and "
        "librdkafka's snappy. A core makes 40 to 80 MB/s of gzip: never is faster above some 200 Mbit/s.",
    )

    connections: Literal["auto"] | Annotated[Whole, Field(ge=1, le=64)] = Field(
        default="auto",
        description="TCP connections to the relay. One is for partitions that are caught up; from 3 on they "
        "have a second one, so that they do not wait for lost packets. The others are for partitions that "
        "are behind. auto is 3 where the relay's kernel has BBR, which does not mistake a lost packet for a "
        "full link, else 16; and more where the relay finds that windows or buffers of the kernels are too "
        "small for the link. The address of a relay should always lead to the same relay.",
    )
    limits: tuple[RateLimitSettings, ...] = Field(
        default=(),
        description="The most that the relay sends this mirror of what is copied; of several limits the "
        "first that applies now. The relay may have limits of its own.",
    )
    topics_first: tuple[Pattern, ...] = Field(
        default=(),
        description="Regular expressions; topics whose whole name matches one catch up before others. Before "
        "these go records that retention would remove within an hour, or tombstones that compaction would, "
        "and partitions that were caught up until two minutes ago; before all go partitions that are caught "
        "up.",
    )
    topics_last: tuple[Pattern, ...] = Field(
        default=(), description="Likewise; these catch up when no others have to."
    )

    @property
    def servers(self) -> tuple[str, ...]:
        return self.relays

    @model_validator(mode="before")
    @classmethod
    def _no_login(cls, section: Any) -> Any:
        """Before the section is checked as one for brokers, which would ask for the login that is missing."""
        security = section.get("security") if isinstance(section, Mapping) else None
        if not isinstance(security, Mapping):
            return section
        by_certificates = "a relay identifies mirrors by their certificates"
        protocol = security.get("protocol")
        if protocol in get_args(Protocol) and protocol not in get_args(ProtocolOfRelays):
            raise ValueError(f"{by_certificates}: security.protocol must be PLAINTEXT or SSL")
        if "sasl" in security:
            raise ValueError(f"{by_certificates}: remove security.sasl, even if it is null")
        return section

    @field_serializer("security", mode="wrap")
    def _show_no_login(
        self, security: SecuritySettings, show: SerializerFunctionWrapHandler
    ) -> dict[str, Any]:
        return {name: value for name, value in show(security).items() if name != "sasl"}


def without_login(security: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of :class:`SecuritySettings`, of which a relay is told no login."""
    properties = {name: found for name, found in security["properties"].items() if name != "sasl"}
    properties["protocol"] = properties["protocol"] | {"enum": [*get_args(ProtocolOfRelays)]}
    return {**security, "title": "LinkSecuritySettings", "properties": properties}


def security_warnings(name: str, security: SecuritySettings) -> list[str]:
    """What is allowed and better avoided on the way to a cluster, one sentence each.

    Args:
        name: Where the cluster stands in the settings.
    """
    sasl = security.sasl
    endpoint = sasl.token_endpoint if sasl else None
    secrets = {
        "key_password": security.key_password,
        "sasl.password": sasl.password if sasl else None,
        "sasl.token": sasl.token if sasl else None,
        "sasl.token_endpoint.client_secret": endpoint.client_secret if endpoint else None,
    }
    found = [
        f"{name}.security.{path}: the secret is in the settings; use {{file: PATH}} or {{env: NAME}}"
        for path, secret in secrets.items()
        if secret is not None and secret.value is not None
    ]
    if security.protocol == "SASL_PLAINTEXT" and sasl and sasl.mechanism in {"PLAIN", "OAUTHBEARER"}:
        found.append(f"{name}.security: {sasl.mechanism} over SASL_PLAINTEXT sends the secret in the clear")
    if security.uses_tls and not security.verify_hostname:
        found.append(f"{name}.security.verify_hostname: false accepts any certificate the authority signed")
    return found
