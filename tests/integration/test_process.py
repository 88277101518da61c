"""The mirror's process as tests see it: its output, its status, and the ways it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import urllib.error
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults import flows
from tests.harness.checker import assert_exact
from tests.harness.daemon import NotReadyError
from tests.harness.data import json_rows
from tests.harness.jvm import REPOSITORY
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite

pytestmark = pytest.mark.timeout(120)

SOON = 10.0
"""Of a machine that has much else to do; below the 15 s after which a mirror is cut off."""


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
    Status over HTTP while it runs; SIGTERM ends it in order, with 0; a failpoint kills it.
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
    assert stopped.code == 0, stopped.stderr
    await twinsite(*command, "--once", work_dir=tmp_path)
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 100


async def test_a_second_sigterm_ends_a_mirror_that_waits_for_a_target_that_does_not_answer(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    After the first one it waits for what is under way; after the second one no more. What had arrived and was
    never acknowledged is found by the next run.
    """
    name = await topic(source)
    command, broker = arguments(source, target, name), target.broker(1)
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        async with flows.writing(source, name):
            await mirror.wait_for(lambda: flows.reached(mirror, name) > 1_000, "it is in the middle of it")
            await broker.freeze()
            try:
                await mirror.wait_for(lambda: behind(mirror) > 1_000, "it has sent more than is answered")
                mirror.terminate()
                await mirror.wait_for(lambda: bool(events(mirror.stderr, "stopping")), "it was told")
                waits = mirror.status()
                mirror.terminate()
                ended = await mirror.finished(SOON)
            finally:
                await broker.thaw()
    again = await twinsite(*command, "--once", work_dir=tmp_path)

    assert waits["flow"] == name, "it still answers"
    assert ended.code == 128 + signal.SIGTERM, ended.stderr
    assert events(ended.stderr, "drain_timed_out") == []
    assert again.code == 0, again.stderr
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) > 2_000


def behind(mirror: Twinsite) -> int:
    """How many offsets the only partition is behind, as far as is known."""
    return sum(p["lag_records"] or 0 for p in flows.partitions(mirror))


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--once",), 1)])
async def test_a_sigterm_ends_a_mirror_whose_source_cannot_be_reached(
    tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    """
    Long before the cluster would be given up, or the mirror cut off: nothing is under way that would have to
    arrive. A copy that was to end is not made.
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = ("mirror", f"--source={address}", "--target=127.0.0.1:1", "--topics=.*", *more)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            connection, _ = await asyncio.get_running_loop().run_in_executor(None, silent.accept)
            with connection:
                mirror.terminate()
                ended = await mirror.finished(SOON)

    assert ended.code == code, ended.stderr
    assert "stopped before the mirror was under way" in ended.stderr


@pytest.mark.parametrize("more", [(), ("--once",)])
async def test_a_cluster_that_cannot_be_reached_is_said_while_it_is_tried_again(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """
    Nobody has to wait for the end to learn which cluster it is, and why.
    """
    command = ("mirror", "--source=127.0.0.1:1", "--target=127.0.0.1:2", "--topics=.*", *more)

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: unreached(mirror).keys() == {"source", "target"}, "it says so")
        still_trying = mirror.running

    assert still_trying
    assert "127.0.0.1:1" in unreached(mirror)["source"]


def unreached(mirror: Twinsite) -> dict[str, str]:
    """Of which clusters it says that they do not answer, and why; lines that are whole."""
    whole, _, _ = mirror.stderr.rpartition("\n")
    lines = [json.loads(line) for line in events(whole, "cluster_not_reached")]
    return {line["cluster"]: line["error"] for line in lines}


async def test_a_sigterm_does_not_wait_for_a_resolver_that_does_not_answer() -> None:
    """
    A look-up in the C library cannot be given up; the process ends all the same.
    """
    program = (
        "import socket, sys, threading\n"
        "def getaddrinfo(*_, **__):\n"
        "    print('asked', flush=True)\n"
        "    threading.Event().wait(60)\n"
        "socket.getaddrinfo = getaddrinfo\n"
        "from mirror.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    flags = ("--source=east:9092", "--target=west:9092", "--topics=.*", "--api-port=-1")
    asking = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, "mirror", *flags, stdout=PIPE, stderr=PIPE, cwd=REPOSITORY
    )

    try:
        assert asking.stdout is not None
        assert (await asking.stdout.readline()).startswith(b"asked")  # by a thread for each cluster
        asking.terminate()
        _, said = await asyncio.wait_for(asking.communicate(), SOON)
    finally:
        if asking.returncode is None:
            asking.kill()
            await asking.wait()

    assert asking.returncode == 0, said.decode()


async def test_a_mirror_that_is_started_during_an_outage_goes_on_when_it_is_over(
    target: KafkaCluster, tmp_path: Path
) -> None:
    """
    It says that it is not ready and for which cluster it waits; nobody has to start it again.
    """
    async with KafkaCluster.start(version="3.9", name="late", work_dir=tmp_path) as late:
        await late.create_topic("late-orders")
        load(late.bootstrap, "late-orders", json_rows(50, 100))
        await late.broker(1).stop()

        with Twinsite.run(*arguments(late, target, "late-orders"), work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: "cluster_not_reached" in mirror.stderr, "it waits")
            asked = await twinsite("status", "--url", f"http://127.0.0.1:{mirror.port}", work_dir=tmp_path)
            not_ready = refusal(mirror, "/readyz")
            await late.broker(1).start()
            await mirror.wait_for(lambda: not refusal(mirror, "/readyz"), "it is ready", 60)
            await mirror.wait_for(
                lambda: [p["next_offset"] for p in flows.partitions(mirror)] == [50], "all is copied"
            )

    assert (asked.code, "no partitions" in asked.stdout) == (3, True)
    assert "[-] source: not reached since start" in not_ready
    assert "target" not in not_ready


def refusal(mirror: Twinsite, path: str) -> str:
    """What a probe says that fails; nothing if it does not."""
    try:
        mirror.get(path)
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""
