"""Neither a mirror nor a relay keeps on disk what it copies: both go on where the disk is full."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, copied
from tests.harness.checker import assert_exact
from tests.harness.daemon import Site, free_ports
from tests.harness.data import json_rows
from tests.harness.disk import MAY_MOUNT, small_disk
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import listens, through

pytestmark = pytest.mark.skipif(not MAY_MOUNT, reason="only root may mount a disk that fills up")

FILLER = "filler"


async def test_a_copy_goes_on_where_every_disk_is_full(
    source: KafkaCluster, target: KafkaCluster, relay_site: Site, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Working, home and temporary folder of both are on a disk without a free byte: nothing is looked for there,
    no other file is open for writing, and the copy is exact.
    """
    name = await topic(source, partitions=3, prefix="full")
    await asyncio.to_thread(load, source.bootstrap, name, json_rows(60_000, 500), "lz4")
    address = f"{relay_site.host}:{free_ports(1)[0]}"
    command = configured(tmp_path, through(source, address), target, name, topics={"include": [name]})
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk", 1)).folder
        fill(disk)
        everywhere = dict.fromkeys(("TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"), str(disk))
        listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
        relay = stack.enter_context(
            Twinsite.run(
                *listen,
                work_dir=tmp_path,
                listen=False,
                environment=everywhere,
                checkout=disk,
                inside=relay_site.inside,
            )
        )
        await listens(relay)
        mirror = stack.enter_context(
            Twinsite.run(*command, work_dir=tmp_path, environment=everywhere, checkout=disk)
        )
        await mirror.wait_for(lambda: copied(mirror) > 0, "it is being copied")
        written = {file.parent for one in (relay, mirror) for file in open_for_writing(one.process.pid)}
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
        left = os.listdir(disk)
        freed = fill(disk)

    assert written == {tmp_path}, "where what they print goes"
    assert left == [FILLER]
    assert freed == 0
    assert_exact(source.bootstrap, target.bootstrap, [name])


def fill(folder: Path) -> int:
    """Write until the disk takes no more; answers how many bytes that were."""
    written = 0
    with (folder / FILLER).open("ab", buffering=0) as file:
        while True:
            try:
                written += file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return written


def open_for_writing(pid: int) -> list[Path]:
    """The regular files that a process may write to just now."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            flags = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text().split("flags:")[1].split()[0]
            if stat.S_ISREG(link.stat().st_mode) and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                found.append(link.readlink())
    return found
