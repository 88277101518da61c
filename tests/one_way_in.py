"""Tests of mirrors that read directly and are not repeated through a relay, and why.

Modules whose names end with ``_relayed`` run tests again, with a relay in front of the source. What none of
them repeats has its reason here; tests/unit/test_one_way_in.py checks that against the tests there are. For
failpoints the reasons are in tests/faults/steps.py.
"""

from __future__ import annotations

from tests.faults.steps import NOT_THROUGH_A_RELAY, OF_REPAIRS, SETTINGS_CHANGED, TARGETS_NOTED

OF_THE_HARNESS = "what the tests stand on, without a mirror"
OF_THE_TARGET = "what the target does, or is asked, decides it, wherever records come from"
OF_THE_RIGHT = "whose right it is to copy says the target; test_takeover_relayed.py has two owners in turn"
OF_RIGHTS = (
    "the rights are a mirror's at brokers; where there is a relay those at the source are the relay's, and "
    "what a mirror may read is in test_relay_access.py"
)
OF_PEOPLE = "what people are shown comes from one status, whichever way the source is read"

MODULES = {
    "faults/test_clocks.py": OF_THE_TARGET,
    "faults/test_forgotten_producers.py": OF_THE_TARGET,
    "faults/test_leaders.py": OF_THE_TARGET,
    "faults/test_recovering.py": OF_THE_TARGET,
    "faults/test_repair.py": NOT_THROUGH_A_RELAY[OF_REPAIRS[0]],
    "faults/test_silence.py": OF_THE_RIGHT,
    "faults/test_standing_by.py": OF_THE_RIGHT,
    "faults/test_state_crashes.py": NOT_THROUGH_A_RELAY[TARGETS_NOTED],
    "integration/test_choosing.py": "names decide, and those come through a relay in test_mirror_relayed.py",
    "integration/test_cli.py": OF_PEOPLE,
    "integration/test_data.py": OF_THE_HARNESS,
    "integration/test_demo.py": "the demo reads through relays",
    "integration/test_ending.py": "relays that stay away are in the test beside it",
    "integration/test_forgetting.py": OF_THE_TARGET,
    "integration/test_harness.py": OF_THE_HARNESS,
    "integration/test_looking.py": "brokers are asked without a mirror",
    "integration/test_metrics.py": f"{OF_PEOPLE}; metrics of a relay are in test_relay_eyes.py",
    "integration/test_mm2.py": OF_THE_HARNESS,
    "integration/test_offline.py": "no mirror runs, and the source is gone",
    "integration/test_own_topics.py": "what may be changed of a topic says the target: whose it is, and who "
    "writes to it",
    "integration/test_permissions.py": OF_RIGHTS,
    "integration/test_permissions_mirror.py": OF_RIGHTS,
    "integration/test_process.py": "how a process begins and ends; with relays that is in test_relay.py and "
    "test_relay_eyes.py",
    "integration/test_refusals.py": OF_THE_TARGET,
    "integration/test_scale.py": "topics are made at the target; many partitions, and a backlog, come "
    "through a relay in test_scale_relayed.py",
    "integration/test_scope.py": "what is compared, without a mirror",
    "integration/test_security.py": "connections to brokers; those to relays are in test_relay_security.py",
    "integration/test_security_mirror.py": "connections to brokers; those to relays are in "
    "test_relay_security.py",
    "integration/test_segments.py": OF_THE_HARNESS,
    "integration/test_standby.py": OF_THE_RIGHT,
    "integration/test_topic_conflicts.py": OF_THE_TARGET,
    "integration/test_two_flows.py": OF_THE_TARGET,
}
"""The reason for all tests of a module that are not repeated through a relay."""

TESTS = {
    "faults/test_crashes.py": {
        "test_a_broker_that_dies_and_comes_back_is_waited_for": "brokers that freeze or die of their disk "
        "are waited for in test_outages_relayed.py",
        "test_a_mirror_killed_at_a_durable_step_leaves_nothing_lost_or_doubled": "test_relay_crashes.py "
        "kills mirrors that read through a relay at the steps of theirs",
        "test_a_mirror_killed_over_and_over_with_more_to_copy_each_time": "test_many_faults.py kills mirrors "
        "that read through relays over and over",
        "test_a_mirror_killed_while_a_loss_is_accepted_goes_on_behind_it": "what an operator has said is "
        "written down at the target; test_mirror_relayed.py accepts a loss",
        "test_a_mirror_killed_while_a_topic_is_brought_in_step_ends_that_the_next_time": (
            f"{NOT_THROUGH_A_RELAY[SETTINGS_CHANGED]}; with new partitions it is in test_relay_crashes.py"
        ),
    },
    "faults/test_outages.py": {
        "test_a_broker_frozen_for_a_minute_under_five_mirrors": "it takes minutes to show at once what "
        "test_outages_relayed.py shows of either side by itself",
        "test_a_disk_of_the_target_that_fails_is_told_and_the_rest_goes_on": OF_THE_TARGET,
        "test_a_frozen_target_is_waited_for_and_nothing_comes_twice": "test_outages_relayed.py freezes it "
        "under a copy that ends",
        "test_a_target_that_dies_as_the_flows_state_is_written_is_told_of_like_any_other": OF_THE_TARGET,
        "test_a_target_that_freezes_as_it_is_looked_at_is_told_of_like_any_other": OF_THE_TARGET,
    },
}
"""The reason for each such test, for modules where the reasons differ."""
