"""``twinsite config``: look at settings without starting anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import BaseModel

from mirror import config as settings_module
from mirror import config_relay
from mirror.cli.output import print_json
from mirror.cli.tls_files import of_no_use, why_unreadable
from mirror.config import Settings
from mirror.config_relay import RelaySettings
from mirror.config_yaml import read_yaml
from mirror.kafka.secret import SecretSource

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="A settings file.",
)


@click.group()
def config() -> None:
    """Look at settings of a mirror or a relay. Nothing is started and no broker is asked."""


def _load(path: Path) -> Settings | RelaySettings:
    """The settings of a file: a relay's if at least half of the sections that tell them apart are."""
    document, folder = read_yaml(path), path.absolute().parent
    of_relay, of_mirror = RelaySettings.model_fields.keys(), Settings.model_fields.keys()
    told = document.keys() & (of_relay ^ of_mirror)
    if told and 2 * len(told & of_relay) >= len(told):
        return config_relay.parse(document, where=str(path), folder=folder)
    return settings_module.parse(document, where=str(path), folder=folder)


@config.command()
@config_option
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def show(path: Path, output: str) -> None:
    """Print the settings of a file with all defaults; secrets as ***.

    \b
    twinsite config show --config flow.yaml -o json
    """
    settings = _load(path)
    if output == "json":
        print_json(settings_module.shown(settings))
    else:
        click.echo(settings_module.shown_as_yaml(settings), nl=False)


@config.command()
@config_option
def validate(path: Path) -> None:
    """Check a file: ends with 0 if it is accepted, with 2 and the reasons if it is not.

    If it names files or variables that do not exist here, or may not be read, that is a warning: it may be
    meant for another machine, or another user. So is a certificate, or an authority's, that has expired, and
    one that does not fit its key.

    \b
    twinsite config validate --config flow.yaml
    twinsite config validate --config relay.yaml
    """
    settings = _load(path)
    if isinstance(settings, RelaySettings):
        avoided, what = config_relay.warnings(settings), f"relay next to {settings.cluster.servers[0]}"
    else:
        avoided, what = settings_module.warnings(settings), f"flow {settings.flow}"
    for sentence in (*avoided, *_missing(settings), *of_no_use(settings)):
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"{path}: accepted, {what}")


def _missing(section: BaseModel, above: str = "") -> Iterator[str]:
    """What the settings name and this machine lacks, one sentence each."""
    for name in type(section).model_fields:
        value, path = getattr(section, name), f"{above}{name}"
        if isinstance(value, BaseModel):
            yield from _missing(value, f"{path}.")
            continue
        file = value.path if isinstance(value, SecretSource) else value
        if isinstance(file, Path) and (why_not := why_unreadable(file)):
            yield f"{path}: {why_not}"
        variable = value.variable if isinstance(value, SecretSource) else None
        if variable is not None and variable not in os.environ:
            yield f"{path}: environment variable {variable} is not set here"


@config.command()
@click.option(
    "--of",
    type=click.Choice(["mirror", "relay"]),
    default="mirror",
    show_default=True,
    help="Whose settings file.",
)
def schema(of: str) -> None:
    """Print the JSON Schema of settings files, for editors.

    \b
    twinsite config schema > twinsite.schema.json
    twinsite config schema --of relay > twinsite-relay.schema.json
    """
    print_json((config_relay if of == "relay" else settings_module).json_schema())


@config.command()
def docs() -> None:
    """Print docs/settings.md.

    \b
    twinsite config docs > docs/settings.md
    """
    from mirror.cli.settings_page import page

    click.echo(page(), nl=False)
