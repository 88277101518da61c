"""Tokens from a token endpoint: asked for when needed, kept while they live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.oauth import (
    ANSWER_BYTES_MAX,
    LIFETIME_SECONDS_DEFAULT,
    RENEW_AFTER_SHARE,
    TokenEndpoint,
    TokenEndpointOptions,
)
from mirror.kafka.secret import SecretSource


class Issuer:
    """An authorisation server that says what it is told to, and remembers what it was asked.

    Attributes:
        cut_at: Where its answers are cut in two, in bytes: the second piece comes when the first was read.
    """

    def __init__(self) -> None:
        self.status = 200
        self.document: Any = {"access_token": "token-1", "expires_in": 100}
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.cut_at = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.headers["Authorization"], dict(await request.post())))
        body = json.dumps(self.document).encode()
        answer = web.StreamResponse(status=self.status, headers=self.headers)
        await answer.prepare(request)
        for piece in filter(None, (body[: self.cut_at], body[self.cut_at :])):
            await answer.write(piece)
            for _ in range(50):
                await asyncio.sleep(0)
        return answer


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def endpoint(issuer: Issuer, clock: Clock) -> AsyncIterator[TokenEndpoint]:
    app = web.Application()
    app.router.add_post("/token", issuer.answer)
    async with TestServer(app) as server:
        options = TokenEndpointOptions(
            url=str(server.make_url("/token")),
            client_id="mirror:1",
            client_secret=SecretSource(value="pen cil"),
            scope="kafka",
            timeout_seconds=5,
        )
        yield TokenEndpoint(options, clock=clock)


async def test_id_and_secret_are_sent_as_the_rfc_wants_them(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    """
    Both are form-encoded inside the basic authorisation, so a colon in the id is no border.
    """
    await endpoint.renew()

    authorization, form = issuer.asked[0]
    assert authorization == "Basic bWlycm9yJTNBMTpwZW4rY2ls"
    assert form == {"grant_type": "client_credentials", "scope": "kafka"}
    assert endpoint.read() == "token-1"


async def test_a_token_is_used_until_it_is_about_to_end(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock
) -> None:
    """
    One request serves all connections for 80 % of the token's life.
    """
    await asyncio.gather(*(endpoint.renew() for _ in range(10)))
    clock.now += 79
    await endpoint.renew()
    assert len(issuer.asked) == 1

    issuer.document = {"access_token": "token-2", "expires_in": 100}
    clock.now += 2
    await endpoint.renew()

    assert endpoint.read() == "token-2"


async def test_while_the_issuer_is_away_the_token_serves_until_its_end(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock
) -> None:
    """
    An outage shorter than the rest of the token's life is not noticed; a longer one is worth a retry.
    """
    await endpoint.renew()
    issuer.status = 503
    clock.now += 90
    await endpoint.renew()
    assert endpoint.read() == "token-1"

    clock.now += 10
    with pytest.raises(ConnectionFailedError, match="status 503"):
        await endpoint.renew()


async def test_an_answer_may_come_in_pieces(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    """
    One is longer than a packet where the token names many groups.
    """
    issuer.document, issuer.cut_at = {"access_token": "t" * 3000, "expires_in": 100}, 1200

    await endpoint.renew()

    assert endpoint.read() == "t" * 3000


async def test_a_refusal_that_comes_in_pieces_keeps_its_reason(
    endpoint: TokenEndpoint, issuer: Issuer
) -> None:
    """
    It stands at the end of a long explanation.
    """
    issuer.status, issuer.cut_at = 401, 1200
    issuer.document = {"error_description": "x" * 1500, "error": "invalid_client"}

    with pytest.raises(AuthenticationError, match="invalid_client"):
        await endpoint.renew()


async def test_an_answer_without_end_is_not_kept(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    """
    Who answers may not be an authorisation server.
    """
    issuer.document = {"access_token": "t" * ANSWER_BYTES_MAX, "expires_in": 100}

    with pytest.raises(ConnectionFailedError, match="longer than"):
        await endpoint.renew()


@pytest.mark.parametrize(
    ("stated", "seconds"), [("100", 100), (100.0, 100), (None, LIFETIME_SECONDS_DEFAULT)]
)
async def test_how_long_a_token_lives_may_be_said_in_other_ways(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock, stated: object, seconds: float
) -> None:
    """
    As a number in quotes, which some servers write, or not at all.
    """
    issuer.document = {"access_token": "token-1", "expires_in": stated}

    await endpoint.renew()
    clock.now += RENEW_AFTER_SHARE * seconds - 1
    await endpoint.renew()
    assert len(issuer.asked) == 1

    clock.now += 2
    await endpoint.renew()
    assert len(issuer.asked) == 2


@pytest.mark.parametrize(
    ("status", "document", "error", "reason"),
    [
        (401, {"error": "invalid_client"}, AuthenticationError, "invalid_client"),
        (400, [], AuthenticationError, "no reason given"),
        (429, {}, ConnectionFailedError, "status 429"),
        (200, {"token_type": "Bearer"}, ConnectionFailedError, "holds no token"),
        (200, {"access_token": "t", "expires_in": "soon"}, ConnectionFailedError, "holds no token"),
        (200, {"access_token": "t", "expires_in": "nan"}, ConnectionFailedError, "holds no token"),
        (200, {"access_token": "t", "expires_in": 10**400}, ConnectionFailedError, "holds no token"),
        (200, "text", ConnectionFailedError, "holds no token"),
    ],
)
async def test_an_answer_without_a_token_says_why(
    endpoint: TokenEndpoint,
    issuer: Issuer,
    status: int,
    document: object,
    error: type[Exception],
    reason: str,
) -> None:
    """
    What the operator must mend is told apart from what passes by itself; the secret is not shown.
    """
    issuer.status, issuer.document = status, document

    with pytest.raises(error, match=reason) as refused:
        await endpoint.renew()

    assert "pen cil" not in str(refused.value)


async def test_the_secret_does_not_follow_a_redirect(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    """
    A redirect is an error: the secret goes where the settings say and nowhere else.
    """
    issuer.status, issuer.headers = 307, {"Location": "/elsewhere"}

    with pytest.raises(AuthenticationError, match="status 307"):
        await endpoint.renew()

    assert len(issuer.asked) == 1


async def test_an_issuer_that_cannot_be_reached_is_worth_a_retry() -> None:
    """
    Nobody listens on the discard port.
    """
    options = TokenEndpointOptions("http://127.0.0.1:9/token", "mirror", SecretSource(value="pencil"))

    with pytest.raises(ConnectionFailedError, match="no token"):
        await TokenEndpoint(options).renew()


@pytest.mark.parametrize("url", ["http://issuer.example/token", "ftp://localhost/", "issuer.example"])
def test_a_secret_is_not_sent_in_the_clear(url: str) -> None:
    """
    Plain HTTP is for this machine only.
    """
    with pytest.raises(ValueError, match="https"):
        TokenEndpointOptions(url, "mirror", SecretSource(value="pencil"))


async def test_there_is_no_token_before_one_was_asked_for(endpoint: TokenEndpoint) -> None:
    """
    Reading too early is an error, not an empty token.
    """
    with pytest.raises(AuthenticationError, match="no token"):
        endpoint.read()
