"""What can go wrong, named once.

A class says what went wrong, an instance says where. ``retriable`` is all that a retry
policy reads, ``exit_code`` is what the command line ends with, ``hint`` tells the
operator what to do. Foreign exceptions are renamed by the adapter that caught them.

A leaf: it imports only the model.
"""

from __future__ import annotations

import errno
from enum import IntEnum

from mirror.model import Reason, TopicPartition


class ExitCode(IntEnum):
    """What a command ends with; scripts are written after the table in docs/commands.md."""

    DONE = 0
    FAULT = 1
    USAGE = 2
    NOT_THERE = 3
    REFUSED = 4
    TIME_IS_UP = 5
    DIFFERENT = 10


OF_DISKS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
}
"""Errors of the system that blame a file or a disk, not the program."""


class TwinsiteError(Exception):
    """Anything the project raises on purpose."""

    retriable = False
    exit_code: ExitCode = ExitCode.FAULT
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


def hint_of(error: BaseException | None) -> str:
    """What to do about an error; empty where nobody knows."""
    return error.hint if isinstance(error, TwinsiteError) else ""


class UsageError(TwinsiteError):
    """The command or the settings are wrong; nothing was started."""

    exit_code = ExitCode.USAGE


class ConnectionFailedError(TwinsiteError):
    """A broker could not be reached, or the connection ended before the answer came."""

    retriable = True
    hint = "check the address, the broker and the network"


class NotInMetadataError(ConnectionFailedError):
    """A topic is not in the metadata just now: this says nothing of the brokers."""


class ThrottledError(ConnectionFailedError):
    """A broker answers, but with nothing: a quota is used up for now."""

    hint = (
        "the quota of the mirror's user, or client id, on that cluster is too low: raise consumer_byte_rate"
    )


class OtherClusterError(ConnectionFailedError):
    """An address, or a relay, leads to another cluster than before; others may lead to the right one."""

    hint = "all bootstrap servers, or relays, of one side must lead to the same cluster"


class OthersTooOldError(ConnectionFailedError):
    """Relays that might serve cannot be reached just now; others are of another version."""

    hint = "start the relay that does not answer, or update the others"


class AnswerError(ConnectionFailedError):
    """A broker's answer breaks the protocol: nobody knows what it did, or whether it is a broker."""

    hint = "find what may change bytes on the way; the mirror looks again and continues from what it sees"


class AuthenticationError(TwinsiteError):
    """A broker did not accept who we are, or we did not accept who it is."""

    exit_code = ExitCode.REFUSED
    hint = "check the credentials and the certificates of this cluster"
    metric_reason = "login"
    """Label of the metric that counts it."""


class TlsRefusedError(AuthenticationError):
    """A certificate, ours or the broker's, was not accepted, or one side speaks no TLS."""

    metric_reason = "tls"


class NotAuthorizedError(TwinsiteError):
    """The broker knows us and does not allow this; carries the operation and the resource."""

    exit_code = ExitCode.REFUSED
    hint = "docs/permissions.md lists what the mirror needs on each side"


class UnsupportedVersionError(TwinsiteError):
    """The broker is too old, or too new, for an API the mirror needs."""

    hint = "source and target must be Kafka 3.1 or newer; docs/design.md lists the versions tested"


class RelayTooOldError(UnsupportedVersionError):
    """A relay knows no streams, and without one the rates of ``link.limits`` cannot be kept."""

    hint = "update the relay, or remove link.limits: without a stream no rate can be kept"


class FencedError(TwinsiteError):
    """Another mirror of the flow, of a newer epoch, has taken over."""

    exit_code = ExitCode.REFUSED
    hint = "stop this mirror: another one with a newer epoch has taken over"


class BrokerError(TwinsiteError):
    """A broker answered with an error code.

    Attributes:
        name: Kafka's name of the code, e.g. ``NOT_ENOUGH_REPLICAS``.
        code: Kafka's error code.
    """

    def __init__(self, name: str, code: int, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.name = name
        self.code = code
        self.retriable = retriable


class UnknownPartitionError(TwinsiteError):
    """The flow has no such topic or partition."""

    exit_code = ExitCode.USAGE
    hint = "see the flow's topics in its status; topics.include and topics.exclude decide which they are"


class NothingKnownError(ConnectionFailedError):
    """A mirror that still waits for its clusters does not know yet which partitions the flow has."""

    hint = ""  # what it waits for comes with one, where there is one

    def __init__(self, name: object, waits_for: str) -> None:
        super().__init__(f"{name}: nothing is known about it yet: the mirror waits for {waits_for}")


class StateConflictError(TwinsiteError):
    """What an operator asked for makes no sense in the partition's state; nothing was done."""

    exit_code = ExitCode.REFUSED
    hint = "look at the partition's status again"


class PartitionError(TwinsiteError):
    """Something is wrong with one partition; carries the reason shown in its state."""

    reason: Reason = Reason.INTERNAL_ERROR

    def __init__(
        self,
        partition: TopicPartition,
        message: str,
        *,
        reason: Reason | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{partition}: {message}", hint=hint)
        self.partition = partition
        self.detail = message
        if reason is not None:
            self.reason = reason


class BatchError(TwinsiteError):
    """A record batch cannot be sent on. Carries the source offset it starts at.

    Raised by code that knows bytes and offsets, not topics; a caller that knows the partition adds it.
    """

    reason: Reason = Reason.UNREADABLE_BATCH

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(f"batch at offset {offset}: {message}")
        self.offset = offset
        self.words = message


class CorruptBatchError(BatchError):
    """The bytes of a batch do not match its CRC, or its header contradicts itself."""

    reason = Reason.CORRUPT_BATCH
    hint = "compare the replicas with DumpLogSegments: another one may hold a good copy"


class MisplacedBatchError(CorruptBatchError):
    """The offsets that a batch claims cannot be true: no CRC covers them. Carries where it was read."""


class EarlyBatchError(CorruptBatchError):
    """A batch goes beyond the end of the log that the same answer states.

    That may happen, since a broker looks at the end before it reads; the next answer knows better.
    """


class UnreadableBatchError(BatchError):
    """A batch cannot be decoded: its format or codec is unknown, or it is a bomb.

    It may be intact, or its format or length may be damaged: no CRC covers these.
    """

    reason = Reason.UNREADABLE_BATCH


class RecordTooLargeError(BatchError):
    """One record alone is larger than the target accepts."""

    reason = Reason.RECORD_TOO_LARGE
    hint = "raise max.message.bytes of the target topic to that of the source"
