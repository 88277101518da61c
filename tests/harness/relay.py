"""Relays as users run them, and a cluster that mirrors are to reach through one.

::

    with running_relay(source, tmp_path) as relay:
        relayed = through(source, relay.address)

A test that starts its source itself gets the way in from a fixture, ``way_in``, and so can run both ways::

    async with KafkaCluster.start(...) as cluster, way_in(cluster, tmp_path) as source: ...
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.daemon import HERE, Site, free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, events
from tests.harness.wan import Wan

AS_IF_FAR = ({"rate": "40 Gbit/s"},)
"""Limits of a relay that hold nothing back: with any limit it compresses for mirrors next door, too."""
WayIn = Callable[[KafkaCluster, Path], AbstractAsyncContextManager[KafkaCluster]]
"""From a running cluster to one that mirrors read; the folder is for files that this takes."""


@dataclass(frozen=True, slots=True)
class Relay:
    """A running relay, and where it listens."""

    process: Twinsite
    address: str


@contextmanager
def running_relay(
    cluster: KafkaCluster,
    work_dir: Path,
    port: int | None = None,
    failpoints: str = "",
    environment: Mapping[str, str] | None = None,
    site: Site = HERE,
    **settings: object,
) -> Iterator[Relay]:
    """A relay next to a cluster. Not to be used where an event loop runs.

    Args:
        port: Where it listens; None: any free port.
        failpoints: Where it is killed; see :mod:`mirror.failpoints`.
        environment: Variables of its own.
        site: Where it runs.
        settings: More of its settings, besides the cluster.
    """
    address = f"{site.host}:{port or free_ports(1)[0]}"
    file = work_dir / f"relay-{address.rpartition(':')[2]}.yaml"
    document = {"cluster": {"bootstrap_servers": cluster.bootstrap.split(",")}, **settings}
    file.write_text(json.dumps(document))
    command = "relay", "--config", str(file), "--listen", address
    with Twinsite.run(
        *command,
        work_dir=work_dir,
        failpoints=failpoints,
        environment=environment,
        listen=False,
        inside=site.inside,
    ) as process:
        asyncio.run(listens(process))
        yield Relay(process, address)


@contextmanager
def configured_relay(
    cluster: KafkaCluster,
    work_dir: Path,
    listen: Mapping[str, Any],
    *,
    port: int | None = None,
    limits: Sequence[Mapping[str, object]] = (),
) -> Iterator[Relay]:
    """A relay with a settings file and a port for its API, which ``process`` asks.

    Args:
        listen: Its section of that name, without the address.
        port: Where mirrors connect; None: any free port.
        limits: As its settings have them.
    """
    address = f"127.0.0.1:{port or free_ports(1)[0]}"
    document = {
        "cluster": {"bootstrap_servers": cluster.bootstrap},
        "listen": {"address": address, **listen},
        "limits": limits,
        "log": {"level": "debug"},
    }
    file = work_dir / f"relay-{address.rpartition(':')[2]}.yaml"
    file.write_text(json.dumps(document))
    with Twinsite.run("relay", "--config", str(file), work_dir=work_dir) as process:
        asyncio.run(listens(process))
        yield Relay(process, address)


async def listens(process: Twinsite) -> None:
    """Wait until a relay listens."""
    await process.wait_for(lambda: bool(events(process.stderr, "relay_listens")), "the relay listens")


def through(cluster: KafkaCluster, *relays: str) -> KafkaCluster:
    """The same cluster; mirrors reach it through relays, everything else directly."""
    return cluster.through(relays)


@asynccontextmanager
async def directly(cluster: KafkaCluster, _work_dir: Path) -> AsyncIterator[KafkaCluster]:
    """A way in: the brokers themselves."""
    yield cluster


@asynccontextmanager
async def through_its_relay(cluster: KafkaCluster, work_dir: Path) -> AsyncIterator[KafkaCluster]:
    """A way in: a relay next to the brokers, which ends with the block."""
    address = f"{HERE.host}:{free_ports(1)[0]}"
    command = ("relay", "--cluster", cluster.bootstrap, "--listen", address)
    with Twinsite.run(*command, work_dir=work_dir, listen=False) as process:
        await listens(process)
        yield through(cluster, address)


@asynccontextmanager
async def through_its_far_relay(
    cluster: KafkaCluster, link: Wan, work_dir: Path
) -> AsyncIterator[KafkaCluster]:
    """The same with an emulated link between: the relay, and the brokers, are at its far end."""
    address = f"{link.far}:{free_ports(1)[0]}"
    command = ("relay", "--cluster", cluster.bootstrap, "--listen", address)
    with Twinsite.run(*command, work_dir=work_dir, listen=False, inside=link.inside) as process:
        await listens(process)
        yield through(cluster, address)
