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
    """Frames made; all but the last few are sent."""
    bytes_sent: int
    """Bytes of frames, headers included, counted once a frame has begun."""
    records_bytes: int
    """Batches as the brokers have them, before they were compressed for sending."""
    waited_seconds: float
    """Time in which a frame could have been made and waited for the link."""
    held_seconds: float
    """Likewise, for the mirror, which had not taken what was sent."""
    sealed_seconds: float
    """Time in which frames were compressed."""

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
    """As the mirror names it; null until it has."""
    peer: str
    """HOST:PORT of the mirror's end."""
    identity: str | None
    """The name in its certificate that counts; null if no certificate is required."""
    role: str | None
    """Null if everybody may read everything."""
    began_at_ms: int
    round_trip_seconds: float | None
    """As the kernel measured it; null if it has not."""
    congestion: str
    """Congestion control of the kernel on this connection."""
    level: int | None
    """The level of zstd for partitions that are behind; null until the stream has begun."""
    window_bytes: int | None
    """Repetitions within this many bytes are sent once; 0: not looked for; null before the stream began."""
    recode: bool | None
    """Whether lz4, gzip and snappy batches are inflated to be sent; null before the stream began."""
    why: str
    """The measurements for which the relay chose this."""
    partitions_wanted: int
    waits: bool
    """Whether frames are ready that the link, or the mirror, does not accept yet."""
    live: ChannelTotals
    """Partitions that are read up to their end."""
    bulk: ChannelTotals
    """Partitions that are behind."""


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
    """Connections of mirrors: streams, and those to brokers, also while they are being made."""
    connections_max: int
    tunnels: int
    """Connections of mirrors that are forwarded to brokers."""
    streams: tuple[StreamStatus, ...]
    live: ChannelTotals
    """All streams since the start; each stream has its own above."""
    bulk: ChannelTotals
    tunnelled_bytes: int
    """Answers of brokers forwarded to mirrors, since the start."""
    bytes_read: int
    """From brokers, since the start."""
    refused: dict[str, int]
    """How often a connection was not admitted, or ended, since the start, by code."""
    rate_limit_bytes_per_second: float | None = None
    """The most it may send to all mirrors together now, by its limits; null: no limit."""
    waits_for: str = ""
    """What a relay that does not listen yet waits for, and what went wrong last; empty once it does."""
