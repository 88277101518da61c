"""The mirror's process as tests see it: its output, its status, and the ways it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.node import NotReadyError
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(120)


def arguments(source: KafkaCluster, target: KafkaCluster, topic: str) -> tuple[str, ...]:
    """A mirror of one topic, with a flow of the topic's name."""
    return (
        "mirror",
        f"--source={source.bootstrap}",
        f"--target={target.bootstrap}",
        f"--topics={topic}",
        f"--flow={topic}",
    )


async def test_a_wrong_command_ends_with_its_code_and_words(tmp_path: Path) -> None:
    """
    Exit code and standard error of a finished process are there.
    """
    ended = await twinsite("no-such-command", work_dir=tmp_path)

    assert ended.code == 2
    assert "no-such-command" in ended.stderr


async def test_waiting_for_a_process_that_ended_says_what_it_said(tmp_path: Path) -> None:
    """
    A test does not wait in vain for something a dead process was to do.
    """
    with (
        Twinsite.run("no-such-command", work_dir=tmp_path, listen=False) as process,
        pytest.raises(NotReadyError, match="no-such-command"),
    ):
        await process.wait_for(lambda: False, "it does something")


async def test_a_running_mirror_answers_and_dies_when_told(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Status over HTTP while it runs, SIGTERM ends it in order, SIGKILL at once, a failpoint by itself.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(100))
    command = arguments(source, target, name)

    with Twinsite.run(*command, work_dir=tmp_path, failpoints="produce_answered") as crashing:
        crashed = await crashing.finished()
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: bool(mirror.status()), "it answers")
        mirror.terminate()
        stopped = await mirror.finished()

    assert crashed.code == -signal.SIGKILL
    assert stopped.code in (0, 128 + signal.SIGTERM)
    await twinsite(*command, "--once", work_dir=tmp_path)
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 100
