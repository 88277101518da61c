"""Clusters that stand still or fill up once more, with a relay between the mirror and its source."""

from __future__ import annotations

import pytest

from tests.faults.test_outages import (  # noqa: F401 - the tests are what it is about
    test_a_copy_that_ends_waits_for_a_broker_as_long_as_one_takes_to_come_back,
    test_a_frozen_source_is_waited_for_and_nothing_comes_twice,
    test_a_full_target_disk_stops_the_copy_and_loses_nothing,
    test_what_is_on_too_few_replicas_is_not_called_copied,
)
from tests.harness.relay import WayIn, through_its_relay

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def way_in() -> WayIn:
    """Through a relay."""
    return through_its_relay
