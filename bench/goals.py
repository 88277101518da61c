"""Goals, compared with what was found: benches show each of them, and end with 1 where one is missed.

Most are ratios, as machines differ and are noisy. What cannot be compared counts as missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure, and what it should be.

    Attributes:
        wanted: At least this; at most, with ``at_most``.
        found: NaN where nothing could be compared.
        unit: Shown after both figures.
    """

    what: str
    wanted: float
    found: float
    at_most: bool = False
    unit: str = ""

    @property
    def reached(self) -> bool:
        """False where nothing could be compared."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def ratio(one: float, other: float) -> float:
    """``one / other``. Infinite where only ``other`` is 0; NaN where both are 0, or one is NaN."""
    if other:
        return one / other
    return math.inf if one > 0 else math.nan


def table(title: str, goals: Iterable[Goal]) -> Table:
    """Each goal with what was found."""
    shown = Table(title=title)
    for column in ("", "wanted", "found", ""):
        shown.add_column(column, justify="right" if column in {"wanted", "found"} else "left")
    for goal in goals:
        bound = "at most" if goal.at_most else "at least"
        wanted = f"{bound} {goal.wanted:g}{goal.unit}"
        shown.add_row(goal.what, wanted, f"{goal.found:.3g}{goal.unit}", "" if goal.reached else "missed")
    return shown


def end(goals: Sequence[Goal]) -> None:
    """End the command, with 1 where a goal is missed.

    Raises:
        ClickException: A goal is missed; says how many.
    """
    missed = sum(not goal.reached for goal in goals)
    if missed:
        raise click.ClickException(f"{missed} of {len(goals)} goals missed, see the tables")
