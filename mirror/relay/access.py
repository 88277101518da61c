"""Who may connect to a relay, with how many connections, and which topics they may read.

Decided by the names in a mirror's certificate, once, when a connection is made: a rotated certificate counts
for the next one. If no identities are set, everybody who gets this far may read everything.

No I/O.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from mirror.config_relay import ListenSettings, RoleSettings
from mirror.kafka.relayed import TOO_MANY_CONNECTIONS, UNKNOWN_IDENTITY
from mirror.sync.names import TopicSelector

NAMES_SHOWN_MAX = 8


class Way(StrEnum):
    """What a connection is to become."""

    BROKER = "broker"
    STREAM = "stream"
    JOINED = "joined"
    PROBE = "probe"


class NotAdmittedError(Exception):
    """A connection is refused; the client gets this status, code and text."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class Role:
    """What a mirror may read, and over how many connections and streams at a time.

    Attributes:
        everything: It may read all topics.
    """

    def __init__(self, name: str, settings: RoleSettings) -> None:
        self.name = name
        self.everything = settings.everything
        self.connections_max = settings.connections_max
        self.streams_max = settings.streams_max
        self._selector = TopicSelector(settings.include, settings.exclude)

    def allows(self, topic: str) -> bool:
        """Whether it may read a topic, and know that the topic exists."""
        return self.everything or self._selector.why_not(topic) is None


@dataclass(frozen=True, slots=True, eq=False)
class Visitor:
    """A mirror that was let in.

    Attributes:
        peer: The address it connects from.
        identity: The name in its certificate that counts; None without a certificate.
        role: None if everybody may read everything.
    """

    peer: str
    identity: str | None = None
    role: Role | None = None

    @property
    def limited(self) -> bool:
        """Whether there are topics that it may not read."""
        return self.role is not None and not self.role.everything

    def allows(self, topic: str) -> bool:
        """Whether it may read a topic."""
        return self.role is None or self.role.allows(topic)

    @property
    def known_as(self) -> str:
        """How it is recognized when it returns: the name in its certificate, or the host it connects from."""
        return self.identity or host_of(self.peer)

    @property
    def fields(self) -> dict[str, str]:
        """For log lines: what is known of it."""
        known = {"peer": self.peer, "identity": self.identity, "role": self.role.name if self.role else None}
        return {name: value for name, value in known.items() if value is not None}


class Access:
    """Lets mirrors in, and counts them.

    Attributes:
        connections: Open ones, including those that are being made.
        connections_max: How many are let in.
    """

    def __init__(self, settings: ListenSettings) -> None:
        self.connections = 0
        self.connections_max = settings.connections_max
        self._streams_max = settings.streams_max
        self._identities = settings.identities
        self._roles = {name: Role(name, role) for name, role in settings.roles.items()}
        self._held: Counter[tuple[str, Way]] = Counter()

    @contextlib.contextmanager
    def entered(self, peer: str, names: Sequence[str], way: Way) -> Iterator[Visitor]:
        """Let a mirror in; it counts until the block ends.

        Args:
            names: Those of its certificate, as :func:`mirror.relay.identity.names_of` returns them.

        Raises:
            NotAdmittedError: None of its names is known; or it, or all mirrors together, have too many
                connections or streams.
        """
        visitor = self._visitor(peer, names)
        self._check(visitor, way)
        held = (visitor.identity or "", way)
        self.connections += 1
        self._held[held] += 1
        try:
            yield visitor
        finally:
            self.connections -= 1
            self._held[held] -= 1
            if not self._held[held]:
                del self._held[held]

    def _visitor(self, peer: str, names: Sequence[str]) -> Visitor:
        if self._identities is None:
            return Visitor(peer, names[0] if names else None)
        for name in names:
            role = self._identities.get(name)
            if role is not None:
                return Visitor(peer, name, self._roles[role])
        shown = ", ".join(names[:NAMES_SHOWN_MAX]) or "none"
        words = f"no name of this certificate is in listen.identities of this relay: {shown}"
        raise NotAdmittedError(HTTPStatus.FORBIDDEN, UNKNOWN_IDENTITY, words)

    def _check(self, visitor: Visitor, way: Way) -> None:
        if self.connections >= self.connections_max:
            raise _too_many(f"{self.connections_max} connections of mirrors are open: no more are allowed")
        if way is Way.STREAM and self._streams >= self._streams_max:
            words = f"{self._streams_max} streams of mirrors are open: listen.streams_max allows no more"
            raise _too_many(words)
        role, identity = visitor.role, visitor.identity
        if role is None or identity is None:
            return
        if sum(self._held[identity, one] for one in Way) >= role.connections_max:
            words = (
                f"{role.connections_max} connections of {identity} are open: role {role.name} allows no more"
            )
            raise _too_many(words)
        if way is Way.STREAM and self._held[identity, way] >= role.streams_max:
            words = f"{role.streams_max} streams of {identity} are open: role {role.name} allows no more"
            raise _too_many(words)

    @property
    def _streams(self) -> int:
        return sum(count for (_, way), count in self._held.items() if way is Way.STREAM)


def host_of(peer: str) -> str:
    """The address without the port, which differs each time."""
    return peer.rpartition(":")[0]


def _too_many(words: str) -> NotAdmittedError:
    return NotAdmittedError(HTTPStatus.SERVICE_UNAVAILABLE, TOO_MANY_CONNECTIONS, words)
