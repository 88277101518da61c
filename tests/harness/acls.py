"""The permissions page as data: what it grants, and what it says each request needs.

Tests grant what the page tells an operator to grant, so the page cannot be wrong unnoticed.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
ROW = re.compile(
    r"^\| (?P<apis>\w+) \| (?P<operation>\w+) \| (?P<kind>topic|transactional-id|cluster) \|$", re.MULTILINE
)
CLUSTER = "kafka-cluster"


class Grant(NamedTuple):
    """One right of one principal; ``kind`` is topic, transactional-id or cluster, as in kafka-acls."""

    principal: str
    operation: str
    kind: str
    name: str
    prefixed: bool = False

    def binding(self) -> AclBinding:
        kinds = {"topic": ResourceType.TOPIC, "cluster": ResourceType.BROKER}
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        operation = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).upper()]
        kind = kinds.get(self.kind, ResourceType.TRANSACTIONAL_ID)
        return AclBinding(kind, self.name, pattern, self.principal, "*", operation, AclPermissionType.ALLOW)


def grants_on_the_page(*, without: Sequence[str] = (), only: Sequence[str] = ()) -> list[Grant]:
    """Every right of every command on the page.

    Args:
        without: Titles of sections whose commands are left out.
        only: Titles of the sections that count; empty: all.
    """
    sections = re.split(r"^#+ (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = set(only or sections[1::2]) - set(without)
    texts = [text for title, text in zip(sections[1::2], sections[2::2], strict=True) if title in chosen]
    return [grant for text in texts for block in COMMANDS.findall(text) for grant in _grants(block)]


def rights_on_the_page() -> dict[str, tuple[str, str]]:
    """The page's table of requests: from API to operation and kind of resource."""
    return {
        row["apis"]: (row["operation"], row["kind"]) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))
    }


def _grants(block: str) -> Iterator[Grant]:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if not words:
            continue
        assert words[:2] == ["kafka-acls", "--add"], line
        options = [(word, words[at + 1]) for at, word in enumerate(words[:-1]) if word.startswith("--")]
        one = dict(options)
        kind = next(k for k in ("topic", "transactional-id", "cluster") if f"--{k}" in words)
        name = CLUSTER if kind == "cluster" else one[f"--{kind}"]
        prefixed = one.get("--resource-pattern-type") == "prefixed"
        for option, value in options:
            if option == "--operation":
                yield Grant(one["--allow-principal"], value, kind, name, prefixed)


def allow(admin: AdminClient, grants: Sequence[Grant]) -> None:
    """Grant, and wait until the controller has it."""
    for done in admin.create_acls([grant.binding() for grant in grants]).values():
        done.result()


def allow_nothing(admin: AdminClient, principal: str) -> None:
    """Take every right of a principal away."""
    for done in admin.delete_acls([_all_of(principal)]).values():
        done.result()


def allow_only(admin: AdminClient, principal: str, grants: Sequence[Grant], seconds: float = 10.0) -> None:
    """Take every right of a principal away, grant these, and wait until the broker knows of it."""
    allow_nothing(admin, principal)
    if grants:
        allow(admin, grants)
    until = time.monotonic() + seconds
    while set(admin.describe_acls(_all_of(principal)).result()) != {grant.binding() for grant in grants}:
        assert time.monotonic() < until, f"the broker does not know what {principal} may do"
        time.sleep(0.02)


def _all_of(principal: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
