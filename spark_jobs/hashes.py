"""Hashes of what records hold, as Spark's own expressions: no Python runs for a record.

The hashed input says where each of its parts ends and which are null: bytes cannot move unnoticed from one
part to the next, and null is not empty. The salt comes first, then numbers, lengths among them, then the
bytes those are the lengths of. Headers are hashed as JSON: Spark compiles that, but no function over arrays.

A hash is a few 64-bit numbers, its *words*, each a column. Spark cannot read bytes as a number, but xxHash64
of exactly eight bytes serves: each of its steps can be undone, so different bytes give different numbers. The
words of SHA-256 are read that way, and lose nothing of it.

Sources: xxHash64 as in Spark's ``xxhash64``; its specification; FIPS 180-4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.algorithms import Algorithm, Hashing

LETTERS = "abcd"
"""One for each word that a hash may have."""
XXHASH64_WORDS = 2
WORD_BYTES = 8
JSON = {"ignoreNullFields": "true"}
"""A value that is null is left out, whatever the session's settings say."""


class Part(NamedTuple):
    """A part of a record.

    Attributes:
        number: The number, or how many bytes there are; never null.
        held: The bytes; None for a number.
    """

    number: Column
    held: Column | None = None


def number(name: str) -> Part:
    """A number that is not null."""
    return Part(F.col(name))


def binary(name: str) -> Part:
    """Bytes, or null."""
    return Part(length(name, -1), F.col(name))


def headers(*, ordered: bool = True) -> Part:
    """The headers of a record; an empty list and null are the same."""
    count = F.coalesce(F.size("headers"), F.lit(0))
    held = F.to_json("headers" if ordered else F.sort_array("headers"), JSON)
    return Part(count, F.when(count > 0, held).cast("binary"))


def length(name: str, without: int) -> Column:
    """How many bytes there are; ``without`` for null."""
    return F.coalesce(F.octet_length(name), F.lit(without))


def hashed(name: str, hashing: Hashing, parts: Sequence[Part]) -> list[Column]:
    """The hash of parts, in columns ``{name}_a``, ``{name}_b`` and so on."""
    numbers = [part.number for part in parts]
    held = [part.held for part in parts if part.held is not None]
    match hashing.algorithm:
        case Algorithm.XXHASH64:
            found = _xxhash64(hashing.salt, [*numbers, *held])
        case Algorithm.SHA256:
            found = _sha256(hashing.salt, numbers, held)
    return [word.alias(f"{name}_{letter}") for letter, word in zip(LETTERS, found, strict=False)]


def words(frame: DataFrame, name: str) -> list[str]:
    """The columns of a frame that hold a hash."""
    return [column for column in frame.columns if re.fullmatch(f"{name}_[{LETTERS}]", column)]


def _xxhash64(salt: str, columns: Sequence[Column]) -> list[Column]:
    """Two xxHash64, with different salts; columns that are null are skipped."""
    return [F.xxhash64(F.lit(f"{salt} {letter}"), *columns) for letter in LETTERS[:XXHASH64_WORDS]]


def _sha256(salt: str, numbers: Iterable[Column], held: Iterable[Column]) -> list[Column]:
    """The whole SHA-256; numbers are text, each followed by a space."""
    head = F.concat_ws(" ", F.lit(salt), *(number.cast("string") for number in numbers), F.lit(""))
    body = (F.coalesce(one, F.lit(b"")) for one in held)
    whole = F.unhex(F.sha2(F.concat(head.cast("binary"), *body), 256))
    starts = range(1, 1 + len(LETTERS) * WORD_BYTES, WORD_BYTES)
    return [F.xxhash64(F.substring(whole, start, WORD_BYTES)) for start in starts]
