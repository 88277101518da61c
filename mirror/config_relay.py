"""Settings of a relay.

A leaf: it imports only leaves.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from mirror.config_cluster import ClusterSettings
from mirror.config_flow import LogSettings
from mirror.config_values import Address, File, Secret, Section, Whole


class ListenSettings(Section):
    """Where mirrors come in, and how they prove who they are."""

    address: Address = Field(
        default="127.0.0.1:9650", description="HOST:PORT; 0.0.0.0 is every address of this machine."
    )
    certificate_file: File | None = Field(
        default=None,
        description="PEM file of the relay's certificate and the chain above it; none: nothing is encrypted.",
    )
    key_file: File | None = Field(
        default=None, description="PEM file of its private key; may be in certificate_file instead."
    )
    key_password: Secret | None = Field(
        default=None, description="Opens the private key where it is encrypted."
    )
    client_ca_file: File | None = Field(
        default=None,
        description="PEM file of the authorities that sign mirrors' certificates: without such a certificate "
        "nobody is let in.",
    )
    connections_max: Whole = Field(
        default=1000, ge=1, le=100_000, description="Connections to brokers that mirrors may have open."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = [
            name for name in ("key_file", "key_password", "client_ca_file") if getattr(self, name) is not None
        ]
        if given and self.certificate_file is None:
            raise ValueError(f"{', '.join(given)} needs certificate_file: only TLS makes use of it")
        return self


class RelaySettings(Section):
    """A relay next to the source."""

    cluster: ClusterSettings = Field(
        description="The source: the cluster that mirrors read through the relay."
    )
    listen: ListenSettings = Field(default_factory=ListenSettings, description="Where mirrors come in.")
    log: LogSettings = Field(default_factory=LogSettings, description="Log lines go to standard error.")
