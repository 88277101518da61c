"""What fault tests of relays have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.node import Site
from tests.harness.relay import Relay, running_relay


@pytest.fixture(scope="module")
def relay(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    """Next to the source, at the far end of an emulated link where there can be one."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as running:
        yield running
