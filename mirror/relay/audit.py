"""Which mirrors a relay let in, which it did not, and what it refused: logged, and counted for metrics.

What is repeated a thousand times takes a few log lines, which say how many were suppressed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import structlog

from mirror.kafka.relayed import (
    NO_UPGRADE,
    OTHER_PROTOCOL,
    TOO_MANY_CONNECTIONS,
    UNKNOWN_BROKER,
    UNKNOWN_IDENTITY,
)
from mirror.link.messages import words
from mirror.logs import Repeats, warn_repeated
from mirror.relay.access import Visitor, Way, host_of

log = structlog.get_logger(__name__)

SHOWN_MAX = 20
TOO_SLOW, NOT_ONLY_READING, TOPIC = "too_slow", "request_refused", "topic_refused"
BAD_REQUEST, TLS_REFUSED = "bad_request", "tls_refused"
CODES = (
    *(TLS_REFUSED, UNKNOWN_IDENTITY, TOO_MANY_CONNECTIONS, OTHER_PROTOCOL, NO_UPGRADE, UNKNOWN_BROKER),
    *(BAD_REQUEST, "unknown_stream", "probe_running", "source_unavailable", TOO_SLOW),
    *(NOT_ONLY_READING, TOPIC, "bad_message", "old_epoch", "internal_error", "silent", "unread"),
)
"""All reasons for which a relay refuses something, or ends a connection."""


class Audit:
    """Records what a relay lets in and what it refuses.

    Attributes:
        refused: How often it did, for each of :data:`CODES`.
    """

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter(dict.fromkeys(CODES, 0))
        self._repeats = Repeats()

    def let_in(self, visitor: Visitor, way: Way) -> None:
        """A connection was let in."""
        log.info("mirror_let_in", way=way.value, **visitor.fields)

    def not_let_in(self, peer: str, names: Sequence[str], code: str, why: str) -> None:
        """A request for a connection was refused.

        Args:
            names: Those of the client's certificate.
        """
        self.refused[code] += 1
        key = (code, host_of(peer), *names)
        shown = list(names[:SHOWN_MAX])
        warn_repeated(
            log, self._repeats, key, "mirror_not_let_in", peer=peer, names=shown, code=code, why=words(why)
        )

    def tls_refused(self, peer: str, reason: str) -> None:
        """One side does not accept the other's certificate, or what arrived is not TLS.

        Args:
            reason: In the words of the TLS library.
        """
        self.refused[TLS_REFUSED] += 1
        key = (TLS_REFUSED, host_of(peer), reason)
        warn_repeated(log, self._repeats, key, "tls_refused", peer=peer, reason=words(reason))

    def no_request(self, host: str, why: str) -> None:
        """What arrived is not HTTP, or asks for something that does not exist.

        Args:
            host: The client's address, as far as it is known.
        """
        self.refused[BAD_REQUEST] += 1
        key = (BAD_REQUEST, host)
        fields = {"peer": host, "code": BAD_REQUEST, "why": words(why)}
        warn_repeated(log, self._repeats, key, "mirror_not_let_in", **fields)

    def topics(self, visitor: Visitor, by: str, topics: Collection[str]) -> None:
        """A mirror asked for topics that its role does not have, and got nothing of them.

        Args:
            by: What it asked with: a request by Kafka's name, or ``stream``.
        """
        self.refused[TOPIC] += len(topics)
        names = sorted(topics)
        fields = {"by": by, "topics": names[:SHOWN_MAX], "count": len(names)} | visitor.fields
        key = (visitor.identity, by, *names[:SHOWN_MAX])
        warn_repeated(log, self._repeats, key, "topics_refused", **fields)

    def too_slow(self, peer: str, waited_for: str) -> None:
        """A connection did not send in time what it had to."""
        self.refused[TOO_SLOW] += 1
        key = (TOO_SLOW, host_of(peer), waited_for)
        warn_repeated(log, self._repeats, key, "too_slow", peer=peer, waited_for=waited_for)

    def request(self, visitor: Visitor, broker: str, why: str) -> None:
        """A request to a broker, or its answer, is one that is not passed on."""
        self.refused[NOT_ONLY_READING] += 1
        log.warning("request_refused", broker=broker, why=why, **visitor.fields)

    def probe(self, peer: str, code: str, why: str) -> None:
        """The relay ends a probe."""
        self.refused[code] += 1
        log.warning("probe_refused", peer=peer, code=code, why=why)

    def stream(self, visitor: Visitor, code: str, why: str) -> None:
        """The relay ends a stream."""
        self.refused[code] += 1
        log.warning("stream_refused", code=code, why=why, **visitor.fields)
