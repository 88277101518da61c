"""Which partitions wait for a silent broker: shown while the request is still open.

An answer may take as long as ``request_timeout_seconds``, and the next one as long again, to connect or
because it queues after the requests of others. Giving up sooner would never finish with a broker that is only
slow. So nothing is given up here: the partition is shown as BLOCKED, and open requests stay open.

What a refusal or a timeout means is in :mod:`mirror.flow.states`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address
from mirror.model import Reason, State

LOOK_SECONDS = 1.0
SHOWN_AFTER_SECONDS = 12.0
"""Counted from when the broker counts as silent: in all about as long as until a refusing broker is shown."""
STOOD_STILL_SECONDS = 3.0
"""If a look is this late, we stood still ourselves, and have not read what came meanwhile."""
GOING_ON = frozenset({State.ACTIVE, State.LAGGING, State.UNKNOWN, State.STANDBY})


@dataclass(frozen=True, slots=True)
class _Wait:
    """The broker that a partition waits for.

    Attributes:
        since: Since when it is known to have answered nothing (monotonic seconds).
    """

    reason: Reason
    where: str
    since: float


class Unanswered:
    """Watches the partitions of one flow.

    Args:
        changed: Called with each partition whose state was changed.
    """

    def __init__(self, flow: Flow, changed: Callable[[PartitionCopy], None]) -> None:
        self._flow = flow
        self._changed = changed
        self._waits: dict[PartitionCopy, _Wait] = {}

    async def run(self, partitions: Callable[[], Iterable[PartitionCopy]]) -> None:
        """Look until cancelled."""
        looked_at = 0.0
        while True:
            now = time.monotonic()
            if now - looked_at > STOOD_STILL_SECONDS:
                self._waits.clear()
            self.look(partitions(), now)
            looked_at = now
            await asyncio.sleep(LOOK_SECONDS)

    def look(self, partitions: Iterable[PartitionCopy], now: float) -> None:
        """Look once.

        Args:
            now: Monotonic seconds.
        """
        before, self._waits = self._waits, {}
        heard = {
            cluster.name: cluster.connections.silence() for cluster in (self._flow.target, self._flow.source)
        }
        for p in partitions if any(heard.values()) else ():
            wait = self._wait(p, heard, before.get(p), now)
            if wait is None:
                continue
            seconds = now - wait.since
            if seconds < SHOWN_AFTER_SECONDS:
                self._waits[p] = wait
                continue
            p.show_unanswered(wait.reason, f"{wait.where} has not answered for at least {seconds:.0f} s")
            self._changed(p)

    def _wait(
        self,
        p: PartitionCopy,
        heard: Mapping[str, Mapping[Address, float]],
        before: _Wait | None,
        now: float,
    ) -> _Wait | None:
        """The silent broker that a partition waits for; None if it waits for none.

        Args:
            heard: By cluster, the silent brokers and when each was last heard (monotonic seconds).
            before: What the last look found.
        """
        for reason, cluster, node, heard_before in self._needed(p, now):
            address = cluster.info.brokers.get(node)
            heard_at = None if address is None else heard[cluster.name].get(address)
            if heard_at is None:
                continue
            through = "" if cluster.options.relays is None else ", asked through a relay,"
            where = f"{cluster.name}: broker {node} at {address}{through}"
            if before is not None and before.where == where and before.since >= max(heard_at, heard_before):
                return before
            return _Wait(reason, where, now)
        return None

    def _needed(self, p: PartitionCopy, now: float) -> Iterable[tuple[Reason, Cluster, int, float]]:
        """The brokers that have to answer before the partition goes on, each with a moment not after its last
        answer; that is in the future while the broker throttles us.
        """
        if p.state not in GOING_ON:
            return ()
        source, target = self._flow.source, self._flow.target
        leader = Reason.TARGET_UNAVAILABLE, target, target.info.leader(p.target), -math.inf
        if p.look_due_at is not None and not p.unanswered:
            return leader, (Reason.SOURCE_UNAVAILABLE, source, source.info.leader(p.tp), -math.inf)
        if p.markers_under_way or p.gap_to_mark is not None:
            return (leader,)
        if p.waits_for is None or not p.pending or p.owner_work:
            return ()
        return ((Reason.TARGET_UNAVAILABLE, target, p.waits_for, now - self._flow.silence.of(p, now)),)
