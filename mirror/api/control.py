"""What an operator may do to partitions, by POST.

Three checks keep a web page from acting through somebody's browser: a header that no
form can set, a JSON content type, and the refusal of every request that a browser marks
as sent by a page. Callers must be on this machine unless the settings say otherwise:
there is no login.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import structlog
from aiohttp import web

from mirror.api.problems import ProblemError, from_error
from mirror.errors import NothingKnownError, StateConflictError, TwinsiteError, UnknownPartitionError
from mirror.model import CONTROL_HEADER, FlowStatus, PartitionStatus, State, TopicPartition, only_on, owned_by

log = structlog.get_logger(__name__)

ACCEPT_LOSS = "accept-loss"
ACTIONS = ("pause", "resume", ACCEPT_LOSS)
SCHEMA = 1
Lost = tuple[int, int]
"""A range of source offsets, [from, to)."""


class Control(Protocol):
    """Commands to a mirror. Each is done when it returns, and may be repeated.

    All raise UnknownPartitionError for a partition that the flow does not copy.
    """

    async def pause(self, tp: TopicPartition) -> None:
        """Stop copying this source partition until it is resumed."""

    async def resume(self, tp: TopicPartition) -> None:
        """Go on, or look again now. Never accepts a loss.

        Raises:
            StateConflictError: Looking again would not help in this state.
        """

    async def accept_loss(self, tp: TopicPartition, shown: Lost | None = None) -> None:
        """Go on after what the source has removed; the loss is recorded in the ledger.

        Args:
            shown: What the operator was shown as lost; None for whatever is lost by now.

        Raises:
            StateConflictError: The partition has lost nothing, or not what was shown.
            TwinsiteError: Another mirror owns the flow, and only the owner may do this. The error says where
                the owner runs, if that is known.
        """


class ControlHandlers:
    """The routes that change something."""

    def __init__(self, control: Control, status: Callable[[], FlowStatus], *, remote: bool) -> None:
        self._control = control
        self._status = status
        self._remote = remote
        self._actions: dict[str, Callable[[TopicPartition], Awaitable[None]]] = {
            "pause": control.pause,
            "resume": control.resume,
            ACCEPT_LOSS: control.accept_loss,
        }

    def routes(self) -> Iterable[web.RouteDef]:
        action = "{action:" + "|".join(ACTIONS) + "}"
        return (
            web.post(rf"/partitions/{{topic}}/{{partition:\d{{1,9}}}}/{action}", self.one),
            web.post(f"/topics/{{topic}}/{action}", self.topic),
        )

    async def one(self, request: web.Request) -> web.Response:
        """Act on one partition."""
        body = await self._admit(request)
        shown = None
        if request.match_info["action"] == ACCEPT_LOSS:
            shown = _shown(body)
        else:
            _check_empty(body)
        tp = TopicPartition(request.match_info["topic"], int(request.match_info["partition"]))
        status = self._status()
        find(status, tp.topic, tp.partition)
        await self._act(request, tp, shown)
        return _answer(request, [_done(tp, done_only_here(status))])

    async def topic(self, request: web.Request) -> web.Response:
        """Act on all partitions of a topic; ``accept-loss`` on those that have lost something."""
        _check_empty(await self._admit(request))
        status = self._status()
        found, only_here = find(status, request.match_info["topic"]), done_only_here(status)
        if request.match_info["action"] == ACCEPT_LOSS:
            found = [partition for partition in found if partition.state is State.DATA_LOSS]
            if not found:
                raise StateConflictError(f"no partition of {request.match_info['topic']} is in DATA_LOSS")
        results = [await self._try(request, TopicPartition(p.topic, p.partition), only_here) for p in found]
        refused = sum(result["outcome"] != "done" for result in results)
        if refused:
            detail = f"{refused} of {len(results)} partitions refused"
            hints = dict.fromkeys(str(result["hint"]) for result in results if result.get("hint"))
            more = {"partitions": results}
            raise ProblemError(409, "partly_refused", detail, hint="; ".join(hints), more=more)
        return _answer(request, results)

    async def _act(self, request: web.Request, tp: TopicPartition, shown: Lost | None = None) -> None:
        action = request.match_info["action"]
        if shown is None:
            await self._actions[action](tp)
        else:
            await self._control.accept_loss(tp, shown)
        log.info("control_done", action=action, topic=tp.topic, partition=tp.partition, caller=request.remote)

    async def _try(self, request: web.Request, tp: TopicPartition, only_here: str) -> dict[str, object]:
        try:
            await self._act(request, tp)
        except TwinsiteError as error:
            problem = from_error(error)
            refused = {"outcome": "refused", "code": problem.code, "detail": problem.detail}
            return _done(tp) | refused | {"hint": problem.hint}
        return _done(tp, only_here)

    # -- who may --------------------------------------------------------------------------------

    async def _admit(self, request: web.Request) -> bytes:
        """The body of a request of somebody who may."""
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            raise ProblemError(403, "browser_refused", "control is for the command line, not for web pages")
        if request.headers.get(CONTROL_HEADER) != "yes":
            raise ProblemError(403, "control_header_missing", f"send the header {CONTROL_HEADER}: yes")
        if not self._remote and not _is_local(request.remote):
            raise ProblemError(
                403,
                "caller_not_local",
                "control requests are accepted from this machine only",
                hint="see docs/states.md",
            )
        if request.content_type != "application/json":
            raise ProblemError(415, "json_required", "send Content-Type: application/json")
        return await request.read()


def find(status: FlowStatus, topic: str, partition: int | None = None) -> Sequence[PartitionStatus]:
    """The partitions of a topic, or one of them.

    Raises:
        NothingKnownError: The mirror still waits to begin: its partitions are not known yet.
        UnknownPartitionError: The flow has no such partition.
    """
    name = topic if partition is None else f"{topic}-{partition}"
    if status.waits_for:
        raise NothingKnownError(name, status.waits_for)
    found = [one for one in status.partitions if one.topic == topic and partition in {None, one.partition}]
    if not found:
        raise UnknownPartitionError(f"the flow has no {name}")
    return found


def done_only_here(status: FlowStatus) -> str:
    """Who goes on regardless of what this mirror was told, and where to say it; empty if this one copies."""
    if status.owner:
        return ""
    other = status.copied_by
    place = f"{other.host}, process {other.process_id}" if other else None
    where = f": ask it{only_on(other.url, other.host)} with --url {other.url}" if other and other.url else ""
    return f"at this mirror only, which stands by; {owned_by(place)}, and was told nothing{where}"


def _is_local(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _check_empty(body: bytes) -> None:
    """Refuse a body other than ``{}`` or none: a field would be ignored silently."""
    if _document(body) != {}:
        raise ProblemError(400, "bad_request", "the body must be {} or empty")


def _shown(body: bytes) -> Lost | None:
    """The lost range that a body names; None if it names none.

    Raises:
        ProblemError: It names something else.
    """
    document = _document(body)
    if document == {}:
        return None
    if isinstance(document, dict) and document.keys() == {"lost_from", "lost_to"}:
        begin, end = document["lost_from"], document["lost_to"]
        if type(begin) is int and type(end) is int:
            return begin, end
    words = 'the body must be {}, empty, or as in {"lost_from": 1000, "lost_to": 1050}'
    raise ProblemError(400, "bad_request", words)


def _document(body: bytes) -> object:
    try:
        return json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return None


def _done(tp: TopicPartition, only_here: str = "") -> dict[str, object]:
    done = {"topic": tp.topic, "partition": tp.partition, "outcome": "done"}
    return done | ({"detail": only_here} if only_here else {})


def _answer(request: web.Request, results: Sequence[dict[str, object]]) -> web.Response:
    return web.json_response(
        {"schema": SCHEMA, "action": request.match_info["action"], "partitions": list(results)}
    )
