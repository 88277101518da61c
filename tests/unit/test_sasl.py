"""The SASL exchanges: what is said, and what is not believed."""

from __future__ import annotations

import base64
import json

import pytest

from mirror.errors import AuthenticationError
from mirror.kafka.sasl import (
    OAuthBearerExchange,
    PlainExchange,
    ScramExchange,
    escape_username,
    token_expires_at,
)

# RFC 7677 §3
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> ScramExchange:
    return ScramExchange("SCRAM-SHA-256", "user", "pencil", nonce=NONCE)


def test_scram_says_what_the_rfc_says() -> None:
    """
    The example of RFC 7677, byte by byte.
    """
    exchange = scram()

    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.next(SERVER_FIRST) == CLIENT_FINAL
    assert exchange.next(SERVER_FINAL) is None


def test_scram_escapes_what_would_end_a_user_name() -> None:
    """
    ``,`` and ``=`` in a name are escaped, in this order, so that nothing is escaped twice.
    """
    first = ScramExchange("SCRAM-SHA-512", "a=b,c=2C", "x", nonce="n").first()

    assert first == b"n,,n=a=3Db=2Cc=3D2C,r=n"
    assert escape_username("plain") == "plain"


def test_every_scram_exchange_has_its_own_nonce() -> None:
    """
    Two exchanges never begin alike: a recorded one cannot be replayed.
    """
    firsts = {ScramExchange("SCRAM-SHA-256", "user", "pencil").first() for _ in range(100)}

    assert len(firsts) == 100


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (SERVER_FIRST.replace(b"r=rOpr", b"r=XXXX"), "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999"), "99999999 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "0 iterations"),
        (SERVER_FIRST.replace(b"i=4096", "i=٤٠٩٦".encode()), "0 iterations"),
        (SERVER_FIRST.replace(b",i=4096", b""), "0 iterations"),
        (SERVER_FIRST.replace(b"s=W22Z", b"s=!!!!"), "salt is not base64"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt is not base64"),
        (b"m=tls-exporter," + SERVER_FIRST, "extension"),
        (SERVER_FIRST + b",i=4096", "not a SCRAM message"),
        (b"e=unknown-user", "unknown-user"),
        (b"e=line\nbreak", r"line\\nbreak"),
        (b"\xff\xfe", "not a SCRAM message"),
        (b"", "not a SCRAM message"),
    ],
)
def test_scram_does_not_answer_a_challenge_that_is_not_sound(server_first: bytes, reason: str) -> None:
    """
    A proof made for a weak or twisted challenge would help whoever wants the password.
    """
    with pytest.raises(AuthenticationError, match=reason) as refused:
        scram().next(server_first)

    assert "pencil" not in str(refused.value)


@pytest.mark.parametrize(
    ("server_final", "reason"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "could not prove"),
        (SERVER_FINAL[:-6], "is not base64"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"x=1", "is not base64"),
        (b"", "not a SCRAM message"),
    ],
)
def test_scram_does_not_trust_a_broker_without_the_right_signature(server_final: bytes, reason: str) -> None:
    """
    The broker proves that it knows the password too, or the connection ends.
    """
    exchange = scram()
    exchange.next(SERVER_FIRST)

    with pytest.raises(AuthenticationError, match=reason):
        exchange.next(server_final)


def test_plain_sends_name_and_password_as_they_are() -> None:
    """
    RFC 4616 with an empty authorisation identity.
    """
    exchange = PlainExchange("jürgen", "a,b=c")

    assert exchange.first() == b"\0j\xc3\xbcrgen\0a,b=c"
    assert exchange.next(b"") is None


def test_plain_refuses_what_it_cannot_carry() -> None:
    """
    A NUL would move the border between name and password.
    """
    with pytest.raises(AuthenticationError, match="NUL") as refused:
        PlainExchange("user", "pen\0cil")

    assert "cil" not in str(refused.value)


def test_a_bearer_token_goes_with_its_extensions() -> None:
    """
    RFC 7628 as KIP-255 and KIP-342 use it.
    """
    exchange = OAuthBearerExchange("abc.def.ghi", {"logicalCluster": "lkc-1"})

    assert exchange.first() == b"n,,\1auth=Bearer abc.def.ghi\1logicalCluster=lkc-1\1\1"
    assert exchange.next(b"") is None


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "abc\1auth=Bearer other", "ümlaut"])
def test_what_is_not_a_token_is_not_sent(token: str) -> None:
    """
    A token file with something else in it is found out here, and its content is not shown.
    """
    with pytest.raises(AuthenticationError, match="not a bearer token") as refused:
        OAuthBearerExchange(token)

    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("auth", "x"), ("a b", "x"), ("ok", "x\1y"), ("ok", "")])
def test_extensions_cannot_smuggle_anything_in(name: str, value: str) -> None:
    """
    Names and values outside RFC 7628 are refused, and so is a second ``auth``.
    """
    with pytest.raises(AuthenticationError, match="not allowed"):
        OAuthBearerExchange("abc", {name: value})


def test_a_refused_token_is_explained_by_its_expiry() -> None:
    """
    The broker says ``invalid_token`` only; the token itself says when it ended.
    """
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "me", "exp": 1700000000}).encode()).rstrip(b"=")
    token = f"e30.{claims.decode()}.sig"

    with pytest.raises(
        AuthenticationError, match=r"invalid_token.*expired at 2023-11-14 22:13:20 UTC"
    ) as refused:
        OAuthBearerExchange(token).next(b'{"status":"invalid_token"}')

    assert token not in str(refused.value)


@pytest.mark.parametrize("exp", [-1e300, float("nan")])
def test_a_refused_token_may_have_ended_nobody_knows_when(exp: float) -> None:
    """
    What a token says of itself comes from outside: the refusal is told whatever it is.
    """
    claims = base64.urlsafe_b64encode(json.dumps({"exp": exp}).encode()).rstrip(b"=").decode()

    with pytest.raises(AuthenticationError, match=r"invalid_token.*expired at an unknown time"):
        OAuthBearerExchange(f"e30.{claims}.sig").next(b'{"status":"invalid_token"}')


@pytest.mark.parametrize("answer", [b"[1]", b"\xff", b"not json", b'{"other": 1}'])
def test_any_other_answer_to_a_token_is_a_refusal_too(answer: bytes) -> None:
    """
    Only an empty answer is success.
    """
    with pytest.raises(AuthenticationError, match="refused the token"):
        OAuthBearerExchange("abc").next(answer)


@pytest.mark.parametrize("token", ["opaque", "a.b", "a.!.c", "a.e30.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c"])
def test_a_token_that_does_not_say_when_it_ends_is_no_error(token: str) -> None:
    """
    Opaque tokens are as good as JSON ones.
    """
    assert token_expires_at(token) is None
