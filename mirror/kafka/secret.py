"""Where a password, a passphrase or a token comes from, without anything that could reveal it.

A secret is named by its source and read at every use, so a rotated file needs no
restart. Neither ``repr`` nor an error message contains the value.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from mirror.errors import AuthenticationError

SECRET_BYTES_MAX = 64 * 1024
"""A larger file holds no secret: the path is wrong."""


@dataclass(frozen=True, slots=True)
class SecretSource:
    """One secret. Exactly one of the three is set; :meth:`read` gives the value.

    Attributes:
        path: A file that holds the secret and nothing else; one line break at its end is ignored.
        variable: The name of an environment variable.
        value: The secret itself, for tests and for settings that were read from a protected file.
    """

    path: Path | None = None
    variable: str | None = None
    value: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given = [part for part in (self.path, self.variable, self.value) if part is not None]
        if len(given) != 1:
            raise ValueError("a secret has exactly one source: a file, an environment variable or a value")

    @property
    def where(self) -> str:
        """The source in words, safe to print."""
        if self.path is not None:
            return f"file {self.path}"
        return f"environment variable {self.variable}" if self.variable is not None else "the settings"

    def read(self) -> str:
        """The current secret.

        Raises:
            AuthenticationError: The file cannot be read or is too large, the variable is not set, or the
                secret is empty or not UTF-8 text.
        """
        secret = self._look_up()
        if not secret:
            raise AuthenticationError(f"the secret in {self.where} is empty")
        try:
            secret.encode()
        except UnicodeEncodeError:
            raise AuthenticationError(f"the secret in {self.where} is not UTF-8 text") from None
        return secret

    def _look_up(self) -> str:
        if self.path is not None:
            return _read_file(self.path)
        if self.variable is None:
            return self.value or ""
        if self.variable not in os.environ:
            raise AuthenticationError(
                f"environment variable {self.variable}, meant to hold a secret, is not set"
            )
        return os.environ[self.variable]


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise AuthenticationError(f"the secret in file {path} cannot be read: {error.strerror}") from error
    if len(content) > SECRET_BYTES_MAX:
        raise AuthenticationError(f"file {path} is larger than {SECRET_BYTES_MAX} bytes: not a secret")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise AuthenticationError(f"the secret in file {path} is not UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")
