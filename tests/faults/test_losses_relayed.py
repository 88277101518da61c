"""A source that takes records or topics away once more, seen through a relay at the far end of a link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.test_losses import *  # noqa: F403 - the tests are what it is about
from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite
from tests.harness.relay import running_relay, through


@pytest.fixture(scope="module")
def source(
    source: KafkaCluster,
    relay_site: Site,
    tmp_path_factory: pytest.TempPathFactory,
    readers_ahead: list[Twinsite],
) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as relay:
        readers_ahead.append(relay.process)
        yield through(source, relay.address)
