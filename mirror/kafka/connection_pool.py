"""The connections to one cluster, by broker and lane: what they have carried, and which brokers answer.

Nothing is opened or awaited here. A closed connection stays until another replaces it or its broker leaves
the cluster: it shows which brokers have fallen silent.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.kafka.opening import Opening

ANY = -1
"""In place of a broker id: a broker that is asked by its address, for what any broker knows."""

CONTROL, PROMPT = "control", "prompt"
"""The connection to a broker for requests of all kinds, and the one for those that do not take long."""
CHANGES, DELETIONS, CLAIMS = "changes", "deletions", "claims"
"""The connection for changes, which a broker forwards to the controller, and those for deleting records and
for claiming transactional ids, for which it waits for other replicas. Until then the broker answers nothing
else there.
"""
WAITING = frozenset({CHANGES, DELETIONS, CLAIMS})
"""Lanes on which a broker that does not answer may itself be waiting for another broker."""
SILENT_SECONDS = 3.0
"""A broker that leaves a request unanswered for longer is not asked what others can answer."""
GONE = "the broker has left the cluster, or has another address now"
CLOSED = "all connections to the cluster were closed"

Key = tuple[int, str]
"""The broker and the lane; for ``ANY`` the address instead of the lane."""


class ConnectionPool:
    """The connections to one cluster.

    Attributes:
        opening: Those that are being opened.
    """

    def __init__(self) -> None:
        self.opening: dict[Key, Opening] = {}
        self._connections: dict[Key, Connection] = {}
        self._closed = False
        self._bytes_before = (0, 0)
        self._missed_at: dict[Address, float] = {}
        """When a closed connection was last asked for, in monotonic seconds."""

    def close(self) -> None:
        """Close all of them, and whichever is opened after this. Those that are being opened are given up."""
        self._closed = True
        for opening in self.opening.values():
            opening.give_up(CLOSED)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def get(self, key: Key) -> Connection | None:
        """The connection to use; None if there is none, or it is closed."""
        kept = self._connections.get(key)
        if kept is None or not kept.closed:
            return kept
        self._missed_at[kept.address] = time.monotonic()
        return None

    def begin(self, key: Key, address: Address) -> Opening:
        """One more that is being opened; it is given up at once if all are closed."""
        opening = self.opening[key] = Opening(address)
        if self._closed:
            opening.give_up(CLOSED)
        return opening

    def keep(self, key: Key, opened: Connection) -> Connection:
        """Use this connection from now on; the one that it replaces must have ended.

        Raises:
            ConnectionFailedError: All were closed while it was being opened, and so is this one.
        """
        if self._closed:
            self.count_in(opened)
            opened.close()
            raise ConnectionFailedError(f"{opened.address}: {CLOSED}")
        replaced = self._connections.pop(key, None)
        if replaced is not None:
            self.count_in(replaced)
        self._connections[key] = opened  # last: certificate_valid_until relies on the order
        return opened

    def forget_gone(self, brokers: Mapping[int, Address], bootstrap: Collection[Address]) -> None:
        """Close the connections to brokers that have left the cluster, and to addresses no longer in use.

        If a broker has another address now, nobody may be left at the old one to end a connection. It is
        closed once the broker owes no answer on it, or is silent: until then an answer may still come. One
        that is still being opened is given up.

        Args:
            brokers: The addresses of the brokers, by id.
            bootstrap: Addresses that stay in use, whoever is there.
        """
        here = {*brokers.values(), *bootstrap}

        def in_use(node: int, address: Address) -> bool:
            return address in here if node == ANY else address == brokers.get(node)

        for (node, _), opening in self.opening.items():
            if not in_use(node, opening.address):
                opening.give_up(GONE)
        for key, connection in list(self._connections.items()):
            node = key[0]
            if in_use(node, connection.address) or (node in brokers and _may_answer(connection)):
                continue
            del self._connections[key]
            self.count_in(connection)
            connection.close(GONE)

    # -- what they carry -------------------------------------------------------------------------

    def count(self, received: int, sent: int) -> None:
        """Add bytes that were received from and sent to the cluster by connections that are not in here."""
        before = self._bytes_before
        self._bytes_before = (before[0] + received, before[1] + sent)

    def count_in(self, gone: Connection) -> None:
        """Add the bytes of a connection that is not, or no longer, in here."""
        self.count(gone.bytes_received, gone.bytes_sent)

    @property
    def bytes_received(self) -> int:
        """Bytes received over all of them, closed ones included."""
        return self._bytes_before[0] + sum(c.bytes_received for c in self._connections.values())

    @property
    def bytes_sent(self) -> int:
        """Bytes sent over all of them, closed ones included."""
        return self._bytes_before[1] + sum(c.bytes_sent for c in self._connections.values())

    @property
    def unanswered(self) -> int:
        """Requests on all of them that wait for their answer."""
        return sum(c.unanswered for c in self._connections.values() if not c.closed)

    @property
    def certificate_valid_until(self) -> float | None:
        """When the first of the brokers' certificates expires, in seconds since 1970; None if none was shown.

        Of each address the one that was shown last counts.
        """
        ends = {
            connection.address: end
            for connection in self._connections.values()
            if (end := connection.certificate_valid_until) is not None
        }
        return min(ends.values(), default=None)

    # -- who was heard ---------------------------------------------------------------------------

    def silent(self) -> set[Address]:
        """Brokers that leave a request unanswered, or have not answered since a connection to them ended."""
        return self._owing() | self._lost(self._heard())

    def silence(self) -> dict[Address, float]:
        """The silent brokers from which something is wanted, each with when it was last heard.

        In monotonic seconds; a part of an answer counts as heard.
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
        """An idle connection to the broker that answered most recently; None if no connection is idle.

        Brokers that are silent, or in ``but``, come last. Guarded connections are left out, since they may be
        used only in our turn; so are the lanes for requests that must not wait, or that wait for others.
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
    """Whether an answer is arriving: over a slow link a long one takes time."""
    at = connection.arriving_at
    return at is not None and time.monotonic() - at < SILENT_SECONDS


def _may_answer(connection: Connection) -> bool:
    """Whether it owes an answer, and is not silent."""
    owes, patient = connection.unanswered > 0, connection.unanswered_seconds <= SILENT_SECONDS
    return owes and (patient or speaks(connection))
