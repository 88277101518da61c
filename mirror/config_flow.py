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
    """Which topics are copied, under which names, and how the target's topics are maintained."""

    include: tuple[Pattern, ...] = Field(
        min_length=1,
        description="Regular expressions; a topic is copied if one of them matches its whole name. Internal "
        "topics of Kafka and of mirrors are never copied. Nor are copies that a flow from the target has "
        "made, which would go round forever: see states.md, Topics that are left out.",
    )
    exclude: tuple[Pattern, ...] = Field(
        default=(), description="Regular expressions; a topic is not copied if one matches its whole name."
    )
    names: Literal["identity", "prefix"] = Field(
        default="identity",
        description="Names of target topics: the source's (identity), or prefix followed by the source's. A "
        "flow keeps its names: with others it does not start, and needs another flow name.",
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = Field(
        default=None,
        description="For names: prefix, for example east. with the dot. A topic is BLOCKED "
        "(name_not_possible) if the name of its copy would be mistaken for that of an internal topic, or be "
        "longer than 249 characters.",
    )
    create: Flag = Field(
        default=True,
        description="Whether missing target topics are created, and partitions added to those that hold "
        "nothing but this flow's copy.",
    )
    replication_factor: Annotated[Whole, Field(ge=1, le=32)] | None = Field(
        default=None, description="Of topics that the mirror creates; null takes the source's."
    )
    replication_factor_capped: Flag = Field(
        default=False,
        description="Whether a factor above the number of target brokers is lowered to that number; if not, "
        "it is refused. Brokers that are down at that moment do not count, and the topic keeps the factor; "
        "the log warns (setting_left_out).",
    )
    config_exclude: tuple[Pattern, ...] = Field(
        default=CONFIG_EXCLUDE,
        description="Regular expressions; a topic setting is not copied if one matches its whole name. The "
        "default is that of MirrorMaker 2, and tiered storage: throttles and unclean election belong to the "
        "source's brokers, min.insync.replicas to their number, storage to that cluster. Record timestamps "
        "are always kept as they are.",
    )
    sync_configs: Flag = Field(
        default=True,
        description="Whether settings of target topics follow the source's: those that are set on the source "
        "topic, and those on how long records are kept that it has from its brokers. Any other setting is "
        "taken off the target topic, except for what config_exclude names. max.message.bytes is never "
        "lowered. Only topics that hold nothing but this flow's copy are changed: those it created, or that "
        "were empty when it began. Others are left as they are, and the log says so (settings_left_alone).",
    )
    sync_acls: Flag = Field(
        default=False,
        description="Whether ACLs of the copied topics are added at the target, without rights to write. No "
        "ACLs are added for other topics, or where the target topic holds anything but this flow's copy. A "
        "pattern becomes one ACL for each copied topic or, if prefix ends with a separator, one ACL for "
        "names that begin with it.",
    )
    refresh_seconds: Seconds = Field(
        default=10.0, ge=1, le=86400, description="How often the mirror looks for new topics and partitions."
    )

    @model_validator(mode="after")
    def _prefix_when_prefixed(self) -> Self:
        if self.names == "prefix" and self.prefix is None:
            raise ValueError("names: prefix needs prefix, for example east.")
        if self.names == "identity" and self.prefix is not None:
            raise ValueError("prefix has no effect with names: identity; did you mean names: prefix?")
        why_not = why_no_prefix(self.prefix) if self.prefix is not None else None
        if why_not is not None:
            raise ValueError(f"prefix {self.prefix}: {why_not}")
        return self


class OffsetsSettings(Section):
    """How offsets at the target relate to those of the source."""

    mode: Literal["same", "auto", "mapped"] = Field(
        default="same",
        description="same: every record has its source offset, or the partition is refused with the reason. "
        "auto: same where possible, else mapped. mapped: dense offsets and an exact map. `offsets: auto` is "
        "short for `offsets: {mode: auto}`. A partition keeps the mode it began with: a change applies to "
        "partitions that come later or, from same to auto, to those that cannot go on as same. To change the "
        "mode of any other partition, copy its topic again in a flow of another name: delete the old copy "
        "first, or copy to another topic name.",
    )
    gap_limit: Whole = Field(
        default=100_000,
        ge=0,
        le=1_000_000_000,
        description="The most offsets of one gap that are filled with control markers, 78 bytes and 0.1 ms "
        "each. A larger gap blocks the partition (same) or turns it to mapped (auto). A larger loss that was "
        "accepted is filled all the same (same) or turns the partition to mapped (auto).",
    )
    padding_limit: Whole = Field(
        default=1_000_000_000,
        ge=0,
        le=1_000_000_000_000,
        description="The most padding records that are written to make an empty target partition start where "
        "the source's log does. A billion takes a few minutes, and 0.8 GB at the target until they are "
        "deleted. A log that starts further up blocks the partition (same) or turns it to mapped (auto).",
    )


def _mode_alone(value: Any) -> Any:
    """``offsets: auto`` is short for ``offsets: {mode: auto}``."""
    return {"mode": value} if isinstance(value, str) else value


Offsets = Annotated[
    OffsetsSettings,
    BeforeValidator(_mode_alone),
    AlsoTaken({"type": "string", "enum": ["same", "auto", "mapped"]}),
]


NOT_BY_LINK = " With `link` a relay reads with its own bounds."


class ReadSettings(Section):
    """How the source is read."""

    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="read_committed leaves out records of aborted and open transactions; read_uncommitted "
        "copies them like others, and nothing at the target shows that a transaction was aborted: in a "
        "compacted topic such a record can become the newest of its key there.",
    )
    fetch_bytes_max: Bytes = Field(
        default=4 * MIB,
        ge=64 * KIB,
        le=128 * MIB,
        description="The largest answer that a broker may send; no more than limits.buffer_bytes_max."
        f"{NOT_BY_LINK}",
    )
    partition_fetch_bytes_max: Bytes = Field(
        default=MIB,
        ge=16 * KIB,
        le=128 * MIB,
        description="The most of one partition in one answer; no more than read.fetch_bytes_max. Less where "
        f"several partitions are behind and share an answer, more for a batch that is larger.{NOT_BY_LINK}",
    )
    fetch_wait_ms_max: Whole = Field(
        default=500,
        ge=1,
        le=30_000,
        description=f"How long a broker holds an answer back while there is nothing new.{NOT_BY_LINK}",
    )
    connections_per_broker: Whole = Field(
        default=2,
        ge=1,
        le=16,
        description="The most connections over which one broker is read; one is opened for every 16 "
        f"partitions. A broker works on one request of a connection at a time.{NOT_BY_LINK}",
    )


class AppendSettings(Section):
    """How the target is written."""

    request_bytes_max: Bytes = Field(
        default=MIB,
        ge=16 * KIB,
        le=100 * MIB,
        description="The largest request, with batches of many partitions; its last batch may exceed it.",
    )
    batches_in_flight_max: Whole = Field(
        default=5, ge=1, le=5, description="The most unanswered batches of a partition; brokers remember 5."
    )
    requests_in_flight_max: Whole = Field(
        default=5, ge=1, le=100, description="The most unanswered requests on one connection."
    )
    connections_per_broker: Whole = Field(
        default=2,
        ge=1,
        le=16,
        description="The most connections over which one broker is written; one is opened for every 16 "
        "partitions. A partition keeps to one of them. Partitions that are caught up have as many of their "
        "own.",
    )


class LimitsSettings(Section):
    """How much memory batches in flight may use."""

    buffer_bytes_max: Bytes = Field(
        default=32 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="All batches that are fetched and not acknowledged yet.",
    )
    partition_buffer_bytes_max: Bytes = Field(
        default=2 * MIB,
        ge=64 * KIB,
        le=4 * GIB,
        description="The same, of one partition; no more than buffer_bytes_max. Above it nothing more of the "
        "partition is fetched. Through a relay, where stopping wastes what is in flight, the bound is wider: "
        "a partition of which the target acknowledges nothing may have a quarter of the free memory if that "
        "is more, any other partition half of buffer_bytes_max.",
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
        description="Whether /metrics has series for each partition. If false, there are series for each "
        "topic: counts are summed, twinsite_lag_records among them; twinsite_lag_seconds, headroom and "
        "projections show the worst partition; offsets are left out. A thousand partitions make up to 32 000 "
        "series.",
    )
    remote_control: Flag = Field(
        default=False,
        description="Whether pause, resume and accept-loss are accepted from other machines, too. Nobody is "
        "asked for a password: put something in front that does.",
    )


class LogSettings(Section):
    """Log lines go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The lowest level that is logged. With --once on a terminal the default is warning. "
        "reconcile, repair, link test and offsets translate log warnings and errors, whatever it is.",
    )
    format: Literal["json", "console", "auto"] = Field(
        default="auto",
        description="auto is console on a terminal, json elsewhere. It applies to reconcile, repair, link "
        "test and offsets translate, too. reconcile compare has no settings, and logs as with auto.",
    )
