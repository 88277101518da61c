"""Files of TLS that settings name, looked at before anything is started, which would refuse them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mirror.config import ConnectionSettings, Settings
from mirror.config_relay import RelaySettings
from mirror.errors import AuthenticationError
from mirror.kafka.certificates import expired
from mirror.kafka.security import Security
from mirror.kafka.tls import TlsOptions, make_context, make_server_context
from mirror.relay.files import tls_of


class Use(NamedTuple):
    """A use of TLS: where it stands in the settings, its files, and what is made of them."""

    path: str
    options: TlsOptions
    make: Callable[[TlsOptions], object]

    @property
    def is_here(self) -> bool:
        """Whether all its files can be read here, and the variable of its password is set."""
        password = self.options.key_password
        variable = password.variable if password else None
        return not any(map(why_unreadable, self.options.files)) and (
            variable is None or variable in os.environ
        )


def of_no_use(settings: Settings | RelaySettings) -> Iterator[str]:
    """What is wrong with the files of TLS that are here, one sentence each."""
    for use in filter(lambda one: one.is_here, _uses(settings)):
        try:
            use.make(use.options)
        except AuthenticationError as error:
            yield f"{use.path}: {error}"
        for file in (use.options.certificate_file, use.options.ca_file):
            if file is not None:
                yield from (f"{use.path}: {file}: {one}" for one in expired(file))


def _uses(settings: Settings | RelaySettings) -> Iterator[Use]:
    if isinstance(settings, RelaySettings):
        yield from _of_way("cluster", settings.cluster)
        if settings.listen.certificate_file is not None:
            yield Use("listen", tls_of(settings.listen), make_server_context)
        return
    yield from _of_way("source" if settings.link is None else "link", settings.way_to_source)
    yield from _of_way("target", settings.target)


def _of_way(name: str, way: ConnectionSettings) -> Iterator[Use]:
    security = Security.from_settings(way.security)
    if security.uses_tls:
        yield Use(f"{name}.security", security.tls, make_context)


def why_unreadable(file: Path) -> str:
    """Why this user cannot read a file; empty if they can. The mirror may run as another user."""
    try:
        there = file.is_file()
    except OSError as error:
        return f"file {file} cannot be accessed here: {error.strerror}"
    if not there:
        return f"there is no file {file} on this machine"
    return "" if os.access(file, os.R_OK) else f"this user may not read file {file}"
