"""What a source topic keeps, and for how long its tombstones, by its settings."""

from __future__ import annotations

import pytest

from mirror.sync.topic_configs import retention_of, tombstones_kept_ms
from monitoring.outlook import NO_LIMIT, Retention

WEEK = {"retention.ms": "604800000", "retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"cleanup.policy": "delete", **WEEK}, Retention(604_800_000, NO_LIMIT)),
        ({"cleanup.policy": "compact,delete", **WEEK}, Retention(604_800_000, NO_LIMIT)),
        ({"cleanup.policy": "compact", **WEEK}, Retention(NO_LIMIT, NO_LIMIT)),
        ({"retention.ms": "5", "retention.bytes": "1024"}, Retention(5, 1_024)),
        ({"cleanup.policy": "delete"}, Retention()),
        ({}, Retention()),
    ],
)
def test_a_topic_that_is_only_compacted_keeps_what_it_has(values: dict[str, str], kept: Retention) -> None:
    """
    Settings that may not be read are unknown, and no promise that everything is kept.
    """
    assert retention_of(values) == kept


@pytest.mark.parametrize(
    ("values", "kept_ms"),
    [
        ({"cleanup.policy": "compact", "delete.retention.ms": "86400000"}, 86_400_000),
        ({"cleanup.policy": "delete,compact", "delete.retention.ms": "0"}, 0),
        ({"cleanup.policy": "delete", "delete.retention.ms": "86400000"}, NO_LIMIT),
        ({"cleanup.policy": "", "delete.retention.ms": "86400000"}, NO_LIMIT),
        ({"cleanup.policy": "delete"}, NO_LIMIT),
        ({"cleanup.policy": "compact"}, None),
        ({"delete.retention.ms": "86400000"}, None),
        ({}, None),
    ],
)
def test_tombstones_are_taken_only_where_compaction_is(values: dict[str, str], kept_ms: int | None) -> None:
    """
    Whatever the time for them says; and what may not be read is no time.
    """
    assert tombstones_kept_ms(values) == kept_ms
