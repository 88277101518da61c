"""What an operator should change about a measured link, in words and in commands.

Pure. Sources: ip-sysctl of the kernel's documentation, tcp(7).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mirror.link.measuring import ROOM, Limit, Measured

WANTED_CONGESTION = "bbr"
HERE, THERE = "here", "on the relay's machine"
BUFFER_CEILING = 1 << 30
"""The largest window of TCP."""
CLOCK_SECONDS_MAX = 1.0
LOSS_MAX = 0.05
QUEUE_SECONDS_MAX = 0.5
QUEUE_TIMES = 3
MIB = 1 << 20
BUFFERS = {"tcp_rmem": "4096 131072", "tcp_wmem": "4096 16384"}
"""The first two of each setting's three numbers, as in the kernel: minimum and initial size in bytes."""


class Advice(NamedTuple):
    """One finding, and its remedy.

    Attributes:
        about: Its subject, in a word.
        where: Where the commands are run, or the settings written; empty if there are none.
        commands: Commands to be run as root, or lines for the settings; empty if neither helps.
    """

    about: str
    words: str
    where: str = ""
    commands: tuple[str, ...] = ()


def advice(link: Measured, window_bytes: int) -> list[Advice]:
    """What holds a link back, and what distorts the figures; empty if nothing does.

    Args:
        window_bytes: The setting ``link.window_bytes``.
    """
    found = (_congestion(link), *_buffers(link), _window(link, window_bytes), *_others(link))
    return [one for one in found if one is not None]


def _congestion(link: Measured) -> Advice | None:
    if link.congestion == WANTED_CONGESTION:
        return None
    words = (
        f"the relay's kernel uses {link.congestion}, which mistakes each lost packet for a full link; "
        f"{WANTED_CONGESTION} does not"
    )
    commands = ["sysctl -w net.ipv4.tcp_congestion_control=bbr"]
    if WANTED_CONGESTION not in (link.congestion_available or ()):
        commands = ["modprobe tcp_bbr", "echo tcp_bbr > /etc/modules-load.d/tcp_bbr.conf", *commands]
    else:
        words += "; bbr is available, but not allowed, or a route sets another one (ip route show)"
    return Advice("congestion", words, THERE, tuple(commands))


def _buffers(link: Measured) -> list[Advice | None]:
    return [
        _buffer(
            link, "receive buffer", "tcp_rmem", HERE, link.receive_buffer_bytes_max, Limit.RECEIVE_BUFFER
        ),
        _buffer(link, "send buffer", "tcp_wmem", THERE, link.send_buffer_bytes_max, Limit.SEND_BUFFER),
    ]


def _buffer(
    link: Measured, name: str, setting: str, where: str, bytes_max: int | None, limit: Limit
) -> Advice | None:
    wanted, limited = link.buffer_bytes_wanted, link.limit is limit
    if wanted is None or not (limited or (bytes_max is not None and bytes_max < wanted)):
        return None
    enough = enough_buffer_bytes(wanted, bytes_max if limited else None)
    held = "it limits the link" if limited else f"the data in flight needs {_bytes(wanted)}"
    words = f"the {name} of a connection may grow to {_bytes(bytes_max)}: {held}"
    return Advice(name, words, where, (f'sysctl -w net.ipv4.{setting}="{BUFFERS[setting]} {enough}"',))


def enough_buffer_bytes(wanted: int, too_small: int | None) -> int:
    """A power of two: at least twice ``wanted``, four times ``too_small`` and 1 MiB; at most 1 GiB."""
    least = max(2 * wanted, 4 * (too_small or 0), MIB)
    return min(1 << (least - 1).bit_length(), BUFFER_CEILING)


def _bytes(count: int | None) -> str:
    return "a size that the kernel does not report" if count is None else f"{count / 1e6:.1f} MB"


def window_wanted_bytes(link: Measured) -> int | None:
    """Bytes of frames that a full link has sent and not taken: a round trip under load; None: not known."""
    if link.rate is None:
        return None
    return math.ceil(link.rate.bytes_per_second * (link.loaded or link.idle).median_seconds)


def _window(link: Measured, window_bytes: int) -> Advice | None:
    wanted = window_wanted_bytes(link)
    if wanted is None or window_bytes >= wanted:
        return None
    words = f"link.window_bytes is {_bytes(window_bytes)}: a full link has {_bytes(wanted)} in flight"
    enough = math.ceil(ROOM * wanted / MIB)
    return Advice("window", words, "in the mirror's settings", (f"link: {{window_bytes: {enough} MiB}}",))


def _others(link: Measured) -> list[Advice | None]:
    return [_programs(link), _loss(link), _queue(link), _clock(link)]


def _programs(link: Measured) -> Advice | None:
    if link.limit is not Limit.PROGRAMS:
        return None
    return Advice("processors", "the link could carry more: the relay or this machine did not keep up")


def _loss(link: Measured) -> Advice | None:
    if link.loss is None or link.loss <= LOSS_MAX:
        return None
    words = (
        f"{link.loss * 100:.1f} % of all segments were retransmitted: the line loses them, or a queue on the "
        "path is too short; it is the queue if --rate-max at four fifths of the rate loses nothing"
    )
    return Advice("loss", words)


def _queue(link: Measured) -> Advice | None:
    idle, loaded = link.idle.median_seconds, link.loaded_wire_seconds
    if loaded is None:
        return None
    if loaded < QUEUE_TIMES * idle or loaded - idle < QUEUE_SECONDS_MAX:
        return None
    words = (
        f"while the link is full, data waits {loaded - idle:.1f} s in a queue on the path: it is too "
        "long, or others fill it too"
    )
    return Advice("queue", words)


def _clock(link: Measured) -> Advice | None:
    off = abs(link.clock.offset_seconds) - link.clock.uncertainty_seconds
    if off <= CLOCK_SECONDS_MAX:
        return None
    words = (
        f"the clocks of both machines differ by {abs(link.clock.offset_seconds):.1f} s: a lag in seconds is "
        "off by as much"
    )
    return Advice("clock", words, "on both machines", ("chronyc tracking",))
