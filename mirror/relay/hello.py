"""What a mirror says about itself when its stream begins, and whether it is the newest of its flow.

Source: docs/protocol.md (HELLO).
"""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from mirror.config_values import Section

FLOWS_MAX = 10_000
"""Flows of which the newest epoch is remembered."""

OLD_EPOCH = "old_epoch"
NUMBER_MAX = (1 << 63) - 1

Window = Annotated[int, Field(ge=1, le=1 << 30)]


class Hello(Section, strict=True, extra="ignore"):
    """The first message of a mirror. Each value has exactly the type given here; nothing is converted.

    A newer mirror may send more fields; it does without them unless WELCOME says that they were understood.
    """

    flow: str = Field(pattern=r"^[a-z0-9-]{1,40}$", description="The flow's name.")
    producer_id: int = Field(ge=-1, le=NUMBER_MAX, description="The flow's producer id at the target.")
    epoch: int = Field(ge=0, le=32767, description="Epoch of that producer.")
    isolation: int = Field(ge=0, le=1, description="Isolation level, as in Fetch.")
    windows: tuple[Window, Window] = Field(strict=False, description="Bytes of frames in flight, by channel.")
    frame_bytes: int = Field(
        ge=1, le=NUMBER_MAX, description="Bytes of records per frame, unless one batch is larger."
    )
    level: int = Field(ge=0, le=19, description="zstd level for partitions behind; 0: to suit the link.")
    recode: bool = Field(description="Whether batches may be inflated for the link.")


class Refused(Exception):  # noqa: N818 - it says what the mirror did
    """The stream ends, for this reason: a code, and a sentence."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Begun(Protocol):
    """A stream, as far as it can be ended."""

    def refuse(self, code: str, detail: str) -> None:
        """Say why, and end."""


_Of = tuple[str | None, str, int]
"""Role, flow and producer id: mirrors for which all three are equal can fence each other off."""


class Epochs:
    """The newest epoch seen of each flow: a mirror that was fenced off gets nothing any more.

    Only mirrors of the same role can fence each other off: nobody can stop another role's flow by its name.
    """

    def __init__(self) -> None:
        self._newest: dict[_Of, int] = {}
        self._open: dict[Begun, tuple[_Of, int]] = {}
        """Streams that have begun and not ended, and the epoch of each; no more than connections are open."""

    def begin(self, stream: Begun, hello: Hello, role: str | None) -> None:
        """Let a stream begin, and refuse the open ones of the same flow that have an older epoch.

        Raises:
            Refused: A stream of the flow with a newer epoch is, or was, here.
        """
        of = (role, hello.flow, hello.producer_id)
        others = [(other, epoch) for other, (flow, epoch) in self._open.items() if flow == of]
        newest = max(self._newest.get(of, 0), *(epoch for _, epoch in others), 0)
        if hello.epoch < newest:
            raise Refused(OLD_EPOCH, _fenced_off(hello.flow, hello.epoch, newest))
        self._newest.pop(of, None)
        self._newest[of] = hello.epoch
        if len(self._newest) > FLOWS_MAX:
            del self._newest[next(iter(self._newest))]
        for other, epoch in others:
            if epoch < hello.epoch:
                other.refuse(OLD_EPOCH, _fenced_off(hello.flow, epoch, hello.epoch))
        self._open[stream] = of, hello.epoch

    def end(self, stream: Begun) -> None:
        """A stream has ended; does nothing if it had not begun."""
        self._open.pop(stream, None)


def _fenced_off(flow: str, epoch: int, newest: int) -> str:
    return f"flow {flow} is at epoch {newest}: a mirror of epoch {epoch} was fenced off"
