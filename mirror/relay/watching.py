"""A snapshot of a relay for people and metrics, taken without disturbing it."""

from __future__ import annotations

import time

from mirror import __version__
from mirror.flow.snapshot import resident_bytes
from mirror.kafka.cluster import Cluster
from mirror.link.protocol import Channel
from mirror.model_relay import RelayStatus, StreamStatus
from mirror.relay.server import RelayServer
from mirror.relay.stream import Stream
from mirror.relay.tally import of_channel


class Watch:
    """Takes snapshots of one relay.

    Args:
        cluster: The source.
    """

    def __init__(self, server: RelayServer, cluster: Cluster) -> None:
        self._server = server
        self._cluster = cluster
        self._started_at_ms, self._started_at = int(time.time() * 1000), time.monotonic()
        self._waits_for = f"{cluster.name} to answer"

    def not_reached(self, cluster: str, why: str) -> None:
        """The source has not answered yet; note what went wrong last."""
        self._waits_for = f"{cluster} to answer: {why}"

    def begun(self) -> None:
        """Mirrors can connect now."""
        self._waits_for = ""

    def take(self) -> RelayStatus:
        """The relay as it is now."""
        server, tally = self._server, self._server.tally
        return RelayStatus(
            version=__version__,
            source_cluster_id=self._cluster.info.cluster_id or None,
            started_at_ms=self._started_at_ms,
            uptime_seconds=time.monotonic() - self._started_at,
            cpu_seconds=time.process_time(),
            resident_bytes=resident_bytes(),
            connections=server.access.connections,
            connections_max=server.access.connections_max,
            tunnels=len(tally.tunnels),
            rate_limit_bytes_per_second=server.rate_now,
            streams=tuple(_stream(stream) for stream in tally.streams),
            live=tally.channel(Channel.LIVE),
            bulk=tally.channel(Channel.BULK),
            tunnelled_bytes=tally.tunnelled_bytes,
            bytes_read=tally.bytes_read,
            refused=dict(server.audit.refused),
            waits_for=self._waits_for,
        )


def _stream(stream: Stream) -> StreamStatus:
    visitor, hello, sender, reader = stream.visitor, stream.hello, stream.sender, stream.reader
    tuner = sender.makers[Channel.BULK].tuner if sender else None
    return StreamStatus(
        flow=hello.flow if hello else None,
        peer=visitor.peer,
        identity=visitor.identity,
        role=visitor.role.name if visitor.role else None,
        began_at_ms=stream.began_at_ms,
        round_trip_seconds=stream.round_trip_seconds,
        congestion=stream.congestion,
        level=tuner.step.compression.level if tuner else None,
        window_bytes=tuner.step.compression.long_bytes if tuner else None,
        recode=tuner.step.recode if tuner else None,
        why=tuner.reasons if tuner else "",
        partitions_wanted=len(reader.places) if reader else 0,
        waits=stream.waits,
        live=of_channel(stream, Channel.LIVE),
        bulk=of_channel(stream, Channel.BULK),
    )
