"""What is copied and how: topics, offsets, limits, and the surface of the mirror.

A leaf: it imports only leaves.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mirror.config_values import GIB, KIB, MIB, AlsoTaken, Bytes, Flag, Host, Pattern, Seconds, Section, Whole
from mirror.topic_names import why_no_prefix

CONFIG_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
    r"remote\..*",
    r"local\.retention\..*",
)
"""Those of MirrorMaker 2, and tiered storage: they speak of the source's brokers, replicas and stores."""


class TopicsSettings(Section):
    """Which topics are copied, under which names, and how the target's topics are kept."""

    include: tuple[Pattern, ...] = Field(
        min_length=1,
        description="Regular expressions; a topic is copied when one of them matches its whole name. "
        "Kafka's internal topics and those of mirrors are never copied, nor are copies that a flow from the "
        "target has made, which would go round for ever: see states.md, Topics that are left out.",
    )
    exclude: tuple[Pattern, ...] = Field(
        default=(), description="Regular expressions; a topic whose whole name matches one is not copied."
    )
    names: Literal["identity", "prefix"] = Field(
        default="identity",
        description="Target topics have the source's name, or prefix and that name. A flow keeps its names: "
        "with others it does not start, and wants another name itself.",
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = Field(
        default=None,
        description="For names: prefix, for example east. with the dot. A topic whose copy would be taken "
        "for an internal one, or have a name of more than 249 characters, is BLOCKED (name_not_possible).",
    )
    create: Flag = Field(
        default=True,
        description="Whether missing target topics are made, and partitions added to those that hold nothing "
        "but this flow's copy.",
    )
    replication_factor: Annotated[Whole, Field(ge=1, le=32)] | None = Field(
        default=None, description="Of topics that are made; null takes the source's."
    )
    replication_factor_capped: Flag = Field(
        default=False,
        description="Whether a factor above the number of target brokers is lowered to it, else refused. "
        "Brokers that are down just then do not count, and the topic keeps the factor; the log warns "
        "(setting_left_out).",
    )
    config_exclude: tuple[Pattern, ...] = Field(
        default=CONFIG_EXCLUDE,
        description="Regular expressions; topic settings whose whole name matches one are not taken over. "
        "The default is that of MirrorMaker 2 and tiered storage: throttles and unclean election belong to "
        "the source's brokers, min.insync.replicas to their number, stores to that cluster. Record times are "
        "kept as they are in any case.",
    )
    sync_configs: Flag = Field(
        default=True,
        description="Whether settings of target topics follow the source's: what is set on the source topic "
        "is set, and what it keeps by its brokers' settings. Anything else set on the target topic is "
        "taken off, and config_exclude names what is left alone. max.message.bytes is never lowered. Only "
        "topics that hold nothing but this flow's copy are changed: made by it, or empty when it began. Any "
        "other is left as it is, and the log says so (settings_left_alone).",
    )
    sync_acls: Flag = Field(
        default=False,
        description="Whether ACLs of the topics are added at the target, without rights to write, and of no "
        "other topics, nor where the target topic holds anything but this flow's copy: a pattern becomes one "
        "ACL for each topic copied, or, where prefix ends with a separator, one for names that begin with "
        "it.",
    )
    refresh_seconds: Seconds = Field(
        default=10.0, ge=1, le=86400, description="How often new topics and partitions are looked for."
    )

    @model_validator(mode="after")
    def _prefix_when_prefixed(self) -> Self:
        if self.names == "prefix" and self.prefix is None:
            raise ValueError("names: prefix needs prefix, for example east.")
        if self.names == "identity" and self.prefix is not None:
            raise ValueError("prefix has no effect with names: identity; is names: prefix meant?")
        why_not = why_no_prefix(self.prefix) if self.prefix is not None else None
        if why_not is not None:
            raise ValueError(f"prefix {self.prefix}: {why_not}")
        return self


class OffsetsSettings(Section):
    """How offsets at the target relate to those of the source."""

    mode: Literal["same", "auto", "mapped"] = Field(
        default="same",
        description="same: every record has its source offset, or the partition is refused with the reason. "
        "auto: the same where that can be, else mapped. mapped: dense offsets and an exact map. "
        "`offsets: auto` is short for `offsets: {mode: auto}`. A partition "
        "keeps the mode it began with: a change is for partitions that come later, or, from same to auto, "
        "for those that cannot go on as same. Else a topic is to be copied anew, by a flow of another name, "
        "once the old copy is deleted, or to another name.",
    )
    gap_limit: Whole = Field(
        default=100_000,
        ge=0,
        le=1_000_000_000,
        description="Offsets of one gap that are filled with control markers, 78 bytes and 0.1 ms each; "
        "a larger gap blocks the partition (same) or turns it to mapped (auto). An accepted loss is filled "
        "whatever its size, or turns the partition to mapped (auto).",
    )
    padding_limit: Whole = Field(
        default=1_000_000_000,
        ge=0,
        le=1_000_000_000_000,
        description="Padding records with which an empty target partition is made to start where the "
        "source's log does; a billion takes a few minutes, and 0.8 GB at the target until they are deleted. "
        "A log that starts further up blocks the partition (same) or turns it to mapped (auto).",
    )


def _mode_alone(value: Any) -> Any:
    """``offsets: auto`` is short for ``offsets: {mode: auto}``."""
    return {"mode": value} if isinstance(value, str) else value


Offsets = Annotated[
    OffsetsSettings,
    BeforeValidator(_mode_alone),
    AlsoTaken({"type": "string", "enum": ["same", "auto", "mapped"]}),
]


NOT_BY_LINK = " With `link` a relay reads with bounds of its own."


class ReadSettings(Section):
    """How the source is read."""

    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Whether records of aborted and open transactions are left out or copied like others.",
    )
    fetch_bytes_max: Bytes = Field(
        default=4 * MIB,
        ge=64 * KIB,
        le=128 * MIB,
        description="What one answer of a broker may bring; no more than limits.buffer_bytes_max."
        f"{NOT_BY_LINK}",
    )
    partition_fetch_bytes_max: Bytes = Field(
        default=MIB,
        ge=16 * KIB,
        le=128 * MIB,
        description="What one partition may bring in one answer, no more than read.fetch_bytes_max; less "
        f"where several are behind and share it, more for a batch that is larger.{NOT_BY_LINK}",
    )
    fetch_wait_ms_max: Whole = Field(
        default=500,
        ge=1,
        le=30_000,
        description=f"How long a broker holds a request back when nothing is new.{NOT_BY_LINK}",
    )
    connections_per_broker: Whole = Field(
        default=2,
        ge=1,
        le=16,
        description="Connections over which one broker is read, at most: a further one for every 16 "
        f"partitions. A broker works on one request of a connection at a time.{NOT_BY_LINK}",
    )


class AppendSettings(Section):
    """How the target is written."""

    request_bytes_max: Bytes = Field(
        default=MIB,
        ge=16 * KIB,
        le=100 * MIB,
        description="A request, with batches of many partitions, is full at this size; its last batch may "
        "exceed it.",
    )
    batches_in_flight_max: Whole = Field(
        default=5, ge=1, le=5, description="Unanswered batches of one partition; brokers remember five."
    )
    requests_in_flight_max: Whole = Field(
        default=5, ge=1, le=100, description="Unanswered requests on one connection."
    )
    connections_per_broker: Whole = Field(
        default=2,
        ge=1,
        le=16,
        description="Connections over which one broker is written, at most: a further one for every 16 "
        "partitions. A partition keeps to one of them. What is up to date has as many for itself.",
    )


class LimitsSettings(Section):
    """How much memory may be used for batches on their way."""

    buffer_bytes_max: Bytes = Field(
        default=32 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Batches fetched and not acknowledged, all together.",
    )
    partition_buffer_bytes_max: Bytes = Field(
        default=2 * MIB,
        ge=64 * KIB,
        le=4 * GIB,
        description="Batches of one partition, no more than buffer_bytes_max; beyond it no more is fetched. "
        "Through a relay, where what is on its way by then is sent in vain, a partition of which the target "
        "acknowledges nothing may have a quarter of what is free where that is more, and any other half of "
        "buffer_bytes_max.",
    )


def _off(value: Any) -> Any:
    return -1 if value is None else value


Port = Annotated[Whole, BeforeValidator(_off), AlsoTaken({"type": "null"})]


class ApiSettings(Section):
    """The port for people, probes and Prometheus."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(
        default=9640, ge=-1, le=65535, description="0 takes any free port; null, or -1, turns it off."
    )
    partition_metrics: Flag = Field(
        default=True,
        description="Whether /metrics has a series for each partition; else one for each topic: counts "
        "summed, twinsite_lag_records among them; the worst of twinsite_lag_seconds, headroom and "
        "projections; and no offsets. A thousand partitions make up to 32 000 series.",
    )
    remote_control: Flag = Field(
        default=False,
        description="Whether pause, resume and accept-loss are taken from other machines too: "
        "nobody is asked for a password, put something in front.",
    )


class LogSettings(Section):
    """Log lines go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The least that is logged. With --once on a terminal it is warning where nothing else is "
        "said; reconcile, repair, link test and offsets translate log warnings and errors, whatever it says.",
    )
    format: Literal["json", "console", "auto"] = Field(
        default="auto",
        description="auto is console on a terminal, json elsewhere. It holds for reconcile, repair, link "
        "test and offsets translate, too; reconcile compare is given no settings, and logs as with auto.",
    )
