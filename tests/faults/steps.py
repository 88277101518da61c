"""Where the fault tests kill whom: failpoints, and how often each is reached before.

tests/unit/test_failpoints.py holds these against the failpoints there are.
"""

from __future__ import annotations

from tests.harness.judging import OffsetMode

OF_MIRRORS: tuple[tuple[str, OffsetMode], ...] = (
    ("state_topic_made", "same"),
    ("flow_introduced", "same"),
    ("owner_noted", "same"),
    ("topic_created", "same"),
    ("registered:2", "same"),
    ("padding_sent", "same"),
    ("padded", "same"),
    ("trimmed", "same"),
    ("prepared", "same"),
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
    ("owner_withdrawn", "same"),
)
"""Of a mirror that makes a first copy and reads from brokers, and the kind of copy it makes."""

PARTITIONS_ADDED, SETTINGS_CHANGED = "partitions_added", "settings_changed"
"""Reached where the source has got partitions, or other settings."""
ACLS_ADDED = "acls_added"
"""Where both clusters have an authorizer; tests/integration/test_permissions_mirror.py kills there."""
AS_IT_TURNS_TO_MAPPED = ("turned_to_mapped", "map_written")
AS_A_LOSS_IS_ACCEPTED = ("loss_accepted", "loss_noted")
BEFORE_ITS_RECORD = ("claimed", "state_fenced")
"""The flow has an owner then, and no record: who comes next waits, as somebody may be writing that."""
OF_A_LONG_MAP = ("map_written", "map_end_removed", "map_corrected", "map_shortened")
"""Where a map of several chunks was noted ahead, and is not so any more; where the target has deleted."""
OF_A_DELETED_STATE = ("end_written_again", "state_written_in_part", "found_removed", "known_written")
"""All of it is there again; a part of it; that part is gone; what a mirror had read is there instead."""
TAKEN_BACK = "taken_back"
"""Where two flows began to copy into the same topic."""
TOPICS_FORGOTTEN = "topics_forgotten"
"""Where a topic is gone at both sides."""
TARGETS_NOTED = "targets_noted"
"""Where the target's topic is another one than before."""
LATER_OF_MIRRORS = frozenset(
    {
        PARTITIONS_ADDED,
        SETTINGS_CHANGED,
        ACLS_ADDED,
        *AS_IT_TURNS_TO_MAPPED,
        *AS_A_LOSS_IS_ACCEPTED,
        *BEFORE_ITS_RECORD,
        *OF_A_LONG_MAP,
        *OF_A_DELETED_STATE,
        TAKEN_BACK,
        TOPICS_FORGOTTEN,
        TARGETS_NOTED,
    }
)
"""What a first copy does not reach, or is long in coming back from: tests of their own kill there."""

INSERTION_NOTED, INSERTION_SENT, INSERTION_ENDED = "insertion_noted", "insertion_sent", "insertion_ended"
FOREIGN_NOTED, DIFFERENCE_ACCEPTED = "foreign_noted", "difference_accepted"
TURNED_TO_MAPPED = AS_IT_TURNS_TO_MAPPED[0]
"""A mirror does that, too."""
OF_REPAIRS = (INSERTION_NOTED, INSERTION_SENT, INSERTION_ENDED, FOREIGN_NOTED, DIFFERENCE_ACCEPTED)

OF_RELAYED_MIRRORS: tuple[tuple[str, OffsetMode], ...] = (
    ("claimed", "same"),
    ("topic_created", "same"),
    ("registered", "same"),
    ("padding_sent", "same"),
    ("padded", "same"),
    ("trimmed", "same"),
    ("prepared", "same"),
    ("fetched", "same"),
    ("fetched:2", "same"),
    ("epoch_noted", "same"),
    ("produce_sent:3", "same"),
    ("produce_answered:4", "same"),
    ("markers_written", "same"),
    ("settings_final", "same"),
    ("map_written", "mapped"),
)
"""Of one that reads through a relay."""

NOT_THROUGH_A_RELAY = (
    dict.fromkeys(
        OF_REPAIRS,
        "a repair appends at the target what its plan holds: whether the source is reached through a relay "
        "makes no difference there; test_repair.py kills repairs at each",
    )
    | dict.fromkeys(
        (SETTINGS_CHANGED, ACLS_ADDED),
        "what is set at the target is planned from what both sides say, whichever way the source was asked",
    )
    | dict.fromkeys(
        (
            "state_topic_made",
            "state_fenced",
            "flow_introduced",
            "owner_noted",
            "owner_withdrawn",
            *OF_A_DELETED_STATE,
            TAKEN_BACK,
            TOPICS_FORGOTTEN,
            TARGETS_NOTED,
        ),
        "what a mirror writes to the flow's state without having read a record is the same, whichever way it "
        "would read one; test_crashes.py and test_state_crashes.py kill there",
    )
    | dict.fromkeys(
        (*AS_A_LOSS_IS_ACCEPTED, *AS_IT_TURNS_TO_MAPPED[:1], *OF_A_LONG_MAP[1:]),
        "it is written to the flow's state as of what was read, and that a relay hands on as it is; "
        "test_crashes.py and test_state_crashes.py kill there",
    )
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
