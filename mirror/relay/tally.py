"""What has passed through a relay since it was started, connections that have ended included.

Bytes are bytes on the wire unless they are of records; ``*_seconds`` are summed over streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror.kafka.cluster import Cluster
from mirror.link.protocol import Channel
from mirror.model_relay import ChannelTotals
from mirror.relay.joined import Joined
from mirror.relay.probe import Probe
from mirror.relay.stream import Stream
from mirror.relay.tunnel import Tunnel

Handed = Tunnel | Stream | Joined | Probe
"""What a connection becomes."""
NOTHING = ChannelTotals(0, 0, 0, 0.0, 0.0, 0.0)


class Tally:
    """Counts what passes through a relay.

    Attributes:
        open: The connections that mirrors have now.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.open: set[Handed] = set()
        self._cluster = cluster
        self._ended = dict.fromkeys(Channel, NOTHING)
        self._tunnelled_bytes = 0

    @contextmanager
    def counting(self, one: Handed) -> Iterator[None]:
        """Count what passes through a connection until the block ends."""
        self.open.add(one)
        try:
            yield
        finally:
            self.open.discard(one)
            if isinstance(one, Stream):
                self._ended = {
                    channel: self._ended[channel] + of_channel(one, channel) for channel in Channel
                }
            elif isinstance(one, Tunnel):
                self._tunnelled_bytes += one.bytes_sent
                self._cluster.connections.count_in(one.broker)

    @property
    def streams(self) -> list[Stream]:
        """Those that are open, the oldest first."""
        found = [one for one in self.open if isinstance(one, Stream)]
        return sorted(found, key=lambda stream: stream.began_at_ms)

    @property
    def tunnels(self) -> list[Tunnel]:
        """Connections to brokers that are open."""
        return [one for one in self.open if isinstance(one, Tunnel)]

    def channel(self, channel: Channel) -> ChannelTotals:
        """All that was sent by one channel, over all streams."""
        total = self._ended[channel]
        for stream in self.streams:
            total += of_channel(stream, channel)
        return total

    @property
    def tunnelled_bytes(self) -> int:
        """Bytes of brokers' answers that were passed on to mirrors."""
        return self._tunnelled_bytes + sum(tunnel.bytes_sent for tunnel in self.tunnels)

    @property
    def bytes_read(self) -> int:
        """Bytes that brokers have sent to the relay, for whatever purpose."""
        tunnelled = sum(tunnel.broker.bytes_received for tunnel in self.tunnels)
        return self._cluster.connections.bytes_received + tunnelled


def of_channel(stream: Stream, channel: Channel) -> ChannelTotals:
    """What one stream has sent by one channel, shared ones that are as urgent included."""
    if stream.sender is None:
        return NOTHING
    totals = stream.sender.totals[channel]
    spent = totals.spent
    return ChannelTotals(
        frames=totals.frames,
        bytes_sent=totals.sent_bytes,
        records_bytes=spent.records_bytes,
        waited_seconds=spent.waited,
        held_seconds=spent.held,
        sealed_seconds=spent.sealed,
    )
