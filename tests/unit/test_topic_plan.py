"""What is made and changed at the target, and what is refused instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mirror.config import TopicsSettings
from mirror.flow.hints import HINTS
from mirror.model import Reason
from mirror.sync.names import NamePolicy
from mirror.sync.topic_configs import (
    LONG_MAX,
    TopicConfigs,
    config_changes,
    defaults_behind,
    wanted_configs,
)
from mirror.sync.topics import (
    AddPartitions,
    AlterConfigs,
    CreateTopic,
    Note,
    Target,
    TopicFacts,
    TopicPlan,
    plan_topics,
)

DEFAULTS_4 = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
}
DEFAULTS_3_9 = DEFAULTS_4 | {
    "message.downconversion.enable": "true",
    "message.format.version": "3.0-IV1",
    "message.timestamp.after.max.ms": LONG_MAX,
    "message.timestamp.difference.max.ms": LONG_MAX,
}
NOTHING_EXCLUDED: tuple[str, ...] = ()
OWNED = frozenset({"orders"})


def configs(defaults: Mapping[str, str] = DEFAULTS_3_9, **explicit: str) -> TopicConfigs:
    """Settings of a topic; underscores stand for dots."""
    given = {name.replace("_", "."): value for name, value in explicit.items()}
    return TopicConfigs({**defaults, **given}, frozenset(given))


def a_topic(name: str = "orders", partitions: int = 4, factor: int = 1, **explicit: str) -> TopicFacts:
    return TopicFacts(name, partitions, factor, configs(DEFAULTS_3_9, **explicit))


def plan(
    *source: TopicFacts, target: tuple[TopicFacts, ...] = (), brokers: int = 1, **settings: Any
) -> TopicPlan:
    """The plan for these topics on a target of version 4."""
    prefix = settings.get("prefix") or ""
    owned = frozenset(topic.name for topic in target) if settings.pop("owned", True) else frozenset()
    asked = TopicsSettings.model_validate({"include": [".*"], "sync_configs": False} | settings)
    there = Target({topic.name: topic for topic in target}, brokers, DEFAULTS_4, owned=owned, settled=owned)
    return plan_topics(source, there, NamePolicy(prefix), asked)


# -- topics that are made --------------------------------------------------------------------------------


def test_a_missing_topic_is_made_with_the_partitions_and_settings_of_the_source() -> None:
    """
    Only what is set on the topic itself is taken over; the rest is the target's own business.
    """
    made = plan(a_topic(cleanup_policy="compact", retention_ms="1000"))

    assert made == TopicPlan(
        create=(
            CreateTopic(
                "orders",
                partitions=4,
                replication_factor=1,
                configs={
                    "cleanup.policy": "compact",
                    "retention.ms": "1000",
                    "message.timestamp.type": "CreateTime",
                    "message.timestamp.after.max.ms": LONG_MAX,
                },
            ),
        )
    )


def test_a_made_topic_has_the_name_the_policy_gives() -> None:
    """
    With a prefix the copy of orders is east.orders.
    """
    made = plan(a_topic(), names="prefix", prefix="east.")

    assert [topic.name for topic in made.create] == ["east.orders"]


def test_settings_that_belong_to_the_source_cluster_are_not_taken_over() -> None:
    """
    Throttles, elections, replica counts and tiered storage speak of the brokers there.
    """
    source = configs(
        DEFAULTS_4 | {"remote.storage.enable": "false", "local.retention.ms": "-2"},
        leader_replication_throttled_replicas="0:1",
        min_insync_replicas="2",
        unclean_leader_election_enable="true",
        remote_storage_enable="true",
        local_retention_ms="1000",
        retention_ms="5",
    )

    made = plan(TopicFacts("orders", 1, 1, source))

    assert made.create[0].configs.keys() == {
        "retention.ms",
        "message.timestamp.type",
        "message.timestamp.after.max.ms",
    }
    assert made.notes == ()


def test_a_setting_the_target_does_not_know_is_left_out_and_reported() -> None:
    """
    Settings of 3.9 that 4.x has removed do not keep a topic from being made.
    """
    made = plan(a_topic(message_format_version="2.8", message_downconversion_enable="false"))

    why = "the target's version of Kafka does not know it"
    assert made.notes == (
        Note("orders", "message.downconversion.enable", why),
        Note("orders", "message.format.version", why),
    )
    assert not {"message.format.version", "message.downconversion.enable"} & made.create[0].configs.keys()


def test_segments_smaller_than_the_target_takes_are_raised_and_reported() -> None:
    """
    Kafka 4 refuses segment.bytes below 1 MiB; 3.9 does not.
    """
    source = configs(segment_bytes="16384")

    on_4 = wanted_configs(source, DEFAULTS_4, NOTHING_EXCLUDED, replication_factor=1)
    on_3_9 = wanted_configs(source, DEFAULTS_3_9, NOTHING_EXCLUDED, replication_factor=1)

    assert on_4.configs["segment.bytes"] == "1048576"
    assert [setting for setting, _ in on_4.left_out] == ["segment.bytes"]
    assert on_3_9.configs["segment.bytes"] == "16384"
    assert on_3_9.left_out == ()


def test_more_in_sync_replicas_than_replicas_are_not_asked_for() -> None:
    """
    Nothing could ever be written to such a topic.
    """
    source = configs(min_insync_replicas="2")

    on_one = wanted_configs(source, DEFAULTS_4, NOTHING_EXCLUDED, replication_factor=1)
    on_two = wanted_configs(source, DEFAULTS_4, NOTHING_EXCLUDED, replication_factor=2)

    assert "min.insync.replicas" not in on_one.configs
    assert "nothing could be written" in on_one.left_out[0].why
    assert on_two.configs["min.insync.replicas"] == "2"


def test_the_times_of_records_are_kept_whatever_the_source_says() -> None:
    """
    Append times are carried as values; limits on times are opened, those a broker of 3.x still has too.
    """
    source = configs(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")
    narrow = DEFAULTS_3_9 | {
        "message.timestamp.difference.max.ms": "5",
        "message.timestamp.before.max.ms": "5",
    }

    wanted = wanted_configs(source, narrow, ["message.*"], replication_factor=1)

    assert wanted.configs == {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.difference.max.ms": LONG_MAX,
    }


@pytest.mark.parametrize(
    ("defaults", "explicit", "expected"),
    [
        ({"compression.type": "producer"}, {}, None),
        ({"compression.type": "zstd"}, {}, "producer"),
        ({"compression.type": "zstd"}, {"compression_type": "lz4"}, "lz4"),
    ],
)
def test_payloads_stay_as_the_producer_made_them(
    defaults: dict[str, str], explicit: dict[str, str], expected: str | None
) -> None:
    """
    A target that compresses anew would change the bytes, unless the source topic is set to that codec.
    """
    wanted = wanted_configs(
        configs(DEFAULTS_3_9, **explicit), DEFAULTS_4 | defaults, (), replication_factor=1
    )

    assert wanted.configs.get("compression.type") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (configs(DEFAULTS_3_9 | {"max.message.bytes": "9000000"}), "9000000"),
        (configs(DEFAULTS_3_9 | {"max.message.bytes": "1000"}), None),
        (configs(max_message_bytes="2000"), "2000"),
    ],
)
def test_what_fits_into_the_source_topic_fits_into_the_target_topic(
    source: TopicConfigs, expected: str | None
) -> None:
    """
    Also where the source's limit is set on its brokers only.
    """
    wanted = wanted_configs(source, DEFAULTS_4, (), replication_factor=1)

    assert wanted.configs.get("max.message.bytes") == expected


def test_a_limit_of_batches_that_is_excluded_is_left_alone() -> None:
    """
    Neither set on a new topic nor raised on an existing one: larger batches are split.
    """
    source = configs(max_message_bytes="9000000")
    existing = configs(DEFAULTS_4, max_message_bytes="20000")
    exclude = [r"max\.message\.bytes"]

    made = wanted_configs(source, DEFAULTS_4, exclude, replication_factor=1)
    kept = wanted_configs(source, defaults_behind(existing), exclude, replication_factor=1)

    assert "max.message.bytes" not in made.configs
    assert "max.message.bytes" not in config_changes(kept, existing, exclude)


def test_without_sight_of_the_targets_defaults_only_what_every_version_knows_is_set() -> None:
    """
    The right to read settings is not needed to make a topic.
    """
    source = configs(message_format_version="2.8", retention_ms="5")

    wanted = wanted_configs(source, None, (), replication_factor=1)

    assert wanted.configs == {
        "cleanup.policy": "delete",
        "retention.ms": "5",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.after.max.ms": LONG_MAX,
        "compression.type": "producer",
        "max.message.bytes": "1048588",
    }


INHERITED = {"cleanup.policy": "compact,delete", "retention.ms": "2592000000", "delete.retention.ms": "5"}


@pytest.mark.parametrize(
    ("defaults", "exclude", "expected"),
    [
        (DEFAULTS_4 | {"cleanup.policy": "delete", "retention.ms": "604800000"}, (), INHERITED),
        (DEFAULTS_4 | INHERITED, (), {}),
        (None, (), INHERITED),
        (DEFAULTS_4, ("retention.*", "cleanup.policy", "delete.*"), {}),
    ],
    ids=["other defaults", "the same defaults", "unknown defaults", "excluded"],
)
def test_what_a_topic_keeps_by_its_brokers_settings_its_copy_keeps(
    defaults: Mapping[str, str] | None, exclude: tuple[str, ...], expected: dict[str, str]
) -> None:
    """
    A copy that keeps less by the target's own would lose records as they come, and nobody would be told.
    """
    source = TopicConfigs({**DEFAULTS_3_9, **INHERITED})

    wanted = wanted_configs(source, defaults, exclude, replication_factor=1)

    assert {name: value for name, value in wanted.configs.items() if name in INHERITED} == expected


def test_a_limit_of_batches_is_not_lowered() -> None:
    """
    Records from before it was at the source may still be to be copied.
    """
    existing = configs(DEFAULTS_4, max_message_bytes="9000000")
    changes = [
        config_changes(
            wanted_configs(source, defaults_behind(existing), (), replication_factor=1), existing, ()
        )
        for source in (configs(), configs(max_message_bytes="20000"), configs(max_message_bytes="9500000"))
    ]

    assert [change.get("max.message.bytes", "as it is") for change in changes] == [
        "as it is",
        "as it is",
        "9500000",
    ]


def test_a_topic_that_is_to_be_made_to_start_late_keeps_what_it_keeps_until_then() -> None:
    """
    A compacted one would take no padding; the time of its records is looked after all the same.
    """
    source = a_topic(cleanup_policy="compact", retention_ms="5", max_message_bytes="9000000")
    there = TopicFacts("orders", 4, 1, configs(DEFAULTS_4, message_timestamp_type="LogAppendTime"))
    target = Target({"orders": there}, 1, DEFAULTS_4, unprepared=OWNED, owned=OWNED, settled=OWNED)

    planned = plan_topics([source], target, NamePolicy(""), TopicsSettings(include=(".*",)))

    (change,) = planned.alter_configs
    assert change.changes["message.timestamp.type"] == "CreateTime"
    assert change.changes["max.message.bytes"] == "9000000"
    assert not {"cleanup.policy", "retention.ms", "retention.bytes"} & change.changes.keys()


def test_a_compacted_topic_that_is_to_be_made_to_start_late_takes_padding_where_the_source_is_not() -> None:
    """
    What makes it keep more is set at once.
    """
    there = TopicFacts("orders", 4, 1, configs(DEFAULTS_4, cleanup_policy="compact", retention_ms="9"))
    target = Target({"orders": there}, 1, DEFAULTS_4, unprepared=OWNED, owned=OWNED, settled=OWNED)

    planned = plan_topics([a_topic()], target, NamePolicy(""), TopicsSettings(include=(".*",)))

    (change,) = planned.alter_configs
    assert change.changes["cleanup.policy"] == "delete"
    assert "retention.ms" not in change.changes


def test_of_a_topic_that_was_not_looked_at_yet_only_the_time_of_records_is_seen_to() -> None:
    """
    Others may have written to it while no mirror ran; the rest waits for the look.
    """
    source = a_topic(retention_ms="5")
    there = TopicFacts("orders", 4, 1, configs(DEFAULTS_4, message_timestamp_type="LogAppendTime"))
    target = Target({"orders": there}, 1, DEFAULTS_4, owned=OWNED)

    planned = plan_topics([source], target, NamePolicy(""), TopicsSettings(include=(".*",)))

    (change,), (later,) = planned.alter_configs, planned.left_alone
    assert "retention.ms" not in change.changes
    assert change.changes["message.timestamp.type"] == "CreateTime"
    assert later.changes["retention.ms"] == "5"


def test_a_topic_that_was_not_looked_at_yet_keeps_more_at_once_where_it_is_to_be_made_to_start_late() -> None:
    """
    It is not looked at to the end before it takes padding.
    """
    there = TopicFacts("orders", 4, 1, configs(DEFAULTS_4, cleanup_policy="compact", retention_ms="9"))
    target = Target({"orders": there}, 1, DEFAULTS_4, unprepared=OWNED, owned=OWNED)

    planned = plan_topics([a_topic()], target, NamePolicy(""), TopicsSettings(include=(".*",)))

    (change,) = planned.alter_configs
    assert change.changes["cleanup.policy"] == "delete"
    assert "retention.ms" not in change.changes


def test_a_mirror_that_stands_by_makes_what_is_missing_and_changes_nothing() -> None:
    """
    Not even what replaces the time of records, which is put right at once by the one that copies.
    """
    there = TopicFacts("orders", 2, 1, configs(DEFAULTS_4, message_timestamp_type="LogAppendTime"))
    target = Target({"orders": there}, 1, DEFAULTS_4, owned=OWNED, in_turn=False)
    asked = TopicsSettings(include=(".*",))

    planned = plan_topics([a_topic("new"), a_topic(retention_ms="5")], target, NamePolicy(""), asked)

    assert [made.name for made in planned.create] == ["new"]
    assert (planned.alter_configs, planned.add_partitions) == ((), ())
    assert [(c.reason, c.first_partition) for c in planned.conflicts] == [(Reason.TARGET_PARTITIONS, 2)]


# -- topics that cannot be made ----------------------------------------------------------------------------


def test_more_replicas_than_brokers_are_refused_with_the_way_out() -> None:
    """
    Fewer replicas than the source has are a decision, not a detail.
    """
    refused = plan(a_topic(factor=3), brokers=2)

    [conflict] = refused.conflicts
    assert refused == TopicPlan(conflicts=(conflict,))
    assert conflict.reason is Reason.REPLICATION_FACTOR
    assert "the source topic has 3 replicas, the target has 2 brokers" in conflict.detail
    assert "topics.replication_factor" in HINTS[conflict.reason]


def test_the_replication_factor_is_lowered_only_where_the_settings_say_so() -> None:
    """
    Either to a number, or to as many as there are brokers.
    """
    capped = plan(a_topic(factor=3), brokers=2, replication_factor_capped=True)
    stated = plan(a_topic(factor=3), brokers=2, replication_factor=1)

    assert [topic.replication_factor for topic in capped.create] == [2]
    assert [topic.replication_factor for topic in stated.create] == [1]
    assert [(note.topic, note.setting) for note in capped.notes] == [("orders", "replication.factor")]
    assert "2 brokers now" in capped.notes[0].why
    assert stated.notes == ()


def test_a_stated_factor_the_brokers_cannot_hold_is_refused_as_such() -> None:
    """
    The sentence names the setting, not the source.
    """
    [conflict] = plan(a_topic(), replication_factor=5).conflicts

    assert "topics.replication_factor asks for 5 replicas" in conflict.detail


def test_a_name_kafka_cannot_tell_from_an_existing_one_is_refused() -> None:
    """
    The broker would refuse it with fewer words.
    """
    [conflict] = plan(a_topic("a.b"), target=(a_topic("east_a_b"),), names="prefix", prefix="east.").conflicts

    assert conflict.reason is Reason.NAME_COLLISION
    assert "east_a_b" in conflict.detail


class Counted(dict[str, TopicFacts]):
    """Topics that count how often one of their names is looked at in passing."""

    looked_at = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.looked_at += 1
            yield name


def test_names_are_held_against_those_of_the_target_once_not_for_each_topic() -> None:
    """
    A flow of thousands of topics begins with all of them missing.
    """
    there = Counted({name: a_topic(name) for name in (f"other-{number}" for number in range(100))})
    missing = [a_topic(f"missing-{number}") for number in range(100)]
    asked = TopicsSettings.model_validate({"include": [".*"]})

    made = plan_topics(missing, Target(there, 1, DEFAULTS_4), NamePolicy(""), asked)

    assert len(made.create) == 100
    assert there.looked_at <= 200


@pytest.mark.parametrize(
    ("name", "prefix", "words"),
    [
        ("_schemas", "_", "internal topic"),
        ("x" * 248, "a.", "250 characters"),
        ("x-internal", "mm2-", "internal"),
    ],
)
def test_a_name_that_is_not_possible_is_the_conflict_of_that_topic_alone(
    name: str, prefix: str, words: str
) -> None:
    """
    Others go on; also where somebody has a topic of that name at the target.
    """
    there = (a_topic("__schemas"),)

    made = plan(a_topic(name), a_topic("orders"), target=there, names="prefix", prefix=prefix)

    [conflict] = made.conflicts
    assert (conflict.topic, conflict.reason) == (name, Reason.NAME_NOT_POSSIBLE)
    assert words in conflict.detail
    assert [topic.name for topic in made.create] == [f"{prefix}orders"]


def test_a_missing_topic_is_named_where_topics_are_not_to_be_made() -> None:
    """
    With how many partitions to make it, too.
    """
    [conflict] = plan(a_topic(partitions=6), create=False).conflicts

    assert conflict.reason is Reason.TARGET_TOPIC_MISSING
    assert "6 partitions" in conflict.detail


# -- topics that are there -----------------------------------------------------------------------------------


def test_an_existing_topic_like_the_source_is_left_alone() -> None:
    """
    A plan without anything in it is the ordinary case.
    """
    assert plan(a_topic(), target=(a_topic(),)) == TopicPlan()


def test_missing_partitions_are_added() -> None:
    """
    Up to the number at the source.
    """
    assert plan(a_topic(partitions=6), target=(a_topic(),)).add_partitions == (AddPartitions("orders", 6),)


def test_missing_partitions_are_a_conflict_of_those_alone_where_nothing_is_to_be_made() -> None:
    """
    The partitions that are there go on.
    """
    refused = plan(a_topic(partitions=6), target=(a_topic(),), create=False)

    [conflict] = refused.conflicts
    assert refused.add_partitions == ()
    assert (conflict.reason, conflict.first_partition) == (Reason.TARGET_PARTITIONS, 4)


def test_more_partitions_than_the_source_are_a_conflict_of_the_whole_topic() -> None:
    """
    Keys would be in other partitions than at the source after a failover.
    """
    [conflict] = plan(a_topic(partitions=2), target=(a_topic(partitions=4),)).conflicts

    assert (conflict.reason, conflict.first_partition) == (Reason.TARGET_PARTITIONS, 0)
    assert "has 4 partitions, the source 2" in conflict.detail


def test_a_target_topic_that_replaces_times_is_refused() -> None:
    """
    Else every record would have a wrong time, in silence.
    """
    [conflict] = plan(a_topic(), target=(a_topic(message_timestamp_type="LogAppendTime"),)).conflicts

    assert conflict.reason is Reason.APPEND_TIMES


def test_settings_of_an_existing_topic_are_not_touched_unless_asked_for() -> None:
    """
    It may be shared with somebody.
    """
    assert plan(a_topic(retention_ms="5"), target=(a_topic(),)).alter_configs == ()


def test_a_topic_the_flow_does_not_own_is_left_alone_whatever_is_asked_for() -> None:
    """
    Its records are somebody's: they must not expire because a source topic of that name is short-lived.
    """
    theirs = a_topic(partitions=2, retention_ms="-1", cleanup_policy="compact")

    made = plan(a_topic(retention_ms="3600000"), target=(theirs,), sync_configs=True, owned=False)

    assert (made.create, made.add_partitions, made.alter_configs) == ((), (), ())
    assert made.left_alone[0].changes["retention.ms"] == "3600000"
    assert [(c.reason, c.first_partition) for c in made.conflicts] == [(Reason.TARGET_PARTITIONS, 2)]


def test_a_topic_the_flow_does_not_own_and_that_replaces_times_is_refused() -> None:
    """
    It is not put right, as one of the flow's own would be.
    """
    theirs = a_topic(message_timestamp_type="LogAppendTime")

    made = plan(a_topic(), target=(theirs,), sync_configs=True, owned=False)

    assert (made.alter_configs, [c.reason for c in made.conflicts]) == ((), [Reason.APPEND_TIMES])


@pytest.mark.parametrize("why", ["source not allowed", "source unread", "held"])
def test_a_topic_of_the_flow_that_replaces_times_and_is_not_put_right_is_refused(why: str) -> None:
    """
    Nothing is changed without the source's settings, nor while the topic is prepared.
    """
    ours = TopicFacts("orders", 4, 1, configs(DEFAULTS_4, message_timestamp_type="LogAppendTime"))
    source = a_topic() if why == "held" else TopicFacts("orders", 4, 1, unread="x" * (why == "source unread"))
    held = OWNED if why == "held" else frozenset[str]()
    target = Target({"orders": ours}, 1, DEFAULTS_4, held=held, owned=OWNED, settled=OWNED)

    made = plan_topics([source], target, NamePolicy(""), TopicsSettings(include=(".*",)))

    assert (made.alter_configs, [c.reason for c in made.conflicts]) == ((), [Reason.APPEND_TIMES])


def test_settings_in_step_are_set_changed_and_taken_off() -> None:
    """
    Excluded ones at the target stay as they are.
    """
    settings = configs(DEFAULTS_4, retention_ms="9", flush_ms="7", min_insync_replicas="2")
    existing = TopicFacts("orders", 4, 2, settings)

    [altered] = plan(
        a_topic(retention_ms="5", cleanup_policy="compact"), target=(existing,), sync_configs=True
    ).alter_configs

    assert altered == AlterConfigs(
        "orders",
        {
            "retention.ms": "5",
            "cleanup.policy": "compact",
            "flush.ms": None,
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": LONG_MAX,
        },
    )


def test_settings_that_are_in_step_need_no_change() -> None:
    """
    Carrying a plan out makes the next one empty.
    """
    source = configs(cleanup_policy="compact", segment_bytes="16384", max_message_bytes="5", retention_ms="1")
    wanted = wanted_configs(source, DEFAULTS_4, NOTHING_EXCLUDED, replication_factor=1)
    existing = TopicConfigs(DEFAULTS_4 | dict(wanted.configs), frozenset(wanted.configs))

    assert config_changes(wanted, existing, NOTHING_EXCLUDED) == {}


@pytest.mark.parametrize(
    "there",
    [
        DEFAULTS_4,
        DEFAULTS_4 | {"compression.type": "zstd", "max.message.bytes": "5"},
        DEFAULTS_3_9 | {"message.timestamp.difference.max.ms": "5"},
    ],
)
def test_settings_come_into_step_in_one_pass_whatever_the_target_had(there: dict[str, str]) -> None:
    """
    The defaults behind what is set on a topic are not to be seen; still nothing goes back and forth.
    """
    source = a_topic(cleanup_policy="compact", retention_ms="1")
    before = configs(there, retention_ms="9", flush_ms="7")

    asked = TopicsSettings(include=(".*",), sync_configs=True)
    first = plan_topics(
        [source],
        Target({"orders": TopicFacts("orders", 4, 1, before)}, 1, owned=OWNED, settled=OWNED),
        NamePolicy(),
        asked,
    )
    after = carried_out(before, there, first.alter_configs[0].changes)
    second = plan_topics(
        [source],
        Target({"orders": TopicFacts("orders", 4, 1, after)}, 1, owned=OWNED, settled=OWNED),
        NamePolicy(),
        asked,
    )

    assert after.values["retention.ms"] == "1"
    assert after.values["compression.type"] == "producer"
    assert int(after.values["max.message.bytes"]) >= 1048588
    assert {after.values[name] for name in after.values if "timestamp.a" in name or "difference" in name} == {
        LONG_MAX
    }
    assert second == TopicPlan()


def carried_out(
    before: TopicConfigs, defaults: Mapping[str, str], changes: Mapping[str, str | None]
) -> TopicConfigs:
    """What a broker answers after the changes."""
    explicit = {name: before.values[name] for name in before.explicit} | dict(changes)
    left = {name: value for name, value in explicit.items() if value is not None}
    return TopicConfigs({**defaults, **left}, frozenset(left))


def test_settings_of_a_topic_that_is_being_prepared_are_held() -> None:
    """
    While a log is made to start at its offset it has settings of its own.
    """
    there = Target({"orders": a_topic()}, 1, DEFAULTS_4, held=OWNED, owned=OWNED, settled=OWNED)
    asked = TopicsSettings(include=(".*",), sync_configs=True)

    made = plan_topics([a_topic(cleanup_policy="compact")], there, NamePolicy(), asked)

    assert made == TopicPlan()


def test_settings_in_step_bring_back_the_times_of_records() -> None:
    """
    A topic that replaces times is not refused, it is put right.
    """
    made = plan(a_topic(), target=(a_topic(message_timestamp_type="LogAppendTime"),), sync_configs=True)

    assert made.conflicts == ()
    assert made.alter_configs[0].changes["message.timestamp.type"] == "CreateTime"


def test_settings_that_may_not_be_read_are_not_guessed() -> None:
    """
    Without DescribeConfigs nothing is altered, and the report says why.
    """
    unreadable = TopicFacts("orders", 4, 1)

    made = plan(unreadable, target=(a_topic(retention_ms="5"),), sync_configs=True)

    assert made.alter_configs == ()
    assert [(note.topic, note.setting) for note in made.notes] == [("orders", "all")]


def test_a_topic_whose_settings_may_not_be_read_is_made_to_lose_nothing() -> None:
    """
    It may be compacted, or kept for ever; what an operator excludes is left to the target.
    """
    unreadable = TopicFacts("orders", 4, 1)

    made = plan(unreadable, config_exclude=[r"retention\.bytes"])

    configs = made.create[0].configs
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", "-1")
    assert "retention.bytes" not in configs
    assert [(note.topic, note.setting) for note in made.notes] == [("orders", "all")]


def test_one_topic_in_conflict_does_not_hold_up_another() -> None:
    """
    The plan speaks of every topic for itself, in the order of names.
    """
    made = plan(a_topic("b"), a_topic("c", factor=9), a_topic("a"))

    assert [topic.name for topic in made.create] == ["a", "b"]
    assert [conflict.topic for conflict in made.conflicts] == ["c"]
