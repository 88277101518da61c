"""TLS contexts, made again when their files change.

A certificate that was rotated on disk is used by the next connection; open ones
stay as they are. TLS 1.2 is the minimum (1.3 on our own ports), and only the given
authorities are trusted (the system's where none are given).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from mirror.errors import AuthenticationError, TlsRefusedError
from mirror.kafka.certificates import valid_until
from mirror.kafka.secret import SecretSource

PEM_HINT = (
    "only PEM is read; openssl x509 -inform DER converts a certificate in DER, "
    "openssl pkcs12 what a .p12 or .pfx file holds"
)

Fingerprint = tuple[tuple[int, int, int, int] | None, ...]
"""Device, inode, size and modification time of each file; None for a file that cannot be seen."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What is shown to the broker and what is required of it.

    Attributes:
        ca_file: PEM file of the authorities that may sign the broker's certificate.
        certificate_file: PEM file of our certificate and the chain above it.
        key_file: PEM file of its private key; may be the same file.
        key_password: Opens the private key where it is encrypted.
        check_hostname: Whether the broker's certificate must be valid for the name we connect to.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretSource | None = None
    check_hostname: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        password = self.key_password.path if self.key_password else None
        given = (self.ca_file, self.certificate_file, self.key_file, password)
        return tuple(path for path in given if path is not None)


class ContextCache:
    """Keeps the last context, with the state of its files before they were read."""

    def __init__(self, make: Callable[[TlsOptions], ssl.SSLContext] | None = None) -> None:
        """
        Args:
            make: Makes a context from the files; by default one for connections to brokers.
        """
        self._make = make or make_context
        self._made: tuple[TlsOptions, Fingerprint, ssl.SSLContext] | None = None
        self._valid_until: float | None = None
        self._refused: Fingerprint | None = None
        self._log = structlog.get_logger()

    def get(self, options: TlsOptions) -> ssl.SSLContext:
        """The context for these files as they are now.

        While new files do not fit together yet (half way through a rotation), the last context stays in use.

        Raises:
            AuthenticationError: The files cannot be used, and there is no earlier context for these options.
        """
        seen = _fingerprint(options.files)
        if self._made is not None and self._made[:2] == (options, seen):
            return self._made[2]
        try:
            context = self._make(options)
        except AuthenticationError as error:
            if self._made is None or self._made[0] != options:
                raise
            self._warn_once(seen, error)
            return self._made[2]
        self._made = (options, seen, context)
        self._valid_until = valid_until(options.certificate_file) if options.certificate_file else None
        return context

    def valid_until(self, options: TlsOptions) -> float | None:
        """When the certificate that the next connection will show expires, in seconds since 1970.

        None if it will show none, or if there can be no connection.
        """
        if options.certificate_file is None:
            return None
        try:
            self.get(options)
        except AuthenticationError:
            return None
        return self._valid_until

    def _warn_once(self, seen: Fingerprint, error: AuthenticationError) -> None:
        if seen != self._refused:
            self._refused = seen
            self._log.warning(
                "tls_files_not_usable", reason=str(error), consequence="the earlier files stay in use"
            )


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """A context for connections to brokers.

    Raises:
        AuthenticationError: A file is missing, is not what it should be, or does not fit the others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.check_hostname
    _trust(context, options.ca_file)
    if options.certificate_file is not None:
        _load_certificate(context, options.certificate_file, options.key_file, options.key_password)
    return context


def make_server_context(options: TlsOptions) -> ssl.SSLContext:
    """A context for a port of ours, TLS 1.3 at least.

    Sessions are never resumed: each connection shows its certificate, which is checked against the
    authorities of that moment.

    Args:
        options: What is shown to clients; with a ``ca_file`` clients must show a certificate, too.

    Raises:
        AuthenticationError: A file is missing, is not what it should be, or does not fit the others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    if options.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, options.ca_file)
    if options.certificate_file is not None:
        _load_certificate(context, options.certificate_file, options.key_file, options.key_password)
    return context


def make_listening_context(options: TlsOptions, newest: ContextCache | None = None) -> ssl.SSLContext:
    """A server context that follows its files: each handshake uses the certificate and authorities of then.

    Args:
        newest: Keeps the current context; its contexts are made by :func:`make_server_context`.

    Raises:
        AuthenticationError: As for :func:`make_server_context`, of the files as they are now.
    """
    newest = newest or ContextCache(make_server_context)
    newest.get(options)
    context = make_server_context(options)

    def take_newest(sslobj: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        sslobj.context = newest.get(options)

    context.sni_callback = take_newest
    return context


def _trust(context: ssl.SSLContext, ca_file: Path | None) -> None:
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError as error:
        raise file_not_pem(f"CA file {ca_file}", "certificates") from error
    except OSError as error:
        raise file_not_read(f"CA file {ca_file}", error) from error


def file_not_pem(file: str, lacks: str) -> TlsRefusedError:
    """The error for a file that holds something else, or the right thing in another form."""
    return TlsRefusedError(f"{file} holds no PEM {lacks}", hint=PEM_HINT)


def file_not_read(file: str, error: OSError) -> TlsRefusedError:
    """The error for a file that cannot be read."""
    return TlsRefusedError(f"{file} cannot be read: {error.strerror}")


def _load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path | None, password: SecretSource | None
) -> None:
    for path in (certificate, key):
        _must_be_readable(path)
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        return password.read() if password is not None else ""

    try:
        context.load_cert_chain(certificate, key, passphrase)
    except ssl.SSLError as error:
        raise _not_loaded(error, certificate, key or certificate, asked) from error
    except ValueError as error:
        words = f"the private key in {key or certificate} cannot be opened: {error}"
        raise TlsRefusedError(words) from error


def _must_be_readable(path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise file_not_read(f"file {path}", error) from error


def _not_loaded(error: ssl.SSLError, certificate: Path, key: Path, asked: bool) -> TlsRefusedError:
    if error.reason == "KEY_VALUES_MISMATCH":
        words = f"the private key in {key} does not belong to the certificate in {certificate}"
        return TlsRefusedError(words)
    if asked:
        return TlsRefusedError(f"the private key in {key} cannot be opened: its password is missing or wrong")
    reason = f" ({error.reason})" if error.reason else ""
    words = f"{certificate} and {key} do not hold a PEM certificate and its private key{reason}"
    return TlsRefusedError(words, hint=PEM_HINT)


def _fingerprint(paths: tuple[Path, ...]) -> Fingerprint:
    return tuple(_state(path) for path in paths)


def _state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
