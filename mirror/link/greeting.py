"""What mirror and relay say in JSON: who the mirror is, how the relay sends, and what it cannot read.

Pure. What a relay says is validated before it is used.

Source: docs/protocol.md (HELLO, WELCOME, CHOICE, TROUBLE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirror.errors import AnswerError
from mirror.link import messages
from mirror.link.frames import KEY_BYTES
from mirror.link.protocol import RELAY_ITSELF

LEVEL_MAX = 22
"""The highest level of zstd."""
NUMBER_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a mirror is, and what it has room for.

    Attributes:
        producer_id: Of the flow's producer, as ``epoch``.
        isolation: As in Fetch.
        windows: By channel: bytes of frames that may be sent and not taken.
        frame_bytes: Bytes of records that one frame may have, unless one batch is larger.
        level: zstd's for what is behind; 0: as the link needs.
        recode: Whether batches may be inflated for the link.
    """

    flow: str
    producer_id: int
    epoch: int
    isolation: int
    windows: tuple[int, int]
    frame_bytes: int
    level: int
    recode: bool


@dataclass(frozen=True, slots=True)
class Welcome:
    """The relay's answer to HELLO: how it sends.

    Attributes:
        relay: Its version.
        congestion: The congestion control of this connection.
        keys: Of the digests of LIVE and of BULK.
        steady_us: Its steady clock, in microseconds.
        token: By which further connections join.
        source_cluster_id: The cluster that it reads; None if it does not say.
    """

    relay: str
    congestion: str
    keys: tuple[bytes, bytes]
    steady_us: int
    token: str
    source_cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """How the relay sends what is behind, and why.

    Attributes:
        connections: With this many connections it would send more; 0: those there are suffice.
        window_bytes: What repeats within this many bytes is sent once; 0: such repeats are not searched for.
            None if the relay does not say.
    """

    level: int
    recode: bool
    why: str
    connections: int = 0
    window_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A broker that the relay cannot read at the moment, or all of them (RELAY_ITSELF)."""

    node: int
    detail: str

    def concerns(self, node: int) -> bool:
        """Whether that broker cannot be read."""
        return self.node in {node, RELAY_ITSELF}


def read_welcome(document: dict[str, Any]) -> Welcome:
    """
    Raises:
        AnswerError: A field is missing or has an impossible value.
    """
    try:
        live, bulk = (_key(key) for key in document["keys"])
        cluster_id = document.get("source_cluster_id")
        return Welcome(
            relay=messages.words(document["relay"]),
            congestion=messages.words(document["congestion"]),
            keys=(live, bulk),
            steady_us=_number(document["steady_us"], NUMBER_MAX),
            token=messages.words(document["token"]),
            source_cluster_id=None if cluster_id is None else messages.words(cluster_id),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnswerError(f"its WELCOME is invalid: {error!r}") from error


def read_choice(document: dict[str, Any]) -> Choice:
    """
    Raises:
        AnswerError: A field is missing or has an impossible value.
    """
    try:
        level = _number(document["level"], LEVEL_MAX)
        connections = _number(document.get("connections", 0), NUMBER_MAX)
        window = document.get("window_bytes")
        window_bytes = None if window is None else _number(window, NUMBER_MAX)
        why = messages.words(document["why"])
        return Choice(level, bool(document["recode"]), why, connections, window_bytes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnswerError(f"its CHOICE is invalid: {error!r}") from error


def read_trouble(document: dict[str, Any]) -> Trouble:
    """
    Raises:
        AnswerError: A field is missing or of another type.
    """
    node, detail = document.get("node"), document.get("detail")
    if not isinstance(node, int) or not isinstance(detail, str):
        raise AnswerError("a TROUBLE without a node or a detail")
    return Trouble(node, messages.words(detail))


def _number(value: Any, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError("a number out of range")
    return number


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
