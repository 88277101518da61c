"""Settings files as documents: YAML without surprises.

A key that stands twice is refused (YAML's own reader takes the last in silence), and
an error names line and column, never the text, which may be a secret.

A leaf: it imports only leaves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from mirror.errors import UsageError

FILE_BYTES_MAX = 1024 * 1024


QUOTING = r"indent with spaces, and put regular expressions and secrets in single quotes: 'orders\..*'"
"""What helps with most that YAML's reader complains of, which is not always where the cause is."""
IN_QUOTES = "put it in quotes if it is text"
DUPLICATE = "duplicate key"
KINDS = {"int": "a number", "float": "a number", "bool": "true or false", "timestamp": "a date"}
"""What YAML takes a plain word for, or is told to."""
SIGNS = {
    "found undefined alias": "begins with *",
    "could not determine a constructor": "begins with !",
    "found undefined tag handle": "begins with !",
}
"""What of a plain word is more to YAML than a letter, by how its reader's complaint begins."""
_QUOTED = re.compile(r"'(?:[^\w\s]|\\t)'|'<[a-z -]+>'")
"""What a complaint may quote: a sign, a tab, or YAML's own name of a thing."""


class _Loader(yaml.SafeLoader):
    """The safe loader, without keys that stand twice, and with a place for all that it cannot make."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            name = node.tag.rpartition(":")[2]
            words = f"cannot be read as {KINDS.get(name, name)}: {IN_QUOTES}"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from None

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for at, (key, _) in enumerate(node.value):
            if key.value in keys[:at]:
                raise yaml.constructor.ConstructorError(None, None, DUPLICATE, key.start_mark)
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """The document in a settings file.

    Raises:
        UsageError: It cannot be read, is no YAML, or is not a list of keys and values.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise UsageError(f"{path}: is larger than {FILE_BYTES_MAX} bytes: this is not a settings file")
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes | str, where: str) -> dict[str, Any]:
    """The document in a text; ``where`` is what it is called in errors.

    Raises:
        UsageError: It is no YAML, or is not a list of keys and values.
    """
    try:
        document = yaml.load(content, _Loader)  # noqa: S506  (a safe loader, made stricter)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        spot = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = _in_safe_words(error.problem or "")
        raise UsageError(f"{where}{spot}: {words}", hint=_way_out(words)) from None
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{where}: {_unreadable(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"{where}: is not valid YAML") from None
    if document is None:
        raise UsageError(f"{where}: is empty", hint="docs/settings.md begins with a small example")
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(f"{where}: must consist of keys and values, for example 'flow: east'")
    return document


def _in_safe_words(problem: str) -> str:
    """What YAML's reader complains of, without any of the text: a password may begin with ``!``."""
    for beginning, what in SIGNS.items():
        if problem.startswith(beginning):
            return f"{what}: {IN_QUOTES}"
    quotes = re.search("['\"]", _QUOTED.sub("", problem))
    return "is not valid YAML" if quotes or not problem else problem


def _way_out(words: str) -> str:
    """What helps with a complaint; empty where that is said already, or quotes are not the matter."""
    return "" if words == DUPLICATE or words.endswith(IN_QUOTES) else QUOTING


def _unreadable(error: yaml.reader.ReaderError) -> str:
    if error.encoding == "unicode":
        return f"is not valid YAML: control character at position {error.position}"
    return f"is not valid {error.encoding.upper()} at byte {error.position}: save it as UTF-8"
