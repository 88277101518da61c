"""How many connections a stream has, what they carry, and when a refused one is tried again. Pure."""

from __future__ import annotations

from mirror.errors import TwinsiteError
from mirror.kafka.failures import growing_seconds
from mirror.kafka.relayed import UnknownStreamError
from mirror.link.protocol import Channel

BBR, WITH_BBR, WITHOUT_BBR = "bbr", 3, 16
"""Connections of a stream with BBR, and without it: a lost packet then halves the rate of only one of the
fourteen that carry what is behind.
"""
JOIN_TRIES, JOIN_PAUSE_SECONDS = 5, 0.2
"""An address may lead to several relays, of which one has the stream. After this many failed tries a warning
is logged; the pause doubles after each.
"""
JOIN_PAUSE_SECONDS_MAX, UNKNOWN_PAUSE_SECONDS_MAX = 30.0, 300.0
"""The longest pause if the relay has no room at the moment, and if it does not know the stream: another one
has it.
"""


def further_connections(connections: int, congestion: str) -> list[Channel]:
    """What each connection but the first carries: the last one LIVE, the others BULK; a single one BULK.

    Args:
        connections: In total; 0: as many as suit the congestion control.
        congestion: The congestion control of the relay's kernel.
    """
    further = [Channel.BULK] * ((connections or (WITH_BBR if congestion == BBR else WITHOUT_BBR)) - 1)
    return [*further[1:], Channel.LIVE] if len(further) > 1 else further


def join_pause_seconds(tries: int, error: TwinsiteError) -> float:
    """How long to wait before a further connection is tried again, after ``tries`` failed tries."""
    longest = UNKNOWN_PAUSE_SECONDS_MAX if isinstance(error, UnknownStreamError) else JOIN_PAUSE_SECONDS_MAX
    return growing_seconds(JOIN_PAUSE_SECONDS, tries, longest)
