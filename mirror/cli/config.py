"""``twinsite config``: look at settings without starting anything."""

from __future__ import annotations

from pathlib import Path

import click

from mirror import config as settings_module
from mirror.cli.output import print_json

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

    \b
    twinsite config validate --config flow.yaml
    """
    settings = settings_module.load(path)
    for sentence in settings_module.warnings(settings):
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"{path}: accepted, flow {settings.flow}")


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
