"""What several mirrors want alike is read and compressed once.

Partitions that more than one mirror reads up to their end move to a group of these mirrors
(:mod:`mirror.relay.group`). A mirror that does not keep up, or wants something else of a partition, reads it
for itself again. If parts overtake each other while a partition moves from one channel to another, the mirror
asks again, so nothing here has to wait for that.

Source: docs/protocol.md (SHARED, MOVED, ENDED).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import structlog

from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Key
from mirror.link import protocol
from mirror.link.protocol import Channel
from mirror.relay.group import Group, Kind, Member, Wanted, Who

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
RETURN_SECONDS = 0.1
"""How soon more partitions go back to a mirror for which they were too many at once."""
GROUPS_MAX = 16
"""Further sets of mirrors read for themselves."""
ALONE_SECONDS = 60.0
"""How long, at least, a mirror that held up others reads for itself, even over a new stream."""
ALONE_MAX = 10_000
"""Mirrors for which that is remembered."""
UNREAD_SECONDS = 2.0
"""A broker that has owed a group an answer for this long is left to the group's mirrors for a while: it may
accept no more connections from this relay than theirs.
"""
FRAME_BYTES_MIN = 64 << 10
"""A mirror that takes less in a frame reads for itself: others would get as little at a time."""


class Sharing:
    """Finds what mirrors have in common, and has groups read it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: list[Member] = []
        self._groups: list[Group] = []
        self._left_until: dict[int, float] = {}
        """Brokers from which nothing is shared before that moment, by the monotonic clock."""
        self._alone_until: dict[Who, float] = {}
        """Likewise, mirrors that share nothing."""
        self._returning: dict[Member, dict[Key, Wanted]] = {}
        """What is no longer shared, and still has to be given back: it was too much at once."""

    async def run(self) -> None:
        """Look every ``LOOK_SECONDS`` until cancelled."""
        look_at = time.monotonic() + LOOK_SECONDS
        while True:
            left = max(look_at - time.monotonic(), 0.0)
            await asyncio.sleep(min(left, RETURN_SECONDS) if self._returning else left)
            self.go_on_returning()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                self.look(time.monotonic())

    def join(self, member: Member) -> None:
        """Add a mirror."""
        self._members.append(member)

    def leave(self, member: Member) -> None:
        """Remove a mirror: its stream has ended."""
        self._members.remove(member)
        self._returning.pop(member, None)
        for group in [group for group in self._groups if member in group.members]:
            group.drop(member)
            self._close_where_useless(group)

    def released(self, member: Member, keys: Iterable[Key]) -> None:
        """A mirror wants something else of these partitions, or nothing: the others read them for themselves
        again.
        """
        keys = list(keys)
        for key in keys if member in self._returning else ():
            self._returning[member].pop(key, None)
        for group in [group for group in self._groups if member in group.members]:
            mine = [key for key in keys if member in group.wanted.get(key, ())]
            self._give_back(group, mine, but=member)
            self._close_where_useless(group)

    def rank(self, member: Member, ranks: Iterable[tuple[Key, int]]) -> None:
        """Note ranks for partitions that a mirror does not read for itself now: they apply once it does."""
        elsewhere = [group.wanted for group in self._groups if member in group.members]
        back = self._returning.get(member, {})
        for key, rank in ranks:
            found = [wanted[key][member] for wanted in elsewhere if member in wanted.get(key, ())]
            for one in [*found, *([back[key]] if key in back else ())]:
                one.place.rank = rank

    def look(self, now: float) -> None:
        """Give back what is behind or cannot be read, and have groups read what is common."""
        if len(self._members) < 2:
            return
        for group in list(self._groups):
            self._give_back(group, group.behind)
            self._leave_unread(group, now)
        moves = {member: member.moves for member in self._members}
        for members, keys in self._common(now).items():
            move = keys[: min(moves[member] for member in members)]
            into = self._group_of(members) if move else None
            if into is not None:
                into.take_over({key: self._collect(members, key) for key in move})
                log.info("partitions_shared", partitions=len(move), mirrors=len(members))
                for member in members:
                    moves[member] -= len(move)
        for group in list(self._groups):
            self._close_where_useless(group)

    def _leave_unread(self, group: Group, now: float) -> None:
        """Give back what a group cannot read; if its mirrors cannot either, they report it themselves."""
        unread = group.reader.unread(UNREAD_SECONDS)
        keys = group.led_by(unread) if unread else []
        if keys:
            log.info("brokers_not_shared", brokers=sorted(unread), seconds=ALONE_SECONDS)
            self._left_until |= dict.fromkeys(unread, now + ALONE_SECONDS)
            self._give_back(group, keys)

    def _common(self, now: float) -> dict[frozenset[Member], list[Key]]:
        """Partitions that several mirrors read up to their end, by the set of these mirrors; without those
        that only a group reads.

        The mirrors of a set have read a partition up to the same leader epoch. With that epoch, and from the
        position of the least advanced mirror, the broker is asked whether what follows was replaced; to a
        mirror with another epoch it might answer something else.
        """
        left = {node for node, until in self._left_until.items() if until > now}
        may = [member for member in self._members if self._may_share(member, now)]
        at_end = {member: member.reader.at_end(but=left) for member in may}
        several = self._of_several(at_end)
        found: defaultdict[tuple[Kind, Key, int], set[Member]] = defaultdict(set)
        for member, keys in at_end.items():
            for key in keys & several[member.kind]:
                found[member.kind, key, member.reader.places[key].fetched_epoch].add(member)
        for group in self._groups:
            for key in group.wanted.keys() & several[group.kind]:
                alike = group.kind, key, group.epoch_of(key)
                if alike in found:
                    found[alike].update(group.wanted[key])
        common: defaultdict[frozenset[Member], list[Key]] = defaultdict(list)
        for (_, key, _), members in found.items():
            if len(members) > 1:
                common[frozenset(members)].append(key)
        return common

    def _may_share(self, member: Member, now: float) -> bool:
        return self._alone_until.get(member.who, 0.0) <= now and member.frame_bytes >= FRAME_BYTES_MIN

    def _of_several(self, at_end: dict[Member, set[Key]]) -> dict[Kind, set[Key]]:
        """The partitions of each kind that have several readers; a group counts as one. Only whole sets are
        combined: there may be very many other partitions, and all streams wait meanwhile.
        """
        once: defaultdict[Kind, set[Key]] = defaultdict(set)
        several: defaultdict[Kind, set[Key]] = defaultdict(set)
        for member, keys in at_end.items():
            several[member.kind] |= once[member.kind] & keys
            once[member.kind] |= keys
        for group in self._groups:
            several[group.kind] |= group.wanted.keys() & once[group.kind]
        return several

    def _group_of(self, members: frozenset[Member]) -> Group | None:
        """The group of exactly these mirrors, a new one if there is none; None if there can be none."""
        for group in self._groups:
            if group.members.keys() == members:
                return group
        if len(self._groups) >= GROUPS_MAX:
            return None
        group = Group(self._cluster, members, self._alone)
        if len(group.members) < len(members):
            group.close()
            return None
        group.start(partial(self._broken, group))
        self._groups.append(group)
        return group

    def _broken(self, group: Group, error: BaseException) -> None:
        log.error("sharing_broken", error=repr(error), exc_info=error)
        if group in self._groups:
            self._end(group)

    def _collect(self, members: Iterable[Member], key: Key) -> dict[Member, Wanted]:
        """Take a partition away from wherever it is read for these mirrors."""
        collected: dict[Member, Wanted] = {}
        for group in self._groups:
            if key in group.wanted and any(member in group.wanted[key] for member in members):
                collected |= group.release(key)
        for member in members:
            if member not in collected:
                collected[member] = Wanted(*member.reader.hand_over(key))
        return collected

    def _give_back(self, group: Group, keys: Iterable[Key], but: Member | None = None) -> None:
        back: defaultdict[Member, dict[Key, Wanted]] = defaultdict(dict)
        for key in list(keys):
            for member, wanted in group.release(key).items():
                if member is not but:
                    back[member][key] = wanted
        for member, released in back.items():
            self._return(member, released)

    def _return(self, member: Member, wanted: dict[Key, Wanted]) -> None:
        """Let a mirror read partitions for itself again: as many as may move at once now, the others soon."""
        self._returning.setdefault(member, {}).update(wanted)
        self._return_some(member)

    def go_on_returning(self) -> None:
        """Give back more of what was too much at once."""
        for member in list(self._returning):
            self._return_some(member)

    def _return_some(self, member: Member) -> None:
        left = self._returning[member]
        some = dict(itertools.islice(left.items(), member.moves))
        if some:
            numbers = ((key, one.place.number) for key, one in some.items())
            member.write(protocol.moved(Channel.LIVE, numbers))
        for key, one in some.items():
            del left[key]
            member.reader.take_back(key, *one)
        if not left:
            del self._returning[member]

    def _alone(self, member: Member) -> None:
        """Take a mirror that holds up others out of its groups; for a while it reads for itself."""
        log.info("mirror_reads_alone", seconds=ALONE_SECONDS)
        self._alone_until.pop(member.who, None)
        self._alone_until[member.who] = time.monotonic() + ALONE_SECONDS
        if len(self._alone_until) > ALONE_MAX:
            del self._alone_until[next(iter(self._alone_until))]
        for group in [group for group in self._groups if member in group.members]:
            member.sender.end_shared(group.members[member])
            self._return(member, group.drop(member))
            self._close_where_useless(group)

    def _close_where_useless(self, group: Group) -> None:
        """End a group that has fewer than two members, or no partitions."""
        if len(group.members) < 2 or not group.wanted:
            self._end(group)

    def _end(self, group: Group) -> None:
        self._give_back(group, group.wanted)
        group.close()
        self._groups.remove(group)
