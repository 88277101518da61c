"""What several mirrors want alike is read and compressed once.

Partitions that more than one mirror reads up to their end go over to a group of these mirrors. A group reads
by itself; each frame is made once, and sent to each of them by a channel that only they have. A mirror that
does not keep up, or wants something else of a partition, gets it for itself again. Where parts overtake each
other on the way from one channel to another the mirror asks again, so nothing here has to wait for it.

Source: docs/protocol.md (SHARED, MOVED, ENDED).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation, Key
from mirror.link import messages
from mirror.link.frames import Compression, Sealer
from mirror.link.messages import MOVED_BYTES, Channel, Position
from mirror.relay.lane import Frame, sealed
from mirror.relay.news import Gone, News, Taken, nothing, records_bytes
from mirror.relay.place import Place
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Sender
from mirror.relay.tuning import Spent

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
MOVES_MAX = 10_000
"""So many partitions of a mirror move at once at most, and no more than there is room to tell it of: else
that stands before what is urgent, or looks as if the mirror did not read.
"""
RETURN_SECONDS = 0.1
"""So soon the next of those go back to a mirror for which all at once were too many."""
GROUPS_MAX = 16
"""More sets of mirrors than these are not looked after: they read for themselves."""
SLOW_SECONDS = 0.5
"""So long a group waits for one of its mirrors; who is slower reads for itself."""
ALONE_SECONDS = 60.0
"""And for so long at least, wherever it comes back meanwhile."""
ALONE_MAX = 10_000
"""Of so many that is remembered."""
UNREAD_SECONDS = 2.0
"""A broker that a group has asked in vain for so long is left to its mirrors for a while: it may have no more
connections for this relay than theirs.
"""
COMPRESSION = Compression(2, 22, long=True)
FRAME_BYTES_MIN = 64 << 10
"""Who has room for less in a frame reads for itself: others would get as little at a time."""


class Who(NamedTuple):
    """Whose stream it is, also of one that is begun anew: a mirror, as it is known, and its flow, which has a
    producer of its own at each target: several mirrors may come from one address, with flows of one name.
    """

    known_as: str
    flow: str
    producer_id: int


class Kind(NamedTuple):
    """What has to be the same for frames to be, whatever is in them."""

    isolation: Isolation
    recode: bool


@dataclass(slots=True, eq=False)
class Member:
    """One mirror's stream.

    Attributes:
        write: Sends it a message.
        room: So many bytes of messages may be sent to it now.
        trouble: Tells it of a broker that cannot be read.
    """

    who: Who
    kind: Kind
    frame_bytes: int
    reader: SourceReader
    sender: Sender
    write: Callable[[bytes], None]
    room: Callable[[], int]
    trouble: Callable[[int, str], None]

    @property
    def moves(self) -> int:
        """Of so many partitions it can be told now that they move."""
        return max(min(self.room() // MOVED_BYTES, MOVES_MAX), 0)


class Wanted(NamedTuple):
    """What a mirror wanted of a partition that a group reads now."""

    place: Place
    recode: bool


class Group:
    """Mirrors that get the same frames.

    Attributes:
        kind: What they have in common.
        members: Those, with the channel by which each gets them.
        wanted: Of each partition, by each of them.
    """

    def __init__(
        self, cluster: Cluster, members: Collection[Member], give_up: Callable[[Member], None]
    ) -> None:
        """
        Args:
            give_up: Told of one that is too slow.
        """
        self.kind = next(iter(members)).kind
        frame_bytes = min(member.frame_bytes for member in members)
        self.reader = SourceReader(cluster, self.kind.isolation, self, frame_bytes)
        self.members: dict[Member, int] = {}
        self.wanted: dict[Key, dict[Member, Wanted]] = {}
        self._places: dict[Key, Place] = {}
        """How far each of them was read, also where the reader has forgotten it."""
        self._give_up = give_up
        self._sealer = Sealer(COMPRESSION)
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        for member in members:
            channel = member.sender.begin_shared(self._sealer.key)
            if channel is not None:
                self.members[member] = channel

    def start(self, broken: Callable[[BaseException], None]) -> None:
        """Read from now on; ``broken`` is told of a mistake of ours that has ended it."""

        def ended(reading: asyncio.Task[None]) -> None:
            error = None if reading.cancelled() else reading.exception()
            if error is not None:
                broken(error)

        self._reading = asyncio.create_task(self.reader.run())
        self._reading.add_done_callback(ended)

    def close(self) -> None:
        """Read no more; its mirrors have been given back what they wanted."""
        for member, channel in self.members.items():
            member.sender.end_shared(channel)
        self.members.clear()
        if self._reading is not None:
            self._reading.cancel()

    # -- who takes part ----------------------------------------------------------------------------

    def take_over(self, wanted: dict[Key, dict[Member, Wanted]]) -> None:
        """Read these partitions for all members; each goes on where the one that is least far is."""
        for member, channel in self.members.items():
            numbers = ((key, by_member[member].place.number) for key, by_member in wanted.items())
            member.write(messages.moved(channel, numbers))
        self.wanted |= wanted
        for key, by_member in wanted.items():
            first = min((one.place for one in by_member.values()), key=lambda place: place.offset)
            recode = all(one.recode for one in by_member.values())
            self.reader.want([Position(key, 0, first.offset, first.fetched_epoch, recode)])
            self._places[key] = self.reader.places[key]

    def release(self, key: Key) -> dict[Member, Wanted]:
        """Read a partition no more; answers from where on each mirror is to read it."""
        wanted = self.wanted.pop(key)
        for one in wanted.values():
            self._tell_where(key, one.place)
        self.reader.forget([key])
        del self._places[key]
        return wanted

    def epoch_of(self, key: Key) -> int:
        """The leader epoch of the last record that was read of a partition."""
        return self._places[key].fetched_epoch

    def _tell_where(self, key: Key, place: Place) -> None:
        """From where on a partition is to be read that was read here."""
        ours = self._places[key]
        place.offset, place.fetched_epoch = ours.offset, ours.fetched_epoch

    def drop(self, member: Member) -> dict[Key, Wanted]:
        """Send one of them nothing more; answers what it wanted, and from where on."""
        del self.members[member]
        dropped = {key: by_member.pop(member) for key, by_member in self.wanted.items()}
        for key, one in dropped.items():
            self._tell_where(key, one.place)
        return dropped

    @property
    def behind(self) -> list[Key]:
        """Partitions that more is written to than can be sent: they are no business of a group."""
        return [key for key, place in self.reader.places.items() if place.behind]

    def led_by(self, nodes: Container[int]) -> list[Key]:
        """What it reads of these brokers."""
        known = ((key, self.reader.partition(key)) for key in self.wanted)
        return [key for key, partition in known if partition is not None and partition.leader in nodes]

    # -- frames: an outlet of the reader -------------------------------------------------------------

    async def send(self, _: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        async with self._turn:
            await self._room()
            pieces = await sealed(self._sealer, news, as_is, recode=self.kind.recode)
            gone()  # it is compressed
            if not self.members:
                return
            for member, channel in self.members.items():
                frame = Frame(pieces, nothing, nothing)
                spent = Spent(records_bytes=records_bytes(news), wire_bytes=frame.left)
                member.sender.put(channel, frame, spent)
        taken()  # all goes by one channel: what comes after it cannot overtake it

    def trouble(self, node: int, words: str) -> None:
        """Likewise."""
        for member in self.members:
            member.trouble(node, words)

    def closed(self, topics: Collection[str]) -> None:
        """Nothing is shared that its mirrors may not read."""

    async def _room(self) -> None:
        """Wait until all have room, or so long: for all of them together, however many are too slow."""
        ends_at = asyncio.get_running_loop().time() + SLOW_SECONDS
        for member in list(self.members):
            if member not in self.members:
                continue  # it has left while another was waited for
            try:
                async with asyncio.timeout_at(ends_at):
                    await member.sender.has_room(self.members[member])
            except TimeoutError:
                if member in self.members:
                    self._give_up(member)


class Sharing:
    """Looks what mirrors have in common."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: list[Member] = []
        self._groups: list[Group] = []
        self._left_until: dict[int, float] = {}
        """Brokers of which nothing is shared before that, by the monotonic clock."""
        self._alone_until: dict[Who, float] = {}
        """Likewise, who shares nothing."""
        self._returning: dict[Member, dict[Key, Wanted]] = {}
        """What is not shared any more, and was too much to be given back at once."""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        look_at = time.monotonic() + LOOK_SECONDS
        while True:
            left = max(look_at - time.monotonic(), 0.0)
            await asyncio.sleep(min(left, RETURN_SECONDS) if self._returning else left)
            self.go_on_returning()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                self.look(time.monotonic())

    def join(self, member: Member) -> None:
        """A mirror has come."""
        self._members.append(member)

    def leave(self, member: Member) -> None:
        """It is gone."""
        self._members.remove(member)
        self._returning.pop(member, None)
        for group in [group for group in self._groups if member in group.members]:
            group.drop(member)
            self._close_where_useless(group)

    def released(self, member: Member, keys: Iterable[Key]) -> None:
        """A mirror wants something else of these partitions, or nothing: each reads them for itself again."""
        keys = list(keys)
        for key in keys if member in self._returning else ():
            self._returning[member].pop(key, None)
        for group in [group for group in self._groups if member in group.members]:
            mine = [key for key in keys if member in group.wanted.get(key, ())]
            self._give_back(group, mine, but=member)
            self._close_where_useless(group)

    def rank(self, member: Member, ranks: Iterable[tuple[Key, int]]) -> None:
        """What a mirror does not read for itself has this rank when it does again."""
        elsewhere = [group.wanted for group in self._groups if member in group.members]
        back = self._returning.get(member, {})
        for key, rank in ranks:
            found = [wanted[key][member] for wanted in elsewhere if member in wanted.get(key, ())]
            for one in [*found, *([back[key]] if key in back else ())]:
                one.place.rank = rank

    def look(self, now: float) -> None:
        """Give back what is behind, and bring together what is common."""
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
        """Give back what a group cannot read; where its mirrors cannot either, that is theirs to say."""
        unread = group.reader.unread(UNREAD_SECONDS)
        keys = group.led_by(unread) if unread else []
        if keys:
            log.info("brokers_not_shared", brokers=sorted(unread), seconds=ALONE_SECONDS)
            self._left_until |= dict.fromkeys(unread, now + ALONE_SECONDS)
            self._give_back(group, keys)

    def _common(self, now: float) -> dict[frozenset[Member], list[Key]]:
        """Partitions that some mirror reads up to their end, and others too, by all of these mirrors.

        All of them name the same leader epoch to the broker: it tells the one that is least far whether what
        follows was replaced under that, and would have told another of its own something else.
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
        """What more than one reads of each kind, a group being one. No step is taken for each of the others:
        there may be very many, and all streams wait meanwhile.
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
        """The group of these mirrors; None where there can be none."""
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
        """Take a partition from wherever it is read for these mirrors."""
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
        """A mirror reads partitions for itself again: as many as may move at once, the others soon."""
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
            member.write(messages.moved(Channel.LIVE, numbers))
        for key, one in some.items():
            del left[key]
            member.reader.take_back(key, *one)
        if not left:
            del self._returning[member]

    def _alone(self, member: Member) -> None:
        """It holds up others."""
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
        """A group of one, or of nothing."""
        if len(group.members) < 2 or not group.wanted:
            self._end(group)

    def _end(self, group: Group) -> None:
        self._give_back(group, group.wanted)
        group.close()
        self._groups.remove(group)
