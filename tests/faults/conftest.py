"""What fault tests of relays have in common, and those that run both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite
from tests.harness.relay import Relay, running_relay


@pytest.fixture(scope="module")
def relay(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    """Next to the source, at the far end of an emulated link where there can be one."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as running:
        yield running


@pytest.fixture(scope="module")
def readers_ahead() -> list[Twinsite]:
    """What reads the shared source for mirrors, and ahead of them; modules that put relays there add them."""
    return []
