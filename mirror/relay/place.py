"""Where one partition is read next, and what an answer of its broker changes about that.

Batches are passed on whole, and reading goes on where the last one ended. A batch larger than what was asked
for is requested again with more room. If a batch is too large for any mirror, or what was read is no batch,
the mirror is told, and nothing more is read.

No I/O. A lane sends the requests and does what is decided here; which lane that is makes no difference.

Sources: KIP-74 (the first batch of an answer), docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.kafka.failures import STALE_METADATA_CODES
from mirror.kafka.fetch import Fetched, Isolation, Key
from mirror.link.parts import ASTRAY, Part, whole_batches
from mirror.link.protocol import Channel

PART_BYTES_CEILING = 128 << 20
"""Larger batches are not read."""
BATCHES_AT_ONCE = 2
"""If batches are large, there is room for this many of the largest in the last answer, so that the next one
is rarely requested twice. An answer without batches ends that, if nothing is left.
"""
ROUTE_TRIES = 30
"""How often the leader of a partition is looked up before its mirror is told that nobody leads it."""
LIVE_BYTES_LEFT_MAX, LIVE_SECONDS_MAX = 2 << 20, 60.0
"""A partition on LIVE is behind once more than this is left to read of it, or once no answer has brought all
there was for this long. More would keep others waiting: LIVE has that much on its way by default
(``link.window_bytes``).
"""


class Lane(Protocol):
    """The lane on which a partition is read from its leader."""

    def leave(self, key: Key, place: Place) -> None:
        """Stop reading it here."""

    def rank(self, key: Key, place: Place, rank: int) -> bool:
        """Give a partition that is behind another rank; True if others have their turn now."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a partition is read next.

    Attributes:
        number: The one that the mirror wanted it with.
        rank: Of the partitions that are behind, those of the lowest rank are read first.
        bytes_max: How much is asked for at once; more than usual if a batch is larger.
        behind: Whether an answer on its lane has shown that it is.
        lane: The lane it is on; None while it is between two.
        tries: How often its leader was looked up in vain.
        left_us: Since when it is on its lane and no answer has brought all there was, in microseconds of the
            steady clock; None if the last one has.
    """

    number: int
    offset: int
    fetched_epoch: int
    rank: int = 0
    channel: Channel = Channel.BULK
    bytes_max: int = 0
    behind: bool = False
    lane: Lane | None = None
    tries: int = 0
    left_us: int | None = None


class Asked(NamedTuple):
    """How the lane has asked.

    Attributes:
        part_bytes: The most for one partition, unless its first batch is larger.
        spare_bytes: How much more the whole answer could have brought.
        at_us: When the broker has answered, in microseconds of the steady clock.
    """

    channel: Channel
    isolation: Isolation
    part_bytes: int
    spare_bytes: int
    at_us: int


class Then(Enum):
    """What happens next to a partition that was in an answer."""

    READ_ON = auto()
    CHANGE_OVER = auto()
    """It goes on by the other channel, once the mirror has taken what was read."""
    LOOK_AGAIN = auto()
    """Another broker leads it by now."""
    FORGET = auto()
    """It is not read any more; the mirror is told why, and says what it wants of it then."""


class Step(NamedTuple):
    """What an answer means for a partition.

    Attributes:
        part: What the mirror is sent of it; None: nothing.
        behind: Whether there is more to read. Always False on LIVE, where nothing waits for its turn.
    """

    then: Then
    part: Part | None
    behind: bool = False


def taken_in(fetched: Fetched, place: Place, asked: Asked) -> Step:
    """Advance a place by what its broker has answered; returns what happens next to the partition."""
    stale = fetched.error_code in STALE_METADATA_CODES
    if fetched.error_code == ASTRAY or (stale and place.tries < ROUTE_TRIES):
        return Step(Then.LOOK_AGAIN, None if place.tries else refusal(fetched.key, place, ASTRAY))
    if fetched.error_code or fetched.diverging is not None:
        return Step(Then.FORGET, _as_answered(fetched, place))
    place.tries = 0
    whole = whole_batches(fetched.records)
    if whole.bytes > PART_BYTES_CEILING:
        return Step(Then.FORGET, refusal(fetched.key, place, CORRUPT_MESSAGE))
    if not (whole.bytes or whole.readable):
        return Step(Then.FORGET, _as_answered(fetched, place))
    end = fetched.readable_end(asked.isolation)
    room = asked.spare_bytes + len(fetched.records)
    if not whole.bytes and place.offset < end and place.bytes_max <= room:
        return _grown(fetched.key, place)
    offset = place.offset
    place.offset = max(offset, whole.next_offset)
    place.fetched_epoch = max(place.fetched_epoch, whole.leader_epoch)
    more = place.offset < end
    if whole.bytes or not more:
        place.bytes_max = min(max(asked.part_bytes, BATCHES_AT_ONCE * whole.largest), PART_BYTES_CEILING)
    records = fetched.records[: whole.bytes]
    part = Part(place.number, offset, place.offset, fetched._replace(records=records))
    left_us = asked.at_us if place.left_us is None else place.left_us
    place.left_us = left_us if more else None
    if asked.channel is Channel.LIVE:
        left_bytes = (end - place.offset) * whole.bytes // max(place.offset - offset, 1)
        far = more and is_far(left_bytes, (asked.at_us - left_us) / 1e6)
        return Step(Then.CHANGE_OVER if far else Then.READ_ON, part)
    behind = more and (place.behind or whole.bytes > 0)
    return Step(Then.READ_ON if more else Then.CHANGE_OVER, part, behind)


def is_far(left_bytes: int, seconds: float) -> bool:
    """Whether a partition on LIVE is behind.

    Args:
        left_bytes: What is left to read of it, going by the size of the records just read; 0 if none were.
        seconds: For how long no answer has brought all there was.
    """
    return left_bytes > LIVE_BYTES_LEFT_MAX or seconds > LIVE_SECONDS_MAX


def _as_answered(fetched: Fetched, place: Place) -> Part:
    """A part that shows the mirror what the broker said, or what is no batch."""
    return Part(place.number, place.offset, place.offset, fetched)


def _grown(key: Key, place: Place) -> Step:
    """The first batch is larger than what was asked for: ask for more."""
    if place.bytes_max >= PART_BYTES_CEILING:
        return Step(Then.FORGET, refusal(key, place, CORRUPT_MESSAGE))
    place.bytes_max = min(place.bytes_max * 2, PART_BYTES_CEILING)
    return Step(Then.READ_ON, None, place.behind)


def refusal(key: Key, place: Place, code: int) -> Part:
    """A part that says by its error code why nothing comes."""
    fetched = Fetched(key, code, -1, -1, -1, None, [], memoryview(b""))
    return Part(place.number, place.offset, place.offset, fetched)
