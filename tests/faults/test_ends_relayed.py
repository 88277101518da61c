"""What a copy goes on from, who copies, and what holds up whom once more, with a relay before the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.test_crashes import (  # noqa: F401 - the tests are what it is about
    test_a_mirror_killed_while_it_turns_to_mapped_knows_every_offset_afterwards,
    test_three_mirrors_racing_on_one_flow_do_no_harm,
)
from tests.faults.test_ends import *  # noqa: F403
from tests.faults.test_little_memory import *  # noqa: F403
from tests.faults.test_silence import (  # noqa: F401
    test_a_frozen_broker_of_the_target_holds_up_its_own_partitions_only,
    test_the_first_record_after_a_long_silence_is_copied_at_once,
)
from tests.faults.test_slow_target import *  # noqa: F403
from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.relay import WayIn, running_relay, through, through_its_relay

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def source(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as relay:
        yield through(source, relay.address)


@pytest.fixture
def way_in() -> WayIn:
    """Likewise, to a source that the test starts."""
    return through_its_relay
