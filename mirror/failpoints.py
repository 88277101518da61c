"""Places where a test can end the process as a power cut would.

``TWINSITE_FAILPOINTS=produce_sent:3,markers_written`` kills the process with SIGKILL
when ``produce_sent`` is reached for the third time, or ``markers_written`` for the
first. Without the variable :func:`reach` is an empty function. A process that is armed
says so at its start, as ``failpoints_armed`` in its log.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import StrEnum, auto


class Write(StrEnum):
    """Each kind of write to a flow's state: the failpoint of its name is reached when it is durable.

    A write cannot be made without one, and each stands in the code once.
    """

    FLOW_INTRODUCED = auto()
    OWNER_NOTED = auto()
    OWNER_WITHDRAWN = auto()
    REGISTERED = auto()
    TURNED_TO_MAPPED = auto()
    TAKEN_BACK = auto()
    TOPICS_FORGOTTEN = auto()
    TARGETS_NOTED = auto()
    PREPARED = auto()
    LOSS_ACCEPTED = auto()
    LOSS_NOTED = auto()
    EPOCH_NOTED = auto()
    MAP_WRITTEN = auto()
    MAP_CORRECTED = auto()
    MAP_END_REMOVED = auto()
    MAP_SHORTENED = auto()
    FOUND_REMOVED = auto()
    KNOWN_WRITTEN = auto()
    INSERTION_NOTED = auto()
    INSERTION_ENDED = auto()
    FOREIGN_NOTED = auto()
    DIFFERENCE_ACCEPTED = auto()


OF_RELAY = frozenset(
    {
        "connection_taken",
        "request_forwarded",
        "answer_forwarded",
        "hello_taken",
        "welcome_sent",
        "wanted",
        "source_read",
        "frame_sealed",
        "slice_sent",
        "frame_sent",
        "frame_taken",
        "changed_over",
    }
)
"""Every step of a relay, which keeps no state."""
OF_REPAIR = frozenset(
    {
        Write.INSERTION_NOTED,
        "insertion_sent",
        Write.INSERTION_ENDED,
        Write.FOREIGN_NOTED,
        Write.DIFFERENCE_ACCEPTED,
    }
)
"""Every durable step that only a repair begins; a mirror ends an insertion whose repair died."""
OF_MIRROR = frozenset(
    {
        "claimed",
        "state_topic_made",
        "state_fenced",
        "state_written_in_part",
        "end_written_again",
        "padding_sent",
        "padded",
        "trimmed",
        "fetched",
        "produce_sent",
        "produce_answered",
        "markers_written",
        "topic_created",
        "partitions_added",
        "settings_changed",
        "acls_added",
        "settings_final",
        *(write for write in Write if write not in OF_REPAIR),
    }
)
"""Every durable step of a mirror: what it writes to the target, and to the flow's state there."""
NAMES = OF_RELAY | OF_MIRROR | OF_REPAIR
"""The fault tests visit each; tests/unit/test_failpoints.py checks that."""


def _armed(setting: str) -> Callable[[str], None]:
    left: dict[str, int] = {}
    for part in setting.split(","):
        name, _, count = part.partition(":")
        if name not in NAMES:
            raise ValueError(
                f"TWINSITE_FAILPOINTS: no failpoint {name!r}; there are {', '.join(sorted(NAMES))}"
            )
        left[name] = int(count or 1)

    def reach(name: str) -> None:
        if name in left:
            left[name] -= 1
            if left[name] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


def _nothing(name: str) -> None:  # noqa: ARG001  # the signature is that of an armed one
    return


ARMED = os.environ.get("TWINSITE_FAILPOINTS", "")
"""What the variable says: empty except in tests."""
reach: Callable[[str], None] = _armed(ARMED) if ARMED else _nothing
