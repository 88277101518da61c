"""scripts/bootstrap for who may not install anything: it says what to type, in words of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bootstrap"
USER_ID = "#!/bin/sh\necho 1000\n"
REFUSES = "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"
WORKS = "#!/bin/sh\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The script in a folder of its own, on a machine where all packages are installed and sudo refuses."""
    programs = {
        "id": USER_ID,
        "sudo": REFUSES,
        "java": WORKS,
        "mvn": WORKS,
        "promtool": WORKS,
        "python3": WORKS,
    }
    for name, text in programs.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "lists").mkdir()
    for name in ("requirements-dev.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    return Path(shutil.copy(SCRIPT, tmp_path / "scripts" / "bootstrap"))


def run(script: Path, elsewhere: str | None = None) -> subprocess.CompletedProcess[str]:
    """
    Args:
        elsewhere: Where programs are, beside those of the fixture; else the path of the machine.
    """
    folder = script.parents[1]
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH'] if elsewhere is None else elsewhere}",
        "TWINSITE_APT_LISTS": str(folder / "lists"),
        "TWINSITE_PYTHON": "python3",
    }
    return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=30)


def test_a_missing_package_index_is_asked_for(copy: Path) -> None:
    """
    Before anything is downloaded, and without the words of sudo.
    """
    ended = run(copy)

    assert ended.returncode == 1
    assert "bootstrap: fetch it and run this again: sudo apt-get update\n" in ended.stderr
    assert "password" not in ended.stderr
    assert not (copy.parents[1] / ".venv").exists()


def test_missing_packages_are_asked_for(copy: Path) -> None:
    """
    All of them in one command that can be pasted.
    """
    (copy.parents[1] / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")

    ended = run(copy)

    assert ended.returncode == 1
    assert "sudo apt-get install python3-venv\n" in ended.stderr
    assert "password" not in ended.stderr


def test_java_is_asked_for_without_a_version(copy: Path) -> None:
    """
    Each release of Debian has another one, and this package stands for it: 17 in Debian 12, 21 in 13.
    """
    needed = copy.parents[1] / "needed"
    needed.mkdir()
    for name in ("bash", "dirname"):
        program = shutil.which(name)
        assert program is not None
        (needed / name).symlink_to(program)
    (copy.parents[1] / "bin" / "java").unlink()

    ended = run(copy, str(needed))

    assert ended.returncode == 1
    assert "sudo apt-get install default-jre-headless\n" in ended.stderr


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ('openjdk version "11.0.25" 2024-10-15', "11"),
        ('java version "1.8.0_392"', "8"),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "16" 2021-03-16', "16"),
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21-ea" 2023-09-19', None),
        ("who knows", None),
    ],
)
def test_an_old_java_is_refused_with_the_way_out(copy: Path, says: str, refused: str | None) -> None:
    """
    Brokers of Kafka 4 would not start with it, after all was downloaded. What is no version refuses nothing.
    """
    (copy.parents[1] / "bin" / "java").write_text(f"#!/bin/sh\necho '{says}' >&2\n")

    ended = run(copy)

    words = "Java 17 or newer is needed"
    assert ended.returncode == 1
    if refused is None:
        assert words not in ended.stderr
        assert "package index is missing" in ended.stderr
    else:
        assert f'{words}, for Kafka 4 and Spark 4, and "java" is version {refused}\n' in ended.stderr
        assert "install openjdk-17-jre-headless or openjdk-21-jre-headless" in ended.stderr


def test_an_old_python_is_refused_with_the_way_out(copy: Path) -> None:
    """
    One that could make an environment, but does not know what the code needs.
    """
    (copy.parents[1] / "bin" / "python3").write_text("#!/bin/sh\ncase $2 in *version_info*) exit 1;; esac\n")
    (copy.parents[1] / "lists" / "debian_Packages").touch()

    ended = run(copy)

    assert ended.returncode == 1
    assert "Python 3.11 or newer is needed" in ended.stderr
    assert "TWINSITE_PYTHON=/path/to/python3" in ended.stderr
    assert not (copy.parents[1] / ".venv").exists()
