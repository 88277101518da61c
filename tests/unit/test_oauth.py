"""Tokens from a token endpoint: asked for when needed, kept while they live."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from structlog.testing import capture_logs

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.greeting import authenticate
from mirror.kafka.oauth import (
    ANSWER_BYTES_MAX,
    KEPT_SECONDS_MIN,
    LIFETIME_SECONDS_DEFAULT,
    PATIENCE_SECONDS,
    RENEW_AFTER_SHARE,
    RETRY_AFTER_SECONDS,
    TokenEndpoint,
    TokenEndpointOptions,
)
from mirror.kafka.secret import SecretSource
from mirror.kafka.security import SaslMechanism, SaslOptions, Security, SecurityProtocol

WALL_NOW = 1_800_000_000.0
OAUTHBEARER = SaslHandshakeResponse(error_code=0, mechanisms=["OAUTHBEARER"])


class Issuer:
    """An authorisation server that says what it is told to, and remembers what it was asked.

    Attributes:
        heard: It was asked.
        speaks: While this is not set it takes requests and says nothing.
        cut_at: Where its answers are cut in two, in bytes: the second piece comes when the first was read.
    """

    def __init__(self) -> None:
        self.status = 200
        self.document: Any = {"access_token": "token-1", "expires_in": 100}
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.cut_at = 0
        self.heard = asyncio.Event()
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.headers["Authorization"], dict(await request.post())))
        self.heard.set()
        await self.speaks.wait()
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
        yield TokenEndpoint(options, clock=clock, wall_clock=lambda: WALL_NOW)


def web_token(exp: object) -> str:
    """A JSON Web Token that says itself when it ends, in seconds since 1970."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": exp}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


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

    await assert_renewed_after(seconds, endpoint, issuer, clock)


async def test_a_silent_issuer_keeps_nobody_who_has_a_good_token(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock
) -> None:
    """
    They wait a moment, all for the same answer; it is taken when it comes.
    """
    await endpoint.renew()
    issuer.document = {"access_token": "token-2", "expires_in": 100}
    issuer.speaks.clear()
    clock.now += 90

    async with asyncio.timeout(3 * PATIENCE_SECONDS):
        await asyncio.gather(*(endpoint.renew() for _ in range(4)))
    assert (endpoint.read(), len(issuer.asked)) == ("token-1", 2)

    issuer.speaks.set()
    await endpoint.renew()
    assert (endpoint.read(), len(issuer.asked)) == ("token-2", 2)


async def test_whoever_gives_up_does_not_end_the_request_for_others(
    endpoint: TokenEndpoint, issuer: Issuer
) -> None:
    """
    The first may be a connection whose time is up.
    """
    issuer.speaks.clear()
    first, second = asyncio.create_task(endpoint.renew()), asyncio.create_task(endpoint.renew())
    await asyncio.wait_for(issuer.heard.wait(), 5)

    first.cancel()
    issuer.speaks.set()
    await second

    assert (endpoint.read(), len(issuer.asked)) == ("token-1", 1)


async def test_an_issuer_that_is_away_is_asked_every_few_seconds_and_it_is_said(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock
) -> None:
    """
    Nobody would know otherwise before the token has ended.
    """
    await endpoint.renew()
    issuer.status = 503
    clock.now += 90

    with capture_logs() as logs:
        await endpoint.renew()
        await endpoint.renew()
        assert len(issuer.asked) == 2

        clock.now += RETRY_AFTER_SECONDS
        await endpoint.renew()
        assert len(issuer.asked) == 3

    [said] = logs
    assert (said["event"], said["log_level"], said["serves_for_seconds"]) == (
        "token_not_renewed",
        "warning",
        10,
    )
    assert "status 503" in said["reason"]


@pytest.mark.parametrize(
    ("exp", "stated", "seconds"),
    [
        (WALL_NOW + 50, 100, 50),
        (WALL_NOW + 50, None, 50),
        (WALL_NOW + 500, 100, 100),
        (WALL_NOW - 50, 100, 100),
        ("soon", 100, 100),
        (10**400, 100, 100),
    ],
)
async def test_a_token_is_not_used_beyond_its_own_end(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock, exp: object, stated: object, seconds: float
) -> None:
    """
    Whatever the answer says beside it. One that has ended when it is given shows that the clock is wrong.
    """
    issuer.document = {"access_token": web_token(exp), "expires_in": stated}

    await assert_renewed_after(seconds, endpoint, issuer, clock)


@pytest.mark.parametrize(
    "refusal",
    [
        SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b'{"status":"invalid_token"}'),
        SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b""),
    ],
)
async def test_a_token_that_a_broker_refuses_is_replaced(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock, refusal: object
) -> None:
    """
    The issuer's keys may have changed. Where that does not help it is not asked for each connection.
    """
    options = SaslOptions(SaslMechanism.OAUTHBEARER, token=endpoint)
    security = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=options)
    answers: list[object] = []

    async def ask(_: object) -> object:
        return answers.pop(0)

    async def asked_after_a_refusal() -> int:
        await security.prepare()
        answers[:] = [OAUTHBEARER, refusal]
        with pytest.raises(AuthenticationError):
            await authenticate(ask, security, "broker:9092")
        await security.prepare()
        return len(issuer.asked)

    assert await asked_after_a_refusal() == 1
    clock.now += KEPT_SECONDS_MIN
    assert await asked_after_a_refusal() == 2
    assert await asked_after_a_refusal() == 2


async def test_a_token_that_one_broker_refuses_serves_others_while_the_issuer_is_away(
    endpoint: TokenEndpoint, issuer: Issuer, clock: Clock
) -> None:
    """
    It may be that broker which is wrong.
    """
    await endpoint.renew()
    issuer.status = 503
    clock.now += KEPT_SECONDS_MIN

    endpoint.refused()
    await endpoint.renew()

    assert (endpoint.read(), len(issuer.asked)) == ("token-1", 2)


async def test_a_silent_issuer_is_named_by_whoever_opens_a_connection() -> None:
    """
    The broker has no part in it, and is left alone until there is a token.
    """

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/token"
        silent = TokenEndpointOptions(url, "mirror", SecretSource(value="pencil"), timeout_seconds=0.1)
        options = SaslOptions(SaslMechanism.OAUTHBEARER, token=TokenEndpoint(silent))
        security = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=options)
        patient = ConnectionOptions(security, connect_timeout_seconds=0.1)

        with pytest.raises(ConnectionFailedError, match=f"^{url}: no token within 0.1 s"):
            await Connection.open(Address("127.0.0.1", port), patient)


@pytest.mark.parametrize(
    ("status", "document", "error", "reason"),
    [
        (401, {"error": "invalid_client"}, AuthenticationError, "invalid_client"),
        (400, [], AuthenticationError, "no reason given"),
        (429, {}, ConnectionFailedError, "status 429"),
        (200, {"token_type": "Bearer"}, ConnectionFailedError, "holds no token"),
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


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        (0, "0"),
        (-30, "-30"),
        ("0", '"0"'),
        (True, "true"),
        ("soon", '"soon"'),
        ("nan", '"nan"'),
        ([], r"\[\]"),
        (10**400, "10000"),
    ],
    ids=["zero", "below zero", "zero as text", "no number", "text", "not a number", "a list", "too large"],
)
async def test_a_lifetime_that_is_none_is_refused_with_what_to_do_about_it(
    endpoint: TokenEndpoint, issuer: Issuer, stated: object, shown: str
) -> None:
    """
    With such a token every connection would ask the authorisation server for another one.
    """
    issuer.document = {"access_token": "token-1", "expires_in": stated}

    with pytest.raises(ConnectionFailedError, match=f"/token: .* expires_in is {shown}") as refused:
        await endpoint.renew()

    assert len(str(refused.value)) < 200
    assert "authorisation server" in refused.value.hint


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


async def assert_renewed_after(seconds: float, endpoint: TokenEndpoint, issuer: Issuer, clock: Clock) -> None:
    """The first token is taken to live for so long: at its share of that another one is asked for."""
    await endpoint.renew()
    clock.now += RENEW_AFTER_SHARE * seconds - 1
    await endpoint.renew()
    assert len(issuer.asked) == 1

    clock.now += 2
    await endpoint.renew()
    assert len(issuer.asked) == 2
