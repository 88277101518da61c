"""What all commands share for their output: JSON, tables, numbers for people.

Words from brokers and names of topics come from outside: their control characters never
reach a terminal, and nothing in them is interpreted as markup.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import click
from rich.console import Console
from rich.text import Text

from mirror.cli.words import clean as clean
from monitoring.durations import duration as duration

PIPE_COLUMNS = 1000
"""Width of tables without a terminal: nothing is cut off."""

output_option: Callable[[Any], Any] = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people, or one JSON document.",
)


class Finite(click.FloatRange):
    """A finite number in a range. A plain range lets nan pass, as every comparison with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def print_json(document: object, *, indent: int | None = 2) -> None:
    """One document on standard output."""
    click.echo(json.dumps(document, indent=indent, ensure_ascii=False))


def console(stream: TextIO | None = None) -> Console:
    """A rich console, on standard output if None; no colours without a terminal, or if NO_COLOR is set."""
    stream = stream or sys.stdout
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else PIPE_COLUMNS
    return Console(
        file=stream,
        width=width,
        no_color=not colors,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def can_redraw(screen: Console) -> bool:
    """Whether output can be overwritten: on a terminal that can move its cursor."""
    return screen.is_terminal and not screen.is_dumb_terminal


def plain(words: object, style: str = "") -> Text:
    """Words from outside as a cell: no markup, no control characters."""
    return Text(clean(words), style=style)


def number(value: float | None) -> str:
    """``1 234 567``; a question mark if it is not known."""
    if value is None:
        return "?"
    words = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"  # a float rounds offsets
    return words.replace(",", " ")


def size(count: float) -> str:
    """``1.2 GB``: decimal units, as disks and networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
