"""Where one partition is read next, and what an answer of its broker makes of that.

Batches go on whole, and from where the last ones ended. One larger than what was asked for is asked for again
with more room. Of one too large for any mirror, and of what is no batch, the mirror is told, and nothing more
is read.

No I/O. A lane asks and does what is said here; which lane that is, is none of its business.

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
"""No batch is larger than this."""
BATCHES_AT_ONCE = 2
"""Where batches are large, there is room for so many of the largest that came last, until nothing comes: the
next one is seldom asked for twice."""
ROUTE_TRIES = 30
"""So often it is looked where a partition is led, before its mirror is told that nobody leads it."""


class Lane(Protocol):
    """The way on which partitions travel from their leader."""

    def leave(self, key: Key, place: Place) -> None:
        """Read it here no more."""

    def rank(self, key: Key, place: Place, rank: int) -> bool:
        """What is behind gets another rank; True where others have their turn now."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a partition is read next.

    Attributes:
        rank: Of those that are behind the lowest is read first.
        bytes_max: So much is asked for at once; more than usual where a batch is larger.
        behind: It is known to be: an answer has said so on the lane on which it is.
        lane: On which it travels; None while it is between two.
        tries: To find out who leads it, without success.
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


class Asked(NamedTuple):
    """How its lane has asked.

    Attributes:
        part_bytes: So much of one partition, where its first batch is not larger.
        spare_bytes: So much more the whole answer could have brought.
    """

    channel: Channel
    isolation: Isolation
    part_bytes: int
    spare_bytes: int


class Then(Enum):
    """What becomes of a partition that an answer had something of."""

    READ_ON = auto()
    CHANGE_OVER = auto()
    """It goes on by the other channel, once the mirror has taken what came."""
    LOOK_AGAIN = auto()
    """Somebody else leads it by now."""
    FORGET = auto()
    """The mirror is told, and says what it wants of it then."""


class Step(NamedTuple):
    """What an answer makes of a partition.

    Attributes:
        part: What the mirror is sent of it; None where there is nothing to say.
        behind: Whether more of it is there to be read; on LIVE nothing waits for its turn, and nothing is.
    """

    then: Then
    part: Part | None
    behind: bool = False


def taken_in(fetched: Fetched, place: Place, asked: Asked) -> Step:
    """Move a place on by what its broker has answered; answers what becomes of the partition."""
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
    place.bytes_max = min(max(asked.part_bytes, BATCHES_AT_ONCE * whole.largest), PART_BYTES_CEILING)
    records = fetched.records[: whole.bytes]
    part = Part(place.number, offset, place.offset, fetched._replace(records=records))
    behind, live = place.offset < end, asked.channel is Channel.LIVE
    stays = (live and whole.bytes < asked.part_bytes // 2) or behind is not live
    return Step(Then.READ_ON if stays else Then.CHANGE_OVER, part, behind and not live)


def _as_answered(fetched: Fetched, place: Place) -> Part:
    """For the mirror to see what the broker has said, or what is no batch."""
    return Part(place.number, place.offset, place.offset, fetched)


def _grown(key: Key, place: Place) -> Step:
    """The first batch is larger than what was asked for."""
    if place.bytes_max >= PART_BYTES_CEILING:
        return Step(Then.FORGET, refusal(key, place, CORRUPT_MESSAGE))
    place.bytes_max = min(place.bytes_max * 2, PART_BYTES_CEILING)
    return Step(Then.READ_ON, None, place.behind)


def refusal(key: Key, place: Place, code: int) -> Part:
    """A part that says why nothing comes."""
    fetched = Fetched(key, code, -1, -1, -1, None, [], memoryview(b""))
    return Part(place.number, place.offset, place.offset, fetched)
