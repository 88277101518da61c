"""What a relay says of itself, for people and for metrics: what it has sent, and to whom.

``*_bytes`` are bytes on the wire unless they are said to be what brokers have, ``*_ms`` milliseconds since
1970, ``*_seconds`` durations. ``None`` is unknown, never zero.

A leaf: it imports nothing of the project, anyone may import it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelTotals:
    """What was sent on one channel of streams."""

    frames: int
    """Made, and sent but for the last few."""
    bytes_sent: int
    """Of frames, headers included, once they have begun."""
    records_bytes: int
    """Batches as the brokers have them, before they were compressed for the way."""
    waited_seconds: float
    """In which a frame could have been made and waited for the link."""
    held_seconds: float
    """Likewise, for the mirror, which had not taken what was there."""
    sealed_seconds: float
    """In which frames were compressed."""

    def __add__(self, other: ChannelTotals) -> ChannelTotals:
        return ChannelTotals(
            self.frames + other.frames,
            self.bytes_sent + other.bytes_sent,
            self.records_bytes + other.records_bytes,
            self.waited_seconds + other.waited_seconds,
            self.held_seconds + other.held_seconds,
            self.sealed_seconds + other.sealed_seconds,
        )


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream that goes from a relay to a mirror."""

    flow: str | None
    """As the mirror calls it; null until it has said so."""
    peer: str
    """HOST:PORT it comes from."""
    identity: str | None
    """The name in its certificate that counts; null where no certificate is asked for."""
    role: str | None
    """Null where everybody may read everything."""
    began_at_ms: int
    round_trip_seconds: float | None
    """As the kernel has measured it; null where it has not."""
    congestion: str
    """Congestion control of the kernel on this connection."""
    level: int | None
    """Of zstd, for what is behind; null until the stream has begun."""
    window_bytes: int | None
    """What repeats over so many bytes is sent once; 0: that is not looked for; null likewise."""
    recode: bool | None
    """Whether batches of lz4, gzip and snappy are inflated for the way; null likewise."""
    why: str
    """What was measured that made it so."""
    partitions_wanted: int
    waits: bool
    """Whether frames are ready that the link, or the mirror, does not take yet."""
    live: ChannelTotals
    """Of partitions that are read up to their end."""
    bulk: ChannelTotals
    """Of partitions that are behind."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A snapshot of a relay."""

    version: str
    source_cluster_id: str | None
    started_at_ms: int
    uptime_seconds: float
    cpu_seconds: float
    resident_bytes: int
    connections: int
    """Of mirrors: streams, and those to brokers, also while they are being made."""
    connections_max: int
    tunnels: int
    """Connections of mirrors that are passed on to brokers."""
    streams: tuple[StreamStatus, ...]
    live: ChannelTotals
    """Of all streams since the start; of each stream it is above."""
    bulk: ChannelTotals
    tunnelled_bytes: int
    """Answers of brokers that were passed on to mirrors, since the start."""
    bytes_read: int
    """From brokers, since the start."""
    refused: dict[str, int]
    """How often somebody was not let in, or ended, since the start, by code."""
    rate_limit_bytes_per_second: float | None = None
    """The most it sends to all mirrors together now, as limits say; null: no limit."""
    waits_for: str = ""
    """What a relay that does not listen yet waits for, and what went wrong last; empty once it does."""
