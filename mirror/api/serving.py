"""What the HTTP ports of a mirror and of a relay have in common: listening, metrics, probes, headers.

It also decides what becomes of the messages that the HTTP server logs.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

from mirror.api.problems import problems
from mirror.errors import UsageError
from monitoring.exposition import content_type, write_text
from monitoring.health import Verdict

log = structlog.get_logger(__name__)

SHUTDOWN_SECONDS = 1.0
KEEPALIVE_SECONDS = 30.0
DENIED_HINT = "this user may not listen there: choose a port from 1024 on, with --api-port or api.port"
HOST_HINT = "api.host must be an address or a name of this machine; 0.0.0.0 is all its addresses"


_LISTENING_HINTS = {errno.EADDRNOTAVAIL: HOST_HINT, errno.EACCES: DENIED_HINT}
ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (nothing is bound to them here)


def url_of(host: str, port: int) -> str:
    """The URL of a server that listens there; with this machine's name if it listens on all addresses."""
    if host in ALL_ADDRESSES:
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def port_for_people(routes: Iterable[web.AbstractRouteDef], *, body_bytes_max: int) -> web.AppRunner:
    """A server with these routes; start it with :func:`listen`, and clean it up at the end."""
    app = web.Application(middlewares=[problems], client_max_size=body_bytes_max)
    app.add_routes(routes)
    app.on_response_prepare.append(_common_headers)
    return web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
        handler_cancellation=True,
        logger=http_logger(),
    )


async def listen(runner: web.AppRunner, host: str, port: int, *, words: str, port_hint: str) -> None:
    """Listen; if that fails the runner has been cleaned up.

    Args:
        words: How the error begins, ahead of the address.
        port_hint: What to do about the port.

    Raises:
        UsageError: The address cannot be listened on.
    """
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise _not_listening(f"{words} {host}:{port}", error, port_hint) from error


def _not_listening(words: str, error: OSError, port_hint: str) -> UsageError:
    """The error with its cause. Its hint is about the port, unless the address is not of this machine."""
    of_host = isinstance(error, socket.gaierror)
    hint = HOST_HINT if of_host else _LISTENING_HINTS.get(error.errno or 0, port_hint)
    return UsageError(f"{words}: {error.strerror}", hint=hint)


async def metrics(request: web.Request, registry: CollectorRegistry) -> web.Response:
    """All metrics of a registry, in the format that the request accepts."""
    families = []
    for family in registry.collect():
        families.append(family)
        await asyncio.sleep(0)  # lets batches through; the series all come from one snapshot of the flow
    wanted = content_type(request.headers.get("Accept", ""))
    body = await asyncio.to_thread(write_text, families, wanted)
    return web.Response(body=body, headers={"Content-Type": wanted, "Vary": "Accept"})


def probe(request: web.Request, verdict: Verdict) -> web.Response:
    """``ok``, or the checks: all of them with ``?verbose``, else those that failed."""
    verbose = "verbose" in request.query
    lines = [
        f"[{'+' if check.ok else '-'}] {check.name}: {check.reason}"
        for check in verdict.checks
        if verbose or not check.ok
    ]
    lines.append("ok" if verdict.ok else "failed")
    return web.Response(status=200 if verdict.ok else 503, text="\n".join(lines) + "\n")


class _Heard(logging.Handler):
    """Takes what the HTTP server logs: a request it cannot read is the sender's mistake, the rest is ours."""

    def __init__(self, no_request: Callable[[str, str], None]) -> None:
        super().__init__()
        self._no_request = no_request

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            host = record.args[0] if isinstance(record.args, tuple) and record.args else ""
            self._no_request(str(host), f"not a valid HTTP request: {error.message}")
        elif record.levelno >= logging.WARNING:
            log.error("http_broken", said=record.getMessage(), error=repr(error), exc_info=error)


def http_logger(no_request: Callable[[str, str], None] = lambda _host, _why: None) -> logging.Logger:
    """The logger for the HTTP server of one port.

    Args:
        no_request: Called with the host that sent something unreadable, and why it is. The server answers
            400. By default nothing is logged: browsers and scanners that try a mirror's port are not news.
    """
    logger = logging.Logger("http")  # not a shared one: each port reports unreadable requests its own way
    logger.addHandler(_Heard(no_request))
    return logger


async def _common_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Headers of every answer: it is not to be cached, nor its content type guessed."""
    response.headers["Server"] = "twinsite"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
