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
OF_MIRROR = frozenset(
    {
        "claimed",
        "registered",
        "padding_sent",
        "padded",
        "trimmed",
        "fetched",
        "produce_sent",
        "produce_answered",
        "map_written",
        "markers_written",
        "epoch_noted",
        "topic_created",
        "partitions_added",
        "settings_changed",
        "acls_added",
        "settings_final",
        "state_written",
    }
)
"""Every durable step of a mirror."""
OF_REPAIR = frozenset({"insertion_noted", "insertion_sent", "insertion_ended"})
"""Every durable step of a repair; a mirror takes the last two if a repair died before them."""
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
