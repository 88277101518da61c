"""What the ports for people of a mirror and of a relay answer alike: metrics, probes, and headers."""

from __future__ import annotations

import asyncio
import errno
import socket

from aiohttp import web
from prometheus_client import CollectorRegistry

from mirror.errors import UsageError
from monitoring.exposition import content_type, write_text
from monitoring.health import Verdict

HOST_HINT = "api.host must be an address of this machine, or a name of one; 0.0.0.0 is all of them"


ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (nothing is bound to them here)


def url_of(host: str, port: int) -> str:
    """Where whoever listens there can be asked: all addresses are told by the name of this machine."""
    if host in ALL_ADDRESSES:
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def not_listening(words: str, error: OSError, port_hint: str) -> UsageError:
    """Words and why; the hint is for the port, unless the address is none of this machine."""
    of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    return UsageError(f"{words}: {error.strerror}", hint=HOST_HINT if of_host else port_hint)


async def metrics(request: web.Request, registry: CollectorRegistry) -> web.Response:
    """All metrics of a registry, in the format that is asked for."""
    families = []
    for family in registry.collect():
        families.append(family)
        await asyncio.sleep(0)  # the flow was asked once; batches may pass while its series are made
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


async def common_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Of every answer: nothing is kept, or taken for something else."""
    response.headers["Server"] = "twinsite"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
