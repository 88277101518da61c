"""How many connections a stream has, what they carry, and when one that was refused is tried again. Pure."""

from __future__ import annotations

from mirror.errors import TwinsiteError
from mirror.kafka.relayed import UnknownStreamError
from mirror.link.protocol import Channel

BBR, WITH_BBR, WITHOUT_BBR = "bbr", 3, 16
"""Without it so many connections share a link: a lost packet then halves a sixteenth of what is sent."""
JOIN_TRIES, JOIN_PAUSE_SECONDS = 5, 0.2
"""An address may lead to several relays, of which one has the stream; after so many tries it is said that
there is no connection, and the pause after each is twice the one before."""
JOIN_PAUSE_SECONDS_MAX, UNKNOWN_PAUSE_SECONDS_MAX = 30.0, 300.0
"""Where the relay has no room just now, and where it does not know the stream: another one has it."""


def further_connections(connections: int, congestion: str) -> list[Channel]:
    """What each carries but the first: one what is urgent, where there is another for what is not.

    Args:
        connections: In all; 0: as many as the relay's kernel needs.
        congestion: Its congestion control.
    """
    further = [Channel.BULK] * ((connections or (WITH_BBR if congestion == BBR else WITHOUT_BBR)) - 1)
    return [*further[1:], Channel.LIVE] if len(further) > 1 else further


def join_pause_seconds(tries: int, error: TwinsiteError) -> float:
    """How long to wait until a further connection is tried again, after so many tries."""
    longest = UNKNOWN_PAUSE_SECONDS_MAX if isinstance(error, UnknownStreamError) else JOIN_PAUSE_SECONDS_MAX
    return min(JOIN_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16), longest)
