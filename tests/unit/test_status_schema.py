"""The status document: stable, described by a file, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirror.api.schema import UnreadableStatusError, json_schema, status_from_json, status_to_json
from mirror.model import OwnerStatus, TopicLeftOut
from tests.unit.statuses import a_flow, a_link, a_loss, a_partition, an_unknown_partition

HERE = Path(__file__).parent
SCHEMA_FILE = HERE.parents[1] / "docs" / "status.schema.json"

LEFT_OUT = TopicLeftOut("west.orders", "copy_of_target", "flow west-to-east has copied it")
OWNER = OwnerStatus("west-4", 4711, 1_700_000_000_000, "http://west-4:9640")
FLOW = a_flow(
    a_partition(),
    a_loss(),
    an_unknown_partition(),
    link=a_link(),
    topics_left_out=(LEFT_OUT,),
    copied_by=OWNER,
)


def complaints(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Where a document breaks a schema, for the words of JSON Schema that ours uses."""
    known = {"title", "description", "default", "$schema", "$defs", "properties", "required"}
    known |= {"additionalProperties", "items", "type", "anyOf", "enum", "const", "$ref"}
    known |= {"prefixItems", "minItems", "maxItems"}
    assert schema.keys() <= known, f"{at}: this checker does not know {schema.keys() - known}"
    if "$ref" in schema:
        return complaints(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, at)
    if "anyOf" in schema:
        ways = [complaints(value, way, root, at) for way in schema["anyOf"]]
        return [] if [] in ways else [f"{at}: fits none of {len(ways)}"]
    found = [] if _is(value, schema.get("type")) else [f"{at}: {value!r} is no {schema.get('type')}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is not one of the words")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{at}: {len(value)} are too few or too many")
        kinds = schema.get("prefixItems") or [schema["items"]] * len(value)
        for number, (item, kind) in enumerate(zip(value, kinds, strict=False)):
            found += complaints(item, kind, root, f"{at}[{number}]")
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in value]
        found += [f"{at}.{name}: unexpected" for name in value if name not in schema["properties"]]
        for name in value.keys() & schema["properties"].keys():
            found += complaints(value[name], schema["properties"][name], root, f"{at}.{name}")
    return found


def _is(value: Any, kind: str | None) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "boolean": (bool,),
        "integer": (int,),
        "number": (int, float),
        "null": (type(None),),
    }
    if kind is None:
        return True
    return isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool))


def test_the_document_is_word_for_word_the_golden_file() -> None:
    """
    Scripts read these names: taking one away needs a new number in ``schema``.
    """
    golden = json.loads((HERE / "golden" / "status.json").read_text())

    assert status_to_json(FLOW) == golden


def test_the_document_fits_its_schema() -> None:
    """
    The file in docs describes what is sent, field by field, unknown values included.
    """
    schema = json.loads(SCHEMA_FILE.read_text())

    assert complaints(status_to_json(FLOW), schema, schema) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["schema"], 2, "$.schema: 2 is not 1"),
        (["owner"], None, "$.owner: None is no boolean"),
        (["partitions", 0, "state"], "FINE", "$.partitions[0].state: 'FINE' is not one of the words"),
        (["partitions", 1, "lag_seconds"], "1", "$.partitions[1].lag_seconds: fits none of 2"),
        (["partitions", 0, "color"], "red", "$.partitions[0].color: unexpected"),
        (
            ["partitions", 1, "lost_ranges"],
            [[1]],
            "$.partitions[1].lost_ranges[0]: 1 are too few or too many",
        ),
        (
            ["partitions", 1, "lost_ranges"],
            [[1, "2"]],
            "$.partitions[1].lost_ranges[0][1]: '2' is no integer",
        ),
    ],
)
def test_a_document_that_does_not_fit_is_noticed(path: list[Any], value: object, complaint: str) -> None:
    """
    The schema is strict enough to find what is wrong.
    """
    document: Any = status_to_json(FLOW)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value

    schema = json.loads(SCHEMA_FILE.read_text())
    assert complaints(document, schema, schema) == [complaint]


def test_the_schema_file_is_the_one_the_model_gives() -> None:
    """
    A field added to the model is added to the file: ``python -m mirror.api.schema`` writes it.
    """
    assert json.loads(SCHEMA_FILE.read_text()) == json_schema()


def test_fields_carry_the_words_of_the_model() -> None:
    """
    Who reads the schema learns what a figure means.
    """
    partition = json_schema()["$defs"]["PartitionStatus"]["properties"]

    assert partition["lag_seconds"]["description"].startswith("Upper bound of the age")
    assert json_schema()["properties"]["owner"]["description"].startswith("Whether it holds the right")


def test_a_document_read_back_is_the_same_flow() -> None:
    """
    What a mirror sends, the command line shows.
    """
    assert status_from_json(json.loads(json.dumps(status_to_json(FLOW)))) == FLOW


def test_fields_of_a_later_mirror_are_left_out() -> None:
    """
    A version only gains fields, so an older command line reads a newer mirror.
    """
    document = status_to_json(FLOW)
    document["weather"] = "rain"
    document["partitions"][0]["mood"] = 1

    assert status_from_json(document) == FLOW


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "schema None"),
        ({"schema": 2}, "schema 2, this version reads 1"),
        ({"schema": 1}, "flow: Field required"),
        (status_to_json(FLOW) | {"uptime_seconds": "long"}, "uptime_seconds: Input should be a valid number"),
    ],
)
def test_what_is_no_status_is_refused_with_the_place(document: object, words: str) -> None:
    """
    Another service on that port, or another version, is named as what it is.
    """
    with pytest.raises(UnreadableStatusError, match=words):
        status_from_json(document)
