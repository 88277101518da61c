"""What the fault tests say of a mirror: how it is started, and what it tells of its partitions."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import urllib.error
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness.checker import read_partition, watermarks
from tests.harness.data import json_rows
from tests.harness.judging import OffsetMode
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite

ITS_OWN = frozenset(
    {"topic", "topic_id", "target_topic", "target_topic_id", "topic_prefix", "producer_id", "created_at_ms"}
)
"""In a record of the state: what differs between two flows that have copied the same."""


def mirror_of(
    source: KafkaCluster, target: KafkaCluster, topics: str, flow: str, *more: str
) -> tuple[str, ...]:
    """The command line of a mirror."""
    return (
        "mirror", *source.source_options, "--target", target.bootstrap,
        "--topics", topics, "--flow", flow, *more,
    )  # fmt: skip


def configured(
    work_dir: Path, source: KafkaCluster, target: KafkaCluster, flow: str, /, **sections: object
) -> tuple[str, ...]:
    """The command line of a mirror with a settings file; ``sections`` are those beside the clusters."""
    document = {
        "flow": flow,
        **source.source_settings,
        "target": {"bootstrap_servers": target.bootstrap.split(",")},
        **sections,
    }
    file = work_dir / f"{flow}.yaml"
    file.write_text(json.dumps(document))
    return ("mirror", "--config", str(file))


def once(source: KafkaCluster, target: KafkaCluster, topics: str, flow: str, *more: str) -> tuple[str, ...]:
    """The command line of a mirror that ends by itself and prints one document."""
    return mirror_of(source, target, topics, flow, "--once", "-o", "json", *more)


def partitions(mirror: Twinsite) -> list[dict[str, Any]]:
    """All partitions of the status; none while nobody answers."""
    found: list[dict[str, Any]] = mirror.status().get("partitions", [])
    return found


def partition(status: Iterable[dict[str, Any]], topic: str, number: int = 0) -> dict[str, Any]:
    """One partition of a status; an empty one if it is not there."""
    return next((p for p in status if (p["topic"], p["partition"]) == (topic, number)), {})


def state(mirror: Twinsite, topic: str, number: int = 0) -> str:
    """The state of one partition; ``UNKNOWN`` while nobody tells."""
    return str(partition(partitions(mirror), topic, number).get("state", "UNKNOWN"))


def reached(mirror: Twinsite, topic: str, number: int = 0) -> int:
    """Source offset up to which one partition is copied."""
    return int(partition(partitions(mirror), topic, number).get("next_offset") or 0)


def copied(mirror: Twinsite) -> int:
    """Records this process has copied."""
    return sum(p["records"] for p in partitions(mirror))


def complete(mirror: Twinsite, source: KafkaCluster, topics: Sequence[str]) -> bool:
    """Whether a mirror knows that everything the source has now is copied."""
    ends = {
        (topic, p): end for topic in topics for p, (_, end) in watermarks(source.bootstrap, topic).items()
    }
    return {(p["topic"], p["partition"]): p["next_offset"] for p in partitions(mirror)} == ends


async def says(
    mirror: Twinsite, topic: str, state: str, reason: str, seconds: float = 60.0, number: int = 0
) -> dict[str, Any]:
    """Wait until status, metrics and log all say that a partition is in a state for a reason.

    Returns:
        What the status says of it.
    """
    found: dict[str, Any] = {}
    fields = f'"{topic}"', f'"partition": {number},', f'"state": "{state}"', f'"reason": "{reason}"'

    def told() -> bool:
        found.clear()
        found.update(partition(partitions(mirror), topic, number))
        metric = f'partition="{number}",reason="{reason}",state="{state}",topic="{topic}"}} 1.0'
        logged = events(mirror.stderr, "partition_state_changed")
        return (
            (found.get("state"), found.get("reason")) == (state, reason)
            and metric in mirror.get("/metrics").decode()
            and any(all(field in line for field in fields) for line in logged)
        )

    await mirror.wait_for(told, f"{topic}-{number} is said to be {state} because of {reason}", seconds)
    return found


@asynccontextmanager
async def writing(
    source: KafkaCluster, topic: str, records: int = 300, value_bytes: int = 300
) -> AsyncIterator[None]:
    """Write to a topic in small batches, one after the other, as long as the block lasts.

    Args:
        records: Of this size, between two looks whether it is enough.

    Raises:
        NotLoadedError: A record was not accepted.
    """
    enough = threading.Event()

    def write() -> None:
        for seed in itertools.count(100):
            rows = json_rows(records, value_bytes, seed=seed)
            load(source.bootstrap, topic, rows, batch_num_messages=20)
            if enough.is_set():
                return

    task = asyncio.create_task(asyncio.to_thread(write))
    try:
        yield
    finally:
        enough.set()
        await task


def stored(target: KafkaCluster, flow: str) -> dict[str, bytes]:
    """What a flow's state holds, by key."""
    found = read_partition(target.bootstrap, f"__twinsite_state.{flow}", 0)
    latest = {record.key.decode(): record.value for record in found if record.key is not None}
    return {key: value for key, value in latest.items() if value is not None}


def remembered(target: KafkaCluster, flow: str) -> dict[str, object]:
    """What a flow of one topic remembers, as any other would that has copied the same: no names, no ids.

    Nor where its owner runs: of one that died, that stays until the next owner has been there for a while. It
    counts for nothing, as it carries the epoch of the dead one.
    """
    found = stored(target, flow).items()
    return dict(_comparable(key, value) for key, value in found if key != "owner")


def _comparable(key: str, value: bytes) -> tuple[str, object]:
    kind, _, *place = key.split("/") if "/" in key else (key, "")
    if kind == "map":
        return "/".join((kind, *place)), value
    said = {name: one for name, one in json.loads(value).items() if name not in ITS_OWN}
    return "/".join((kind, *place)), said


async def never_killed(
    source: KafkaCluster, target: KafkaCluster, topic: str, work_dir: Path, offsets: OffsetMode
) -> dict[str, object]:
    """What a flow remembers that has copied a topic in one go, under another name."""
    flow = f"{topic}-{offsets}"
    topics = {"include": [topic], "names": "prefix", "prefix": f"{flow}."}
    command = configured(work_dir, source, target, flow, topics=topics, offsets={"mode": offsets})
    done = await twinsite(*command, "--once", work_dir=work_dir)
    assert done.code == 0, done.stderr
    return remembered(target, flow)


def owns(mirror: Twinsite) -> bool:
    """Whether a mirror takes itself for the owner."""
    return bool(mirror.status().get("owner"))


def pairs(source: KafkaCluster, target: KafkaCluster, topic: str, partition: int) -> dict[int, int]:
    """Source and target offset of each record, as an independent reader counts them off."""
    ours, theirs = (read_partition(cluster.bootstrap, topic, partition) for cluster in (source, target))
    return {record.offset: copy.offset for record, copy in zip(ours, theirs, strict=True)}


def translate(
    mirror: Twinsite, topic: str, partition: int, offset: int, field: str, more: str = ""
) -> int | None:
    """One answer of the mirror; None when it says that there is no such record."""
    path = f"/offsets/translate?topic={topic}&partition={partition}&offset={offset}{more}"
    try:
        return int(json.loads(mirror.get(path))[field])
    except urllib.error.HTTPError as answer:
        with answer:
            if json.load(answer)["code"] != "refused":
                raise
        return None
