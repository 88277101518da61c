"""What is said in the beginning, held against a broker that is a list of answers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from mirror.errors import AuthenticationError, ConnectionFailedError, UnsupportedVersionError
from mirror.kafka.greeting import UNSUPPORTED_VERSION, ask_versions, authenticate
from mirror.kafka.oauth import TokenEndpoint, TokenEndpointOptions
from mirror.kafka.security import SaslMechanism, SaslOptions, SecretSource, Security, SecurityProtocol

WHERE = "broker:9092"
PLAIN = Security(
    SecurityProtocol.SASL_PLAINTEXT,
    sasl_options=SaslOptions(SaslMechanism.PLAIN, username="alice", password=SecretSource(value="pencil")),
)


class Broker:
    """Gives its answers one after the other, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._answers = list(answers)

    async def ask(self, *request: Any) -> Any:
        self.asked.append(request)
        return self._answers.pop(0)


def handshake(code: int = 0) -> Any:
    return SaslHandshakeResponse(error_code=code, mechanisms=["PLAIN"])


def believed(lifetime_ms: int, code: int = 0) -> Any:
    return SaslAuthenticateResponse(
        error_code=code, error_message="no", auth_bytes=b"", session_lifetime_ms=lifetime_ms
    )


async def test_a_broker_that_is_older_than_the_question_is_asked_again() -> None:
    """
    It answers with a code and no more; the oldest version of the question every broker knows.
    """
    key = ApiVersionsResponse.ApiVersion(api_key=3, min_version=1, max_version=12)
    older = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=[])
    broker = Broker(older, ApiVersionsResponse(error_code=0, api_keys=[key]))

    versions = await ask_versions(broker.ask, WHERE)

    assert versions == {3: (1, 12)}
    assert [version for _, version in broker.asked] == [3, 0]


async def test_a_broker_that_does_not_say_what_it_speaks_is_not_used() -> None:
    """
    The error names the broker and its code.
    """
    broker = Broker(ApiVersionsResponse(error_code=41, api_keys=[]))

    with pytest.raises(UnsupportedVersionError, match="broker:9092: ApiVersions answered code 41"):
        await ask_versions(broker.ask, WHERE)


async def test_who_need_not_prove_anything_says_nothing() -> None:
    """
    Without SASL there is no question, and what is believed has no end.
    """
    broker = Broker()

    assert await authenticate(broker.ask, Security(), WHERE) == 0
    assert broker.asked == []


async def test_the_broker_says_how_long_it_believes() -> None:
    """
    The mechanism is agreed upon first; then the secret is shown.
    """
    broker = Broker(handshake(), believed(60_000))

    assert await authenticate(broker.ask, PLAIN, WHERE) == 60_000
    [[first], [second]] = broker.asked
    assert first.mechanism == "PLAIN"
    assert second.auth_bytes == b"\0alice\0pencil"


@pytest.mark.parametrize("answers", [[handshake(33)], [handshake(), believed(0, code=58)]])
async def test_a_refusal_names_the_broker_once(answers: list[Any]) -> None:
    """
    Whichever of the two questions is refused.
    """
    with pytest.raises(AuthenticationError) as refused:
        await authenticate(Broker(*answers).ask, PLAIN, WHERE)

    assert str(refused.value).count(WHERE) == 1


async def test_a_broker_that_was_asked_again_too_soon_is_not_one_without_sasl() -> None:
    """
    It has believed us before on this connection, and will on a new one.
    """
    with pytest.raises(AuthenticationError, match="does not use SASL"):
        await authenticate(Broker(handshake(34)).ask, PLAIN, WHERE)
    with pytest.raises(ConnectionFailedError, match="could not be renewed"):
        await authenticate(Broker(handshake(34)).ask, PLAIN, WHERE, again=True)


async def test_nobody_is_asked_for_a_token_on_an_open_connection() -> None:
    """
    Other requests may wait there, as long as a token endpoint is silent.
    """
    endpoint = TokenEndpoint(TokenEndpointOptions("http://127.0.0.1:9/", "mirror", SecretSource(value="s")))
    options = SaslOptions(SaslMechanism.OAUTHBEARER, token=endpoint)
    security = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=options)

    with pytest.raises(AuthenticationError, match="no token has been requested yet"):
        await authenticate(Broker().ask, security, WHERE)


async def test_a_secret_that_cannot_be_read_is_told_with_the_broker_it_is_for() -> None:
    """
    The secret does not know where it would have gone.
    """
    options = SaslOptions(
        SaslMechanism.PLAIN, username="alice", password=SecretSource(variable="NO_SUCH_SECRET")
    )
    security = Security(SecurityProtocol.SASL_PLAINTEXT, sasl_options=options)

    with pytest.raises(AuthenticationError, match=r"^broker:9092: .*NO_SUCH_SECRET"):
        await authenticate(Broker().ask, security, WHERE)
