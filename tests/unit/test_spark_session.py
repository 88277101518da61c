"""What keeps Spark from starting, in words for people; no Java runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from mirror.errors import TwinsiteError
from spark_jobs import session as sessions
from spark_jobs.session import JARS, JARS_VARIABLE, session

NO_JAVA = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
NO_MASTER = Py4JError(
    "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
    ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
    "This stopped SparkContext was created at:\n"
)


class Builder:
    """Takes every setting, and then fails."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def config(self, *_: str) -> Builder:
        return self

    def getOrCreate(self) -> None:  # noqa: N802
        raise self._failure


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Java and the jars. No session is active, also where tests before have left one."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/java", *JARS):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    ("failure", "says", "hint"),
    [
        (NO_JAVA, "JAVA_GATEWAY_EXITED", "Java 17 or newer, and takes the one in JAVA_HOME"),
        (NO_MASTER, "stopped SparkContext", "nothing answers at --master"),
        (OSError("no processes left"), "no processes left", "run it again"),
        (ConnectionResetError("reset by peer"), "Java process has ended", "out of memory"),
    ],
    ids=["no Java", "no master", "no process", "Java ends"],
)
def test_a_spark_that_does_not_start_is_an_error_of_ours_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, says: str, hint: str
) -> None:
    """
    So the run leaves a report of it, and no traceback.
    """
    spark = SimpleNamespace(getActiveSession=lambda: None, builder=Builder(failure))
    monkeypatch.setattr(sessions, "SparkSession", spark)

    with pytest.raises(TwinsiteError, match=says) as failed, session():
        raise AssertionError("there is no session")

    assert str(failed.value).startswith("starting Spark: ")
    assert hint in (failed.value.hint or "")


@pytest.mark.parametrize("in_path", [True, False])
def test_spark_takes_the_java_of_java_home_and_no_other(
    place: Path, monkeypatch: pytest.MonkeyPatch, in_path: bool
) -> None:
    """
    Its own scripts do not look into the path where JAVA_HOME is set.
    """
    monkeypatch.setenv("JAVA_HOME", str(place / "gone"))
    monkeypatch.setenv("PATH", str(place / "bin") if in_path else "")

    with (
        pytest.raises(TwinsiteError, match=r"gone, and there is no bin/java in it"),
        session(),
    ):
        raise AssertionError("there is no session")


def test_without_a_java_anywhere_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")

    with pytest.raises(TwinsiteError, match="no java is in the path"), session():
        raise AssertionError("there is no session")
