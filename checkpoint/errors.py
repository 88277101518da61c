"""Errors of the durable state and of translating offsets."""

from __future__ import annotations

from mirror.errors import ExitCode, TwinsiteError


class UntranslatableError(TwinsiteError):
    """An offset has no exact counterpart on the other side; ``reason`` says why, in words."""

    exit_code = ExitCode.REFUSED
    hint = "only offsets of records that were copied have a counterpart; nothing is ever guessed"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CorruptStateError(TwinsiteError):
    """Stored state is damaged, incomplete, or was written by a newer version; it is not used."""

    hint = "nothing is copied until the flow's state can be read; keep what is there and ask for help"


class StateUnavailableError(TwinsiteError):
    """The store cannot be read or written completely just now."""

    retriable = True
    hint = "the state is a topic at the target: see whether its brokers answer"


class StateTakenOverError(TwinsiteError):
    """Another mirror of the flow has written to its state since we read it, or may have: load it again."""

    retriable = True
    hint = "only one mirror of a flow should run; the one that comes too late steps back by itself"
