"""The records of a flow's durable state, and how they are stored.

Records are JSON with a version, so that a person with a console consumer can read them. A reader refuses
versions it does not know, and ignores nothing: a field it does not know belongs to a newer version.

Keys: ``flow`` · ``owner`` · ``partition/<topic>/<partition>`` · ``map/<topic>/<partition>/<chunk>`` ·
``insertion/<topic>/<partition>`` · ``fence``, which never has a value (:mod:`checkpoint.topic_store`). Topic
names never contain a slash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID

from checkpoint.errors import CorruptStateError
from checkpoint.insertions import Inserted, united
from mirror.model import OffsetMode, TopicPartition
from mirror.moments import moment

T = TypeVar("T")
V = TypeVar("V")

VERSION = 1
FLOW_KEY = "flow"
OWNER_KEY = "owner"
PARTITION_PREFIX = "partition/"
INSERTION_PREFIX = "insertion/"
LEADER_EPOCHS_KEPT = 32
"""Newest leader epochs kept per partition: enough to find where a truncated source and the copy agree."""


class _SingleRecord:
    """A record of which a flow has one, under a key of its own."""

    __slots__ = ()
    KEY: ClassVar[str]

    def to_bytes(self) -> bytes:
        return _encode(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            CorruptStateError: It cannot be read, or is of a version this program does not know.
        """
        return _build(cls, _decode(data, cls.KEY), cls.KEY)


@dataclass(frozen=True, slots=True)
class FlowRecord(_SingleRecord):
    """Between which clusters the flow copies, and with which producer id it writes.

    Attributes:
        producer_id: The idempotent producer id with which all mirrors of the flow write.
        producer_epoch: Its epoch; meant to be raised by a promotion.
        topic_prefix: What was put in front of topic names when the flow began; None if that was not noted.
    """

    KEY = FLOW_KEY
    producer_id: int
    producer_epoch: int
    source_cluster_id: str
    target_cluster_id: str
    created_at_ms: int
    topic_prefix: str | None = None
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class OwnerRecord(_SingleRecord):
    """Where the mirror that owns the flow runs. A removed record means that the owner has ended.

    Attributes:
        producer_epoch: The epoch under which it holds the right; if the coordinator names another one, the
            right was taken since.
        url: Of its port; empty if it has none.
    """

    KEY = OWNER_KEY
    producer_epoch: int
    host: str
    process_id: int
    url: str
    since_ms: int
    version: int = VERSION

    @property
    def place(self) -> str:
        """Where to find the owner, in words."""
        return f"{self.host}, process {self.process_id}, since {moment(self.since_ms)}"


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """How one partition is copied.

    Attributes:
        topic_id: Of the source topic when the copy began; another id means another topic.
        prepared: False while the target partition is being made to start at ``target_start_offset``.
        start_offset: Source offset of the first record copied.
        target_start_offset: Where that record is at the target.
        leader_epochs: (epoch, first source offset), ascending, the newest few.
        lost: Source ranges [from, to) that were removed before they were copied, with the loss accepted.
        loss_accepted_from: An operator allowed to skip source offsets from here on,
        loss_accepted_to: up to but not including this one.
        shared: The target partition held records of others when the copy began.
        inserted: Target ranges [from, to) that hold no records of the source; see
            :mod:`checkpoint.insertions`.
        accepted: Target ranges [from, to) that are known and allowed to differ from the source.
        producer_epoch: The epoch with which the partition is written to, if above the flow's. Every insertion
            raises it, so that a mirror that does not know of the insertion cannot append after it.
        target_topic_id: Of the topic that is written to; nothing of this record is about a topic of that name
            with another id. None in records from before ids were noted.
    """

    topic: str
    partition: int
    topic_id: str
    target_topic: str
    mode: OffsetMode
    prepared: bool
    start_offset: int
    target_start_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    loss_accepted_from: int = 0
    loss_accepted_to: int = 0
    shared: bool = False
    inserted: tuple[Inserted, ...] = ()
    accepted: tuple[Inserted, ...] = ()
    producer_epoch: int = 0
    target_topic_id: str | None = None
    version: int = VERSION

    @property
    def key(self) -> str:
        return partition_key(self.topic, self.partition)

    @property
    def tp(self) -> TopicPartition:
        """The partition, by its name at the source."""
        return TopicPartition(self.topic, self.partition)

    def with_epochs(self, epochs: tuple[tuple[int, int], ...]) -> Self:
        """The record with more leader epochs; those not newer than the last known one are left out."""
        known = list(self.leader_epochs)
        for epoch, offset in epochs:
            if not known or epoch > known[-1][0]:
                known.append((epoch, offset))
        return replace(self, leader_epochs=tuple(known[-LEADER_EPOCHS_KEPT:]))

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the last record below a source offset; -1 if not known."""
        return max((epoch for epoch, first in self.leader_epochs if first < offset), default=-1)

    def with_loss(self, lost_from: int, lost_to: int) -> Self:
        """The record with one more lost range; ranges that touch or overlap become one."""
        return replace(self, lost=united((*self.lost, (lost_from, lost_to))))

    def with_inserted(self, *ranges: Inserted) -> Self:
        """The record with more inserted target ranges."""
        return replace(self, inserted=united((*self.inserted, *ranges)))

    def with_accepted(self, *ranges: Inserted) -> Self:
        """The record with more accepted target ranges."""
        return replace(self, accepted=united((*self.accepted, *ranges)))

    def to_bytes(self) -> bytes:
        return _encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            CorruptStateError: It cannot be read, or is of a version this program does not know.
        """
        given = _decode(data, "partition")
        try:
            given["mode"] = OffsetMode(given["mode"])
            given["topic_id"] = str(UUID(given["topic_id"]))
            if given.get("target_topic_id") is not None:
                given["target_topic_id"] = str(UUID(given["target_topic_id"]))
            for name in ("leader_epochs", "lost", "inserted", "accepted"):
                given[name] = tuple((int(a), int(b)) for a, b in given.get(name, ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(f"a partition record cannot be read: {error!r}") from error
        return _build(cls, given, "partition")


@dataclass(frozen=True, slots=True)
class Insertion:
    """A batch that a repair appends to a target partition, and that is no copy of source records.

    It is stored whole before it is appended, so that any mirror that finds it can finish the append.

    Attributes:
        target_offset: The log end when it was made: if it is appended, it is there or after that.
        records: How many it holds.
        producer_epoch: Of this batch, and of all that follow it.
        batch: The sealed batch of format v2, the first one of its epoch.
    """

    target_offset: int
    records: int
    producer_epoch: int
    batch: bytes

    def to_bytes(self) -> bytes:
        """A line of JSON for people, then the batch."""
        head = {name: value for name, value in asdict(self).items() if name != "batch"}
        return _encode({"version": VERSION, **head}) + b"\n" + self.batch

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read an insertion.

        Raises:
            CorruptStateError: It cannot be read, or is of a version this program does not know.
        """
        head, _, batch = data.partition(b"\n")
        given = _decode(head, "insertion")
        del given["version"]
        return _build(cls, {**given, "batch": batch}, "insertion")


def insertion_key(topic: str, partition: int) -> str:
    return f"{INSERTION_PREFIX}{topic}/{partition}"


def parse_insertion_key(key: str) -> tuple[str, int]:
    """Topic and partition of a key made by :func:`insertion_key`.

    Raises:
        CorruptStateError: It is no such key.
    """
    topic, slash, partition = key.removeprefix(INSERTION_PREFIX).rpartition("/")
    if not (slash and topic and partition.isdecimal()):
        raise CorruptStateError(f"the state holds an invalid key: {key!r}")
    return topic, int(partition)


def partition_key(topic: str, partition: int) -> str:
    return f"{PARTITION_PREFIX}{topic}/{partition}"


def map_key(topic: str, partition: int, chunk: int) -> str:
    return f"map/{topic}/{partition}/{chunk}"


def parse_map_key(key: str) -> tuple[str, int, int]:
    """Topic, partition and chunk number of a key made by :func:`map_key`.

    Raises:
        CorruptStateError: It is no such key.
    """
    parts = key.split("/")
    if len(parts) != 4 or parts[0] != "map" or not (parts[2].isdecimal() and parts[3].isdecimal()):
        raise CorruptStateError(f"the state holds an invalid key: {key!r}")
    return parts[1], int(parts[2]), int(parts[3])


def whole_in_order(items: Mapping[str, V]) -> dict[str, V]:
    """All items of a state, in the order in which they are written to an empty store.

    A partition comes after its offset map. The flow's own record comes last: without it nobody takes the
    state to be complete.
    """
    ranked = sorted(items, key=lambda key: (key == FLOW_KEY, key.startswith(PARTITION_PREFIX)))
    return {key: items[key] for key in ranked}


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(", ", ": ")).encode()


def _decode(data: bytes, what: str) -> dict[str, Any]:
    try:
        given = json.loads(data)
    except ValueError as error:
        raise CorruptStateError(f"a {what} record is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise CorruptStateError(f"a {what} record is not a JSON object")
    if given.get("version") != VERSION:
        raise CorruptStateError(
            f"a {what} record has version {given.get('version')!r}, this program reads {VERSION}"
        )
    return given


_SCALARS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "str | None": (str, NoneType),
}
"""The types that JSON may have for a field, by the field's annotation."""


def _build(cls: type[T], given: dict[str, Any], what: str) -> T:
    try:
        record = cls(**given)
    except TypeError as error:
        raise CorruptStateError(f"a {what} record has the wrong fields: {error}") from error
    for field in fields(cls):  # type: ignore[arg-type]
        kinds, value = _SCALARS.get(str(field.type)), getattr(record, field.name)
        if kinds is not None and type(value) not in kinds:
            raise CorruptStateError(f"a {what} record has {value!r} for {field.name}, not {field.type}")
    return record
