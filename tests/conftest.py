"""Fixtures every suite may use: clusters of two versions, topics, a place for relays, logs of old brokers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.harness.daemon import HERE, Site
from tests.harness.far_site import FarSite, far_site
from tests.harness.kafka import KafkaCluster
from tests.harness.old_logs import logs_of_old_brokers
from tests.harness.relay import WayIn, directly
from tests.harness.segments import Files

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")  # on a shared machine, slow examples say little about themselves
signal.signal(signal.SIGINT, signal.default_int_handler)
"""A process that is started in the background ignores it, and so would the programs interrupted here."""
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Set in many images: each of hundreds of programs started here would compile all modules again."""
MBIT_PER_SECOND, ONE_WAY_SECONDS = 200, 0.01
"""Of the link that all tests share."""
RELAYS_RAN = "relays ran"
FAULTS = "tests/faults/"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put unit tests last: they fill the time while other workers are still busy with a long file.

    Before them files are ordered by name, across folders, so that tests that wait run next to tests that
    compute.
    """
    items.sort(key=lambda item: (item.path.parent.name == "unit", item.path.name))


@pytest.fixture(autouse=True)
def _logging_put_back() -> Iterator[None]:
    """Undo with each test what a command that ran in this process has set up for logging."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("kafka", "aiohttp", "asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


class TopicFactory(Protocol):
    """Creates a topic under a name that no other test uses on either cluster; returns the name."""

    async def __call__(
        self,
        cluster: KafkaCluster,
        partitions: int = 1,
        prefix: str = "t",
        assignment: Sequence[Sequence[int]] | None = None,
        **config: object,
    ) -> str: ...


@contextmanager
def _running(
    version: str, name: str, factory: pytest.TempPathFactory, site: Site = HERE
) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster.prepare(version, 1, name, {}, factory.mktemp("kafka"), site=site)
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def way_to_source() -> Iterator[FarSite]:
    """The site of the shared source, where relays may run: at the far end of a link, or next door."""
    with far_site(mbit_per_second=MBIT_PER_SECOND, one_way_seconds=ONE_WAY_SECONDS) as far:
        yield far


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, way_to_source: FarSite) -> Iterator[KafkaCluster]:
    """One node of the older version, shared: use topics of your own and leave the node running."""
    with _running("3.9", "source", tmp_path_factory, way_to_source.brokers) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def relay_site(way_to_source: FarSite) -> Site:
    """Where a relay of the shared source runs: over an emulated link where there can be one.

    The link is shared, too: leave it as it is. The end of the run reports what lay between.
    """
    return way_to_source.relays


@pytest.fixture(autouse=True)
def _through_a_relay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that tests of a ``_relayed`` module read through a relay, and not from the brokers."""
    before = KafkaCluster.told_of_relays
    yield
    *_, folder, module = request.module.__name__.split(".")
    if folder != "unit" and module.endswith("_relayed"):
        assert KafkaCluster.told_of_relays > before, "nobody was told of the relay"


@pytest.fixture
def way_in() -> WayIn:
    """How mirrors reach a source that a test starts; modules that repeat tests through relays override it."""
    return directly


@pytest.fixture(autouse=True)
def _where_relays_ran(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Record with a test what lay between its mirror and its relay."""
    if "relay_site" in request.fixturenames:
        record_property(RELAYS_RAN, request.getfixturevalue("way_to_source").says)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report what lay between mirror and relay in tests with a far relay, and which faults were not tried."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    ran = Counter(
        value
        for one in reports
        if one.when == "call"
        for name, value in one.user_properties
        if name == RELAYS_RAN
    )
    for between, tests in ran.items():
        terminalreporter.write_line(f"{tests} tests with a relay at the far site: over {between}")
    for line in not_tried(terminalreporter.getreports("skipped")):
        terminalreporter.write_line(line)


def not_tried(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """Lines about skipped tests of faults: why, and the names of the tests in words."""
    faults: dict[str, list[str]] = {}
    for report in skipped:
        folder, _, name = report.nodeid.rpartition("::")
        if folder.startswith(FAULTS) and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
            faults.setdefault(why, []).append(name.removeprefix("test_").replace("_", " "))
    return [
        line
        for why, names in faults.items()
        for line in (f"{len(names)} of the faults not tried: {why}", *(f"  {name}" for name in names))
    ]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node of the newer version, shared: use topics of your own and leave the node running."""
    with _running("4.3", "target", tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def old_logs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Files]:
    """What brokers of message formats v0 and v1 wrote, once for all workers; see
    :mod:`tests.harness.old_logs`.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return logs_of_old_brokers(shared / "old-logs")


_numbers = itertools.count(1)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> TopicFactory:
    """Create topics on a cluster under fresh names; dots in settings are written as underscores.

    ``await topic(source, partitions=4, cleanup_policy="compact")`` returns the name.
    """

    async def create(
        cluster: KafkaCluster,
        partitions: int = 1,
        prefix: str = "t",
        assignment: Sequence[Sequence[int]] | None = None,
        **config: object,
    ) -> str:
        name = f"{prefix}-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await cluster.create_topic(name, partitions, config=settings, assignment=assignment)
        return name

    return create
