"""Why settings are refused, in words for who wrote them: path, value, reason, and the way out.

Values of secrets, of keys that are not known and of whole sections are never repeated.

A leaf: it imports only leaves.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mirror.config_values import show_bytes
from mirror.errors import UsageError

SHOWN_CHARACTERS_MAX = 60
PROBLEMS_SHOWN_MAX = 20
HINT = "docs/settings.md lists every setting with its range; 'twinsite config schema' is for editors"

_SECRET = re.compile(r"passw|secret|token|sasl|username", re.IGNORECASE)
_NUMBERED = re.compile(r"\.(\d+)(?=\.|$)")

Model = type[BaseModel]


M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], document: Mapping[str, Any], *, where: str, folder: Path | None) -> M:
    """Settings from a document.

    Args:
        where: What the document is called in errors.
        folder: Where relative paths of files count from; the working directory where it is None.

    Raises:
        UsageError: Something is not accepted; names each path, value and reason.
    """
    try:
        return model.model_validate(document, context={"folder": folder})
    except ValidationError as error:
        raise explain(error, model, where) from None


def explain(error: ValidationError, model: Model, where: str) -> UsageError:
    """The refusal of a document, one line for each thing that is wrong with it."""
    details = _one_each(_causes(error.errors(include_url=False)), model)
    lines = [_line(detail, model) for detail in details]
    if len(lines) == 1:
        return UsageError(f"{where}: {lines[0]}", hint=HINT)
    shown = lines[:PROBLEMS_SHOWN_MAX]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return UsageError("\n  ".join([f"{where}: {len(lines)} settings are not accepted:", *shown]), hint=HINT)


def _causes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without lists that are too short only because an entry of theirs is not accepted."""
    inner = {detail["loc"][:-1] for detail in details}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in inner]


def _one_each(details: list[ErrorDetails], model: Model) -> list[ErrorDetails]:
    """A value that may be written in several ways has a reason for each: here they are one sentence."""
    of_settings: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in details:
        of_settings.setdefault(_setting(detail["loc"], model), []).append(detail)
    return [
        found[0] if found[0]["loc"] == path else _joined(path, found) for path, found in of_settings.items()
    ]


def _setting(path: tuple[int | str, ...], model: Model) -> tuple[int | str, ...]:
    """Without the way in which its value could have been written."""
    for at in range(1, len(path)):
        section = _section(path[: at - 1], model)
        field = section.model_fields.get(str(path[at - 1])) if section else None
        if field is not None and _ways(field.annotation) > 1:
            return path[:at]
    return path


def _ways(annotation: Any) -> int:
    several = get_origin(annotation) in {Union, types.UnionType}
    return sum(part is not types.NoneType for part in get_args(annotation)) if several else 1


def _joined(path: tuple[int | str, ...], found: list[ErrorDetails]) -> ErrorDetails:
    """Whatever is wrong besides the kind of value says most: another way was not meant then."""
    reasons = [_reason(detail) for detail in found]
    kinds = " or ".join(reason.removeprefix(KIND) for reason in reasons)
    reason = next((reason for reason in reasons if not reason.startswith(KIND)), KIND + kinds)
    return {**found[0], "type": "value_error", "loc": path, "ctx": {"error": reason}}


def _line(detail: ErrorDetails, model: Model) -> str:
    path = [part for part in detail["loc"] if part != "[key]"]
    if detail["type"] == "extra_forbidden":
        return f"{show_path(path)}: there is no such setting{_nearest(path, model)}"
    if detail["type"] == "missing":
        return f"{show_path(path)}: is missing ({_description(path, model)})"
    reason = _reason(detail)
    value = _value(path, detail)
    if not path:
        return reason
    return f"{show_path(path)}: {value} {reason}" if value else f"{show_path(path)}: {reason}"


def show_path(path: Sequence[int | str]) -> str:
    """``topics.include[0]`` for ``('topics', 'include', 0)``."""
    return _NUMBERED.sub(r"[\1]", ".".join(str(part) for part in path))


# -- the reason ----------------------------------------------------------------------------------------

KIND = "must be "

_REASONS: dict[str, str | Callable[[dict[str, Any]], str]] = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a section with keys and values",
    "path_type": "must be the path of a file",
    "too_short": "must have at least one entry",
    "string_too_short": "must not be empty",
    "literal_error": lambda context: _one_of(str(context["expected"])),
    "string_pattern_mismatch": lambda context: f"must match {context['pattern']}",
    "value_error": lambda context: str(context["error"]),
}


def _reason(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if detail["type"] in {"greater_than_equal", "less_than_equal"}:
        return _out_of_range(detail["type"], context, str(detail["loc"][-1]))
    reason = _REASONS.get(detail["type"], detail["msg"])
    return reason if isinstance(reason, str) else reason(context)


def _one_of(expected: str) -> str:
    return f"must be one of {expected.replace(' or ', ', ')}" if " or " in expected else f"must be {expected}"


def _out_of_range(kind: str, context: dict[str, Any], name: str) -> str:
    low = kind == "greater_than_equal"
    bound = context["ge" if low else "le"]
    words = show_bytes(bound) if "bytes" in name else f"{bound:g}" if isinstance(bound, float) else str(bound)
    return f"is too small: at least {words}" if low else f"is too large: at most {words}"


def _value(path: Sequence[int | str], detail: ErrorDetails) -> str:
    """What was given, where it is short, plain and surely no secret."""
    value = detail.get("input")
    if any(_SECRET.search(str(part)) for part in path) or detail["type"] == "model_type":
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and "@" not in value:
        return repr(value) if len(value) <= SHOWN_CHARACTERS_MAX else f"{value[:SHOWN_CHARACTERS_MAX]!r}..."
    if value is None:
        return "null"
    return str(value) if isinstance(value, int | float) else ""


# -- the nearest setting -------------------------------------------------------------------------------


def models_in(annotation: Any) -> Iterator[Model]:
    """The sections that a field's type speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in {Union, types.UnionType}:
        for part in get_args(annotation):
            yield from models_in(part)


def _section(path: Sequence[int | str], model: Model) -> Model | None:
    for part in path:
        field = model.model_fields.get(str(part))
        inner = next(models_in(field.annotation), None) if field else None
        if inner is None:
            return None
        model = inner
    return model


def _description(path: Sequence[int | str], model: Model) -> str:
    section = _section(path[:-1], model)
    field = section.model_fields.get(str(path[-1])) if section else None
    words = (field.description if field else None) or "it has no default"
    return re.split(r"[;.] ", words, maxsplit=1)[0].rstrip(".")


def _nearest(path: Sequence[int | str], model: Model) -> str:
    """``; did you mean ...`` where a setting of the same section, or of another, has a like name."""
    name = str(path[-1])
    section = _section(path[:-1], model)
    beside = difflib.get_close_matches(name, section.model_fields if section else (), n=1)
    if beside:
        return f"; did you mean {show_path([*path[:-1], beside[0]])}?"
    elsewhere = {inner.rsplit(".", 1)[-1]: inner for inner in reversed(list(paths(model)))}
    found = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.7)
    return f"; did you mean {elsewhere[found[0]]}?" if found else ""


def paths(model: Model, above: str = "") -> Iterator[str]:
    """The paths of all settings, sections included, in the order they are written in."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        for inner in models_in(field.annotation):
            yield from paths(inner, f"{above}{name}.")
