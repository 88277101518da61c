"""All settings of a mirror, checked together before anything is started.

A settings file is YAML; every key has a default or is wanted, unknown keys are
refused. docs/settings.md is made from these classes (``twinsite config docs``).

A leaf: it imports only leaves, anyone may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from mirror.config_cluster import (
    ClusterSettings,
    ConnectionSettings,
    LinkSettings,
    SaslSettings,
    SecuritySettings,
    TokenEndpointSettings,
    security_warnings,
    without_login,
)
from mirror.config_flow import (
    ApiSettings,
    AppendSettings,
    LimitsSettings,
    LogSettings,
    Offsets,
    OffsetsSettings,
    ReadSettings,
    TopicsSettings,
)
from mirror.config_limits import limits_warnings
from mirror.config_problems import checked
from mirror.config_values import Seconds, Secret, Section, host_and_port, show_bytes
from mirror.config_yaml import read_yaml


class Settings(Section):
    """One flow: its source, its target, and how it is copied."""

    flow: str = Field(
        default="default",
        pattern=r"^[a-z0-9-]{1,40}$",
        description="Name of the flow: small letters, digits and hyphens, at most 40. Its state at the "
        "target is named after it. Of several mirrors of one flow one copies, and the others stand by.",
    )
    link: LinkSettings | None = Field(
        default=None, description="The source, reached through relays next to it; instead of source."
    )
    source: ClusterSettings | None = Field(
        default=None, validate_default=True, description="The cluster that is read."
    )
    target: ClusterSettings = Field(description="The cluster that is written.")
    topics: TopicsSettings = Field(description="Which topics are copied, and under which names.")
    offsets: Offsets = Field(
        default_factory=OffsetsSettings,
        description="How offsets at the target relate to those of the source.",
    )
    read: ReadSettings = Field(default_factory=ReadSettings, description="How the source is read.")
    append: AppendSettings = Field(default_factory=AppendSettings, description="How the target is written.")
    limits: LimitsSettings = Field(
        default_factory=LimitsSettings, description="Memory for batches in flight."
    )
    on_data_loss: Literal["stop", "continue"] = Field(
        default="stop",
        description="What to do if the source removed records before they were copied: stop the partition "
        "until an operator accepts the loss, or continue after it. The loss is recorded either way.",
    )
    lagging_after_seconds: Seconds = Field(
        default=30.0, ge=0.1, le=86400, description="A partition further behind than this is LAGGING."
    )
    retention_near_seconds: Seconds = Field(
        default=86400.0,
        ge=0,
        le=31_536_000,
        description="A partition warns (retention_near) if, at the current pace, the source's retention will "
        "remove uncopied records within this time, and the copy will not have caught up in half of the time "
        "until then. It warns likewise (compaction_near) of tombstones that compaction may remove, once half "
        "of the time for which they are kept is used up.",
    )
    api: ApiSettings = Field(
        default_factory=ApiSettings, description="The port for people, probes and Prometheus."
    )
    log: LogSettings = Field(default_factory=LogSettings, description="Log lines go to standard error.")

    @property
    def way_to_source(self) -> ConnectionSettings:
        """Its brokers, or relays next to it."""
        way = self.link or self.source
        assert way is not None, "checked"
        return way

    @field_validator("source", mode="after")
    @classmethod
    def _one_way(cls, source: ClusterSettings | None, info: ValidationInfo) -> ClusterSettings | None:
        link = info.data.get("link")
        if source is None and link is None and "link" in info.data:
            raise PydanticCustomError("missing", "is missing")
        if source is not None and link is not None:
            raise ValueError("cannot be combined with link, whose relays reach it: remove one of them")
        return source

    @model_validator(mode="after")
    def _two_clusters(self) -> Self:
        shared = {*self.way_to_source.servers} & {*self.target.bootstrap_servers}
        if shared and self.topics.names == "identity":
            raise ValueError(
                f"source and target share {', '.join(sorted(shared))}: with names: identity a topic "
                "would be copied into itself"
            )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        """What is asked for at once must fit into what may be held."""
        for smaller, larger in (
            ("read.partition_fetch_bytes_max", "read.fetch_bytes_max"),
            ("read.fetch_bytes_max", "limits.buffer_bytes_max"),
            ("limits.partition_buffer_bytes_max", "limits.buffer_bytes_max"),
        ):
            low, high = self._size(smaller), self._size(larger)
            if low > high:
                raise ValueError(f"{smaller} ({show_bytes(low)}) is above {larger} ({show_bytes(high)})")
        return self

    def _size(self, path: str) -> int:
        section, name = path.split(".")
        value = getattr(getattr(self, section), name)
        assert isinstance(value, int)
        return value


def load(path: Path, *, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read a settings file; ``overrides`` (a document of the same shape) win over what it says.

    Raises:
        UsageError: The file cannot be read, or says something that is not accepted.
    """
    document = merged(read_yaml(path), overrides or {})
    return parse(document, where=str(path), folder=path.absolute().parent)


def parse(document: Mapping[str, Any], *, where: str = "settings", folder: Path | None = None) -> Settings:
    """Settings of a mirror, as :func:`mirror.config_problems.checked` takes them.

    Raises:
        UsageError: Something is not accepted.
    """
    return checked(Settings, document, where=where, folder=folder)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a settings file, for editors and for checking a chart's values."""
    schema = Settings.model_json_schema(mode="validation")
    schema["oneOf"] = [{"required": ["source"]}, {"required": ["link"]}]
    sections = schema["$defs"]
    sections["LinkSecuritySettings"] = without_login(sections["SecuritySettings"])
    sections["LinkSettings"]["properties"]["security"]["$ref"] = "#/$defs/LinkSecuritySettings"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "twinsite settings"}


def merged(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the overrides laid over it, section by section."""
    result = dict(document)
    for key, value in overrides.items():
        below = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if nested else value  # type: ignore[arg-type]
    return result


def shown(settings: Section) -> dict[str, Any]:
    """The settings as a document with all defaults; a secret is its source, or ``***``."""
    document = settings.model_dump(mode="json")
    assert isinstance(document, dict)
    return document


def shown_as_yaml(settings: Section) -> str:
    """The same as :func:`shown`, as a settings file."""
    return yaml.safe_dump(shown(settings), sort_keys=False, allow_unicode=True, width=100)


def warnings(settings: Settings) -> list[str]:
    """What is allowed and better avoided, one sentence each."""
    found = [
        *security_warnings("source" if settings.link is None else "link", settings.way_to_source.security),
        *security_warnings("target", settings.target.security),
    ]
    if settings.link is not None:
        found += limits_warnings("link.limits", settings.link.limits)
        unused = sorted(settings.read.model_fields_set - {"isolation"})
        found += [f"read.{name}: ignored with link: a relay reads with its own bounds" for name in unused]
    if settings.api.remote_control and settings.api.port >= 0:
        found.append("api.remote_control: anyone who reaches the port can pause and resume partitions")
    return found


__all__ = [
    "ApiSettings",
    "AppendSettings",
    "ClusterSettings",
    "ConnectionSettings",
    "LimitsSettings",
    "LinkSettings",
    "LogSettings",
    "OffsetsSettings",
    "ReadSettings",
    "SaslSettings",
    "Secret",
    "SecuritySettings",
    "Settings",
    "TokenEndpointSettings",
    "TopicsSettings",
    "host_and_port",
    "json_schema",
    "load",
    "merged",
    "parse",
    "shown",
    "shown_as_yaml",
    "warnings",
]
