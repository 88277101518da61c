"""docs/settings.md, made from the settings themselves so that it is never out of date. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mirror.config import Settings, json_schema
from mirror.config_limits import RateLimitSettings
from mirror.config_problems import Model, models_in
from mirror.config_relay import ListenSettings, RelayApiSettings, RelaySettings, RoleSettings
from mirror.config_values import show_bytes

INTRODUCTION = """\
# Settings

A settings file is YAML. Three settings are wanted, everything else has a default:

```yaml
source:
  bootstrap_servers: [kafka-1.east:9092, kafka-2.east:9092]
target:
  bootstrap_servers: kafka-1.west:9092
topics:
  include: ['orders\\..*', audit]
  exclude: ['.*\\.tmp']
```

`twinsite mirror --config FILE` runs it. Options of the command line win over the file. `twinsite config
validate` checks a file, `twinsite config show` prints it with all defaults and without secrets, `twinsite
config schema` is a JSON Schema for editors. Unknown keys, keys that stand twice and values out of range are
refused, with the path, the value and the reason, before anything is started.

Sizes are bytes, or a text with a unit: `4 MiB`. Times are seconds unless `_ms` is in the name. Regular
expressions are Python's and match whole names. Relative paths of files count from the folder of the
settings file. A secret is `{file: PATH}`, `{env: NAME}` or the text itself; a file is read anew at each use,
so it can be rotated while the mirror runs.

This page is made by `twinsite config docs`.
"""

EXAMPLE = """
## A cluster with TLS and SASL

```yaml
target:
  bootstrap_servers: kafka-1.west:9093
  security:
    protocol: SASL_SSL
    ca_file: /etc/twinsite/west-ca.pem
    sasl:
      mechanism: SCRAM-SHA-512
      username: twinsite
      password: {file: /run/secrets/west-password}
```
"""

RELAY = """
## Through relays

Where relays stand next to the source, a mirror has `link` instead of `source`, and each relay a file of its
own for `twinsite relay --config FILE`, with `cluster` (the same settings as `source`), `log`, `api`, `limits`
and `listen`:

```yaml
link:
  relays: [relay-1.east:9650, relay-2.east:9650]
  security:
    protocol: SSL
    ca_file: /etc/twinsite/link-ca.pem
    certificate_file: /etc/twinsite/mirror-west.pem
```

```yaml
cluster:
  bootstrap_servers: kafka-1.east:9092
listen:
  address: 0.0.0.0:9650
  certificate_file: /etc/twinsite/relay-1.pem
  client_ca_file: /etc/twinsite/link-ca.pem
limits:
  - {rate: 20 Mbit/s, days: mon-fri, hours: '08:00-18:00', zone: Europe/Berlin}
  - {rate: 200 Mbit/s}
```
"""

WHO = """
## Who may read what through a relay

Without `identities` all whom `client_ca_file` lets in may read what the relay may. With them a mirror has
a name, a name has a role, and a role has topics:

```yaml
listen:
  certificate_file: /etc/twinsite/relay-1.pem
  client_ca_file: /etc/twinsite/link-ca.pem
  roles:
    orders: {include: ['orders\\..*'], exclude: ['.*\\.tmp']}
    everything: {include: ['.*'], streams_max: 4}
  identities:
    spiffe://example.org/mirror/west: orders
    mirror-2.west.example.org: orders
    CN=mirror-south,OU=data,O=Example: everything
```

The names of a certificate are, in this order, and the first that is in `identities` counts: the URIs of
its subject alternative names, the DNS names there (in small letters), its subject as RFC 2253 writes it
and as Kafka makes principals of it (`openssl x509 -noout -subject -nameopt RFC2253,utf8,-esc_msb`:
letters that are not of ASCII stand for themselves), and the subject's common name alone, as in
`mirror-south`. A wildcard stands for nobody but itself. The authorities of
`client_ca_file` answer for every one of these names: trust none there that signs for strangers. Who is
refused is told which names his certificate has, and so is the log (`mirror_not_let_in`). A role is that
of the moment in which a connection was made; other settings take a restart of the relay, which mirrors
wait out.

A topic that a role does not have is for its mirrors as if the relay had no right to describe it; what is
passed on to brokers for them is in [permissions.md](permissions.md#through-a-relay).
"""


LESS = {"link.security": ", without `sasl`: `protocol` is `PLAINTEXT` or `SSL`"}
"""What sections do not take of the settings of those that they are like."""


def page() -> str:
    """The whole page."""
    sections = [_section(Settings, "", "The flow")]
    seen: dict[Model, str] = {}
    for path, model in sorted(_sections(Settings, ""), key=lambda one: one[0].startswith("link")):
        if model in seen:
            but = LESS.get(path, "")
            sections.append(
                f"## `{path}`\n\nThe same settings as [`{seen[model]}`](#{_anchor(seen[model])}){but}.\n"
            )
            continue
        seen[model] = path
        sections.append(_section(model, path, f"`{path}`"))
    of_relays = [
        _section(ListenSettings, "listen", "`listen`, of a relay"),
        _section(RoleSettings, "listen.roles", "`listen.roles.NAME`, of a relay"),
        _section(RateLimitSettings, "limits", "`limits`, of a relay or of `link`"),
        _section(RelayApiSettings, "api", "`api`, of a relay"),
    ]
    relay = "\n".join([RELAY, *of_relays])
    return "\n".join([INTRODUCTION, *_without_repeats(sections)]) + EXAMPLE + relay + WHO


def _without_repeats(sections: list[str]) -> Iterator[str]:
    """Of the target only one line: what stands under it is known from the source. Of the link's security
    likewise, as far as there is anything.
    """
    for text in sections:
        if not text.startswith(("## `target.", "## `link.security.")):
            yield text


def _anchor(path: str) -> str:
    return path.replace(".", "")


def _sections(model: Model, above: str) -> Iterator[tuple[str, Model]]:
    for name, field in model.model_fields.items():
        for inner in models_in(field.annotation):
            yield f"{above}{name}", inner
            yield from _sections(inner, f"{above}{name}.")


def _section(model: Model, path: str, title: str) -> str:
    properties = _properties(model)
    lines = [
        _row(name, field, properties[name])
        for name, field in model.model_fields.items()
        if path or not any(models_in(field.annotation))
    ]
    head = [f"## {title}", "", (model.__doc__ or "").strip(), "", "| Setting | Default | Values | Meaning |"]
    return "\n".join([*head, "|---|---|---|---|", *lines, ""])


def _row(name: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    return f"| `{name}` | {_default(name, field)} | {_values(schema, name, field)} | {field.description} |"


@functools.cache
def _schema() -> dict[str, Any]:
    relay = RelaySettings.model_json_schema(mode="validation")
    return json_schema() | {"$defs": relay["$defs"] | json_schema()["$defs"]}


def _properties(model: Model) -> dict[str, Any]:
    schema = _schema()
    found = schema if model is Settings else schema["$defs"][model.__name__]
    properties = found["properties"]
    assert isinstance(properties, dict)
    return properties


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "wanted"
    if field.default is PydanticUndefined:
        return "see below" if any(models_in(field.annotation)) else "none"
    value = field.default
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "<br>".join(f"`{part}`" for part in value)
    if isinstance(value, int) and "bytes" in name:
        return f"`{show_bytes(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _values(schema: dict[str, Any], name: str, field: FieldInfo) -> str:
    """What a value may be, from the field and from the JSON Schema of the setting.

    Null, the text of a secret, and a number with a unit go without saying: the introduction has them.
    """
    parts = [part for part in _forms(schema) if part.get("type") != "null"]
    if any("file" in part.get("properties", {}) for part in parts):
        return "a secret"
    if any(part.get("type") == "integer" for part in parts):
        parts = [part for part in parts if "pattern" not in part]
    return ", or ".join(_form(part, name, field) for part in parts)


def _form(part: dict[str, Any], name: str, field: FieldInfo) -> str:
    """One way to write a value."""
    if "const" in part:
        return f"`{part['const']}`"
    low, high = _bounds(field, part)
    if low is not None and high is not None:
        return f"{_figure(low, name)} to {_figure(high, name)}"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "pattern" in part:
        return f"`{part['pattern']}`".replace("|", "\\|")
    return "a section" if "$ref" in part else _KINDS[part["type"]]


def _forms(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The ways to write a value, the usual one first."""
    if "anyOf" not in schema:
        yield schema
    for part in schema.get("anyOf", ()):
        yield from _forms(part)


def _bounds(field: FieldInfo, schema: dict[str, Any]) -> tuple[float | None, float | None]:
    """Of the field itself, or of the kind of number its type speaks of."""
    low = [found for rule in field.metadata if (found := getattr(rule, "ge", None)) is not None]
    high = [found for rule in field.metadata if (found := getattr(rule, "le", None)) is not None]
    return (low[0], high[0]) if low and high else (schema.get("minimum"), schema.get("maximum"))


_KINDS = {
    "boolean": "`true`, `false`",
    "array": "a list",
    "object": "names and values",
    "string": "text",
    "integer": "a whole number",
}


def _figure(value: float, name: str) -> str:
    return show_bytes(int(value)) if "bytes" in name else f"{value:,.15g}".replace(",", " ")
