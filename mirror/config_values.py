"""Kinds of values in the settings: addresses, sizes, times, patterns, files and secrets.

Each kind says in plain words what it takes; the words become the reason in an error,
so they never repeat the value, which may be a secret in the wrong place.

A leaf: it imports only leaves and the source of a secret.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    InstanceOf,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from mirror.kafka.secret import SecretSource

MASK = "***"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _either_case(words: str) -> str:
    """A pattern that takes words in capitals, too: JSON Schema knows no flag for that."""
    return "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else char for char in words)


_UNITS = {"": 1, "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB}
_SIZE_PATTERN = r"(\d{1,15})\s*" + _either_case("(B|KiB|MiB|GiB)?")
_SIZE = re.compile(_SIZE_PATTERN)
RATE_PATTERN = r"(\d{1,9}(?:\.\d{1,6})?)\s*" + _either_case("(k|M|G)?(bit|") + "B)" + _either_case("/s")
_RATE = re.compile(RATE_PATTERN)
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_OPENING, _CLOSING = "[({", "])}"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>\d{1,5})")


class Section(BaseModel):
    """A part of the settings: frozen, and what it does not know it refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class AlsoTaken:
    """Tells the JSON Schema of another way to write a value, so that editors do not call it wrong."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), self._schema]}


# -- addresses ---------------------------------------------------------------------------------------


def host_and_port(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        ValueError: It is neither, or the host can be none, or the port is not from 1 to 65535.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be HOST:PORT, for example kafka-1.example.org:9092")
    port = int(found["port"])
    if not 1 <= port <= 65535:
        raise ValueError("the port must be from 1 to 65535")
    return _host(found["v6"] or found["name"]), port


def _host(text: str) -> str:
    """What a resolver takes; it would end with an error of its own kind at anything else."""
    try:
        text.encode("idna")
    except UnicodeError:
        raise ValueError("is not a host name: each part between dots has 1 to 63 characters") from None
    return text


def _address(text: str) -> str:
    host_and_port(text)
    return text.strip()


def _listed(value: Any) -> Any:
    """Kafka's own way of writing a list of servers, with commas, is taken too."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Host = Annotated[str, Field(min_length=1), AfterValidator(_host)]
Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[
    tuple[Address, ...],
    Field(min_length=1),
    BeforeValidator(_listed),
    AlsoTaken({"type": "string", "minLength": 1}),
]


# -- sizes, counts and times -------------------------------------------------------------------------


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError("must be a number of bytes, for example 1048576 or 1 MiB")
    return int(found[1]) * _UNITS[(found[2] or "").upper()]


def show_bytes(count: int) -> str:
    """A size as people write it: ``8 MiB``, or plain where it is no whole number of a unit."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return str(count)


def bytes_per_second(value: Any) -> Any:
    """``20 Mbit/s`` is 2 500 000; networks count in powers of ten."""
    if not isinstance(value, str):
        return value
    if re.search(r"b/s\s*$", value, re.IGNORECASE) and "B/" not in value:
        raise ValueError("must be a rate, and b/s is ambiguous: write Mbit/s or MB/s")
    found = _RATE.fullmatch(value.strip())
    if found is None:
        raise ValueError("must be a rate, for example 20 Mbit/s or 2.5 MB/s")
    return round(float(found[1]) * _RATES[(found[2] or "").lower()] / (8 if found[3].lower() == "bit" else 1))


Bytes = Annotated[
    int,
    Field(strict=True),
    BeforeValidator(_bytes),
    AlsoTaken({"type": "string", "pattern": f"^{_SIZE_PATTERN}$"}),
]
Whole = Annotated[int, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


# -- patterns and files ------------------------------------------------------------------------------


def split_patterns(text: str) -> list[str]:
    r"""Split at commas, but not within brackets: ``a{1,2},!b`` is two patterns. ``\,`` is a comma."""
    parts, depth, escaped = [""], 0, False
    for letter in text:
        if not escaped:
            depth = max(0, depth + (letter in _OPENING) - (letter in _CLOSING))
        if letter == "," and not escaped and not depth:
            parts.append("")
        else:
            parts[-1] += letter
        escaped = letter == "\\" and not escaped
    return [part.strip() for part in parts if part.strip()]


def _pattern(text: str) -> str:
    """What matches whole names; a ``!``, by which the command line leaves out, would match nothing."""
    if any(part.startswith("!") for part in split_patterns(text)):
        raise ValueError("has a !, which excludes nothing here: move the pattern after it to exclude")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, OverflowError, Warning) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    except RecursionError:
        raise ValueError("is not a regular expression: its brackets are nested too deeply") from None
    if not text:
        raise ValueError("an empty pattern matches nothing")
    if text != text.strip():
        raise ValueError("begins or ends with white space, which no topic name contains: remove it")
    return text


def _file(value: Any, info: ValidationInfo) -> Any:
    """A relative path counts from the folder of the settings file."""
    folder = (info.context or {}).get("folder")
    if isinstance(value, str) and value and folder is not None:
        return Path(folder) / _at_home(Path(value))
    return value


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("begins with an unknown home folder: write the path in full") from None


Pattern = Annotated[str, AfterValidator(_pattern)]
File = Annotated[Path, BeforeValidator(_file)]


# -- secrets -----------------------------------------------------------------------------------------


def _secret(value: Any, info: ValidationInfo) -> SecretSource:
    if isinstance(value, SecretSource):
        return value
    if isinstance(value, str) and value:
        return SecretSource(value=value)
    if isinstance(value, dict) and len(value) == 1:
        [(kind, name)] = value.items()
        if kind == "file" and isinstance(name, str) and name:
            return SecretSource(path=Path(_file(name, info)))
        if kind == "env" and isinstance(name, str) and name:
            return SecretSource(variable=name)
    raise ValueError("a secret must be {file: PATH}, {env: NAME} or a text that is not empty")


def _show_secret(secret: SecretSource) -> Any:
    if secret.path is not None:
        return {"file": str(secret.path)}
    return {"env": secret.variable} if secret.variable is not None else MASK


def _one_of(name: str, words: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "minLength": 1, "description": words}},
        "required": [name],
        "additionalProperties": False,
    }


Secret = Annotated[
    InstanceOf[SecretSource],
    BeforeValidator(_secret),
    PlainSerializer(_show_secret, return_type=Any),
    WithJsonSchema(
        {
            "anyOf": [
                _one_of("file", "A file that holds the secret and nothing else; read again at each use."),
                _one_of("env", "The name of an environment variable."),
                {"type": "string", "minLength": 1, "description": "The secret itself; a file is better."},
            ]
        }
    ),
]
"""Read anew at each use, so that it can be rotated; never shown."""
