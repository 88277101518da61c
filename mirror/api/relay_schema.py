"""The status of a relay as JSON, and back; ``kind`` tells it from that of a mirror.

Fields are those of :class:`mirror.model_relay.RelayStatus`; null is unknown, never zero. As with the status
of a flow, a version only ever gains fields.

docs/relay-status.schema.json is the output of :func:`json_schema`, which a test checks. To write it again:
``python -m mirror.api.relay_schema > docs/relay-status.schema.json``.
"""

from __future__ import annotations

import json
import sys

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from mirror.api.schema import JsonObject, UnreadableStatusError, described, fitted
from mirror.model_relay import RelayStatus

SCHEMA = 1
KIND = "relay"

_ADAPTER = TypeAdapter(RelayStatus)


def relay_to_json(status: RelayStatus) -> JsonObject:
    """The document, ready for ``json.dumps``."""
    return {"schema": SCHEMA, "kind": KIND, **_ADAPTER.dump_python(status, mode="json")}


def is_of_relay(document: object) -> bool:
    """Whether a status document is one of a relay, of whatever version."""
    return isinstance(document, dict) and document.get("kind") == KIND


def relay_from_json(document: JsonObject) -> RelayStatus:
    """Read a document of this version; fields it does not know, of a later relay, are left out.

    Raises:
        UnreadableStatusError: It is of another version, or a field is missing or of a wrong type.
    """
    if document.get("schema") != SCHEMA:
        words = f"status of a relay: schema {document.get('schema')!r}, this version reads {SCHEMA}"
        raise UnreadableStatusError(words, hint="update the side that is older")
    return fitted(_ADAPTER, document, "status of a relay")


def json_schema() -> JsonObject:
    """JSON Schema (2020-12) of the document, strict: a field it does not name is an error."""

    # Not at module level, which every start would pay for: pydantic reads the source of each class it holds.
    @checked_dataclass(config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
    class Documented:
        """Lends its settings to the schema of what it holds."""

        status: RelayStatus

    more = {
        "schema": {"const": SCHEMA, "description": "Version of this document."},
        "kind": {"const": KIND, "description": "That of a mirror has no such field."},
    }
    return described(Documented, "RelayStatus", "twinsite status of a relay", more)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
