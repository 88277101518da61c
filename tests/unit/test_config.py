"""Settings: everything has a default or is wanted, and what is wrong is said with path, value and way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mirror.config import (
    Settings,
    host_and_port,
    json_schema,
    load,
    merged,
    parse,
    shown,
    shown_as_yaml,
    warnings,
)
from mirror.config_limits import Rate
from mirror.config_values import Bytes, show_bytes
from mirror.config_yaml import parse_yaml
from mirror.errors import UsageError

PASSWORD = "correct-horse-battery"
MINIMAL: dict[str, Any] = {
    "source": {"bootstrap_servers": ["a:9092"]},
    "target": {"bootstrap_servers": ["b:9092"]},
    "topics": {"include": [".*"]},
}
SCRAM: dict[str, Any] = {
    "protocol": "SASL_SSL",
    "sasl": {"mechanism": "SCRAM-SHA-512", "username": "twinsite", "password": PASSWORD},
}


def accepted(**changes: Any) -> Settings:
    """The smallest settings with these changes."""
    return parse(merged(MINIMAL, changes))


def refused(**changes: Any) -> str:
    """Why these changes are refused."""
    with pytest.raises(UsageError) as refusal:
        accepted(**changes)
    return str(refusal.value)


# -- what is taken -----------------------------------------------------------------------------------------


def test_two_clusters_and_a_pattern_are_enough() -> None:
    """
    The rest has defaults, and the careful ones.
    """
    settings = accepted()

    assert settings.flow == "default"
    assert settings.offsets.mode == "same"
    assert settings.read.isolation == "read_committed"
    assert settings.on_data_loss == "stop"
    assert settings.topics.names == "identity"
    assert settings.api.host == "127.0.0.1"
    assert not settings.api.remote_control


def test_what_can_be_written_short_may_be() -> None:
    """
    Servers with commas as Kafka writes them, sizes with units, the offset mode alone.
    """
    settings = accepted(
        source={"bootstrap_servers": "a:1, [::1]:2"},
        offsets="auto",
        read={"fetch_bytes_max": "8 MiB", "partition_fetch_bytes_max": "65536"},
        api={"port": None},
    )

    assert settings.way_to_source.servers == ("a:1", "[::1]:2")
    assert settings.offsets.mode == "auto"
    assert settings.read.fetch_bytes_max == 8 * 1024 * 1024
    assert settings.read.partition_fetch_bytes_max == 65536
    assert settings.api.port == -1


def test_settings_do_not_change() -> None:
    """
    What was checked together stays together.
    """
    settings = accepted()

    with pytest.raises(ValueError, match="frozen"):
        settings.flow = "other"


@given(st.integers(0, 2**49))
def test_a_size_shown_is_the_size_read(count: int) -> None:
    """
    What the documentation and errors say can be written into a file.
    """
    assert TypeAdapter(Bytes).validate_python(show_bytes(count)) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("kafka-1.east:9092", ("kafka-1.east", 9092)), ("[2001:db8::1]:9093", ("2001:db8::1", 9093))],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    """
    Names, IPv4 and bracketed IPv6.
    """
    assert host_and_port(text) == expected


@pytest.mark.parametrize(
    "text", ["kafka", "kafka:", "kafka:0", "kafka:65536", ":9092", "http://a:1", "::1:9092", "a b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """
    With an example of what is one.
    """
    assert "source.bootstrap_servers[0]" in refused(source={"bootstrap_servers": [text]})


def test_a_pattern_may_have_a_mark_where_a_regular_expression_has_it() -> None:
    """
    Only one in front, or behind a comma, is what the command line means by it.
    """
    patterns = [r"(?!tmp).*", r"[^,!]+", r"a\,!b"]

    assert accepted(topics={"include": patterns}).topics.include == tuple(patterns)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flow": "East"}, "flow: 'East' must match ^[a-z0-9-]{1,40}$"),
        ({"flow": 7}, "flow: 7 must be text; put it in quotes"),
        ({"topics": {"include": []}}, "topics.include: must have at least one entry"),
        ({"topics": {"include": "orders"}}, "topics.include: 'orders' must be a list"),
        ({"topics": {"include": ["(x"]}}, "topics.include[0]: '(x' is not a regular expression"),
        ({"topics": {"include": [" a"]}}, "topics.include[0]: ' a' begins or ends with white space"),
        ({"topics": {"exclude": ["b\t"]}}, "topics.exclude[0]: 'b\\t' begins or ends with white space"),
        (
            {"topics": {"include": ["a", "!b"]}},
            "topics.include[1]: '!b' has a !, which excludes nothing here",
        ),
        ({"topics": {"include": ["a.*, !b"]}}, "topics.include[0]: 'a.*, !b' has a !, which excludes"),
        ({"topics": {"exclude": [" !b"]}}, "topics.exclude[0]: ' !b' has a !, which excludes"),
        (
            {"topics": {"include": ["[[o]rders"]}},
            "topics.include[0]: '[[o]rders' is not a regular expression",
        ),
        ({"topics": {"refresh_seconds": 0}}, "topics.refresh_seconds: 0 is too small: at least 1"),
        ({"topics": {"create": "yes"}}, "topics.create: 'yes' must be true or false"),
        ({"read": {"fetch_wait_ms_max": True}}, "read.fetch_wait_ms_max: true must be a whole number"),
        ({"read": {"fetch_bytes_max": "8 MB"}}, "read.fetch_bytes_max: '8 MB' must be a number of bytes"),
        ({"read": {"fetch_bytes_max": 1}}, "read.fetch_bytes_max: 1 is too small: at least 64 KiB"),
        ({"append": {"batches_in_flight_max": 6}}, "append.batches_in_flight_max: 6 is too large: at most 5"),
        ({"offsets": "sames"}, "offsets.mode: 'sames' must be one of 'same', 'auto', 'mapped'"),
        ({"lagging_after_seconds": "5"}, "lagging_after_seconds: '5' must be a number"),
        ({"lagging_after_seconds": float("inf")}, "lagging_after_seconds: inf must be a finite number"),
        ({"source": "a:9092"}, "source: must be a section with keys and values"),
        ({"topics": {"replication_factor": None, "names": None}}, "topics.names: null must be one of"),
        ({"api": {"port": 70000}}, "api.port: 70000 is too large: at most 65535"),
        ({"api": {"host": "a..b"}}, "api.host: 'a..b' is not a host name: each part between dots has"),
    ],
)
def test_a_refusal_names_path_value_and_reason(changes: dict[str, Any], words: str) -> None:
    """
    In the words of the settings, not of the library that checks them.
    """
    refusal = refused(**changes)

    assert refusal.startswith(f"settings: {words}")
    assert "pydantic" not in refusal
    assert "validation error" not in refusal


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"compression": True}, "link.compression: true must be 'auto' or a whole number"),
        ({"compression": 20}, "link.compression: 20 is too large: at most 19"),
        ({"connections": "7"}, "link.connections: '7' must be 'auto' or a whole number"),
        ({"connections": None}, "link.connections: null must be 'auto' or a whole number"),
    ],
)
def test_what_may_be_written_in_two_ways_is_refused_in_one_sentence(link: dict[str, Any], words: str) -> None:
    """
    What was neither is said once, under the name of the setting.
    """
    with pytest.raises(UsageError) as refusal:
        parse({**MINIMAL, "source": None, "link": {"relays": "r:9650", **link}})

    assert str(refusal.value) == f"settings: {words}"


@pytest.mark.parametrize("path", ["~nobody-of-that-name/ca.pem", "~/ca.pem"])
def test_a_home_folder_that_is_not_known_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Services run as users without one.
    """
    monkeypatch.setattr("os.path.expanduser", lambda found: found)
    changes = {"target": {"security": {"protocol": "SSL", "ca_file": path}}}

    with pytest.raises(UsageError) as refusal:
        parse(merged(MINIMAL, changes), folder=Path("/etc"))

    assert f"target.security.ca_file: {path!r} begins with an unknown home folder" in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"target": {"securty": {}}},
            "target.securty: there is no such setting; did you mean target.security?",
        ),
        ({"include": ["x"]}, "include: there is no such setting; did you mean topics.include?"),
        (
            {"fetch_max_bytes": 1},
            "fetch_max_bytes: there is no such setting; did you mean read.fetch_bytes_max?",
        ),
        ({"weather": "rain"}, "weather: there is no such setting"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_that_is_known(
    changes: dict[str, Any], words: str
) -> None:
    """
    In its own section first, then anywhere.
    """
    assert refused(**changes) == f"settings: {words}"


def test_what_is_missing_is_named_with_what_it_is() -> None:
    """
    Somebody who starts with an empty file learns what to write.
    """
    with pytest.raises(UsageError) as refusal:
        parse({}, where="flow.yaml")

    assert str(refusal.value).splitlines() == [
        "flow.yaml: 3 settings are not accepted:",
        "  source: is missing (The cluster that is read)",
        "  target: is missing (The cluster that is written)",
        "  topics: is missing (Which topics are copied, and under which names)",
    ]
    assert "docs/settings.md" in refusal.value.hint


def test_all_that_is_wrong_is_said_at_once_but_not_without_end() -> None:
    """
    Twenty lines are enough to begin with.
    """
    refusal = refused(topics={"exclude": ["("] * 30}).splitlines()

    assert refusal[0] == "settings: 30 settings are not accepted:"
    assert len(refusal) == 22
    assert refusal[-1] == "  and 10 more"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": {"bootstrap_servers": ["a:9092"]}}, "source and target share a:9092"),
        ({"topics": {"names": "prefix"}}, "names: prefix needs prefix"),
        ({"topics": {"prefix": "east."}}, "did you mean names: prefix?"),
        ({"topics": {"names": "prefix", "prefix": "__east"}}, "counts as an internal topic"),
        ({"topics": {"names": "prefix", "prefix": "mm2-offset-syncs."}}, "counts as an internal topic"),
        ({"topics": {"names": "prefix", "prefix": "a/b"}}, "topics.prefix: 'a/b' must match"),
        (
            {"read": {"fetch_bytes_max": "64 MiB"}},
            "fetch_bytes_max (64 MiB) is above limits.buffer_bytes_max (32 MiB)",
        ),
        (
            {"read": {"fetch_bytes_max": "64 KiB"}},
            "read.partition_fetch_bytes_max (1 MiB) is above read.fetch_bytes_max (64 KiB)",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    """
    Each alone would be fine.
    """
    assert words in refused(**changes)


def test_a_flow_within_one_cluster_is_possible_under_a_prefix() -> None:
    """
    Copies have other names than what they are copies of.
    """
    settings = accepted(
        target={"bootstrap_servers": ["a:9092"]}, topics={"names": "prefix", "prefix": "copy."}
    )

    assert settings.topics.prefix == "copy."


# -- security ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ({"protocol": "SASL_SSL"}, "SASL_SSL needs sasl"),
        ({"sasl": SCRAM["sasl"]}, "PLAINTEXT does not use sasl"),
        ({"ca_file": "ca.pem"}, "PLAINTEXT does not use ca_file: did you mean SSL?"),
        ({"protocol": "SSL", "key_file": "key.pem"}, "a private key needs certificate_file"),
        ({"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN"}}, "PLAIN needs username and password"),
        (
            {"protocol": "SASL_SSL", "sasl": {"mechanism": "OAUTHBEARER"}},
            "OAUTHBEARER needs either token or token_endpoint",
        ),
        (
            {"protocol": "SASL_SSL", "sasl": {**SCRAM["sasl"], "token": {"env": "T"}}},
            "SCRAM-SHA-512 takes no token and no extensions",
        ),
        (
            {
                "protocol": "SASL_SSL",
                "sasl": {"mechanism": "OAUTHBEARER", "username": "x", "token": {"env": "T"}},
            },
            "OAUTHBEARER takes a token, not username and password",
        ),
        ({"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAN"}}, "mechanism: must be one of 'PLAIN'"),
    ],
)
def test_security_that_would_not_do_what_it_says_is_refused(security: dict[str, Any], words: str) -> None:
    """
    A certificate that is not used, or a password that would go out in the clear, is a mistake.
    """
    assert words in refused(target={"security": security})


@pytest.mark.parametrize("security", [{"sasl": None}, {"protocol": "SSL", "sasl": None}])
def test_a_login_at_a_relay_is_refused_also_where_it_says_nothing(security: dict[str, Any]) -> None:
    """
    As the schema has it: there is no such setting.
    """
    refusal = refused(source=None, link={"relays": "r:9650", "security": security})

    assert "link: a relay identifies mirrors by their certificates: remove security.sasl" in refusal


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_login_at_a_relay_is_refused_before_it_is_asked_for(protocol: str) -> None:
    """
    Who is told that the protocol needs sasl adds it, and is refused again.
    """
    refusal = refused(source=None, link={"relays": "r:9650", "security": {"protocol": protocol}})

    assert "security.protocol must be PLAINTEXT or SSL" in refusal
    assert "needs sasl" not in refusal


def test_what_is_better_avoided_on_the_link_is_told_of_the_link() -> None:
    """
    A file with ``link`` has no ``source``.
    """
    security = {"protocol": "SSL", "verify_hostname": False}
    linked = accepted(source=None, link={"relays": "r:9650", "security": security})

    assert [sentence.split(":")[0] for sentence in warnings(linked)] == ["link.security.verify_hostname"]


def test_limits_that_never_apply_are_told() -> None:
    """
    The first that applies counts: the one for all other times comes last.
    """
    office = {"rate": "20 Mbit/s", "days": "mon-fri", "hours": "08:00-18:00"}
    always = {"rate": "200 Mbit/s"}

    wrong, right = (
        accepted(source=None, link={"relays": "r:9650", "limits": limits})
        for limits in ([always, office], [office, always])
    )

    assert warnings(right) == []
    assert warnings(wrong) == [
        "link.limits[1]: never applies: link.limits[0] always does, and the first that does counts"
    ]


@pytest.mark.parametrize(
    "url", ["http://login.example.org/token", "https://", "ftp://x", "https://user:xyzzy@login.example.org/"]
)
def test_a_token_endpoint_that_would_give_the_secret_away_is_refused(url: str) -> None:
    """
    A client secret goes over TLS only, and not into an address.
    """
    endpoint = {"url": url, "client_id": "twinsite", "client_secret": {"env": "S"}}
    sasl = {"mechanism": "OAUTHBEARER", "token_endpoint": endpoint}

    refusal = refused(target={"security": {"protocol": "SASL_SSL", "sasl": sasl}})

    assert "token_endpoint.url" in refusal
    assert "xyzzy" not in refusal


@pytest.mark.parametrize(
    "secret", ["", 7, None, [], {}, {"file": ""}, {"env": 5}, {"vault": "x"}, {"file": "x", "env": "y"}]
)
def test_a_secret_that_leads_nowhere_is_refused(secret: object) -> None:
    """
    Exactly one source.
    """
    refusal = refused(target={"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "password": secret}}})

    assert "password" in refusal


def test_a_secret_is_read_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A rotated file or variable needs no restart; relative files lie beside the settings.
    """
    (tmp_path / "flow.yaml").write_text(
        yaml.safe_dump(
            merged(
                MINIMAL,
                {
                    "source": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "password": {"file": "pw"}}}},
                    "target": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "password": {"env": "PW"}}}},
                },
            )
        )
    )
    settings = load(tmp_path / "flow.yaml")
    passwords = [
        c.security.sasl.password for c in (settings.way_to_source, settings.target) if c.security.sasl
    ]

    seen = []
    for word in ("one", "two"):
        (tmp_path / "pw").write_text(f"{word}\n")
        monkeypatch.setenv("PW", word)
        seen.append([password.read() for password in passwords if password])

    assert seen == [["one", "one"], ["two", "two"]]


def test_no_secret_is_ever_shown() -> None:
    """
    Not in a repr, not as YAML or JSON, not in a warning.
    """
    settings = accepted(target={"security": {**SCRAM, "key_password": PASSWORD, "certificate_file": "c.pem"}})

    texts = [
        repr(settings),
        str(settings),
        shown_as_yaml(settings),
        repr(shown(settings)),
        *warnings(settings),
    ]

    assert not [text for text in texts if PASSWORD in text]
    assert shown(settings)["target"]["security"]["sasl"]["password"] == "***"


@pytest.mark.parametrize(
    "changes",
    [
        {"target": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "pasword": PASSWORD}}}},
        {"target": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "password": [PASSWORD]}}}},
        {"target": {"security": {**SCRAM, "sasl": PASSWORD}}},
        {"target": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "mechanism": PASSWORD}}}},
        {"target": {"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "username": [PASSWORD]}}}},
        {"target": {"security": PASSWORD}},
        {"source": {"bootstrap_servers": f"user:{PASSWORD}@a:9092"}},
        {"password": PASSWORD},
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(changes: dict[str, Any]) -> None:
    """
    Errors end up in logs and tickets.
    """
    refusal = refused(**changes)

    assert PASSWORD not in refusal


def test_what_is_allowed_and_better_avoided_is_said() -> None:
    """
    Secrets in the file, secrets in the clear, certificates of anybody, control for everybody.
    """
    plain = {"protocol": "SASL_PLAINTEXT", "sasl": {**SCRAM["sasl"], "mechanism": "PLAIN"}}
    careless = accepted(
        source={"security": plain},
        target={"security": {"protocol": "SSL", "verify_hostname": False}},
        api={"remote_control": True},
    )

    assert [sentence.split(":")[0] for sentence in warnings(careless)] == [
        "source.security.sasl.password",
        "source.security",
        "target.security.verify_hostname",
        "api.remote_control",
    ]
    assert warnings(accepted()) == []


def test_settings_of_reading_that_a_relay_does_not_take_are_named() -> None:
    """
    It reads with bounds of its own; which records are read it is told.
    """
    reading = {"isolation": "read_uncommitted", "fetch_wait_ms_max": 30_000, "fetch_bytes_max": "1 MiB"}
    direct = accepted(read=reading)
    linked = parse({**MINIMAL, "source": None, "link": {"relays": "r:9650"}, "read": reading})

    assert warnings(direct) == []
    assert [sentence.split(":")[0] for sentence in warnings(linked)] == [
        "read.fetch_bytes_max",
        "read.fetch_wait_ms_max",
    ]


# -- files -------------------------------------------------------------------------------------------------


def test_settings_shown_can_be_read_back(tmp_path: Path) -> None:
    """
    With all defaults written out, and secrets by their source.
    """
    settings = accepted(
        target={"security": {**SCRAM, "sasl": {**SCRAM["sasl"], "password": {"file": "/run/secrets/pw"}}}},
        offsets="mapped",
    )
    file = tmp_path / "shown.yaml"

    file.write_text(shown_as_yaml(settings))

    assert load(file) == settings


@pytest.mark.parametrize("security", [{}, {"security": {"protocol": "SSL"}}])
def test_what_is_shown_of_a_link_can_be_read_back_too(security: dict[str, Any], tmp_path: Path) -> None:
    """
    There is no login at a relay: none is shown, as none would be taken.
    """
    settings = parse({**MINIMAL, "link": {"relays": "r:9650", **security}, "source": None})
    file = tmp_path / "shown.yaml"

    file.write_text(shown_as_yaml(settings))

    assert load(file) == settings
    assert "sasl" not in shown(settings)["link"]["security"]
    assert "sasl" in shown(settings)["target"]["security"]


def test_overrides_win_over_the_file_section_by_section(tmp_path: Path) -> None:
    """
    What is not overridden stays.
    """
    file = tmp_path / "flow.yaml"
    file.write_text(yaml.safe_dump(merged(MINIMAL, {"flow": "east", "source": {"client_id": "me"}})))

    settings = load(file, overrides={"source": {"bootstrap_servers": ["c:1"]}, "log": {"level": "debug"}})

    assert (settings.flow, settings.log.level) == ("east", "debug")
    assert (settings.way_to_source.servers, settings.way_to_source.client_id) == (("c:1",), "me")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "flow.yaml, line 3, column 1: duplicate key"),
        ("a:\n  b: 1\n  b: 2\n", "flow.yaml, line 3, column 3: duplicate key"),
        (f'a: "{PASSWORD}\n', "flow.yaml, line 2, column 1: found unexpected end of stream"),
        ("a: !!python/object:os.system {}\n", "flow.yaml, line 1, column 4: begins with !: put it in quotes"),
        (f"a: !{PASSWORD}\n", "flow.yaml, line 1, column 4: begins with !: put it in quotes"),
        (f"a: !a!{PASSWORD}\n", "flow.yaml, line 1, column 4: begins with !: put it in quotes"),
        (f"a: *{PASSWORD}\n", "flow.yaml, line 1, column 4: begins with *: put it in quotes"),
        (f"a: %{PASSWORD}\n", "flow.yaml, line 1, column 4: found character '%' that cannot start"),
        ("a:\n\tb: 1\n", "flow.yaml, line 2, column 1: found character '\\t' that cannot start"),
        (f"a: [{PASSWORD}\n", "flow.yaml, line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        (f"a: |{PASSWORD}\n", "flow.yaml, line 1, column 5: is not valid YAML"),
        ("- a\n", "flow.yaml: must consist of keys and values"),
        ("1: a\n", "flow.yaml: must consist of keys and values"),
        ("", "flow.yaml: is empty"),
        ("a: \x00", "flow.yaml: is not valid YAML"),
        ("a: 2\nb: 2024-99-99\n", "flow.yaml, line 2, column 4: cannot be read as a date: put it in quotes"),
        (f"a: {'9' * 5000}\n", "flow.yaml, line 1, column 4: cannot be read as a number"),
        ("a: !!bool foo\n", "flow.yaml, line 1, column 4: cannot be read as true or false"),
        ("a: !!timestamp foo\n", "flow.yaml, line 1, column 4: cannot be read as a date"),
        (f"a: 1\n# é {PASSWORD}\n".encode("latin-1"), "flow.yaml: is not valid UTF-8 at byte 7"),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused_with_the_place(text: str | bytes, words: str) -> None:
    """
    The text itself is not repeated.
    """
    with pytest.raises(UsageError) as refusal:
        parse_yaml(text, "flow.yaml")

    assert str(refusal.value).startswith(words)
    assert PASSWORD not in str(refusal.value)


@pytest.mark.parametrize("value", ["[*]", "*.orders", "[!orders]", r'"orders\.x"', "[orders.{2}]", "[%a]"])
def test_an_expression_that_yaml_takes_for_its_own_signs_is_refused_with_the_way_out(value: str) -> None:
    """
    Where the place is the end of the file, as after [!orders], nothing else would say what is wrong.
    """
    with pytest.raises(UsageError) as refusal:
        parse_yaml(f"topics:\n  include: {value}\n", "flow.yaml")

    assert "single quotes" in refusal.value.hint


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: !b\n", "a: *b\n", "a: 2024-99-99\n"])
def test_a_complaint_that_says_the_way_out_has_no_other_beside_it(text: str) -> None:
    """
    Quotes do not help with a key that stands twice.
    """
    with pytest.raises(UsageError) as refusal:
        parse_yaml(text, "flow.yaml")

    assert not refusal.value.hint


def test_sections_that_are_alike_may_be_written_once() -> None:
    """
    Anchors and merges are YAML's own way; a key beside a merge wins over it.
    """
    document = parse_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\ne: *x\n", "flow.yaml")

    assert document == {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 2}}


@pytest.mark.parametrize("make", ["missing", "folder", "huge"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: str) -> None:
    """
    One line, no traceback.
    """
    file = tmp_path / make
    if make == "folder":
        file.mkdir()
    if make == "huge":
        file.write_bytes(b"#" * (1024 * 1024 + 1))

    with pytest.raises(UsageError, match=str(file)):
        load(file)


# -- what describes them -----------------------------------------------------------------------------------


def settings_in(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every setting of a schema with its path; sections are described where they are defined."""
    sections = {"": schema, **{f"{name}.": inner for name, inner in schema["$defs"].items()}}
    return [
        (f"{above}{name}", found)
        for above, part in sections.items()
        for name, found in part["properties"].items()
        if "$ref" not in found
    ]


def test_every_setting_is_described_with_its_range() -> None:
    """
    Numbers without a range and settings without words do not pass.
    """
    settings = settings_in(json_schema())

    assert len(settings) > 50
    assert [name for name, section in json_schema()["$defs"].items() if not section.get("description")] == []
    assert [path for path, found in settings if len(found.get("description", "")) < 5] == []
    assert [path for path, found in settings if _lacks_range(found)] == []


def _lacks_range(found: dict[str, Any]) -> bool:
    ways = found.get("anyOf", [found])
    numbers = [way for way in ways if way.get("type") in {"integer", "number"}]
    return any("minimum" not in way or "maximum" not in way for way in numbers)


def test_the_schema_refuses_unknown_keys_and_takes_what_is_taken() -> None:
    """
    An editor says what the mirror would say.
    """
    schema = json_schema()

    assert not schema["additionalProperties"]
    assert [name for name, part in schema["$defs"].items() if part["additionalProperties"] is not False] == []
    assert [
        way.get("type")
        for way in schema["$defs"]["LimitsSettings"]["properties"]["buffer_bytes_max"]["anyOf"]
    ] == [
        "integer",
        "string",
    ]
    assert {"type": "string", "enum": ["same", "auto", "mapped"]} in schema["properties"]["offsets"]["anyOf"]


def test_the_schema_has_no_login_at_a_relay() -> None:
    """
    It is refused there, and an editor offered it.
    """
    sections = json_schema()["$defs"]

    def security_of(name: str) -> dict[str, Any]:
        found = sections[name]["properties"]["security"]["$ref"].removeprefix("#/$defs/")
        return sections[found]["properties"]  # type: ignore[no-any-return]

    cluster, link = security_of("ClusterSettings"), security_of("LinkSettings")

    assert (cluster.keys() - link.keys(), link.keys() - cluster.keys()) == ({"sasl"}, set())
    assert link["protocol"]["enum"] == ["PLAINTEXT", "SSL"]
    assert cluster["protocol"]["enum"] == ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


@pytest.mark.parametrize(
    ("kind", "written", "taken"),
    [
        (Bytes, "4 MiB", 4 << 20),
        (Bytes, "4mib", 4 << 20),
        (Bytes, "4 GIB", 4 << 30),
        (Bytes, "512", 512),
        (Bytes, "4 MB", None),
        (Rate, "20 Mbit/s", 2_500_000),
        (Rate, "20 mbit/s", 2_500_000),
        (Rate, "2.5 MB/S", 2_500_000),
        (Rate, "16000 BIT/S", 2_000),
        (Rate, "20 Mbit", None),
    ],
)
def test_an_editor_takes_the_units_that_the_settings_take(kind: Any, written: str, taken: int | None) -> None:
    """
    In capitals or not.
    """
    settings = TypeAdapter(kind)
    [pattern] = [way["pattern"] for way in settings.json_schema()["anyOf"] if "pattern" in way]

    try:
        value = settings.validate_python(written)
    except ValidationError:
        value = None

    assert value == taken
    assert (re.search(pattern, written) is not None) == (taken is not None)
