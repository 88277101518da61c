"""The site at the other end of a long, narrow link with real TCP on it, or next door where there can be none.

::

    with far_site(mbit_per_second=50, one_way_seconds=0.04) as far:
        source = KafkaCluster.prepare(..., site=far.brokers)
        with running_relay(source, tmp_path, site=far.relays) as relay: ...

Only what a mirror reads through its relays goes over the link: the source's brokers run here, and the relays,
which run in the far site, reach them without it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.harness.daemon import HERE, Site
from tests.harness.wan import Wan, wan, why_not

BYTES_PER_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class FarSite:
    """Where the source is, seen from the mirror.

    Attributes:
        says: What lies between, in words.
        brokers: Where the source's brokers run; this machine reaches them as well, and without the link.
        relays: Where relays run.
        bytes_per_second: What the link carries; None where nothing limits it.
    """

    says: str
    brokers: Site = HERE
    relays: Site = HERE
    bytes_per_second: float | None = None
    _link: Wan | None = None

    def crossed(self) -> int | None:
        """Bytes that have come over the link so far, headers and all; None where there is no link."""
        return self._link.counted()[0].bytes if self._link is not None else None


@contextmanager
def far_site(*, mbit_per_second: float, one_way_seconds: float) -> Iterator[FarSite]:
    """The site at the other end of an emulated link where there can be one, else next door.

    Its queue holds what it carries in a round trip.
    """
    with ExitStack() as stack:
        reason = why_not()
        if not reason:
            try:
                link = stack.enter_context(wan(seed=7))
            except (OSError, subprocess.CalledProcessError) as error:
                reason = f"the system does not allow it: {error}"
        yield next_door(reason) if reason else _over(link, mbit_per_second, one_way_seconds)


def _over(link: Wan, mbit_per_second: float, one_way_seconds: float) -> FarSite:
    rate = mbit_per_second * BYTES_PER_MBIT
    link.both(rate=rate, delay_seconds=one_way_seconds, queue_bytes=rate * 2 * one_way_seconds)
    says = f"an emulated link of {mbit_per_second:g} Mbit/s, {one_way_seconds * 1000:g} ms each way"
    return FarSite(says, Site(link.home), Site(link.far, link.inside), rate, link)


def next_door(reason: str) -> FarSite:
    """A site on this machine, where there is no link, and why there is none."""
    return FarSite(f"loopback (no emulated link: {reason})")
