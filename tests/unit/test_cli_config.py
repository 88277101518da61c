"""``twinsite config``: settings looked at without starting anything."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from mirror.cli.main import main
from tests.harness.security import Authority

FILE = """
source: {bootstrap_servers: 'east:9092'}
target: {bootstrap_servers: 'west:9092'}
topics: {include: ['orders']}
"""

SECRET_FILE = """
source:
  bootstrap_servers: east:9093
  security:
    protocol: SASL_SSL
    sasl: {mechanism: PLAIN, username: reader, password: hunter2}
target: {bootstrap_servers: west:9092}
topics: {include: [orders]}
"""


ELSEWHERE = """
source:
  bootstrap_servers: east:9093
  security:
    protocol: SASL_SSL
    ca_file: ca.pem
    sasl: {mechanism: PLAIN, username: reader, password: {file: nope}}
target:
  bootstrap_servers: west:9092
  security:
    protocol: SASL_SSL
    ca_file: here.pem
    sasl: {mechanism: PLAIN, username: writer, password: {env: WEST_PASSWORD}}
topics: {include: [orders]}
"""


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_settings_are_shown_with_defaults_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """
    What is shown can be pasted into a ticket.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(SECRET_FILE)

    code = main(["config", "show", "--config", str(path), "-o", output])

    out = capsys.readouterr().out
    assert code == 0
    assert "hunter2" not in out
    assert "***" in out
    assert "9640" in out


def test_a_good_file_is_accepted_with_what_is_better_avoided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A secret in the file works, and is warned of without being shown.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(SECRET_FILE)

    code = main(["config", "validate", "--config", str(path)])

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == f"{path}: accepted, flow default\n"
    assert "source.security.sasl.password: the secret is in the settings" in captured.err
    assert "hunter2" not in captured.err


def test_files_and_variables_that_are_not_there_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each with its path in the settings. They may be there where the mirror runs, so the file is accepted.
    """
    monkeypatch.delenv("WEST_PASSWORD", raising=False)
    Authority(tmp_path, "here")
    path = tmp_path / "flow.yaml"
    path.write_text(ELSEWHERE)

    code = main(["config", "validate", "--config", str(path)])

    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert code == 0
    assert warned == [
        f"warning: source.security.ca_file: there is no file {tmp_path}/ca.pem on this machine",
        f"warning: source.security.sasl.password: there is no file {tmp_path}/nope on this machine",
        "warning: target.security.sasl.password: environment variable WEST_PASSWORD is not set here",
    ]


def test_files_that_may_not_be_looked_at_or_read_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Settings are looked at by other users than the mirror's. No system looks for a name that is so long.
    """
    long = "k" * 300
    Authority(tmp_path, "here")
    (tmp_path / "ca.pem").touch()
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != "ca.pem")
    monkeypatch.setenv("WEST_PASSWORD", "x")
    path = tmp_path / "flow.yaml"
    path.write_text(ELSEWHERE.replace("nope", long))

    code = main(["config", "validate", "--config", str(path)])

    assert code == 0
    assert capsys.readouterr().err.splitlines() == [
        f"warning: source.security.ca_file: this user may not read file {tmp_path}/ca.pem",
        f"warning: source.security.sasl.password: file {tmp_path}/{long} cannot be accessed here: "
        "File name too long",
    ]


def test_a_bad_file_is_refused_with_every_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    The path, the value, the reason, and the nearest name for a slip of the finger.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(FILE + "append: {batches_in_flight_max: 9, request_bytes_mx: 5}\n")

    code = main(["config", "validate", "--config", str(path)])

    err = capsys.readouterr().err
    assert code == 2
    assert "append.batches_in_flight_max: 9 is too large: at most 5" in err
    assert "append.request_bytes_mx: there is no such setting; did you mean append.request_bytes_max?" in err


def test_the_schema_is_for_editors(capsys: pytest.CaptureFixture[str]) -> None:
    """
    A JSON Schema that refuses unknown keys as the mirror does.
    """
    code = main(["config", "schema"])

    schema = json.loads(capsys.readouterr().out)
    assert code == 0
    assert schema["additionalProperties"] is False
    assert {"target", "topics"} == set(schema["required"])
    assert schema["oneOf"] == [{"required": ["source"]}, {"required": ["link"]}]


RELAY_FILE = """
cluster: {bootstrap_servers: "kafka-1.east:9092"}
listen: {address: "0.0.0.0:9650", certificate_file: relay.pem}
"""


def test_the_file_of_a_relay_is_looked_at_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Accepted with what is better avoided and what is not there, and shown with its defaults.
    """
    path = tmp_path / "relay.yaml"
    path.write_text(RELAY_FILE)

    assert main(["config", "validate", "--config", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{path}: accepted, relay next to kafka-1.east:9092\n"
    assert captured.err.splitlines() == [
        "warning: listen: without client_ca_file anyone who reaches it can read",
        f"warning: listen.certificate_file: there is no file {tmp_path}/relay.pem on this machine",
    ]

    assert main(["config", "show", "--config", str(path), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["api"]["port"] == 9651


def test_a_bad_file_of_a_relay_is_refused_with_every_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    As one of a mirror is.
    """
    path = tmp_path / "relay.yaml"
    path.write_text(RELAY_FILE + "limits: [{rate: fast}]\nlisten_on: 9650\n")

    assert main(["config", "validate", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert "limits[0].rate: " in err
    assert "listen_on: there is no such setting; did you mean listen?" in err


@pytest.mark.parametrize("more", ["", "limits: [{rate: 1 MB/s}]\n"])
def test_a_file_of_a_relay_that_does_not_name_its_cluster_is_not_taken_for_one_of_a_mirror(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    """
    What is missing is the cluster, not the topics.
    """
    path = tmp_path / "relay.yaml"
    path.write_text("listen: {address: '0.0.0.0:9650'}\n" + more)

    assert main(["config", "validate", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"error: {path}: cluster: is missing" in err
    assert "topics" not in err


def test_a_limit_of_a_relay_that_never_applies_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The relay would ignore it without a word.
    """
    path = tmp_path / "relay.yaml"
    path.write_text(RELAY_FILE + "limits: [{rate: 2 MB/s}, {rate: 1 MB/s, days: sun}]\n")

    assert main(["config", "validate", "--config", str(path)]) == 0
    assert "warning: limits[1]: never applies: limits[0] always does" in capsys.readouterr().err


def test_certificates_that_would_not_do_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Half way through a rotation a running relay keeps its files, and one that starts ends.
    """
    authority, expired = Authority(tmp_path), timedelta(hours=-1)
    relay, other = authority.issue("relay", valid_for=expired), authority.issue("other")
    path = tmp_path / "relay.yaml"

    def warned(key: Path) -> list[str]:
        files = (
            f"certificate_file: {relay.certificate}, key_file: {key}, client_ca_file: {authority.certificate}"
        )
        path.write_text(f"cluster: {{bootstrap_servers: 'east:9092'}}\nlisten: {{{files}}}\n")
        assert main(["config", "validate", "--config", str(path)]) == 0
        return capsys.readouterr().err.splitlines()

    [ended] = warned(relay.key)
    wrong = warned(other.key)

    assert ended.startswith(
        f"warning: listen: {relay.certificate}: CN=relay, signed by CN=authority, expired on "
    )
    assert wrong == [
        f"warning: listen: the private key in {other.key} does not belong to the certificate in "
        f"{relay.certificate}",
        ended,
    ]


def test_authorities_that_have_expired_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Those in the chain of a certificate, too. What they have signed is rejected, however long it is valid.
    """
    authority = Authority(tmp_path)
    mirror = authority.issue("mirror")
    old = authority.issue("authority", valid_for=timedelta(hours=-1), file="old").certificate
    trusted, chain = tmp_path / "trusted.pem", tmp_path / "chain.pem"
    trusted.write_bytes(authority.certificate.read_bytes() + old.read_bytes())
    chain.write_bytes(mirror.certificate.read_bytes() + old.read_bytes())
    files = f"ca_file: {trusted}, certificate_file: {chain}, key_file: {mirror.key}"
    path = tmp_path / "flow.yaml"
    path.write_text(FILE.replace("'east:9092'", f"'east:9092', security: {{protocol: SSL, {files}}}"))

    assert main(["config", "validate", "--config", str(path)]) == 0
    warned = capsys.readouterr().err.splitlines()

    words = "CN=authority, signed by CN=authority, expired on "
    assert [line.split(words)[0] for line in warned] == [
        f"warning: source.security: {file}: " for file in (chain, trusted)
    ]


def test_there_is_a_schema_for_relays(capsys: pytest.CaptureFixture[str]) -> None:
    """
    It refuses unknown keys as the relay does.
    """
    assert main(["config", "schema", "--of", "relay"]) == 0

    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["cluster"]
