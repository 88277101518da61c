"""The status of a flow as JSON, and back: one document, its version in ``schema``.

Fields are those of :class:`mirror.model.FlowStatus`; null is unknown, never zero. A
version only ever gains fields; removing one, or changing its meaning, takes a new version.

docs/status.schema.json is the output of :func:`json_schema`, which a test checks. To write
it again: ``python -m mirror.api.schema > docs/status.schema.json``.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from mirror.errors import TwinsiteError
from mirror.model import FlowStatus

SCHEMA = 1

_ADAPTER = TypeAdapter(FlowStatus)

JsonObject = dict[str, Any]
T = TypeVar("T")


class UnreadableStatusError(TwinsiteError):
    """The document is not a status that this version can read."""

    hint = "check that a mirror answers there, and that it has the same version"


def status_to_json(status: FlowStatus) -> JsonObject:
    """The document, ready for ``json.dumps``."""
    return {"schema": SCHEMA, **_ADAPTER.dump_python(status, mode="json")}


def status_from_json(document: object) -> FlowStatus:
    """Read a document of this version; fields it does not know, of a later mirror, are left out.

    Raises:
        UnreadableStatusError: It is not an object, not of a mirror, or of another version, or a field is
            missing or of a wrong type.
    """
    version = document.get("schema") if isinstance(document, dict) else None
    if isinstance(document, dict) and document.get("kind") is not None:
        words = f"what answers there is a {str(document['kind'])[:20]}, not a mirror"
        raise UnreadableStatusError(words, hint="ask the port of a mirror, see api.port in its settings")
    if version != SCHEMA:
        raise UnreadableStatusError(f"status document: schema {version!r}, this version reads {SCHEMA}")
    return fitted(_ADAPTER, document, "status document")


def fitted(adapter: TypeAdapter[T], document: object, what: str) -> T:
    """A document as a dataclass.

    Args:
        what: What the document is, for the error.

    Raises:
        UnreadableStatusError: A field is missing or of a wrong type.
    """
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableStatusError(f"{what}: {where}: {first['msg']}") from error


def json_schema() -> JsonObject:
    """JSON Schema (2020-12) of the document, strict: a field it does not name is an error."""

    # Not at module level, which every start would pay for: pydantic reads the source of each class it holds.
    @checked_dataclass(config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
    class Documented:
        """Lends its settings to the schema of what it holds."""

        status: FlowStatus

    version = {"schema": {"const": SCHEMA, "description": "Version of this document."}}
    return described(Documented, "FlowStatus", "twinsite status", version)


def described(holder: type, held: str, title: str, more: JsonObject) -> JsonObject:
    """The schema of a document that consists of some properties and the fields of a dataclass.

    Args:
        holder: A class with one field of that dataclass; its pydantic configuration applies.
        held: The name of the dataclass.
        more: The properties that precede the fields.
    """
    schema = TypeAdapter(holder).json_schema(mode="serialization")
    definitions = schema["$defs"]
    of_it = definitions.pop(held)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": of_it["description"],
        "type": "object",
        "properties": more | of_it["properties"],
        "required": [*more, *of_it["properties"]],
        "additionalProperties": False,
        "$defs": definitions,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
