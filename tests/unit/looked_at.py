"""A flow whose partitions are looked at, with both clusters as a look sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint.model import OwnerRecord
from mirror.errors import TwinsiteError
from mirror.flow import judging, settling
from mirror.flow.ends import Compared
from mirror.flow.facts import Known, SourceLook, TargetLook
from mirror.flow.following import Ends, SideError
from mirror.flow.partition import PartitionCopy
from mirror.flow.settling import Settler
from mirror.flow.taking import Claim
from mirror.flow.turn import Turn
from mirror.kafka.offsets import Answers
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode, TopicPartition
from tests.unit.target_model import Hooks, Mirror

TOPIC_ID = "t"
SOON = 5.0
NOW = 1_000.0


def partition(number: int = 0) -> PartitionCopy:
    tp = TopicPartition("orders", number)
    return PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)


class Right:
    """The right to copy the flow, ours since long ago unless a test says otherwise."""

    def __init__(self) -> None:
        self.held = True
        self.seen: Token | None = Token(4711, 0)
        self.transactional_id = "twinsite.orders"
        self.since = 0.0
        self.turn = Turn()

    @property
    def may_write(self) -> bool:
        return self.held

    async def confirm(self, *_: float) -> bool:
        return self.held

    async def ask(self, *_: float) -> bool:
        return self.held

    async def ask_the_state(self) -> None:
        return

    async def holder(self) -> Token | None:
        return self.seen

    async def is_own(self, _holder: Token | None) -> bool:
        return False


class Remembered:
    """The durable state of partitions that start at 0, prepared but for some."""

    owner: OwnerRecord | None = None
    mode = OffsetMode.SAME
    topic_id = stored_topic_id = TOPIC_ID
    loss_accepted = (0, 0)
    on_loss: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, unprepared: Collection[PartitionCopy] = ()) -> None:
        self.unprepared = {p.tp for p in unprepared}
        self.lost: list[tuple[int, int]] = []
        self.taken_back: list[TopicPartition] = []
        self.targets: dict[TopicPartition, str] = {}

    async def refresh(self, *, sole_writer: bool) -> None:
        """What this mirror alone writes need not be read."""
        if not sole_writer:
            self.topic_id = self.stored_topic_id

    def known(self, tp: TopicPartition) -> Known:
        prepared, target_topic_id = tp not in self.unprepared, self.targets.get(tp)
        return Known(
            self.topic_id,
            self.mode,
            0,
            prepared,
            lambda end: end,
            self.loss_accepted,
            target_topic_id=target_topic_id,
        )

    async def note_loss(self, _tp: TopicPartition, lost_from: int, lost_to: int) -> None:
        self.lost.append((lost_from, lost_to))
        self.on_loss()

    def epoch_at(self, _tp: TopicPartition, _next_offset: int) -> int:
        return -1

    def runs_after(self, _tp: TopicPartition, _target_offset: int) -> Sequence[tuple[int, int]]:
        return ()

    async def prepared(self, tp: TopicPartition) -> None:
        self.unprepared.discard(tp)

    async def take_back(self, tp: TopicPartition) -> None:
        self.taken_back.append(tp)

    async def note_targets(self, target_topic_ids: Mapping[TopicPartition, str]) -> None:
        self.targets.update(target_topic_ids)


class World:
    """Both clusters as a look sees them: ten records at the source, nothing at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *partitions: PartitionCopy) -> None:
        self.memory = Remembered(partitions)
        self.hooks = Hooks()
        self.looked = asyncio.Event()
        self.seen = asyncio.Event()
        self.seen.set()
        self.padded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.preparations = 0
        self.asked_for: list[set[TopicPartition]] = []
        self.objected: dict[TopicPartition, Claim | TwinsiteError] = {}
        self.source = SourceLook(TOPIC_ID, 0, 10)
        self.target = TargetLook(0, 0, None, None, 0, None)
        self.flow = flow = Mirror().lane._flow
        flow.hooks = self.hooks
        cast(Any, flow.target).info = SimpleNamespace(leader=lambda _: 1)
        self.right = Right()
        self.settler = Settler(
            flow, cast(Any, self.memory), self.right, self, offsets="same", continue_after_loss=False
        )
        self.settler.is_owner = True
        self.ends: Ends | SideError = Ends(10, 10, 0)
        for name in ("look_at_source", "look_at_target", "compare_ends"):
            monkeypatch.setattr(judging, name, getattr(self, name))
        for name in ("look_at_ends", "prepare"):
            monkeypatch.setattr(settling, name, getattr(self, name))

    async def look_at_source(self, _flow: object, tps: Collection[TopicPartition]) -> Answers[SourceLook]:
        self.looked.set()
        await self.seen.wait()
        return dict.fromkeys(tps, self.source)

    async def look_at_ends(
        self, _flow: object, partitions: Collection[PartitionCopy]
    ) -> dict[PartitionCopy, Ends | SideError]:
        self.looked.set()
        await self.seen.wait()
        return dict.fromkeys(partitions, self.ends)

    async def look_at_target(
        self, _flow: object, tps: Collection[TopicPartition], _: object
    ) -> Answers[TargetLook]:
        return dict.fromkeys(tps, self.target)

    async def compare_ends(self, _flow: object, ends: Collection[TopicPartition]) -> Compared:
        return dict.fromkeys(ends)

    async def objections(
        self, looks: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Claim | TwinsiteError]:
        self.asked_for.append(set(looks))
        return self.objected

    async def prepare(self, *_: object) -> None:
        self.preparations += 1
        await asyncio.shield(self.padded)

    @asynccontextmanager
    async def looking(self, copy: PartitionCopy) -> AsyncIterator[None]:
        """In the block the questions of a look are asked; after it they were answered."""
        self.seen.clear()
        self.looked.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.settler.settle(self.settler.begin([copy], group)))
            await self.looked.wait()
            yield
            self.seen.set()
