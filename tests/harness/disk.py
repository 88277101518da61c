"""A disk that fills up, and can be made larger: a file system in memory, mounted by root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _may_mount() -> bool:
    """Root may not in a container that has not been given the right to."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="twinsite-mount-") as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "twinsite-test", folder], capture_output=True)
        if tried.returncode == 0:
            _run("umount", "--lazy", folder)
        return tried.returncode == 0


class SmallDisk:
    """A mounted file system of a fixed size; made by :func:`small_disk`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, mebibytes: int) -> None:
        """Give it another size; what is on it stays."""
        _run("mount", "-o", f"remount,size={mebibytes}m", str(self.folder))


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a disk on a folder, which is made; unmounted with all that is on it when the block ends.

    Raises:
        subprocess.CalledProcessError: The system does not let us, see :data:`MAY_MOUNT`.
    """
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "twinsite-test", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


MAY_MOUNT = _may_mount()
"""Whether this process can make such disks at all."""
