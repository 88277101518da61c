"""Mirrors killed right after writes to the flow's state that a first copy does not make, or not like that.

In the end the copy is exact, and the state is what it would be if nobody had died.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults import flows, steps
from tests.faults.test_crashes import KILLED, odd_topic
from tests.faults.test_standing_by import delete_state
from tests.harness.checker import assert_exact, read_partition, read_together
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Twinsite, events, twinsite

pytestmark = pytest.mark.timeout(300)

RUN_SECONDS = 120.0
"""Much longer than a run takes."""
RUNS, DELETED = 600, 560
"""Of a map of two chunks, and records that the target deletes: the first chunk is of nothing else."""
PARTITIONS, NAME_BYTES = 450, 230
"""With names so long the state of so many partitions is more than one batch."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A flow whose mirrors are killed, one after the other."""

    source: KafkaCluster
    target: KafkaCluster
    flow: str
    command: tuple[str, ...]
    folder: Path

    @classmethod
    def of(
        cls,
        source: KafkaCluster,
        target: KafkaCluster,
        folder: Path,
        flow: str,
        topics: Sequence[str],
        prefix: str | None = None,
        **sections: object,
    ) -> Doomed:
        """A flow of these topics.

        Args:
            folder: Made for it.
            prefix: Of its copies; None: they have the names of their sources.
        """
        folder.mkdir(parents=True)
        names = {} if prefix is None else {"names": "prefix", "prefix": prefix}
        wanted = {"include": topics, "refresh_seconds": 1, **names}
        sections = {"topics": wanted, "api": {"port": -1}, **sections}
        command = flows.configured(folder, source, target, flow, **sections)
        return cls(source, target, flow, command, folder)

    async def dies_at(self, failpoint: str, *options: str) -> None:
        """Run a mirror that is killed there."""
        died = await twinsite(
            *self.command, *options, work_dir=self.folder, failpoints=failpoint, seconds=RUN_SECONDS
        )
        assert died.code == KILLED, f"{self.flow} at {failpoint}: {died.code}\n{died.stderr}"

    async def ends(self) -> None:
        """Run a mirror that copies what is there, and ends."""
        ended = await twinsite(
            *self.command, "--once", "-o", "json", work_dir=self.folder, seconds=RUN_SECONDS
        )
        assert ended.code == 0, f"{self.flow}: {ended.missing}"

    @property
    def stored(self) -> dict[str, bytes]:
        """What its state holds, but for where its owner runs."""
        return {key: value for key, value in flows.stored(self.target, self.flow).items() if key != "owner"}

    @property
    def remembered(self) -> dict[str, object]:
        """The same, as another flow would remember it that has copied the same."""
        return flows.remembered(self.target, self.flow)


async def test_mirrors_killed_after_each_kind_of_write_to_the_state_leave_it_as_if_nobody_had_died(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Stories of several flows, all at once: a mirror that follows a dead one waits, most of its time. Before
    that one is copied alone, so that not all of them wait for a coordinator that has just begun.
    """
    odd = await odd_topic(source, topic)
    unharmed = await flows.never_killed(source, target, odd, tmp_path, "same")
    async with asyncio.TaskGroup() as group:
        for failpoint in steps.BEFORE_ITS_RECORD:
            folder = tmp_path / failpoint
            group.create_task(before_its_record(source, target, odd, folder, failpoint, unharmed))
        for story in (
            with_a_long_map,
            with_a_topic_that_two_flows_want,
            with_a_topic_that_goes,
            with_another_target_topic,
        ):
            group.create_task(story(source, target, topic, tmp_path / story.__name__))


async def before_its_record(
    source: KafkaCluster,
    target: KafkaCluster,
    name: str,
    folder: Path,
    failpoint: str,
    unharmed: dict[str, object],
) -> None:
    """The flow has an owner, and no record: the next mirror waits for that, and then begins the flow."""
    flow = f"{name}-{failpoint.replace('_', '-')}"
    doomed = Doomed.of(source, target, folder, flow, [name], f"{flow}.")

    await doomed.dies_at(failpoint, "--once")
    await doomed.ends()

    assert_exact(source.bootstrap, target.bootstrap, [name], rename=f"{flow}.{{}}".format)
    assert doomed.remembered == unharmed


async def with_a_long_map(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, folder: Path
) -> None:
    """The map was noted ahead with aborted records read, too: its end goes, and what else is not so now."""
    name = await topic(source)
    offsets = {"mode": "mapped"}
    await asyncio.to_thread(write_gaps, source, name, RUNS, 1)
    of = partial(Doomed.of, source, target)
    flow, prefix = f"{name}-killed", f"{name}-killed."
    reading_all = of(
        folder / "all", flow, [name], prefix, offsets=offsets, read={"isolation": "read_uncommitted"}
    )
    doomed = of(folder / "doomed", flow, [name], prefix, offsets=offsets)
    beside = of(folder / "beside", f"{name}-beside", [name], f"{name}-beside.", offsets=offsets)
    noted, end_removed, corrected, shortened = steps.OF_A_LONG_MAP

    await reading_all.dies_at(noted, "--once")
    foreseen = doomed.remembered
    await doomed.dies_at(end_removed, "--once")
    cut = doomed.remembered
    await doomed.dies_at(corrected, "--once")
    await doomed.ends()
    await beside.ends()

    assert {"map/0/0", "map/0/1"} <= foreseen.keys()
    assert cut == {key: value for key, value in foreseen.items() if key != "map/0/1"}
    assert_exact(source.bootstrap, target.bootstrap, [name], "mapped", f"{prefix}{{}}".format)
    assert doomed.remembered == beside.remembered

    for copy in (doomed, beside):
        target.delete_records(f"{copy.flow}.{name}", {0: DELETED})
    await doomed.dies_at(shortened, "--once")
    assert "map/0/0" not in doomed.remembered
    write_gaps(source, name, 10, 2)
    for copy in (doomed, beside):
        await copy.ends()

    assert doomed.remembered == beside.remembered
    copies = [list(read_partition(target.bootstrap, f"{copy.flow}.{name}", 0)) for copy in (doomed, beside)]
    assert len(copies[0]) == RUNS + 10 - DELETED
    assert copies[0] == copies[1]


def write_gaps(source: KafkaCluster, topic: str, count: int, seed: int) -> None:
    """Records with a gap behind each: one a transaction, of which every fifth aborts at first."""
    rows = json_rows(count, 80, seed=seed)
    load_transactions(source.bootstrap, topic, rows, 1, aborted_every=5, transactional_id=f"{topic}-{seed}")


async def with_a_topic_that_two_flows_want(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, folder: Path
) -> None:
    """Both have begun it, and nothing is copied yet: the second by name takes its record back."""
    name = await topic(source)
    load(source.bootstrap, name, json_rows(300, 100))
    first, second = (
        Doomed.of(source, target, folder / which, f"{name}-{which}", [name]) for which in ("a", "b")
    )
    await second.dies_at("registered", "--once")
    await target.delete_topic(name)  # so that the first does not see that it is taken
    await first.dies_at("registered", "--once")
    begun = second.stored.keys()

    await second.dies_at(steps.TAKEN_BACK, "--once")
    with Twinsite.run(*second.command, work_dir=second.folder) as refused:
        await flows.says(refused, name, "BLOCKED", "another_flow")
    await first.ends()

    assert begun == {"flow", f"partition/{name}/0"}
    assert second.stored.keys() == {"flow"}
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def with_a_topic_that_goes(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, folder: Path
) -> None:
    """It is gone at both sides: nothing of it is remembered, and it may be copied again from the start."""
    gone, stays = await topic(source, 2, prefix="goes"), await topic(source)
    for name in (gone, stays):
        load_transactions(source.bootstrap, name, json_rows(60, 100), 20, transactional_id=name)
    doomed = Doomed.of(source, target, folder, gone, [gone, stays], offsets={"mode": "mapped"})
    await doomed.ends()
    before = doomed.stored
    await source.delete_topic(gone)
    await target.delete_topic(gone)

    await doomed.dies_at(steps.TOPICS_FORGOTTEN)
    after = doomed.stored
    await source.create_topic(gone, 1)
    load(source.bootstrap, gone, json_rows(7, 100, seed=2))
    await doomed.ends()

    assert after == {key: value for key, value in before.items() if f"/{gone}/" not in key}
    assert len(before) == len(after) + 4, "of each partition its record and its map"
    assert assert_exact(source.bootstrap, target.bootstrap, [gone, stays], "mapped") == 67


async def with_another_target_topic(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, folder: Path
) -> None:
    """The copy was deleted, and is made again: the id of its topic is noted before anything is written."""
    name = await topic(source)
    load(source.bootstrap, name, json_rows(300, 100))
    doomed = Doomed.of(source, target, folder, name, [name])
    await doomed.ends()
    before = doomed.remembered
    await target.delete_topic(name)

    await doomed.dies_at(steps.TARGETS_NOTED, "--once")
    await doomed.ends()

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert doomed.remembered == before
    record = json.loads(doomed.stored[f"partition/{name}/0"])
    assert record["target_topic_id"] == str(await target.topic_id(name))


async def test_a_deleted_state_is_whole_in_the_end_whichever_mirror_dies_as_it_is_written_again(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    First one dies when all of it is there again. Then, of three, the owner dies in the middle; the next one
    when it has removed that part; and the last when it has written what it had read itself.
    """
    name = await topic(source, PARTITIONS, prefix="x" * NAME_BYTES)
    whole, in_part, *by_another = steps.OF_A_DELETED_STATE
    load(source.bootstrap, name, json_rows(2_000, 100))
    doomed = Doomed.of(source, target, tmp_path / "doomed", "deleted", [name], offsets={"mode": "mapped"})
    await doomed.ends()
    before, again = doomed.stored, list[dict[str, bytes]]()

    for failpoints in [(whole,), (",".join(by_another), ",".join(by_another), in_part)]:
        with ExitStack() as stack:
            mirrors = [await owner_that_dies_at(one, doomed, stack) for one in failpoints]
            for waiting in mirrors[:-1]:
                await waiting.wait_for(partial(stands_by, waiting), "it stands by")
            await delete_state(target, doomed.flow)
            codes = [(await mirror.finished(90)).code for mirror in mirrors]
        assert codes == [KILLED] * len(failpoints)
        again.append(doomed.stored)
    await doomed.ends()

    assert again == [before, before]
    assert doomed.stored == before
    where = [(name, number) for number in range(PARTITIONS)]
    read = [read_together(cluster.bootstrap, where) for cluster in (source, target)]
    assert read[0] == read[1]
    for cluster in (source, target):
        await cluster.delete_topic(name)


async def owner_that_dies_at(failpoints: str, doomed: Doomed, stack: ExitStack) -> Twinsite:
    """A mirror that owns the flow, for now, and is killed at one of these later."""
    mirror = stack.enter_context(Twinsite.run(*doomed.command, work_dir=doomed.folder, failpoints=failpoints))
    await mirror.wait_for(lambda: bool(events(mirror.stderr, "owner_of_the_flow")), "it is the owner", 60)
    return mirror


def stands_by(mirror: Twinsite) -> bool:
    """Whether it says so of all there is."""
    return {p["state"] for p in flows.partitions(mirror)} == {"STANDBY"}
