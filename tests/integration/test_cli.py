"""The commands for people against a mirror that runs between real brokers."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import yaml

from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of, once, partitions, says
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, twinsite
from tests.harness.terminal import on_terminal

DRAWN_AGAIN = "\r\x1b[2K"
"""Back to the beginning of the line, and clear it."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours, and what moves the cursor."""


async def test_an_operator_asks_pauses_translates_and_stops(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A day in the life of a mirror, from its settings file to SIGTERM.
    """
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, json_rows(400, 100), "lz4")
    settings = tmp_path / "flow.yaml"
    settings.write_text(
        yaml.safe_dump(
            {
                "flow": "day",
                "source": {"bootstrap_servers": source.bootstrap},
                "target": {"bootstrap_servers": target.bootstrap},
                "topics": {"include": [name], "names": "prefix", "prefix": "east."},
            }
        )
    )

    async def ask(*arguments: str) -> tuple[int, str, str]:
        ended = await twinsite(*arguments, work_dir=tmp_path)
        return ended.code, ended.stdout, ended.stderr

    with Twinsite.run("mirror", "--config", str(settings), work_dir=tmp_path) as mirror:
        url = ("--url", f"http://127.0.0.1:{mirror.port}")
        await mirror.wait_for(lambda: "ACTIVE" in mirror.stderr, "it copies")
        await mirror.wait_for(
            lambda: [p["lag_records"] for p in partitions(mirror)] == [0, 0], "all is copied"
        )

        code, table, _ = await ask("status", *url)
        paused = await ask("pause", name, "--partition", "1", *url)
        await says(mirror, name, "PAUSED", "operator", number=1)
        code_while_paused, table_while_paused, _ = await ask("status", *url)
        loss = await ask("accept-loss", name, "--yes", *url)
        resumed = await ask("resume", name, *url)
        translated = await ask(
            "offsets", "translate", "--topic", name, "--partition", "0", "--offset", "7", *url
        )
        mirror.terminate()
        stopped = await mirror.finished()

    assert (code, f"{name}-0 > east.{name}" in table) == (0, True)
    assert paused == (0, f"{name}-1: done\n", "")
    assert (code_while_paused, "PAUSED" in table_while_paused) == (3, True)
    assert loss[0] == 4
    assert resumed == (0, f"{name}-0: done\n{name}-1: done\n", "")
    assert translated == (0, "7\n", "")
    assert stopped.code == 0

    offline = await ask(
        "offsets",
        "translate",
        "--topic",
        name,
        "--partition",
        "0",
        "--offset",
        "7",
        "--config",
        str(settings),
    )
    assert offline == (0, "7\n", "")


async def test_what_needs_somebody_is_told_with_what_to_do(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    In what ``status`` prints, too; and the document of ``--once`` says what was lost, as the status does.
    """
    lost, held = await topic(source, prefix="lost"), await topic(source, prefix="held")
    for name in (lost, held):
        load(source.bootstrap, name, json_rows(20, 50))
    await target.create_topic(held, 1)
    load(target.bootstrap, held, json_rows(3, 50))
    assert (await twinsite(*once(source, target, lost, lost), work_dir=tmp_path)).code == 0
    load(source.bootstrap, lost, json_rows(30, 50, seed=2))
    source.delete_records(lost, {0: 35})

    document = (await twinsite(*once(source, target, f"{lost}|{held}", lost), work_dir=tmp_path)).document
    with Twinsite.run(*mirror_of(source, target, f"{lost}|{held}", lost), work_dir=tmp_path) as mirror:
        await says(mirror, lost, "DATA_LOSS", "log_start_moved")
        await says(mirror, held, "BLOCKED", "target_not_empty")
        told = {one["topic"]: one for one in partitions(mirror)}
        asked = await twinsite("status", "--url", f"http://127.0.0.1:{mirror.port}", work_dir=tmp_path)

    ended = {one["topic"]: one for one in document["partitions"]}
    for of in (told, ended):
        assert [(of[name]["lost_from"], of[name]["lost_to"]) for name in (lost, held)] == [
            (20, 35),
            (None, None),
        ]
    lines = asked.stdout.splitlines()
    assert asked.code == 3
    for name, state, way_out in (
        (lost, "DATA_LOSS", "accept the loss to continue."),
        (held, "BLOCKED", "delete the target topic, if nobody needs any of its partitions."),
    ):
        at = lines.index(f"{name}-0: {state}: {told[name]['detail']}")
        assert lines[at + 1] == f"  hint: {told[name]['hint']}"
        assert lines[at + 1].endswith(way_out)


async def test_what_is_watched_changes_when_something_is_copied(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    On a terminal in place, in a pipe one table follows the other.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(3, 50))

    def is_at(offset: int, shown: str) -> bool:
        """Whether what was drawn last says that so much is at the source, and all of it copied."""
        drawn = [
            line.split() for line in CONTROL.sub("", shown).splitlines() if line.startswith(f"{name}-0 ")
        ]
        return bool(drawn) and drawn[-1][:5] == [f"{name}-0", "ACTIVE", "same", str(offset), str(offset)]

    with Twinsite.run(*mirror_of(source, target, name, name), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied")
        watch = ("status", "--watch", "--every", "0.2", "--url", f"http://127.0.0.1:{mirror.port}")
        with (
            on_terminal(*watch, lines=24, columns=80) as seen,
            Twinsite.run(*watch, work_dir=tmp_path, listen=False) as kept,
        ):
            await asyncio.to_thread(seen.wait_for, partial(is_at, 3), "three records")
            await kept.wait_for(lambda: is_at(3, kept.stdout), "three records")
            load(source.bootstrap, name, json_rows(4, 50))
            await asyncio.to_thread(seen.wait_for, partial(is_at, 7), "seven records")
            await kept.wait_for(lambda: is_at(7, kept.stdout), "seven records")


async def test_a_pattern_that_matches_nothing_is_said(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A slip in a pattern is no silent mirror: the log names the topics that are there, and status ends with 3.
    """
    name = await topic(source)
    options = ("--source", source.bootstrap, "--target", target.bootstrap, "--flow", "slip")

    with Twinsite.run("mirror", *options, "--topics", f"{name}-odrers", work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: "no_topic_matches" in mirror.stderr, "it says so")
        asked = await twinsite("status", "--url", f"http://127.0.0.1:{mirror.port}", work_dir=tmp_path)

    [line] = [line for line in mirror.stderr.splitlines() if "no_topic_matches" in line]
    assert "warning" in line
    assert name in line.split("topics there")[1]
    assert asked.code == 3


async def test_a_slip_in_one_of_several_patterns_is_said(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The topics that the others match would hide it: all of those are there at the end.
    """
    name = await topic(source)
    options = ("--source", source.bootstrap, "--target", target.bootstrap, "--flow", "slip-in-one", "--once")

    done = await twinsite("mirror", *options, "--topics", f"{name},{name}-odrers", work_dir=tmp_path)

    [line] = [json.loads(line) for line in done.stderr.splitlines() if "include_matches_nothing" in line]
    assert (line["level"], line["include"], line["count"]) == ("warning", [f"{name}-odrers"], 1)
    assert done.code == 0


async def test_a_copy_moves_a_bar_on_a_terminal_and_writes_lines_into_a_pipe(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Somebody watches the one, a program keeps the other.
    """
    watched, kept = [await topic(source) for _ in range(2)]
    for name in (watched, kept):
        load(source.bootstrap, name, json_rows(400, 100))

    def copy(name: str) -> tuple[str, ...]:
        clusters = ("--source", source.bootstrap, "--target", target.bootstrap)
        return ("mirror", *clusters, "--topics", name, "--flow", name, "--once")

    with on_terminal(*copy(watched), lines=24, columns=80) as seen:
        code = await asyncio.to_thread(seen.finished)
    piped = await twinsite(*copy(kept), work_dir=tmp_path)

    last = seen.shown.rsplit(DRAWN_AGAIN, 1)[1]
    assert code == 0, seen.shown
    assert "copying" in last
    assert "100%" in last
    assert "1 of 1 partitions complete" in last
    assert re.search(rf"{watched}-0\b.*ACTIVE\b", last)
    assert re.search(r"100 %, (\d+) of \1 offsets, 1 of 1 partitions complete", piped.stderr)
    assert "\x1b" not in piped.stderr + piped.stdout
