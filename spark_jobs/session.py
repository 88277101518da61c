"""The Spark session of a job: what it needs is checked before anything runs.

Spark comes with PySpark. Its Kafka source does not: that is four jars, for the same version, in a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from mirror.errors import UsageError
from spark_jobs.failures import SparkFailedError, renamed_errors

JARS = (
    "spark-sql-kafka-0-10_2.13-4.0.0.jar",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    "kafka-clients-3.9.0.jar",
    "commons-pool2-2.12.0.jar",
)
VERSION = "4.0.0"
JARS_VARIABLE = "TWINSITE_SPARK_JARS"

SETTINGS = {
    "spark.app.name": "twinsite",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # our commands show the steps
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # By default Kafka consumers and what they fetched are kept for five minutes, until the heap is full.
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "2s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "2s",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def jars(folder: Path | None) -> list[Path]:
    """The jars of Spark's Kafka source.

    Args:
        folder: Where they are; None: the folder that ``TWINSITE_SPARK_JARS`` names, else PySpark's own.

    Raises:
        UsageError: PySpark has another version, or some jars are missing.
    """
    if pyspark.__version__ != VERSION:
        raise UsageError(
            f"PySpark {pyspark.__version__} is installed, but the jars of its Kafka source are for {VERSION}",
            hint=f"install pyspark=={VERSION}: other versions lack classes these jars need",
        )
    named = os.environ.get(JARS_VARIABLE)
    place = folder or (Path(named) if named else Path(pyspark.__file__).parent / "jars")
    missing = [name for name in JARS if not (place / name).is_file()]
    if missing:
        raise UsageError(
            f"not in {place}: {', '.join(missing)}",
            hint="run scripts/bootstrap, which downloads them, or name their folder: "
            f"--spark-jars DIRECTORY, or {JARS_VARIABLE}",
        )
    return [place / name for name in JARS]


@contextlib.contextmanager
def session(
    *, master: str | None = None, jars_folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that ends with the block.

    An active session is used, and left as it is. Settings of ``spark-submit`` override ours.

    Args:
        master: Where it runs; ``local[*]`` by default.
        settings: They override all others.

    Raises:
        UsageError: Java or the jars of the Kafka source are missing, PySpark has another version, or an
            argument was given that is up to ``spark-submit``.
        SparkFailedError: Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if _is_submitted():
        given = _submitted(said=any((master, jars_folder, settings)))
    else:
        given = _started_here(master, jars_folder)
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **given, **(settings or {})}.items():
        builder = builder.config(name, value)
    with renamed_errors("starting Spark"):
        spark = _started(builder)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # Java may have ended before us
            spark.stop()


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except ConnectionError:  # Java was started, and has ended
        raise
    except OSError as error:  # no process could be started for it
        raise SparkFailedError(f"starting Spark: {error}") from error


def _is_submitted() -> bool:
    """Whether ``spark-submit`` started us: then master, jars and settings are up to it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted(*, said: bool) -> Mapping[str, str]:
    """The settings of ``spark-submit``, which override ours.

    Args:
        said: Whether we were given a master, jars or settings, too.

    Raises:
        UsageError: We were.
    """
    if said:
        raise UsageError(
            "spark-submit decides where Spark runs, and with which jars and settings",
            hint="give --master, --jars and --conf to spark-submit, before main.py, not after it",
        )
    SparkContext._ensure_initialized()  # settings are in the JVM, which runs already
    return dict(SparkConf().getAll())


def _started_here(master: str | None, jars_folder: Path | None) -> Mapping[str, str]:
    """The settings of a Spark that we start ourselves.

    Raises:
        UsageError: Java or the jars are missing, or PySpark has another version.
    """
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not whatever Python is in the path
    place = master or "local[*]"
    paths = ",".join(map(str, jars(jars_folder)))
    local = LOCAL if place.startswith("local") else {}
    return {**local, "spark.master": place, "spark.jars": paths}


def _check_java() -> None:
    """Check that there is a Java where Spark looks for one: in JAVA_HOME if that is set, else in the path."""
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").is_file():
        raise UsageError(
            f"JAVA_HOME is {home}, and there is no bin/java in it",
            hint="name a Java 17 or newer, or unset it: Spark then takes the java in the path",
        )
    if not home and shutil.which("java") is None:
        raise UsageError(
            "Spark needs Java 17 or newer, and no java is in the path",
            hint="run apt-get install openjdk-17-jre-headless, or set JAVA_HOME",
        )
