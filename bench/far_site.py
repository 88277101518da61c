"""The way between the two sites of the demo: a long, narrow link with real TCP on it, or loopback.

Over the link goes what the mirror reads through its relays, and nothing else: brokers of the source run here,
and the relays, which stand in the far site, reach them without it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.harness.node import HERE, Site
from tests.harness.wan import Wan, wan, why_not

MBIT_PER_SECOND, ONE_WAY_SECONDS = 50.0, 0.04
BYTES_PER_SECOND = MBIT_PER_SECOND * 1e6 / 8
QUEUE_BYTES = BYTES_PER_SECOND * 2 * ONE_WAY_SECONDS
"""What the link carries in a round trip may wait in front of it."""


@dataclass(frozen=True, slots=True)
class FarSite:
    """Where the source is, seen from the mirror.

    Attributes:
        says: What lies between, in words.
        brokers: Where the source's brokers run.
        relays: The address on which relays listen.
        inside: What a relay's command is put behind.
        bytes_per_second: What the link carries; None where nothing limits it.
    """

    says: str
    brokers: Site = HERE
    relays: str = HERE.host
    inside: Sequence[str] = ()
    bytes_per_second: float | None = None
    _link: Wan | None = None

    def crossed(self) -> int | None:
        """Bytes that have come over the link so far, headers and all; None where nobody counts them."""
        return self._link.counted()[0].bytes if self._link is not None else None


@contextmanager
def far_site() -> Iterator[FarSite]:
    """The site at the other end of an emulated link where there can be one, else next door."""
    with ExitStack() as stack:
        reason = why_not()
        if not reason:
            try:
                link = stack.enter_context(wan(seed=7))
            except (OSError, subprocess.CalledProcessError) as error:
                reason = f"the system does not allow it: {error}"
        yield _next_door(reason) if reason else _over(link)


def _over(link: Wan) -> FarSite:
    link.both(rate=BYTES_PER_SECOND, delay_seconds=ONE_WAY_SECONDS, queue_bytes=QUEUE_BYTES)
    says = f"an emulated link of {MBIT_PER_SECOND:g} Mbit/s, {ONE_WAY_SECONDS * 1000:g} ms each way"
    return FarSite(says, Site(link.home), link.far, link.inside, BYTES_PER_SECOND, link)


def _next_door(reason: str) -> FarSite:
    return FarSite(f"loopback (no emulated link: {reason})")
