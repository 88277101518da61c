"""How a request becomes a connection that speaks another protocol.

Checks whether it asks for that, and for which protocol, and hands over its connection. What the connection
becomes is decided in :mod:`mirror.relay.server`.

Source: RFC 9110, 7.8 (Upgrade).
"""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from mirror.api.problems import ProblemError
from mirror.failpoints import reach
from mirror.kafka.relayed import NO_UPGRADE, OTHER_PROTOCOL
from mirror.relay.tally import Handed

SWITCHING = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n\r\n"


def check_protocol(request: web.Request, protocol: str) -> None:
    """Check that a request asks for ``protocol`` as RFC 9110, 7.8, says: perhaps among others, in any case,
    over HTTP/1.1, and with ``Connection: Upgrade``.

    Raises:
        ProblemError: It does not.
    """
    asked = _listed(request, "Upgrade")
    counts = request.version >= HttpVersion11 and "upgrade" in _listed(request, "Connection")
    if counts and protocol in asked:
        return
    code, detail = OTHER_PROTOCOL, f"this relay speaks {protocol} there; requested was {', '.join(asked)}"
    if not counts or not asked:
        code = NO_UPGRADE
        detail = (
            f"{protocol} must be requested over HTTP/1.1, with Upgrade and Connection: Upgrade: "
            "a proxy in between may not have forwarded them"
        )
    headers = {"Upgrade": protocol, "Connection": "Upgrade, close"}
    raise ProblemError(HTTPStatus.UPGRADE_REQUIRED, code, detail, headers=headers)


def _listed(request: web.Request, header: str) -> list[str]:
    """What a header names, in lower case, over all its lines."""
    named = ",".join(request.headers.getall(header, ())).lower().split(",")
    return [name.strip() for name in named if name.strip()]


async def handed_over(request: web.Request, other: Handed, protocol: str) -> None:
    """Hand the connection of a request over to ``other``, to its end."""
    transport, handler = request.transport, request.protocol
    assert isinstance(handler, RequestHandler)
    try:
        if transport is None or transport.is_closing():
            other.close()
            return
        transport.set_protocol(other)
        transport.write(SWITCHING.format(protocol).encode())
        other.connection_made(transport)
        reach("connection_taken")
        await other.ended
    finally:
        other.close()
        handler.connection_lost(None)  # the transport no longer calls this
