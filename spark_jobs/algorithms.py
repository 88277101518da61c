"""How records are hashed: with which algorithm and which salt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SALT_BYTES = 16
"""Too many to be guessed."""


class Algorithm(StrEnum):
    """In the order of their strength, the weakest first."""

    XXHASH64 = "xxhash64"
    """128 bits, of two xxHash64: finds damage."""
    SHA256 = "sha256"
    """256 bits: finds what was made to look the same as well."""

    @property
    def and_stronger(self) -> tuple[Algorithm, ...]:
        """This one and the stronger ones: all promise what this one does."""
        known = tuple(Algorithm)
        return known[known.index(self) :]


@dataclass(frozen=True, slots=True)
class Hashing:
    """How both sites of a comparison hash.

    Attributes:
        salt: Hashed with every record, and drawn for each comparison, so that nobody who wrote the records
            knew it.
    """

    algorithm: Algorithm = Algorithm.XXHASH64
    salt: str = ""
