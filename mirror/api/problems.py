"""Errors as problem documents (RFC 9457), each with a code that does not change.

An error raised on purpose says what it is. Any other becomes a plain 500, whose cause is
in the log and not in the answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web

from mirror.errors import (
    ConnectionFailedError,
    NotAuthorizedError,
    StateConflictError,
    TwinsiteError,
    UnknownPartitionError,
    UsageError,
)

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OF_ERRORS: tuple[tuple[type[TwinsiteError], int, str], ...] = (
    (UsageError, 400, "bad_request"),
    (UnknownPartitionError, 404, "unknown_partition"),
    (StateConflictError, 409, "state_conflict"),
    (NotAuthorizedError, 502, "cluster_refused"),
    (ConnectionFailedError, 503, "cluster_unavailable"),
)
"""Status and code of an error: those of the first class that fits, else ``refused`` or ``try_again``."""

_OF_STATUS = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "json_required",
}


class ProblemError(Exception):
    """Ends the handling of a request with this problem."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str = "",
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.more = more or {}
        self.headers = headers or {}


def from_error(error: TwinsiteError) -> ProblemError:
    """The problem to answer with when the mirror refused a request."""
    for kind, status, code in _OF_ERRORS:
        if isinstance(error, kind):
            return ProblemError(status, code, str(error), hint=error.hint)
    if error.retriable:
        return ProblemError(503, "try_again", str(error), hint=error.hint)
    return ProblemError(409, "refused", str(error), hint=error.hint)


def response(problem: ProblemError) -> web.Response:
    """The problem as an answer. ``retryable`` says whether the same request may succeed later by itself."""
    retryable = problem.status == HTTPStatus.SERVICE_UNAVAILABLE
    document = {
        "type": f"urn:twinsite:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "hint": problem.hint,
        "retryable": retryable,
        **problem.more,
    }
    headers = {**problem.headers, **({"Retry-After": str(RETRY_AFTER_SECONDS)} if retryable else {})}
    return web.Response(
        status=problem.status, text=json.dumps(document), content_type=CONTENT_TYPE, headers=headers
    )


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into a problem document."""
    try:
        return await handler(request)
    except ProblemError as problem:
        return response(problem)
    except TwinsiteError as error:
        return response(from_error(error))
    except web.HTTPException as error:
        return _from_http(error)
    except Exception:
        log.exception("request_failed", method=request.method, path=request.path)
        return response(
            ProblemError(500, "internal_error", "internal error of the mirror; its log has the cause")
        )


def _from_http(error: web.HTTPException) -> web.Response:
    answer = response(ProblemError(error.status, _OF_STATUS.get(error.status, "refused"), error.reason))
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    return answer
