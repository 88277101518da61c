"""Who is let in at a relay, and how many connections he may have."""

from __future__ import annotations

from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import pytest

from mirror.config_problems import checked
from mirror.config_relay import RelaySettings
from mirror.errors import UsageError
from mirror.relay.access import Access, NotAdmittedError, Way

CERTIFICATES = {"certificate_file": "relay.pem", "client_ca_file": "ca.pem"}
ROLES: dict[str, Any] = {
    "orders": {"include": [r"orders\..*"], "exclude": [r".*\.tmp"], "connections_max": 3, "streams_max": 2},
    "all": {"include": [".*"]},
}
IDENTITIES = {"spiffe://east/mirror": "orders", "CN=other": "orders", "anybody": "all"}


def settings(**listen: Any) -> RelaySettings:
    """Settings of a relay as they are read from a file."""
    document = {"cluster": {"bootstrap_servers": "east:9092"}, "listen": listen}
    return checked(RelaySettings, document, where="relay.yaml", folder=None)


def access(**changes: Any) -> Access:
    return Access(settings(**(CERTIFICATES | {"roles": ROLES, "identities": IDENTITIES} | changes)).listen)


def test_the_first_name_that_is_known_counts() -> None:
    """
    The order is that of the certificate's names, not of the settings.
    """
    with access().entered("10.0.0.1:7", ("unheard", "anybody", "CN=other"), Way.STREAM) as visitor:
        assert (visitor.identity, visitor.role and visitor.role.name) == ("anybody", "all")
        assert not visitor.limited


def test_without_identities_everybody_may_read_everything() -> None:
    """
    As before there were any; who it is still stands in the log.
    """
    with Access(settings().listen).entered("10.0.0.1:7", (), Way.BROKER) as visitor:
        assert visitor.identity is None
        assert visitor.allows("__consumer_offsets")
        assert not visitor.limited
        assert visitor.fields == {"peer": "10.0.0.1:7"}
    with Access(settings(**CERTIFICATES).listen).entered("x", ("CN=a",), Way.BROKER) as visitor:
        assert visitor.fields == {"peer": "x", "identity": "CN=a"}


@pytest.mark.parametrize(
    ("topic", "allowed"),
    [
        ("orders.eu", True),
        ("orders.eu.tmp", False),
        ("orders", False),
        ("preorders.eu", False),
        ("orders.eu\n", False),
        ("__consumer_offsets", False),
    ],
)
def test_a_role_has_the_topics_whose_whole_name_matches(topic: str, allowed: bool) -> None:
    """
    As with topics.include of a mirror; Kafka's own are in no limited role.
    """
    with access().entered("x", ("CN=other",), Way.STREAM) as visitor:
        assert visitor.limited
        assert visitor.allows(topic) is allowed


def test_no_limited_role_has_internal_topics() -> None:
    """
    Also where its patterns would match them.
    """
    roles = {"nearly": {"include": [".*"], "exclude": ["secret"]}}
    door = access(roles=roles, identities={"a": "nearly"})

    with door.entered("x", ("a",), Way.STREAM) as visitor:
        assert visitor.allows("orders")
        assert not visitor.allows("__consumer_offsets")
        assert not visitor.allows("secret")


@pytest.mark.parametrize("names", [(), ("spiffe://east/mirror2",), ("cn=other", "SPIFFE://east/mirror")])
def test_whom_nobody_knows_is_not_let_in(names: tuple[str, ...]) -> None:
    """
    He is told which names he has shown: one of them has to be in the settings.
    """
    door = access()

    with pytest.raises(NotAdmittedError) as refused, door.entered("x", names, Way.STREAM):
        pass

    assert (refused.value.status, refused.value.code) == (HTTPStatus.FORBIDDEN, "unknown_identity")
    assert str(refused.value).endswith(f": {', '.join(names) or 'none'}")
    assert door.connections == 0


def test_an_identity_has_so_many_connections_and_no_more() -> None:
    """
    Of those so many streams; others are not held up by it, and what ended makes room.
    """
    door = access()
    mine, other = ("spiffe://east/mirror",), ("CN=other",)
    with ExitStack() as held:
        stream = held.enter_context(ExitStack())
        stream.enter_context(door.entered("x", mine, Way.STREAM))
        held.enter_context(door.entered("x", mine, Way.STREAM))
        with pytest.raises(NotAdmittedError, match="2 streams of spiffe://east/mirror") as refused:
            held.enter_context(door.entered("x", mine, Way.STREAM))
        held.enter_context(door.entered("x", mine, Way.BROKER))
        with pytest.raises(NotAdmittedError, match="3 connections of spiffe://east/mirror"):
            held.enter_context(door.entered("x", mine, Way.BROKER))
        held.enter_context(door.entered("x", other, Way.STREAM))
        stream.close()
        held.enter_context(door.entered("x", mine, Way.STREAM))
        assert door.connections == 4

    assert (refused.value.status, refused.value.code) == (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too_many_connections",
    )
    assert door.connections == 0


def test_all_together_have_so_many_streams() -> None:
    """
    Each takes of the relay's memory, whoever has it. A way to a broker does not.
    """
    door = access(streams_max=2)
    mine, other = ("spiffe://east/mirror",), ("CN=other",)
    with ExitStack() as held:
        stream = held.enter_context(ExitStack())
        stream.enter_context(door.entered("x", mine, Way.STREAM))
        held.enter_context(door.entered("x", other, Way.STREAM))
        with pytest.raises(NotAdmittedError, match=r"2 streams of mirrors are open: listen\.streams_max"):
            held.enter_context(door.entered("x", ("anybody",), Way.STREAM))
        held.enter_context(door.entered("x", ("anybody",), Way.BROKER))
        stream.close()
        held.enter_context(door.entered("x", ("anybody",), Way.STREAM))


def test_all_together_have_so_many_connections() -> None:
    """
    Whoever they are.
    """
    door = access(connections_max=1)

    with (
        door.entered("x", ("anybody",), Way.BROKER),
        pytest.raises(NotAdmittedError, match="1 connections of mirrors are open"),
        door.entered("x", ("CN=other",), Way.BROKER),
    ):
        pass


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        (
            {"identities": {"a": "all"}, "roles": ROLES},
            "identities needs client_ca_file: without certificates mirrors cannot be told apart",
        ),
        (CERTIFICATES | {"roles": ROLES}, "roles needs identities"),
        (
            CERTIFICATES | {"roles": ROLES, "identities": {"a": "order"}},
            "identities: 'a' has role 'order', which is not in roles; did you mean orders?",
        ),
        (CERTIFICATES | {"identities": {"a": "x"}}, "which is not in roles; there are none"),
        (CERTIFICATES | {"identities": {}}, "listen.identities: must have at least one entry"),
        (
            CERTIFICATES | {"roles": {"r": {"include": []}}, "identities": {"a": "r"}},
            "listen.roles.r.include: must have at least one entry",
        ),
        (
            CERTIFICATES | {"roles": {"r": {"include": ["("]}}, "identities": {"a": "r"}},
            "is not a regular expression",
        ),
        (
            CERTIFICATES | {"roles": {"r": {"include": [".*", "!secret"]}}, "identities": {"a": "r"}},
            "listen.roles.r.include[1]: '!secret' has a !, which excludes nothing here",
        ),
        (CERTIFICATES | {"roles": {"r": {}}, "identities": {"a": "r"}}, "listen.roles.r.include: is missing"),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(listen: dict[str, Any], words: str) -> None:
    """
    At the start, with the reason; above all those that would let everybody in.
    """
    with pytest.raises(UsageError) as refused:
        settings(**listen)

    assert words in str(refused.value)
