"""The port of the mirror, asked over real sockets."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from mirror.api.control import find
from mirror.api.page import PAGE
from mirror.api.schema import status_to_json
from mirror.api.server import ApiServer, Backend
from mirror.cli.client import MirrorClient
from mirror.errors import ConnectionFailedError, StateConflictError, TwinsiteError, UsageError
from mirror.model import FlowStatus, OwnerStatus, Reason, State, TopicPartition
from monitoring.health import Heartbeats, Readiness
from monitoring.metrics import Instruments, register
from tests.unit.statuses import a_flow, a_loss, a_partition

CONTROL = {"X-Twinsite-Control": "yes", "Content-Type": "application/json"}
ORDERS_0 = TopicPartition("orders", 0)


@dataclass
class Mirror:
    """What stands behind the server: notes what it is told, answers as a test wants."""

    status: FlowStatus
    readiness: Readiness = field(default_factory=lambda: Readiness(True, True, True, True))
    now: float = 0.0
    told: list[tuple[str, TopicPartition]] = field(default_factory=list)
    shown: list[tuple[int, int] | None] = field(default_factory=list)
    refusals: dict[TopicPartition, TwinsiteError] = field(default_factory=dict)
    translated: TwinsiteError | int = 4_711
    questions: list[tuple[TopicPartition, int, bool, bool]] = field(default_factory=list)
    bug: Exception | None = None
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    def take_status(self) -> FlowStatus:
        if self.bug is not None:
            raise self.bug
        return self.status

    async def pause(self, tp: TopicPartition) -> None:
        self._told("pause", tp)

    async def resume(self, tp: TopicPartition) -> None:
        self._told("resume", tp)

    async def accept_loss(self, tp: TopicPartition, shown: tuple[int, int] | None = None) -> None:
        self._told("accept_loss", tp)
        self.shown.append(shown)

    def _told(self, what: str, tp: TopicPartition) -> None:
        if tp in self.refusals:
            raise self.refusals[tp]
        self.told.append((what, tp))

    async def translate(self, tp: TopicPartition, offset: int, /, *, reverse: bool, committed: bool) -> int:
        find(self.status, tp.topic, tp.partition)
        self.questions.append((tp, offset, reverse, committed))
        if isinstance(self.translated, TwinsiteError):
            raise self.translated
        return self.translated


@dataclass
class Port:
    """A running server and the mirror behind it."""

    mirror: Mirror
    session: aiohttp.ClientSession
    url: str
    server: ApiServer

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def get_json(self, path: str) -> tuple[int, Any]:
        status, text = await self.get(path)
        return status, json.loads(text)

    async def post(
        self, path: str, *, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, Any]:
        given = CONTROL if headers is None else headers
        async with self.session.post(self.url + path, headers=given, data=body) as answer:
            return answer.status, json.loads(await answer.text())


def a_backend(mirror: Mirror) -> Backend:
    registry = CollectorRegistry()
    register(registry, mirror.take_status)
    Instruments(registry, mirror.status.flow)
    return Backend(
        status=mirror.take_status,
        readiness=lambda: mirror.readiness,
        heartbeats=mirror.heartbeats,
        control=mirror,
        translate=mirror.translate,
        registry=registry,
    )


def a_server(mirror: Mirror, *, host: str = "127.0.0.1", port: int = 0) -> ApiServer:
    return ApiServer(a_backend(mirror), host=host, port=port, clock=lambda: mirror.now)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    """A mirror of two topics, one of which has lost something."""
    mirror = Mirror(a_flow(a_partition("orders", 0), a_partition("orders", 1), a_loss("audit", 2)))
    server = a_server(mirror)
    await server.start()
    async with aiohttp.ClientSession() as session:
        yield Port(mirror, session, server.url, server)
    await server.close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:{port}"),
        ("::1", "http://[::1]:{port}"),
        ("0.0.0.0", "http://{here}:{port}"),
        ("::", "http://{here}:{port}"),
    ],
)
async def test_where_a_mirror_says_that_it_can_be_asked_it_is(host: str, url: str) -> None:
    """
    Commands take the address as it is told; all addresses are no address, the name of the machine is one.
    """
    server = a_server(Mirror(a_flow()), host=host)
    try:
        await server.start()
    except UsageError:
        pytest.skip("this machine has no such address")

    told, port = server.url, server.port
    await server.close()

    assert told == url.format(here=socket.gethostname(), port=port)
    assert MirrorClient(told).url == told


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What was logged, as event dictionaries."""
    with structlog.testing.capture_logs() as lines:
        yield lines


# -- probes ----------------------------------------------------------------------------------------


async def test_alive_says_ok_and_nothing_of_the_clusters(port: Port) -> None:
    """
    A mirror whose clusters are both away is alive.
    """
    port.mirror.readiness = Readiness(True, False, False, False)

    assert await port.get("/livez") == (200, "ok\n")


async def test_a_task_that_hangs_fails_the_liveness_probe_by_name(port: Port) -> None:
    """
    Whoever restarts the process finds out why.
    """
    port.mirror.heartbeats.expect("settle", within_seconds=30, now=0)
    port.mirror.now = 31

    status, text = await port.get("/livez")

    assert status == 503
    assert text == "[-] settle: last sign 31.0 s ago, expected every 30 s\nfailed\n"


async def test_ready_lists_its_checks_when_asked_to(port: Port) -> None:
    """
    ``?verbose`` shows the good ones too.
    """
    port.mirror.readiness = Readiness(True, True, False, True)

    status, text = await port.get("/readyz?verbose")

    assert status == 503
    assert text.splitlines() == [
        "[+] settings: loaded",
        "[+] source: reached",
        "[-] target: not reached since start",
        "[+] flow: running",
        "failed",
    ]


# -- reading ---------------------------------------------------------------------------------------


async def test_status_is_the_versioned_document(port: Port) -> None:
    """
    What the schema describes, and never from a cache.
    """
    async with port.session.get(port.url + "/status") as answer:
        document = await answer.json()

    assert document == status_to_json(port.mirror.status)
    assert document["schema"] == 1
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Server"] == "twinsite"


async def test_metrics_are_served_as_prometheus_reads_them(port: Port) -> None:
    """
    The content type of the text format, and the flow of this moment.
    """
    async with port.session.get(port.url + "/metrics") as answer:
        text = await answer.text()

    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'twinsite_lag_records{flow="east-to-west",partition="2",topic="audit"} 80.0\n' in text
    assert "process_resident_memory_bytes " in text


async def test_an_offset_is_translated(port: Port) -> None:
    """
    From the source to the target, and back with ``reverse``; of a record or, with ``committed``, of a group.
    """
    path = "/offsets/translate?topic=orders&partition=0&offset=900"

    there, back = await port.get_json(path), await port.get_json(f"{path}&reverse=true")
    group = await port.get_json(f"{path}&committed=true")

    named = {"schema": 1, "topic": "orders", "partition": 0}
    assert there == (200, named | {"source_offset": 900, "target_offset": 4_711})
    assert back == (200, named | {"source_offset": 4_711, "target_offset": 900})
    assert group == there
    asked = [(900, False, False), (900, True, False), (900, False, True)]
    assert port.mirror.questions == [(ORDERS_0, *one) for one in asked]


async def test_an_offset_that_cannot_be_translated_is_refused(port: Port) -> None:
    """
    Exact or refused: with the reason, and never a number.
    """
    port.mirror.translated = TwinsiteError("orders-0: offset 9 lies beyond what was copied", hint="wait")

    status, problem = await port.get_json("/offsets/translate?topic=orders&partition=0&offset=9")

    assert (status, problem["code"], problem["hint"]) == (409, "refused", "wait")
    assert problem["detail"] == "orders-0: offset 9 lies beyond what was copied"
    assert problem["retryable"] is False


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("partition=0&offset=1", "parameter topic is missing"),
        ("topic=orders&partition=-1&offset=1", "parameter partition must be a whole number, 0 or more"),
        ("topic=orders&partition=0&offset=1e3", "parameter offset must be a whole number, 0 or more"),
        ("topic=orders&partition=0&offset=9223372036854775808", "parameter offset must be a whole"),
        ("topic=orders&partition=0&offset=%D9%A1", "parameter offset must be a whole number, 0 or more"),
        ("topic=orders&partition=0&offset=1&reverse=1", "parameter reverse must be true or false"),
        ("topic=orders&partition=0&offset=1&committed=yes", "parameter committed must be true or false"),
        (
            "topic=orders&partition=0&offset=1&revers=true",
            "unknown parameter revers: known are committed,",
        ),
        ("topic=orders&partition=0&offset=1&offset=2", "parameter offset is given more than once"),
    ],
)
async def test_a_bad_question_is_told_what_is_wrong_with_it(port: Port, query: str, detail: str) -> None:
    """
    The parameter is named, the mirror is not asked.
    """
    status, problem = await port.get_json(f"/offsets/translate?{query}")

    assert (status, problem["code"]) == (400, "bad_request")
    assert problem["detail"].startswith(detail)
    assert port.mirror.questions == []


async def test_an_offset_is_translated_without_a_look_at_all_partitions(port: Port) -> None:
    """
    Whoever moves groups to the other side asks for thousands.
    """
    port.mirror.bug = ZeroDivisionError("a snapshot was taken")

    status, _ = await port.get_json("/offsets/translate?topic=orders&partition=0&offset=1")

    assert status == 200


async def test_a_partition_the_flow_does_not_have_is_not_translated(port: Port) -> None:
    """
    A typing mistake is not an offset of 0.
    """
    status, problem = await port.get_json("/offsets/translate?topic=order&partition=0&offset=1")

    assert (status, problem["code"]) == (404, "unknown_partition")


async def test_what_is_no_http_is_answered_and_no_fault_of_the_mirror(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Whoever reaches the port could fill the log with lines at level error.
    """
    answers = []
    with structlog.testing.capture_logs() as lines:
        for text in (
            b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9_000,
            b"\x16\x03\x01",
            b"GET / HTTP/9.9",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.server.port)
            writer.write(text + b"\r\n\r\n")
            answers.append((await reader.readline()).split()[1])
            writer.close()

    assert answers == [b"400"] * 3
    assert (lines, caplog.records) == ([], [])


# -- control ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "told"), [("pause", "pause"), ("resume", "resume"), ("accept-loss", "accept_loss")]
)
async def test_a_partition_is_told(port: Port, logged: list[Any], action: str, told: str) -> None:
    """
    Once, and the log says who asked.
    """
    status, answer = await port.post(f"/partitions/orders/0/{action}")

    assert (status, answer["action"]) == (200, action)
    assert answer["partitions"] == [{"topic": "orders", "partition": 0, "outcome": "done"}]
    assert port.mirror.told == [(told, ORDERS_0)]
    (line,) = [line for line in logged if line["event"] == "control_done"]
    assert (line["action"], line["topic"], line["partition"], line["caller"]) == (
        *(action, "orders", 0),
        "127.0.0.1",
    )


OWNER = OwnerStatus("west-2", 17, 0, "http://127.0.0.1:9641")
NOT_THERE = "at this mirror only, which stands by"


@pytest.mark.parametrize(
    ("copied_by", "who"),
    [
        (None, "the owner of the flow is another mirror, and was told nothing"),
        (
            OWNER,
            "the owner of the flow is the mirror on west-2, process 17, and was told nothing: ask it, on "
            "west-2, with --url http://127.0.0.1:9641",
        ),
        (
            replace(OWNER, url=""),
            "the owner of the flow is the mirror on west-2, process 17, and was told nothing",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/partitions/orders/0/pause", "/topics/orders/resume"])
async def test_a_mirror_that_stands_by_says_that_the_owner_was_told_nothing(
    port: Port, path: str, copied_by: OwnerStatus | None, who: str
) -> None:
    """
    It is done: this mirror may take over. But what is paused here only goes on there.
    """
    port.mirror.status = replace(port.mirror.status, owner=False, copied_by=copied_by)

    status, answer = await port.post(path)

    assert status == 200
    told = [(one["outcome"], one["detail"]) for one in answer["partitions"]]
    assert set(told) == {("done", f"{NOT_THERE}; {who}")}


async def test_a_topic_means_all_its_partitions(port: Port) -> None:
    """
    And no partition of another topic.
    """
    status, answer = await port.post("/topics/orders/pause", body=b"{}")

    assert status == 200
    assert [one["partition"] for one in answer["partitions"]] == [0, 1]
    assert port.mirror.told == [("pause", ORDERS_0), ("pause", TopicPartition("orders", 1))]


async def test_the_loss_of_a_topic_is_accepted_where_there_is_one(port: Port) -> None:
    """
    Partitions that have lost nothing are left alone; a topic without a loss is refused.
    """
    port.mirror.status = a_flow(a_partition("audit", 0), a_loss("audit", 2), a_partition("orders", 0))

    accepted = await port.post("/topics/audit/accept-loss")
    refused = await port.post("/topics/orders/accept-loss")

    assert accepted[0] == 200
    assert (refused[0], refused[1]["code"]) == (409, "state_conflict")
    assert port.mirror.told == [("accept_loss", TopicPartition("audit", 2))]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", None),
        (b"{}", None),
        (b'{"lost_from": 1000, "lost_to": 1050}', (1_000, 1_050)),
    ],
)
async def test_a_loss_is_accepted_as_it_was_shown(
    port: Port, body: bytes, shown: tuple[int, int] | None
) -> None:
    """
    Whoever names no loss accepts what is lost by then, as before there was a way to name it.
    """
    status, _ = await port.post("/partitions/orders/0/accept-loss", body=body)

    assert (status, port.mirror.shown) == (200, [shown])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/partitions/orders/0/accept-loss", b'{"lost_from": 1000}'),
        ("/partitions/orders/0/accept-loss", b'{"lost_from": 1000, "lost_to": "1050"}'),
        ("/partitions/orders/0/accept-loss", b'{"lost_from": 1000, "lost_to": true}'),
        ("/partitions/orders/0/accept-loss", b"[]"),
        ("/partitions/orders/0/resume", b'{"lost_from": 1000, "lost_to": 1050}'),
        ("/topics/audit/accept-loss", b'{"lost_from": 1000, "lost_to": 1050}'),
    ],
)
async def test_a_loss_that_is_not_named_as_it_should_be_is_not_accepted(
    port: Port, path: str, body: bytes
) -> None:
    """
    Of a topic each partition has lost another range.
    """
    port.mirror.status = a_flow(a_loss("audit", 2), a_partition("orders", 0))

    status, problem = await port.post(path, body=body)

    assert (status, problem["code"]) == (400, "bad_request")
    assert port.mirror.told == []


async def test_a_partition_that_refuses_does_not_hide_the_others(port: Port) -> None:
    """
    A script sees a failure, a reader sees which partition and why.
    """
    port.mirror.refusals[ORDERS_0] = StateConflictError("orders-0 is FENCED")

    status, problem = await port.post("/topics/orders/resume")

    assert (status, problem["code"]) == (409, "partly_refused")
    assert problem["detail"] == "1 of 2 partitions refused"
    assert problem["hint"] == "look at the partition's status again"
    assert problem["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "outcome": "refused",
            "code": "state_conflict",
            "detail": "orders-0 is FENCED",
            "hint": "look at the partition's status again",
        },
        {"topic": "orders", "partition": 1, "outcome": "done"},
    ]


async def test_a_refusal_that_may_pass_says_when_to_ask_again(port: Port) -> None:
    """
    A cluster that is away is not the caller's mistake.
    """
    port.mirror.refusals[ORDERS_0] = ConnectionFailedError("target: no broker answers")

    async with port.session.post(port.url + "/partitions/orders/0/accept-loss", headers=CONTROL) as answer:
        problem = await answer.json(content_type="application/problem+json")

    assert (answer.status, problem["code"], problem["retryable"]) == (503, "cluster_unavailable", True)
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("path", ["/partitions/orders/7/pause", "/topics/order/pause"])
async def test_what_the_flow_does_not_have_cannot_be_told(port: Port, path: str) -> None:
    """
    A misspelt topic is an error, not a success of nothing.
    """
    status, problem = await port.post(path)

    assert (status, problem["code"]) == (404, "unknown_partition")
    assert port.mirror.told == []


async def test_a_mirror_that_has_not_begun_says_that_it_waits(port: Port) -> None:
    """
    Nobody knows yet what the flow has: the name need not be wrong, and later the answer is another. What is
    waited for says what to do where that is known.
    """
    port.mirror.status = replace(a_flow(), partitions=(), waits_for="source to answer")

    told = [
        await port.post("/topics/orders/pause"),
        await port.post("/partitions/orders/0/accept-loss"),
        await port.get_json("/offsets/translate?topic=orders&partition=0&offset=1"),
    ]

    unknown = "nothing is known about it yet: the mirror waits for source to answer"
    assert [(status, problem["retryable"], problem["detail"]) for status, problem in told] == [
        (503, True, f"orders: {unknown}"),
        (503, True, f"orders-0: {unknown}"),
        (503, True, f"orders-0: {unknown}"),
    ]
    assert not any(problem.get("hint") for _, problem in told)
    assert (port.mirror.told, port.mirror.questions) == ([], [])


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "application/json"}, 403, "control_header_missing"),
        (CONTROL | {"X-Twinsite-Control": "no"}, 403, "control_header_missing"),
        (CONTROL | {"Origin": "http://127.0.0.1:9640"}, 403, "browser_refused"),
        (CONTROL | {"Sec-Fetch-Site": "same-origin"}, 403, "browser_refused"),
        (CONTROL | {"Content-Type": "text/plain"}, 415, "json_required"),
    ],
)
async def test_a_web_page_cannot_control_the_mirror(
    port: Port, headers: dict[str, str], status: int, code: str
) -> None:
    """
    Neither a form, nor a script of another site, nor one that has rebound its own name to us.
    """
    answered, problem = await port.post("/partitions/orders/0/pause", headers=headers)

    assert (answered, problem["code"]) == (status, code)
    assert port.mirror.told == []


async def test_control_is_not_taken_from_other_machines() -> None:
    """
    Listening everywhere, for probes and Prometheus, does not give the world a switch.
    """
    address = _own_address()
    mirror = Mirror(a_flow())
    server = a_server(mirror, host="0.0.0.0")
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            far, near = (
                Port(mirror, session, f"http://{host}:{server.port}", server)
                for host in (address, "127.0.0.1")
            )
            refused = await far.post("/partitions/orders/0/pause")
            probed = await far.get("/livez")
            taken = await near.post("/partitions/orders/0/pause")
    finally:
        await server.close()

    assert (refused[0], refused[1]["code"]) == (403, "caller_not_local")
    assert probed[0] == 200
    assert taken[0] == 200


def _own_address() -> str:
    """An address of this machine that is not the loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has only its loopback address")
        address = probe.getsockname()[0]
    assert isinstance(address, str)
    return address


@pytest.mark.parametrize("body", [b'{"force": true}', b"[]", b"{", b"[" * 10_000, b"\xff"])
async def test_a_body_that_asks_for_more_is_not_ignored(port: Port, body: bytes) -> None:
    """
    What is not understood is refused, whatever it was meant to be.
    """
    status, problem = await port.post("/partitions/orders/0/pause", body=body)

    assert (status, problem["code"]) == (400, "bad_request")
    assert port.mirror.told == []


async def test_a_large_body_is_not_read(port: Port) -> None:
    """
    Memory of the mirror is for batches.
    """
    status, problem = await port.post("/partitions/orders/0/pause", body=b" " * 100_000)

    assert (status, problem["code"]) == (413, "body_too_large")
    assert port.mirror.told == []


async def test_the_commands_of_the_docs_work_as_they_stand(port: Port) -> None:
    """
    Typed into a shell that finds the programs, with only the address changed, and yes to the question.
    """
    page = (Path(__file__).parents[2] / "docs" / "states.md").read_text()
    commands, curl, _ = (block.split("```")[0] for block in page.split("```sh\n")[1:])
    script = commands + curl.replace("http://127.0.0.1:9640", port.url)
    port.mirror.status = a_flow(a_loss("orders", 0), a_partition("orders", 1))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    shell = await asyncio.create_subprocess_exec(
        *("bash", "-ec", script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PATH": path, "TWINSITE_URL": port.url},
    )
    printed, _ = await asyncio.wait_for(shell.communicate(b"y\n"), 20)

    assert shell.returncode == 0
    assert printed.count(b"orders-0: done") == 3
    assert printed.count(b'"outcome": "done"') == 1
    assert [told for told, _ in port.mirror.told] == ["pause", "resume", "accept_loss", "pause"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/partitions/orders/0/pause", 405, "method_not_allowed"),
        ("POST", "/partitions/orders/zero/pause", 404, "not_found"),
        ("POST", "/partitions/orders/0/explode", 404, "not_found"),
        ("DELETE", "/status", 405, "method_not_allowed"),
    ],
)
async def test_every_error_is_a_problem_document(
    port: Port, method: str, path: str, status: int, code: str
) -> None:
    """
    Those of the HTTP library as well.
    """
    async with port.session.request(method, port.url + path, headers=CONTROL) as answer:
        problem = await answer.json(content_type="application/problem+json")

    assert (answer.status, problem["status"], problem["code"]) == (status, status, code)
    assert problem["type"] == f"urn:twinsite:problem:{code}"
    assert ("Allow" in answer.headers) == (status == 405)


async def test_a_mistake_of_ours_is_told_to_the_log_and_not_to_the_caller(
    port: Port, logged: list[Any]
) -> None:
    """
    The answer is a plain 500; what was in the exception stays here.
    """
    port.mirror.bug = RuntimeError("secret path /etc/passwords")

    status, problem = await port.get_json("/status")

    assert (status, problem["code"]) == (500, "internal_error")
    assert "secret" not in json.dumps(problem)
    assert [line["event"] for line in logged] == ["request_failed"]


# -- the page --------------------------------------------------------------------------------------


async def test_the_page_needs_nothing_from_elsewhere(port: Port) -> None:
    """
    A site that is cut off from the world still has its status page.
    """
    async with port.session.get(port.url + "/") as answer:
        page = await answer.text()

    assert answer.content_type == "text/html"
    assert re.findall(r"https?://|//[a-z]|@import|url\(", page) == []
    assert re.findall(r"""(?:src|href)=["']([^"']+)""", page) == [
        *("data:,", "/status", "/status", "/metrics", "/livez?verbose", "/readyz?verbose")
    ]


async def test_the_policy_lets_run_our_script_and_no_other(port: Port) -> None:
    """
    The digests are those of what the page holds; nothing inline besides.
    """
    async with port.session.get(port.url + "/") as answer:
        page, policy = await answer.text(), answer.headers["Content-Security-Policy"]

    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert re.findall(r"\son\w+=|\sstyle=", page) == []


def test_nothing_of_a_status_is_written_as_markup() -> None:
    """
    Topic names and the words of brokers become text.
    """
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", PAGE) == []


@pytest.mark.parametrize("word", [*State])
def test_the_page_knows_every_state(word: State) -> None:
    """
    A state it does not know would be shown in no order and as unknown.
    """
    assert f'"{word.value}"' in PAGE


def test_the_page_knows_the_reasons_it_treats_apart() -> None:
    """
    Catching up is no trouble, a loss to come is; the words are those of the model.
    """
    assert f'"{Reason.CATCHING_UP.value}"' in PAGE
    assert f'"{Reason.RETENTION_NEAR.value}"' in PAGE
    assert f'"{Reason.COMPACTION_NEAR.value}"' in PAGE


# -- life ------------------------------------------------------------------------------------------


async def test_a_port_in_use_is_a_usage_error(port: Port) -> None:
    """
    Named with the address and the option that chooses another: two mirrors on one machine meet it at once.
    """
    taken = int(port.url.rsplit(":", 1)[1])

    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{taken}") as refused:
        await a_server(port.mirror, port=taken).start()

    assert "--api-port" in refused.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "fe80::1%nowhere"])
async def test_an_address_of_another_machine_is_told_from_a_port_in_use(port: Port, host: str) -> None:
    """
    Another port would not help.
    """
    with pytest.raises(UsageError, match=f"cannot listen on {host}:0") as refused:
        await a_server(port.mirror, host=host).start()

    assert refused.value.hint.startswith("api.host must be an address or a name of this machine")


async def test_a_port_that_only_root_may_have_is_told_from_a_port_in_use(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No other mirror is to be looked for.
    """
    denied = PermissionError(errno.EACCES, "permission denied")
    monkeypatch.setattr(web.TCPSite, "start", AsyncMock(side_effect=denied))

    with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1:80: permission denied") as refused:
        await a_server(port.mirror, port=80).start()

    assert refused.value.hint.startswith("this user may not listen there: choose a port from 1024 on")


async def test_another_may_stand_behind_the_port(port: Port) -> None:
    """
    A mirror that waits for its clusters gives way to the one under way, and nobody is turned away meanwhile.
    """
    later = Mirror(a_flow(a_partition("late")))
    assert "late" not in (await port.get("/status"))[1]

    port.server.serve(a_backend(later))

    _, status = await port.get("/status")
    paused = await port.post("/partitions/late/0/pause")
    assert json.loads(status)["partitions"][0]["topic"] == "late"
    assert paused[0] == 200
    assert (later.told, port.mirror.told) == ([("pause", TopicPartition("late", 0))], [])


async def test_closing_does_not_wait_for_idle_connections() -> None:
    """
    A browser tab that keeps its connection open does not hold up the end.
    """
    mirror = Mirror(a_flow())
    server = a_server(mirror)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"ok\n")

    await asyncio.wait_for(server.close(), 3)

    assert await reader.read() == b""
    writer.close()


async def test_garbage_on_the_port_is_answered_and_harms_nobody(port: Port) -> None:
    """
    Port scanners knock too.
    """
    host, number = port.url.removeprefix("http://").split(":")
    answers: Sequence[bytes] = [
        await _knock(host, int(number), b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"),
        await _knock(host, int(number), b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"),
    ]

    assert [answer.split(b" ")[1] for answer in answers] == [b"400", b"400"]
    assert await port.get("/livez") == (200, "ok\n")


async def _knock(host: str, port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer
