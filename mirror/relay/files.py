"""The files with which a relay shows who it is, and by which it knows mirrors."""

from __future__ import annotations

from mirror.config_relay import ListenSettings
from mirror.kafka.tls import TlsOptions


def tls_of(listen: ListenSettings) -> TlsOptions:
    """What the settings say about TLS on the port for mirrors."""
    return TlsOptions(
        ca_file=listen.client_ca_file,
        certificate_file=listen.certificate_file,
        key_file=listen.key_file,
        key_password=listen.key_password,
    )
