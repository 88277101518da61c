"""The connections to one cluster, by broker and lane: which there are, what they have carried, who was heard.

None is opened here, and nothing is waited for. One that has ended stays until another takes its place or its
broker is gone: it tells which brokers have fallen silent.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address

ANY = -1
"""Stands for the id of a broker that is asked by its address: what several know."""

CONTROL, PROMPT = "control", "prompt"
"""The connection to a broker for questions of all kinds; and one for those that do not take long."""
CHANGES, DELETIONS = "changes", "deletions"
"""One for what is to be changed, which a broker passes on to the controller; and one for records that are to
be deleted, for which it waits for other replicas. Nothing else there is answered meanwhile.
"""
WAITING = frozenset({CHANGES, DELETIONS})
"""Where a broker that lets something wait may be waiting for another one."""
SILENT_SECONDS = 3.0
"""A broker that lets a question wait for so long is asked nothing that others can answer."""

Key = tuple[int, str]
"""The broker and the lane; for ``ANY`` the address stands in place of the lane."""


class ConnectionPool:
    """Of one cluster."""

    def __init__(self) -> None:
        self._connections: dict[Key, Connection] = {}
        self._bytes_before = (0, 0)
        self._missed_at: dict[Address, float] = {}
        """When a connection was wanted last that had ended."""

    def close(self) -> None:
        """Close all of them."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def get(self, key: Key) -> Connection | None:
        """The one to use; None where there is none, or it has ended."""
        kept = self._connections.get(key)
        if kept is None or not kept.closed:
            return kept
        self._missed_at[kept.address] = time.monotonic()
        return None

    def keep(self, key: Key, opened: Connection) -> Connection:
        """Use this one from now on; the one before it has ended."""
        replaced = self._connections.pop(key, None)
        if replaced is not None:
            self.count_in(replaced)
        self._connections[key] = opened  # behind all that were made before
        return opened

    def forget_gone(self, nodes: Collection[int], addresses: Collection[Address]) -> None:
        """Close those to brokers that have left the cluster, or to addresses that are nobody's any more."""
        here = {str(address) for address in addresses}
        for key in [(node, lane) for node, lane in self._connections if node not in nodes]:
            if key[0] == ANY and key[1] in here:
                continue
            connection = self._connections.pop(key)
            self.count_in(connection)
            connection.close("the broker has left the cluster")

    # -- what they carry -------------------------------------------------------------------------

    def count(self, received: int, sent: int) -> None:
        """So many bytes more have gone between us and the cluster, on ways that are none of these."""
        before = self._bytes_before
        self._bytes_before = (before[0] + received, before[1] + sent)

    def count_in(self, gone: Connection) -> None:
        """What a connection has carried that is none of these, or not any more."""
        self.count(gone.bytes_received, gone.bytes_sent)

    @property
    def bytes_received(self) -> int:
        """What all of them have received, those that have ended included."""
        return self._bytes_before[0] + sum(c.bytes_received for c in self._connections.values())

    @property
    def bytes_sent(self) -> int:
        """What all of them have sent, those that have ended included."""
        return self._bytes_before[1] + sum(c.bytes_sent for c in self._connections.values())

    @property
    def unanswered(self) -> int:
        """Requests on all of them that wait for their answer."""
        return sum(c.unanswered for c in self._connections.values() if not c.closed)

    @property
    def certificate_valid_until(self) -> float | None:
        """When the first of the certificates that brokers have shown expires, in seconds since 1970; of each
        address the one that was shown last.
        """
        ends = {
            connection.address: end
            for connection in self._connections.values()
            if (end := connection.certificate_valid_until) is not None
        }
        return min(ends.values(), default=None)

    # -- who was heard ---------------------------------------------------------------------------

    def silent(self) -> set[Address]:
        """Brokers that leave a question unanswered, or were not heard since a connection to them ended."""
        return self._owing() | self._lost(self._heard())

    def silence(self) -> dict[Address, float]:
        """Those of them from which somebody wants something, with when each was heard last, in monotonic
        seconds, if only with a piece of an answer.
        """
        heard, owing = self._heard(), self._owing()
        missed = {one for one in self._lost(heard) if self._missed_at.get(one, 0.0) > heard[one]}
        for c in self._not_waiting():
            heard[c.address] = max(heard[c.address], c.arriving_at or 0.0)
        return {address: heard[address] for address in owing | missed}

    def _not_waiting(self) -> list[Connection]:
        return [c for (_, lane), c in self._connections.items() if lane not in WAITING]

    def _owing(self) -> set[Address]:
        return {c.address for c in self._not_waiting() if c.unanswered_seconds > SILENT_SECONDS}

    def _lost(self, heard: Mapping[Address, float]) -> set[Address]:
        return {c.address for c in self._not_waiting() if (c.closed_at or 0.0) > heard[c.address]}

    def heard_last(self, but: Collection[Address]) -> Connection | None:
        """Of the connections on which nothing is on its way, one to the broker that was heard last.

        Those that may be used in our turn only are not for questions, and some questions take long.
        """
        heard, silent = self._heard(), {*self.silent(), *but}
        for_all = [c for (_, lane), c in self._connections.items() if lane not in {PROMPT, *WAITING}]
        free = [c for c in for_all if not (c.closed or c.guarded or c.unanswered)]
        return max(free, key=lambda c: (c.address not in silent, heard[c.address]), default=None)

    def _heard(self) -> dict[Address, float]:
        """When a broker last answered, on any connection."""
        heard: dict[Address, float] = {}
        for c in self._connections.values():
            heard[c.address] = max(c.answered_at, heard.get(c.address, 0.0))
        return heard


def speaks(connection: Connection) -> bool:
    """Whether an answer is coming: over a slow link a long one takes its time."""
    at = connection.arriving_at
    return at is not None and time.monotonic() - at < SILENT_SECONDS
