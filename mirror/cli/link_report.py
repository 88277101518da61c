"""What was found out about a link, as a page for people and as a document. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mirror.cli.output import duration, number, plain, size
from mirror.link.advising import Advice, window_wanted_bytes
from mirror.link.expecting import Expected, Production
from mirror.link.measuring import Limit, Measured, Rate, RoundTrips
from mirror.survey.run import Failed, Survey, Surveyed

SCHEMA = 1
BITS = 8
LIMITS = {
    Limit.LINK: "the link itself, or others who use it",
    Limit.RECEIVE_BUFFER: "the receive buffer of this machine",
    Limit.SEND_BUFFER: "the send buffer of the relay's machine",
    Limit.RATE_MAX: "--rate-max, or limits in the settings; the link may carry more",
    Limit.PROGRAMS: "the processors of the relay or of this machine",
}
Rows = Iterator[tuple[str, str]]


# -- the page --------------------------------------------------------------------------------------------


def report(survey: Survey) -> RenderableType:
    """Each link with what to do about it, then what is produced, then what to expect."""
    parts: list[RenderableType] = []
    for one in survey.relays:
        parts += _failed(one) if isinstance(one, Failed) else _link(one)
    parts += _production(survey)
    for one in survey.relays:
        if isinstance(one, Surveyed):
            parts += _expected(one, survey)
    return Group(*parts[1:])


def _failed(one: Failed) -> list[RenderableType]:
    """The command shows why below the page, with the way out."""
    return [Text(), plain(f"relay {one.relay}: not measured", "bold")]


def _link(one: Surveyed) -> list[RenderableType]:
    link = one.link
    head = plain(f"relay {link.relay}, version {link.version}", "bold")
    return [Text(), head, _rows(_figures(link, one.window_bytes)), *_advice(one.advice)]


def _figures(link: Measured, window_bytes: int) -> Rows:
    unknown = link.unknown
    yield "round trip", _trip(link.idle)
    yield "under load", _loaded(link)
    yield "rate", _rate(link.rate) if link.rate else _unknown(unknown["rate"])
    yield "held back by", _unknown(unknown["limit"]) if link.limit is None else LIMITS[link.limit]
    yield (
        "loss",
        _unknown(unknown["loss"])
        if link.loss is None
        else f"{_percent(link.loss)} of segments retransmitted",
    )
    yield "congestion control", link.congestion
    yield "receive window", _window(link)
    yield "receive buffer", _buffer(link, "receive_buffer_bytes_max", "here (net.ipv4.tcp_rmem)")
    yield "send buffer", _buffer(link, "send_buffer_bytes_max", "at the relay (net.ipv4.tcp_wmem)")
    wanted = window_wanted_bytes(link)
    yield "link.window_bytes", size(window_bytes) + ("" if wanted is None else f", {size(wanted)} wanted")
    yield "clock of the relay", _clock(link)
    yield (
        "encrypted",
        "no: anyone on the path can read and change it"
        if link.tls is None
        else f"{link.tls[0]}, {link.tls[1]}",
    )


def _trip(trips: RoundTrips) -> str:
    return f"{_ms(trips.median_seconds)} ({_ms(trips.min_seconds)} to {_ms(trips.max_seconds)})"


def _loaded(link: Measured) -> str:
    if link.loaded is None:
        return _unknown(link.unknown["loaded"])
    wire = link.loaded_wire_seconds
    on_it = _unknown(link.unknown["loaded_wire_seconds"]) if wire is None else f"{_ms(wire)} of it"
    return f"{_trip(link.loaded)}; on the wire {on_it}"


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def _rate(rate: Rate) -> str:
    words = f"{_per_second(rate.bytes_per_second)} ({_bits(rate.bytes_per_second)}) over {rate.seconds:.0f} s"
    if rate.slowest is None or rate.fastest is None:
        return words
    return f"{words}; {_per_second(rate.slowest)} to {_per_second(rate.fastest)} from second to second"


def _per_second(rate: float) -> str:
    return f"{size(rate)}/s"


def _bits(rate: float) -> str:
    bits = rate * BITS
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 1000:
            return f"{bits:.1f} {unit}"
        bits /= 1000
    return f"{bits:.1f} Gbit/s"


def _percent(share: float) -> str:
    return f"{share * 100:.2f} %" if share else "0 %"


def _window(link: Measured) -> str:
    if link.receive_window_bytes is None or link.receive_window_allows is None:
        return _unknown(link.unknown["receive_window_bytes"])
    allows = _per_second(link.receive_window_allows)
    return f"{size(link.receive_window_bytes)} at the end, which allows {allows}"


def _buffer(link: Measured, name: str, where: str) -> str:
    bytes_max, wanted = getattr(link, name), link.buffer_bytes_wanted
    if bytes_max is None:
        return _unknown(link.unknown[name])
    return f"up to {size(bytes_max)} {where}" + ("" if wanted is None else f", {size(wanted)} wanted")


def _clock(link: Measured) -> str:
    offset, uncertainty = link.clock.offset_seconds, _ms(link.clock.uncertainty_seconds)
    if abs(offset) <= link.clock.uncertainty_seconds:
        return f"same as ours, give or take {uncertainty}"
    return f"{_ms(abs(offset))} {'ahead' if offset > 0 else 'behind'}, give or take {uncertainty}"


def _unknown(why: str) -> str:
    return f"? ({why})"


def _advice(advice: tuple[Advice, ...]) -> Iterator[RenderableType]:
    for one in advice:
        yield Padding(plain(f"warning: {one.words}", "yellow"), (0, 0, 0, 2), expand=False)
        if one.commands:
            yield Padding(plain(f"{one.where}:"), (0, 0, 0, 4), expand=False)
            yield from (Padding(plain(command), (0, 0, 0, 6), expand=False) for command in one.commands)


def _production(survey: Survey) -> list[RenderableType]:
    made = survey.production
    if made is None:
        return []
    head = f"production: {_counted(made.topics, 'topic')}, {_counted(made.partitions, 'partition')}"
    return [Text(), plain(head, "bold"), _rows(_produced(made))]


def _produced(made: Production) -> Rows:
    if made.topics_left_out is None:
        yield "left out", _unknown(made.unknown["topics_left_out"])
    elif made.topics_left_out:
        yield "left out", f"{_counted(made.topics_left_out, 'topic')}, as copies of what the target has"
    yield "watched for", duration(made.seconds)
    yield "records", f"{number(made.records_per_second)}/s"
    stored = made.bytes_per_second
    yield (
        "bytes",
        _unknown(made.unknown["bytes_per_second"]) if stored is None else f"{_per_second(stored)} as stored",
    )
    if made.wire_share is None:
        yield "over the link", _unknown(made.unknown["wire_share"])
    else:
        sample = f"sample: {size(made.sample_bytes)} of batches, zstd level 2"
        yield "over the link", f"{_percent(made.wire_share)} of these bytes ({sample})"
    if made.partitions_unknown:
        yield "not counted", f"{number(made.partitions_unknown)} partitions whose ends could not be read"


def _expected(one: Surveyed, survey: Survey) -> list[RenderableType]:
    name = f" through relay {one.link.relay}" if len(survey.relays) > 1 else ""
    return [Text(), plain(f"what to expect{name}", "bold"), _rows(_expectation(one.expected))]


def _expectation(found: Expected) -> Rows:
    if found.limit_bytes_per_second is not None:
        yield "within", f"{_bits(found.limit_bytes_per_second)}, the lowest limit in the settings"
    full = found.lag_while_full_seconds
    meanwhile = "" if full is None else f", {_ms(full)} while something catches up"
    if found.times_production is None or found.carries_bytes_per_second is None:
        yield "keeps up", _unknown(found.unknown["times_production"])
    elif found.too_slow:
        assert found.missing_bytes_per_second is not None
        assert found.lag_growth_seconds_per_hour is not None
        yield "keeps up", f"no: the link is too slow by {_per_second(found.missing_bytes_per_second)}"
        yield "lag", f"grows by {duration(found.lag_growth_seconds_per_hour)} each hour"
        return
    else:
        times = f"{'at least ' if found.at_least else ''}{found.times_production:.1f} times"
        yield "keeps up", f"yes: the link carries {times} what is produced"
    yield "lag", f"{_ms(found.lag_seconds)} on the link{meanwhile}; brokers and disks add to it"
    if found.outage_hour_seconds is not None:
        yield "after an outage", f"of one hour: caught up in {duration(found.outage_hour_seconds)}"


def _counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def _rows(rows: Rows) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, words in rows:
        table.add_row(Text(name), plain(words))
    return Padding(table, (0, 0, 0, 2), expand=False)


# -- the document ----------------------------------------------------------------------------------------


def document(survey: Survey) -> dict[str, Any]:
    """All that was found out; what is not known is null, and ``unknown`` next to it says why."""
    return {
        "schema": SCHEMA,
        "relays": [_relay(one) for one in survey.relays],
        "production": None if survey.production is None else asdict(survey.production),
        "why_no_production": survey.why_no_production or None,
    }


def _relay(one: Surveyed | Failed) -> dict[str, Any]:
    if isinstance(one, Failed):
        return {"relay": one.relay, "error": str(one.error)}
    link = asdict(one.link)
    if one.link.tls is not None:
        link["tls"] = {"version": one.link.tls[0], "cipher": one.link.tls[1]}
    return {
        "relay": link.pop("relay"),
        "error": None,
        **link,
        "window_bytes": one.window_bytes,
        "window_bytes_wanted": window_wanted_bytes(one.link),
        "expected": asdict(one.expected),
        "advice": [advice._asdict() for advice in one.advice],
    }
