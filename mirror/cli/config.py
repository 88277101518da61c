"""``twinsite config``: look at settings without starting anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import BaseModel

from mirror import config as settings_module
from mirror.cli.output import print_json
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
    """Look at settings; nothing is started and no broker is asked."""


@config.command()
@config_option
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def show(path: Path, output: str) -> None:
    """Print the settings of a file with all defaults; secrets as ***.

    \b
    twinsite config show --config flow.yaml -o json
    """
    settings = settings_module.load(path)
    if output == "json":
        print_json(settings_module.shown(settings))
    else:
        click.echo(settings_module.shown_as_yaml(settings), nl=False)


@config.command()
@config_option
def validate(path: Path) -> None:
    """Check a file: ends with 0 when it is accepted, with 2 and the reasons when it is not.

    Files and variables it names that are not there are warnings: the mirror may run elsewhere.

    \b
    twinsite config validate --config flow.yaml
    """
    settings = settings_module.load(path)
    for sentence in (*settings_module.warnings(settings), *_missing(settings)):
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"{path}: accepted, flow {settings.flow}")


def _missing(section: BaseModel, above: str = "") -> Iterator[str]:
    """What the settings name and this machine does not have, one sentence each."""
    for name in type(section).model_fields:
        value, path = getattr(section, name), f"{above}{name}"
        if isinstance(value, BaseModel):
            yield from _missing(value, f"{path}.")
            continue
        file = value.path if isinstance(value, SecretSource) else value
        if isinstance(file, Path) and not file.is_file():
            yield f"{path}: there is no file {file} on this machine"
        variable = value.variable if isinstance(value, SecretSource) else None
        if variable is not None and variable not in os.environ:
            yield f"{path}: environment variable {variable} is not set here"


@config.command()
def schema() -> None:
    """Print the JSON Schema of settings files, for editors.

    \b
    twinsite config schema > twinsite.schema.json
    """
    print_json(settings_module.json_schema())


@config.command()
def docs() -> None:
    """Print docs/settings.md.

    \b
    twinsite config docs > docs/settings.md
    """
    from mirror.cli.settings_page import page

    click.echo(page(), nl=False)
