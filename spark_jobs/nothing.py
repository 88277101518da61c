"""Logs about which a comparison says nothing, and why: what was not compared never counts as the same.

Two logs that are both empty are the same. Where a side holds something and nothing of it was compared,
nothing is known. Pure.
"""

from __future__ import annotations

from enum import StrEnum

from spark_jobs.window import Window


class Nothing(StrEnum):
    """Why nothing of a log is compared."""

    DELETED_AT_TARGET = "the target has deleted all that the source still holds of it"
    DELETED_AT_SOURCE = "the source has deleted all that the target holds of it"
    NEVER_COPIED = "the source has deleted records of it before they were copied"
    LEAVING = "one side is about to delete all of it that both hold"
    PENDING = "nothing of what the source holds of it has been copied yet"
    STANDING = "nothing of what came to the source since the last match has been copied yet"
    OUTSIDE = "nothing of it lies within what was asked for"


def nothing_of(asked: Window, whole: Window, *, compared_before: bool) -> Nothing | None:
    """Why nothing of a log is compared; None where something is, or where there is nothing to compare.

    Args:
        asked: What is compared.
        whole: What would be compared without limits of offsets and times.
        compared_before: What lies before was compared by the run that this one continues.
    """
    if asked.source.offsets:
        return None
    if asked.never_copied.offsets:
        return Nothing.NEVER_COPIED
    if asked.expired_at_target.offsets:
        return Nothing.DELETED_AT_TARGET
    if asked.expired_at_source.offsets:
        return Nothing.DELETED_AT_SOURCE
    if asked.leaving.offsets:
        return Nothing.LEAVING
    if asked.pending.offsets:
        return Nothing.STANDING if compared_before else Nothing.PENDING
    if compared_before:
        return None
    parts = (whole.source, whole.expired_at_source, whole.expired_at_target, whole.pending)
    return Nothing.OUTSIDE if any(part.offsets for part in parts) else None
