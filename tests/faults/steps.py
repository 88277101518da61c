"""Where the fault tests kill whom: failpoints, and how often each is reached before.

tests/unit/test_failpoints.py holds these against the failpoints there are.
"""

from __future__ import annotations

from tests.harness.judging import OffsetMode

PARTITIONS_ADDED, SETTINGS_CHANGED = "partitions_added", "settings_changed"
"""Reached where the source has got partitions, or other settings, so not by a first copy."""
ACLS_ADDED = "acls_added"
"""Where both clusters have an authorizer; tests/integration/test_permissions_mirror.py kills there."""
INSERTION_NOTED, INSERTION_SENT, INSERTION_ENDED = "insertion_noted", "insertion_sent", "insertion_ended"
OF_REPAIRS = (INSERTION_NOTED, INSERTION_SENT, INSERTION_ENDED)

OF_MIRRORS: tuple[tuple[str, OffsetMode], ...] = (
    ("claimed", "same"),
    ("topic_created", "same"),
    ("registered:2", "same"),
    ("padding_sent", "same"),
    ("padded", "same"),
    ("trimmed", "same"),
    ("fetched:2", "same"),
    ("epoch_noted", "same"),
    ("produce_sent:3", "same"),
    ("produce_answered:4", "same"),
    ("markers_written", "same"),
    ("markers_written:5", "same"),
    ("registered", "mapped"),
    ("map_written", "mapped"),
    ("produce_sent", "mapped"),
    ("produce_answered", "mapped"),
    ("settings_final", "same"),
    ("state_written", "same"),
    ("state_written:4", "same"),
    ("state_written:5", "same"),
)
"""Of a mirror that reads from brokers, and the kind of copy it makes."""

OF_RELAYED_MIRRORS: tuple[tuple[str, OffsetMode], ...] = (
    ("claimed", "same"),
    ("topic_created", "same"),
    ("registered", "same"),
    ("padding_sent", "same"),
    ("padded", "same"),
    ("trimmed", "same"),
    ("fetched", "same"),
    ("fetched:2", "same"),
    ("epoch_noted", "same"),
    ("produce_sent:3", "same"),
    ("produce_answered:4", "same"),
    ("markers_written", "same"),
    ("settings_final", "same"),
    ("state_written:4", "same"),
    ("map_written", "mapped"),
)
"""Of one that reads through a relay."""

NOT_THROUGH_A_RELAY = dict.fromkeys(
    OF_REPAIRS,
    "a repair appends at the target what its plan holds: whether the source is reached through a relay makes "
    "no difference there; test_repair.py kills repairs at each",
) | dict.fromkeys(
    (SETTINGS_CHANGED, ACLS_ADDED),
    "what is set at the target is planned from what both sides say, whichever way the source was asked",
)
"""Failpoints at which no mirror is killed that reads through a relay, and why."""

LATER = {
    "connection_taken": 3,
    "request_forwarded": 8,
    "answer_forwarded": 8,
    "source_read": 6,
    "frame_sealed": 5,
    "slice_sent": 20,
    "frame_sent": 4,
    "frame_taken": 3,
}
"""For a relay the first time a step is reached is not always the one with most under way."""


def step_of(failpoint: str) -> str:
    """The name of a failpoint, without how often it is reached."""
    return failpoint.partition(":")[0]
