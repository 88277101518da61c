"""Keys of a compacted copy that say something else than the source are put right, and nothing else moves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checkpoint.model import Insertion
from mirror import offline
from mirror.config import load as load_settings
from mirror.flow.memory import FlowMemory
from mirror.kafka.log_port import TopicLog
from mirror.kafka.offsets import ProducerState, describe_producer
from mirror.kafka.record_batch import seal
from mirror.kafka.transactions import init_producer_id
from mirror.model import TopicPartition
from mirror.proving import asking, wanted
from mirror.repairing import partition as repairing
from mirror.repairing.model import Status, Wanted
from mirror.repairing.run import repair
from spark_jobs.findings import Kind
from spark_jobs.plan import Beyond, Mend, PartitionPlan, Plan, plan_of_document, plan_to_document
from spark_jobs.window import Range
from tests.conftest import TopicFactory
from tests.contract.connected import connected
from tests.faults.flows import writing
from tests.faults.steps import (
    DIFFERENCE_ACCEPTED,
    FOREIGN_NOTED,
    INSERTION_ENDED,
    INSERTION_NOTED,
    INSERTION_SENT,
    TURNED_TO_MAPPED,
)
from tests.harness.checker import read_partition, watermarks
from tests.harness.data import Row
from tests.harness.judging import Record
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Finished, Twinsite, twinsite
from tests.integration.test_refusals import one_record_of

FIRST_MS = round(time.time() * 1000) - 60_000
"""Of the first segment: were it old, the next record would begin another, and this one be compacted."""
KEYS = 40


def update(key: int, version: int) -> Row:
    return Row(key=b"k%d" % key, value=b"version %d" % version, timestamp_ms=FIRST_MS + version)


HISTORY = [
    *(update(key, 1) for key in range(KEYS)),
    *(update(key, 2) for key in range(0, KEYS, 2)),
    *(Row(key=b"k%d" % key, value=None, timestamp_ms=FIRST_MS + 3) for key in range(0, KEYS, 10)),
]
DAMAGE = [update(10, 9), update(3, 9), Row(key=b"zombie", value=b"!", timestamp_ms=FIRST_MS)]
"""What somebody else writes to the target: a key that was deleted, one of another value, one there is not."""

Said = tuple[int, bytes | None]
"""Timestamp and value; nothing is said by a tombstone."""


def says(records: Iterable[Record]) -> dict[bytes | None, Said]:
    """What each key says last."""
    latest = {record.key: (record.timestamp_ms, record.value) for record in records}
    return {key: said for key, said in latest.items() if said[1] is not None}


@dataclass(frozen=True, slots=True)
class Copied:
    """A flow of one compacted topic with one partition."""

    source: KafkaCluster
    target: KafkaCluster
    name: str
    folder: Path
    offsets: str

    @property
    def settings(self) -> Path:
        path = self.folder / "flow.yaml"
        document = {
            "flow": self.name,
            "source": {"bootstrap_servers": self.source.bootstrap},
            "target": {"bootstrap_servers": self.target.bootstrap},
            "topics": {"include": [self.name]},
            "offsets": self.offsets,
        }
        path.write_text(json.dumps(document))
        return path

    def records(self) -> tuple[list[Record], list[Record]]:
        """All there are at both sides."""
        here, there = (
            list(read_partition(cluster.bootstrap, self.name, 0)) for cluster in (self.source, self.target)
        )
        return here, there

    @property
    def end(self) -> int:
        return watermarks(self.target.bootstrap, self.name)[0][1]

    @property
    def is_same(self) -> bool:
        here, there = self.records()
        return says(here) == says(there)

    async def mirror(self) -> None:
        done = await twinsite(
            "mirror", "--config", str(self.settings), "--once", "-o", "json", work_dir=self.folder
        )
        assert done.code == 0, done.stderr

    async def plan(
        self,
        *keys: bytes,
        beyond: Sequence[Beyond] = (),
        is_compacted: bool = True,
        unnamed: int = 0,
        pending: Range | None = None,
    ) -> None:
        """What a comparison would leave.

        Args:
            keys: Those that differ; else every key that says something else, found by reading all.
            beyond: What cannot be put right in place.
            unnamed: Differences that were only counted.
            pending: Source offsets that are to be copied, and nothing else is to be done.
        """
        here, there = self.records()
        latest, copies = ({one.key: one for one in side} for side in (here, there))
        said = [says(side) for side in (here, there)]
        differing = keys or [key for key in {**latest, **copies} if said[0].get(key) != said[1].get(key)]
        mends = [
            Mend(
                kind=Kind.EXTRA,
                key=key or b"",
                source_offset=latest[key].offset if key in latest else None,
                target_offset=copies[key].offset if key in copies else None,
            )
            for key in ([] if pending else differing)
        ]
        topic_id = await self.source.topic_id(self.name)
        one = PartitionPlan(
            name=TopicPartition(self.name, 0),
            target_topic=self.name,
            topic_id=str(topic_id),
            is_compacted=is_compacted,
            target_end=self.end,
            mends=mends,
            beyond_repair=beyond,
            unnamed=unnamed,
            pending=pending or Range(0, 0),
        )
        ids = [cluster.admin.list_topics(timeout=10).cluster_id for cluster in (self.source, self.target)]
        plan = Plan(
            run="r",
            flow=self.name,
            source_cluster_id=ids[0],
            target_cluster_id=ids[1],
            made_at_ms=round(time.time() * 1000),
            partitions=[one],
        )
        (self.folder / "plan.json").write_text(json.dumps(plan_to_document(plan)))

    async def repair(self, *more: str, failpoints: str = "") -> Finished:
        arguments = ("repair", "--config", str(self.settings), "-o", "json", *more)
        plan = str(self.folder / "plan.json")
        return await twinsite(*arguments, plan, work_dir=self.folder, failpoints=failpoints)

    def noted(self) -> list[dict[str, Any]]:
        """What repairs have noted of what they wrote."""
        return [json.loads(line) for line in (self.folder / "repairs.jsonl").read_text().splitlines()]

    async def translated(self, source_offset: int) -> int:
        settings = load_settings(self.settings)
        return await offline.translate(settings, TopicPartition(self.name, 0), source_offset, reverse=False)

    async def assert_in_step(self) -> None:
        """What the source has from now on is copied once, in order, and its offsets are known."""
        more = [update(key, 20) for key in range(KEYS)]
        load(self.source.bootstrap, self.name, more)
        await self.mirror()
        here, there = self.records()
        assert [one.content for one in here[-KEYS:]] == [one.content for one in there[-KEYS:]]
        assert says(here) == says(there)
        for original, copy in zip(here[-KEYS:], there[-KEYS:], strict=True):
            assert await self.translated(original.offset) == copy.offset


def statuses(done: Finished) -> list[str]:
    assert done.stdout, done.stderr
    (partition,) = done.document["partitions"]
    return [step["status"] for step in partition["steps"]]


async def promote(flow: Copied) -> None:
    """As a failover does: raise the epoch of the flow's producer id, and write with it."""
    async with connected(flow.target) as cluster:
        newer = await init_producer_id(cluster, f"twinsite.{flow.name}")
        await TopicLog(cluster, flow.name).append(one_record_of(newer))


async def copied(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    folder: Path,
    offsets: str = "mapped",
    cleanup_policy: str = "compact",
) -> Copied:
    name = await topic(source, prefix="repaired", cleanup_policy=cleanup_policy)
    load(source.bootstrap, name, HISTORY)
    flow = Copied(source, target, name, folder, offsets)
    await flow.mirror()
    return flow


async def test_what_somebody_else_has_written_is_put_right_and_the_copy_goes_on(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    First it is only said; then it is done; then nothing is left to be done.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(target.bootstrap, flow.name, DAMAGE)
    before = flow.end
    await flow.plan()

    looked = await flow.repair()
    assert (looked.code, statuses(looked), flow.end) == (0, ["planned"] * 3, before), looked.stderr
    assert not (tmp_path / "repairs.jsonl").exists()

    done = await flow.repair("--apply")
    assert (done.code, statuses(done)) == (0, ["appended"] * 3), done.stderr
    assert done.document["partitions"][0]["foreign_target_offsets"] == [[before - 3, before]]
    assert flow.is_same
    assert [line["event"] for line in flow.noted()] == ["left_where_it_is", "appends", "appended"]

    again = await flow.repair("--apply")
    assert (again.code, statuses(again), flow.end) == (0, ["moved_on"] * 3, before + 3), again.stderr
    await flow.assert_in_step()

    load(target.bootstrap, flow.name, DAMAGE)
    unseen = await flow.repair("--apply")
    assert (unseen.code, statuses(unseen)) == (3, ["refused"] * 3), "the plan knows nothing of that"


async def test_a_repair_that_is_killed_again_and_again_is_brought_to_its_end_by_the_mirror(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    With what somebody else wrote noted, and nothing else; then with what it would append noted and not sent;
    then, by the next one, sent and not known to stand.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(target.bootstrap, flow.name, DAMAGE)
    before = flow.end
    await flow.plan()

    foreign = await flow.repair("--apply", failpoints=FOREIGN_NOTED)
    assert (foreign.code, flow.end) == (-9, before), foreign.stderr
    noted = await flow.repair("--apply", failpoints=INSERTION_NOTED)
    assert (noted.code, flow.end) == (-9, before), noted.stderr
    sent = await flow.repair("--apply", failpoints=INSERTION_SENT)
    assert (sent.code, flow.end) == (-9, before + 3), sent.stderr

    await flow.assert_in_step()
    assert flow.end == before + 3 + KEYS
    again = await flow.repair("--apply")
    assert (again.code, statuses(again)) == (0, ["moved_on"] * 3), again.stderr
    *_, begun, ended = flow.noted()
    assert (begun["event"], ended["event"]) == ("appends", "appended"), "found out afterwards"
    assert (ended["target_offset"], ended["records"]) == (before, 3)


async def test_a_repair_killed_when_all_is_done_has_nothing_left_to_do(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    flow = await copied(source, target, topic, tmp_path)
    await flow.plan(b"k1")
    before = flow.end

    ended = await flow.repair("--apply", failpoints=INSERTION_ENDED)
    again = await flow.repair("--apply")

    assert (ended.code, again.code, statuses(again), flow.end) == (-9, 0, ["moved_on"], before + 1)
    assert [(line["event"], line["target_offset"]) for line in flow.noted()] == [
        ("appends", before),
        ("appended", before),
    ]


async def test_what_was_written_to_a_key_while_a_repair_was_dead_is_left_as_it_is(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The batch that was noted is appended behind it, so it is appended once more; repairs.jsonl says both.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(target.bootstrap, flow.name, DAMAGE)
    await flow.plan()
    before = flow.end

    noted = await flow.repair("--apply", failpoints=INSERTION_NOTED)
    newer = Row(key=DAMAGE[0].key, value=b"newer", timestamp_ms=FIRST_MS)
    load(target.bootstrap, flow.name, [newer])
    again = await flow.repair("--apply")

    assert (noted.code, flow.end) == (-9, before + 1 + 3 + 1), again.stderr
    assert says(flow.records()[1])[newer.key][1] == b"newer"
    *_, appended, once_more = flow.noted()
    assert (appended["target_offset"], appended["records"]) == (before + 1, 3)
    assert (once_more["event"], once_more["target_offset"]) == ("appended", before + 4)
    assert (once_more["records"], once_more["again"]) == (1, ["k10"])


async def test_what_differs_in_an_append_only_copy_is_accepted_and_not_compared_any_more(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Also if the repair is killed as it notes that. Refused where rows of records are shifted: that would hide
    them all.
    """
    flow = await copied(source, target, topic, tmp_path, "same", cleanup_policy="delete")
    changed = Beyond(kind=Kind.CHANGED, source_offset=5, target_offset=5, records=1)
    missing = Beyond(kind=Kind.MISSING, source_offset=9, target_offset=None, records=1)
    shifted = Beyond(kind=Kind.SHIFTED, source_offset=9, target_offset=8, records=20)

    await flow.plan(beyond=[changed, missing], is_compacted=False)
    listed = await flow.repair("--apply")
    killed = await flow.repair("--apply", "--accept", failpoints=DIFFERENCE_ACCEPTED)
    accepted = await flow.repair("--apply", "--accept")
    await flow.plan(beyond=[changed, shifted], is_compacted=False)
    refused = await flow.repair("--apply", "--accept")
    far = Beyond(kind=Kind.REORDERED, source_offset=9, target_offset=2_000, records=1)
    await flow.plan(beyond=[far], is_compacted=False)
    too_far = await flow.repair("--apply", "--accept")

    assert (listed.code, listed.document["beyond_repair"][0]["differences"]) == (
        3,
        {"changed": 1, "missing": 1},
    )
    assert killed.code == -9, killed.stderr
    assert (accepted.code, accepted.document["beyond_repair"]) == (0, []), accepted.stderr
    assert (refused.code, len(refused.document["beyond_repair"])) == (3, 1)
    assert "a record stands 1992 offsets from its place" in too_far.document["partitions"][0]["why_not"]
    scope = await asking.scope(load_settings(flow.settings), wanted.Wanted())
    assert [log.accepted for log in scope.append_only] == [(Range(5, 6), Range(9, 10))]


async def test_plans_that_do_not_fit_are_refused_before_anything_is_written(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Of another flow, of other clusters, too old, of a topic that was made anew, and none at all.
    """
    flow = await copied(source, target, topic, tmp_path)
    before = flow.end
    plan = tmp_path / "plan.json"

    async def refusal(**changes: object) -> tuple[int, str]:
        await flow.plan(b"k1")
        plan.write_text(json.dumps(json.loads(plan.read_text()) | changes))
        done = await flow.repair("--apply")
        return done.code, done.stderr

    assert await refusal(flow="north") == (2, Contains("the plan is for flow north"))
    assert await refusal(target_cluster_id="elsewhere") == (4, Contains("elsewhere"))
    assert await refusal(made_at_ms=FIRST_MS - 7 * 3_600_000) == (2, Contains("reconcile"))
    assert await refusal(schema=99) == (2, Contains("not a plan"))
    plan.unlink()
    assert (await flow.repair("--apply")).code == 2
    assert flow.end == before


async def test_what_was_not_copied_is_copied_and_noted_before_and_after(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    flow = await copied(source, target, topic, tmp_path)
    end = len(HISTORY)
    load(source.bootstrap, flow.name, [update(key, 7) for key in range(5)])
    await flow.plan(pending=Range(end, end + 5))

    looked = await flow.repair()
    assert (looked.code, flow.end) == (0, end), looked.stderr
    done = await flow.repair("--apply")

    assert (done.code, flow.end) == (0, end + 5), done.stderr
    before, after = flow.noted()
    assert (before["event"], before["source_offsets"]) == ("copies", [end, end + 5])
    assert (after["event"], after["next_source_offset"], after["state"]) == ("copied", end + 5, "ACTIVE")


async def test_a_difference_whose_record_is_gone_is_left_and_not_called_settled(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What the source says of the key now, nobody has looked at: the key may be alive at the target.
    """
    flow = await copied(source, target, topic, tmp_path, cleanup_policy="compact,delete")
    before = flow.end
    await flow.plan(b"k1")
    flow.source.delete_records(flow.name, {0: len(HISTORY) - 1})

    done = await flow.repair("--apply")

    assert (done.code, statuses(done), flow.end) == (3, ["not_there"], before)
    assert "reconcile" in done.document["partitions"][0]["steps"][0]["why"]


async def test_what_may_not_be_copied_to_a_promoted_target_is_said_before(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Where nothing else would have to be done.
    """
    flow = await copied(source, target, topic, tmp_path)
    await promote(flow)
    end = len(HISTORY)
    load(source.bootstrap, flow.name, [update(1, 7)])
    await flow.plan(pending=Range(end, end + 1))
    before = flow.end

    looked, done = await flow.repair(), await flow.repair("--apply")

    for one in (looked, done):
        (partition,) = one.document["partitions"]
        assert "has written to the target, ours is" in partition["why_not"]
        assert one.code == 3
    assert flow.end == before


async def test_a_target_that_was_promoted_is_left_alone(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Whoever promotes it raises the epoch of the flow's producer id and writes with it.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(target.bootstrap, flow.name, DAMAGE)
    await promote(flow)
    await flow.plan(b"k10", b"k3", b"zombie")
    before = flow.end

    looked, done = await flow.repair(), await flow.repair("--apply")

    assert (looked.code, done.code) == (3, 3)
    for one in (looked, done):
        (partition,) = one.document["partitions"]
        assert "has written to the target, ours is" in partition["why_not"]
    assert statuses(done) == ["refused"] * 3
    assert flow.end == before
    assert not (tmp_path / "repairs.jsonl").exists()


async def test_a_record_that_the_target_refuses_for_ever_holds_up_no_other_key(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Its time is too far back for the target's topic; that of the others is when this file was read.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(source.bootstrap, flow.name, [Row(key=b"old", value=b"1", timestamp_ms=FIRST_MS - 86_400_000)])
    before = flow.end
    await flow.plan(b"k1", b"k2", b"old", b"k3", b"k5")
    await target.alter_topic(flow.name, {"message.timestamp.before.max.ms": 12 * 3_600_000})

    done = await flow.repair("--apply")

    assert (done.code, statuses(done)) == (3, ["appended"] * 2 + ["refused"] + ["appended"] * 2), done.stderr
    (partition,) = done.document["partitions"]
    assert "timestamp" in partition["steps"][2]["why"].lower()
    assert partition["why_not"] is None
    assert flow.end == before + 4
    said = [(line["event"], line.get("why") is not None) for line in flow.noted()]
    assert said[-2:] == [("appends", False), ("appended", False)]
    assert ("refused", True) in said


async def test_a_batch_is_as_large_as_the_target_takes_and_a_plan_as_old_as_it_keeps_tombstones(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A record that the target does not take even alone is left, and said; so are keys that were only counted.
    """
    flow = await copied(source, target, topic, tmp_path)
    load(source.bootstrap, flow.name, [Row(key=b"large", value=bytes(400), timestamp_ms=FIRST_MS)])
    keys = [b"k%d" % key for key in range(1, 10)]
    before = flow.end
    await flow.plan(*keys, b"large", unnamed=2)
    await target.alter_topic(flow.name, {"max.message.bytes": 300, "delete.retention.ms": 1})

    outlived = await flow.repair("--apply")
    await target.alter_topic(flow.name, {"delete.retention.ms": None})
    looked = await flow.repair()
    done = await flow.repair("--apply")

    assert (outlived.code, statuses(outlived), flow.end) == (3, ["refused"] * 10, before + 9)
    assert "delete.retention.ms" in outlived.document["partitions"][0]["why_not"]
    assert statuses(looked) == ["planned"] * 9 + ["too_large"]
    assert statuses(done) == ["appended"] * 9 + ["too_large"], done.stderr
    assert "accepts 300 (max.message.bytes)" in done.document["partitions"][0]["steps"][-1]["why"]
    (counted,) = done.document["beyond_repair"]
    assert (counted["unnamed"], "reconcile again" in counted["choices"][0]) == (2, True)


class Contains(str):
    """Equal to every text it is in."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str(self) in str(other)


async def test_a_copy_with_the_source_s_offsets_is_repaired_when_it_may_become_mapped(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    flow = await copied(source, target, topic, tmp_path, "same")
    load(target.bootstrap, flow.name, DAMAGE)
    before = flow.end
    await flow.plan()

    refused = await flow.repair("--apply")
    assert (refused.code, statuses(refused), flow.end) == (3, ["refused"] * 3, before)
    assert "--to-mapped" in refused.document["partitions"][0]["why_not"]

    killed = await flow.repair("--apply", "--to-mapped", failpoints=TURNED_TO_MAPPED)
    assert (killed.code, flow.end) == (-9, before), killed.stderr
    done = await flow.repair("--apply", "--to-mapped")
    assert (done.code, flow.is_same) == (0, True), done.stderr
    await flow.assert_in_step()


async def test_a_mirror_that_runs_meanwhile_neither_loses_nor_doubles_anything(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It has nothing to copy, then exactly as many records as were appended, then much more than it can.
    """
    flow = await copied(source, target, topic, tmp_path)
    before = flow.end
    with Twinsite.run("mirror", "--config", str(flow.settings), work_dir=tmp_path) as mirror:
        load(source.bootstrap, flow.name, [update(5, 30), update(7, 30)])
        await mirror.wait_for(lambda: flow.end == before + 2, "the mirror is at work")

        await flow.plan(b"k1")
        alone = await flow.repair("--apply")
        assert (alone.code, statuses(alone), flow.end) == (0, ["appended"], before + 3), alone.stderr
        load(source.bootstrap, flow.name, [update(9, 31)])
        await mirror.wait_for(lambda: flow.end == before + 4, "one record more is copied")
        assert flow.is_same

        await flow.plan(b"k11", b"k13", b"k15")
        load(source.bootstrap, flow.name, [update(13, 32)])
        await mirror.wait_for(lambda: flow.end == before + 5, "a newer record of one of the keys is copied")
        async with writing(source, flow.name):
            busy = await flow.repair("--apply")
        assert (busy.code, statuses(busy)) == (0, ["appended", "moved_on", "appended"]), busy.stderr
        await mirror.wait_for(lambda: flow.is_same, "all is copied")
        here, there = flow.records()
        assert len(there) == len(here) + 3


async def test_what_a_mirror_copies_between_the_look_and_the_batch_is_not_put_back(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It was sent before the repair took the right, and comes late. What it copies is of a key whose turn is
    next.
    """
    flow = await copied(source, target, topic, tmp_path)
    before = flow.end
    begin_insertion = FlowMemory.begin_insertion

    async def begin_late(memory: FlowMemory, tp: TopicPartition, insertion: Insertion) -> None:
        monkeypatch.setattr(FlowMemory, "begin_insertion", begin_insertion)
        await memory.begin_insertion(tp, insertion)
        await copy_the_last(flow, memory.producer_id)

    load(source.bootstrap, flow.name, [update(1, 30)])
    await flow.mirror()
    await flow.plan(b"k3", b"k5")
    monkeypatch.setattr(repairing, "MENDS_AT_ONCE", 1)
    monkeypatch.setattr(FlowMemory, "begin_insertion", begin_late)
    plan = plan_of_document(json.loads((tmp_path / "plan.json").read_text()), "plan.json")
    load(source.bootstrap, flow.name, [update(5, 31)])
    noted: list[object] = []
    (done,) = await repair(load_settings(flow.settings), plan, Wanted(apply=True), noted.append, {})

    assert [(step.status, step.at) for step in done.steps] == [
        (Status.APPENDED, before + 2),
        (Status.MOVED_ON, None),
    ]
    assert flow.end == before + 3


async def copy_the_last(flow: Copied, producer_id: int) -> None:
    """Append what a mirror would send for the last record of the source."""
    async with connected(flow.source) as source, connected(flow.target) as target:
        here, there = TopicLog(source, flow.name), TopicLog(target, flow.name)
        batch = bytearray(await here.read(await here.end() - 1))
        partition = TopicPartition(flow.name, 0)
        target.follow({flow.name})
        await target.refresh()
        known = (await describe_producer(target, [partition], producer_id))[partition]
        assert isinstance(known, ProducerState)
        seal(memoryview(batch), producer_id, known.producer_epoch, known.last_sequence + 1)
        await there.append(bytes(batch))
