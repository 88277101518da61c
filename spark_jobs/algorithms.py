"""With what records are hashed: how strong, and with which salt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SALT_BYTES = 16
"""As many as nobody guesses."""


class Algorithm(StrEnum):
    """In the order of their strength."""

    XXHASH64 = "xxhash64"
    """128 bits, of two xxHash64: finds damage."""
    SHA256 = "sha256"
    """256 bits: finds what was made to look the same, too."""

    @property
    def and_stronger(self) -> tuple[Algorithm, ...]:
        """Those that promise what this one does."""
        known = tuple(Algorithm)
        return known[known.index(self) :]


@dataclass(frozen=True, slots=True)
class Hashing:
    """How both sites of a comparison hash.

    Attributes:
        salt: Hashed with every record, and drawn anew for each comparison: whoever wrote the records did not
            know it.
    """

    algorithm: Algorithm = Algorithm.XXHASH64
    salt: str = ""
