"""Settings of a relay.

A leaf: it imports only leaves.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from mirror.config_cluster import ClusterSettings, security_warnings
from mirror.config_flow import LogSettings, Port
from mirror.config_limits import RateLimitSettings, limits_warnings
from mirror.config_problems import checked
from mirror.config_values import Address, File, Host, Pattern, Seconds, Secret, Section, Whole

EVERYTHING = ".*"
RoleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
IdentityName = Annotated[str, Field(min_length=1, max_length=1000)]


class RoleSettings(Section):
    """What a mirror may read through the relay, and how many connections it may have."""

    include: tuple[Pattern, ...] = Field(
        min_length=1,
        description="Regular expressions, as in topics.include of a mirror: a topic may be read if one "
        "matches its whole name; internal topics never. `['.*']` alone, without exclude, is everything that "
        "the relay may read, including internal topics, groups and transactions: every request that only "
        "reads is passed on as it is, and so are the answers.",
    )
    exclude: tuple[Pattern, ...] = Field(
        default=(), description="Regular expressions; a topic may not be read if one matches its whole name."
    )
    connections_max: Whole = Field(
        default=200,
        ge=1,
        le=100_000,
        description="Connections of one identity, including its streams. Each of its mirrors has those of "
        "link.connections, and at least one more than there are brokers; with too few its partitions are "
        "BLOCKED.",
    )
    streams_max: Whole = Field(default=20, ge=1, le=100_000, description="Streams of one identity.")

    @property
    def everything(self) -> bool:
        """Whether there is nothing that it may not read."""
        return self.include == (EVERYTHING,) and not self.exclude


class ListenSettings(Section):
    """Where mirrors connect, and how they authenticate."""

    address: Address = Field(
        default="127.0.0.1:9650", description="HOST:PORT; 0.0.0.0 is every address of this machine."
    )
    certificate_file: File | None = Field(
        default=None,
        description="PEM file with the relay's certificate and its chain. Without it nothing is encrypted.",
    )
    key_file: File | None = Field(
        default=None, description="PEM file with its private key, unless that is in certificate_file."
    )
    key_password: Secret | None = Field(
        default=None, description="Password of the private key, if it is encrypted."
    )
    client_ca_file: File | None = Field(
        default=None,
        description="PEM file with the authorities that sign mirrors' certificates. If it is set, a mirror "
        "without such a certificate is not let in.",
    )
    connections_max: Whole = Field(
        default=1000, ge=1, le=100_000, description="Open connections of all mirrors together."
    )
    streams_max: Whole = Field(
        default=64,
        ge=1,
        le=100_000,
        description="Streams of all mirrors together. One that catches up takes some 30 MB of memory, and up "
        "to twice as much with many brokers or at a level above 9.",
    )
    greeting_timeout_seconds: Seconds = Field(
        default=10.0,
        ge=0.5,
        le=120,
        description="Time that a connection has for TLS, then for its request, then for the first message of "
        "what it has become, such as a stream. One that sends nothing, or only half of it, is ended.",
    )
    level_max: Whole = Field(
        default=9,
        ge=1,
        le=19,
        description="The highest zstd level for partitions that are behind, whatever a mirror asks for "
        "(link.compression); the status says so. auto goes no higher than 9; 19 takes some twenty times as "
        "long, and a hundred megabytes for each stream.",
    )
    roles: dict[RoleName, RoleSettings] = Field(
        default_factory=dict, description="Names of roles, and what each may read; used by identities."
    )
    identities: Annotated[dict[IdentityName, RoleName], Field(min_length=1)] | None = Field(
        default=None,
        description="Names in certificates of mirrors, and the role of each. A mirror with none of these "
        "names is not let in. If not set, all mirrors that client_ca_file lets in may read what the relay "
        "may.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = [
            name for name in ("key_file", "key_password", "client_ca_file") if getattr(self, name) is not None
        ]
        if given and self.certificate_file is None:
            raise ValueError(f"{', '.join(given)} needs certificate_file: only TLS uses it")
        return self

    @model_validator(mode="after")
    def _somebody_has_each_role(self) -> Self:
        if self.identities is None:
            if self.roles:
                raise ValueError("roles needs identities, which say which mirror has which role")
            return self
        if self.client_ca_file is None:
            raise ValueError(
                "identities needs client_ca_file: without certificates mirrors cannot be told apart"
            )
        for identity, role in self.identities.items():
            if role not in self.roles:
                near = difflib.get_close_matches(role, self.roles, n=1)
                meant = (
                    f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self.roles) or 'none'}"
                )
                raise ValueError(f"identities: {identity!r} has role {role!r}, which is not in roles{meant}")
        return self


class RelayApiSettings(Section):
    """The port of a relay for people, probes and Prometheus."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(
        default=9651, ge=-1, le=65535, description="0 takes any free port; null, or -1, turns it off."
    )


class RelaySettings(Section):
    """A relay next to the source."""

    cluster: ClusterSettings = Field(
        description="The source: the cluster that mirrors read through the relay."
    )
    limits: tuple[RateLimitSettings, ...] = Field(
        default=(),
        description="The most that goes to all mirrors together of what is copied; of several limits the "
        "first that applies now. Partitions that are caught up go first, and mirrors take turns.",
    )
    listen: ListenSettings = Field(default_factory=ListenSettings, description="Where mirrors connect.")
    api: RelayApiSettings = Field(
        default_factory=RelayApiSettings, description="The port for people, probes and Prometheus."
    )
    log: LogSettings = Field(default_factory=LogSettings, description="Log lines go to standard error.")


def parse(document: Mapping[str, Any], *, where: str, folder: Path | None = None) -> RelaySettings:
    """Settings of a relay, as :func:`mirror.config_problems.checked` takes them.

    Raises:
        UsageError: Something is not accepted.
    """
    return checked(RelaySettings, document, where=where, folder=folder)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a relay's settings file."""
    schema = RelaySettings.model_json_schema(mode="validation")
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **schema, "title": "twinsite relay settings"}


def warnings(settings: RelaySettings) -> list[str]:
    """What is allowed and better avoided, one sentence each."""
    found, listen = security_warnings("cluster", settings.cluster.security), settings.listen
    found += limits_warnings("limits", settings.limits)
    if listen.key_password is not None and listen.key_password.value is not None:
        better = "use {file: PATH} or {env: NAME}"
        found.append(f"listen.key_password: the secret is in the settings; {better}")
    if listen.certificate_file is None:
        found.append(
            "listen: without certificate_file nothing is encrypted, and anyone who reaches it can read"
        )
    elif listen.client_ca_file is None:
        found.append("listen: without client_ca_file anyone who reaches it can read")
    return found
