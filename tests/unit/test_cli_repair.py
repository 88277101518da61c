"""What of a repair's options cannot be meant."""

from __future__ import annotations

import pytest

from mirror.cli import main as cli


def test_to_write_and_to_write_nothing_cannot_both_be_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["repair", "--config", "nowhere.yaml", "--dry-run", "--apply", "plan"]) == 2
    assert "--dry-run: --apply writes" in capsys.readouterr().err


def test_a_dry_run_is_what_happens_anyhow(capsys: pytest.CaptureFixture[str]) -> None:
    """
    It gets as far as reading the settings.
    """
    assert cli.main(["repair", "--config", "nowhere.yaml", "--dry-run", "plan"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
