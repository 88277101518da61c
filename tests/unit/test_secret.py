"""Secrets: read late, shown never."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror.errors import AuthenticationError
from mirror.kafka.secret import SECRET_BYTES_MAX, SecretSource


def test_a_secret_is_never_part_of_its_repr() -> None:
    """
    The source is shown, the value is not.
    """
    secret = SecretSource(value="pencil")

    assert "pencil" not in repr(secret)
    assert "pencil" not in secret.where
    assert secret.read() == "pencil"


def test_a_file_is_read_anew_at_every_use(tmp_path: Path) -> None:
    """
    A rotated file takes effect without a restart.
    """
    file = tmp_path / "password"
    file.write_text("old\n")
    secret = SecretSource(path=file)
    before = secret.read()

    file.write_text("new\r\n")

    assert (before, secret.read()) == ("old", "new")


def test_only_one_line_break_is_not_part_of_the_secret(tmp_path: Path) -> None:
    """
    Editors add one; blanks may belong to a password.
    """
    file = tmp_path / "password"
    file.write_text(" a b \n\n")

    assert SecretSource(path=file).read() == " a b \n"


def test_a_variable_is_named_when_it_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The operator learns which variable to set.
    """
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    secret = SecretSource(variable="KAFKA_PASSWORD")

    with pytest.raises(AuthenticationError, match="KAFKA_PASSWORD"):
        secret.read()

    monkeypatch.setenv("KAFKA_PASSWORD", "pencil")
    assert secret.read() == "pencil"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (SECRET_BYTES_MAX + 1), "larger than"),
    ],
)
def test_a_file_that_cannot_be_a_secret_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """
    A wrong path is found out before anything is sent, and the content is not shown.
    """
    file = tmp_path / "password"
    file.write_bytes(content)

    with pytest.raises(AuthenticationError, match=reason) as refused:
        SecretSource(path=file).read()

    assert str(file) in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """
    The path and the system's reason are in the message.
    """
    with pytest.raises(AuthenticationError, match=r"gone cannot be read: No such file"):
        SecretSource(path=tmp_path / "gone").read()


@pytest.mark.parametrize("sources", [{}, {"value": "a", "variable": "B"}])
def test_a_secret_has_exactly_one_source(sources: dict[str, str]) -> None:
    """
    Two sources would leave open which one wins.
    """
    with pytest.raises(ValueError, match="exactly one"):
        SecretSource(**sources)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [{"variable": "KAFKA_PASSWORD"}, {"value": "caf\udce9-pencil"}])
def test_what_is_no_text_is_refused_without_being_shown(
    source: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A variable may have been set where text was written otherwise than as UTF-8.
    """
    monkeypatch.setitem(os.environb, b"KAFKA_PASSWORD", b"caf\xe9-pencil")

    with pytest.raises(AuthenticationError, match="is not UTF-8 text") as refused:
        SecretSource(**source).read()  # type: ignore[arg-type]

    assert "pencil" not in repr(refused.value)
