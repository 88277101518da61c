"""Errors of the durable state and of translating offsets."""

from __future__ import annotations

from mirror.errors import ExitCode, TwinsiteError


class UntranslatableError(TwinsiteError):
    """An offset has no exact counterpart on the other side; ``reason`` says why, in words."""

    exit_code = ExitCode.REFUSED
    hint = "only offsets of copied records have a counterpart; none is ever guessed"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CorruptStateError(TwinsiteError):
    """Stored state is damaged, incomplete, or was written by a newer version; it is not used."""

    hint = "keep the flow's state as it is and ask for help; nothing is copied until it can be read"


class StateUnavailableError(TwinsiteError):
    """The store cannot be read or written completely just now."""

    retriable = True
    hint = "check that the target's brokers answer: the flow's state is a topic there"


class StateTakenOverError(TwinsiteError):
    """Another mirror of the flow has written to its state since we read it, or may have: load it again."""

    retriable = True
    hint = "only one mirror of a flow writes at a time; the one that comes too late steps back by itself"
