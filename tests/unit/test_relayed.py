"""What is made of an answer to the one request that a relay is asked."""

from __future__ import annotations

import socket

import pytest

from mirror.errors import (
    AuthenticationError,
    ConnectionFailedError,
    TwinsiteError,
    UnsupportedVersionError,
)
from mirror.kafka.relayed import UnknownStreamError, upgrade
from tests.unit.fake_relay import OF_ITS_OWN, SWITCHING, problem


async def refusal(answer: bytes) -> TwinsiteError:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(TwinsiteError) as refused:
            await upgrade(ours, "relay-1:9650", "/v1/frames", "twinsite-frames/1")
    return refused.value


@pytest.mark.parametrize("follows", [b"slices", b"\r\n\r\n", b""])
async def test_what_follows_a_switch_is_left_for_who_has_asked(follows: bytes) -> None:
    """
    A relay sends slices at once over a connection that was joined: they come with its answer, now and then.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(SWITCHING + follows)
        theirs.shutdown(socket.SHUT_WR)
        await upgrade(ours, "relay-1:9650", "/v1/frames?join=00", "twinsite-frames/1")
        left = ours.recv(100)

    assert left == follows


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(404, "not_found"), UnsupportedVersionError),
        (problem(426, "other_protocol"), UnsupportedVersionError),
        (problem(404, "unknown_stream"), UnknownStreamError),
        (problem(404, "unknown_broker"), ConnectionFailedError),
        (problem(400, "bad_request"), ConnectionFailedError),
        (problem(426, "no_upgrade"), ConnectionFailedError),
        (problem(503, "too_many_connections"), ConnectionFailedError),
        (problem(403, "unknown_identity"), AuthenticationError),
    ],
)
async def test_a_relay_says_what_is_the_matter(answer: bytes, kind: type[TwinsiteError]) -> None:
    """
    By its code; only where the other side is of another version waiting does not help.
    """
    error = await refusal(answer)

    assert type(error) is kind
    assert str(error).startswith("relay relay-1:9650")


@pytest.mark.parametrize(
    ("answer", "way_out"),
    [
        (problem(403, "unknown_identity"), "listen.identities"),
        (problem(426, "other_protocol"), "update"),
        (problem(503, "too_many_connections"), "connections_max"),
    ],
)
async def test_a_refusal_by_a_relay_has_a_way_out(answer: bytes, way_out: str) -> None:
    """
    Credentials and certificates of a cluster are not the matter here.
    """
    error = await refusal(answer)

    assert way_out in error.hint


async def test_the_port_of_a_relay_that_is_for_people_is_told_from_an_older_relay() -> None:
    """
    Both do not know what they are asked for; the two ports stand beside each other.
    """
    error = await refusal(problem(404, "not_found"))

    assert "not the port on which it listens for mirrors" in str(error)
    assert "not api.port (9651)" in error.hint


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (OF_ITS_OWN, "HTTP status 404"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP status 400"),
        (b"HTTP/1.1 426 Upgrade Required\r\n\r\n", "HTTP status 426"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "HTTP status 200"),
        (problem(404, "not_found")[:-9], "HTTP status 404"),
        (SWITCHING.replace(b"HTTP", b"HTTQ", 1), "not HTTP"),
        (SWITCHING.replace(b"101", b"111", 1), "HTTP status 111"),
        (b"x" * (20 << 10), "whose headers do not end"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP status 502"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "HTTP status 401"),
        (OF_ITS_OWN.replace(b"404 Not Found", b"403 Forbidden"), "HTTP status 403"),
        (problem(403, "access_denied", "of the ingress"), "of the ingress"),
    ],
)
async def test_what_no_relay_has_said_is_asked_again(answer: bytes, words: str) -> None:
    """
    It may be what stands before a relay that is being started again, or one bit of its answer.
    """
    error = await refusal(answer)

    assert type(error) is ConnectionFailedError
    assert "relay-1:9650" in str(error)
    assert words in str(error)
