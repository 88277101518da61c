"""What a running mirror says of copies and topics once more, with a relay before the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.relay import running_relay, through
from tests.integration.test_both_ways import *  # noqa: F403 - the tests are what it is about
from tests.integration.test_idle import *  # noqa: F403
from tests.integration.test_lagging import (  # noqa: F401
    test_a_transaction_left_open_is_noticed_without_anybody_asking,
)
from tests.integration.test_own_topics import (  # noqa: F401
    test_a_copy_that_is_deleted_since_its_topic_was_made_again_stays_so,
    test_a_topic_deleted_at_the_source_keeps_its_copy_and_says_so,
    test_a_topic_made_again_before_anything_was_copied_is_copied_like_a_new_one,
    test_a_topic_made_again_with_fewer_partitions_is_another_one_in_all_of_them,
    test_a_topic_made_again_with_more_partitions_is_another_one_in_all_of_them,
)
from tests.integration.test_tombstones import *  # noqa: F403
from tests.integration.test_topic_conflicts import (  # noqa: F401
    test_a_missing_topic_that_is_not_to_be_made_is_copied_once_somebody_makes_it,
    test_a_name_that_kafka_takes_for_another_holds_up_that_topic_until_it_is_free,
    test_a_topic_that_replaces_times_is_not_written_before_it_keeps_them,
)
from tests.integration.test_two_flows import (  # noqa: F401
    test_of_two_flows_whose_lists_overlap_one_copies,
)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def source(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay")) as relay:
        yield through(source, relay.address)
