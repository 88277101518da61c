"""Options for where and how Spark runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options as given on the command line.

    Attributes:
        master: Where Spark runs; None for all cores of this machine.
        jars: Folder with the jars of Spark's Kafka source; None for the usual one.
        settings: Spark's own settings, by name.
    """

    master: str | None
    jars: Path | None
    settings: Mapping[str, str]


class _Setting(click.ParamType[tuple[str, str]]):
    """``spark.driver.memory=4g``."""

    name = "setting"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, wanted = str(value).partition("=")
        if not (name.startswith("spark.") and equals and wanted):
            self.fail(f"{value!r} is not a Spark setting: write it as in spark.driver.memory=4g", param, ctx)
        return name, wanted


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them together, as ``spark_options``."""

    @click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
    @click.option(
        "--spark-jars",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder with the jars of Spark's Kafka source.",
    )
    @click.option(
        "--conf",
        type=_Setting(),
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Spark, as for spark-submit: spark.driver.memory=4g.",
    )
    @wraps(command)
    def with_spark(
        *args: Any,
        master: str | None,
        spark_jars: Path | None,
        conf: tuple[tuple[str, str], ...],
        **rest: Any,
    ) -> Any:
        return command(*args, spark_options=SparkOptions(master, spark_jars, dict(conf)), **rest)

    return with_spark
