"""Which topics of a real source a mirror chooses, and that nothing of the others is at the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from mirror.topic_names import STATE_TOPIC_PREFIX
from tests.conftest import TopicFactory
from tests.faults.flows import once
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Finished, twinsite

pytestmark = pytest.mark.timeout(120)

OF_KAFKA = {"__consumer_offsets", "__transaction_state"}


def names(cluster: KafkaCluster) -> set[str]:
    return set(cluster.admin.list_topics(timeout=10).topics)


def groups(cluster: KafkaCluster) -> set[str]:
    return {group.group_id for group in cluster.admin.list_consumer_groups().result().valid}


def copied(done: Finished) -> dict[str, str]:
    """What the topics in the document of a copy are called at the target, by their names at the source."""
    return {p["topic"]: p["target_topic"] for p in done.document["partitions"]}


def commit(cluster: KafkaCluster, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    finally:
        consumer.close()


async def test_what_an_exclusion_names_is_not_copied_and_what_only_begins_so_is(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Patterns are compared with whole names, those that are left out as those that are taken.
    """
    shop = await topic(source, prefix="shop")
    wanted, unwanted = [f"{shop}.eu", f"{shop}.tmp2"], f"{shop}.tmp"
    for name in (*wanted, unwanted):
        await source.create_topic(name, 1)
        load(source.bootstrap, name, json_rows(20, 50))

    done = await twinsite(*once(source, target, rf"{shop}.*,!{shop}\.tmp", shop), work_dir=tmp_path)

    assert done.code == 0, done.stderr
    assert copied(done) == {name: name for name in (shop, *wanted)}
    assert {name for name in names(target) if shop in name} - {f"{STATE_TOPIC_PREFIX}{shop}"} == {
        shop,
        *wanted,
    }
    assert_exact(source.bootstrap, target.bootstrap, wanted)


async def test_internal_topics_are_not_copied_though_all_topics_are_wanted(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What groups have committed and who writes in transactions means nothing on another cluster.
    """
    shop = await topic(source, prefix="shop")
    load_transactions(source.bootstrap, shop, json_rows(20, 50), transactional_id=shop)
    commit(source, shop, shop)
    assert names(source) >= OF_KAFKA
    others = rf"!(?!{shop}|__).*"

    same = await twinsite(*once(source, target, f".*,{others}", shop), work_dir=tmp_path)
    prefix = ("--names", "prefix", "--prefix", f"{shop}-east.")
    prefixed = await twinsite(
        *once(source, target, f".*,{others}", f"{shop}-east", *prefix), work_dir=tmp_path
    )
    named = await twinsite(*once(source, target, ",".join(OF_KAFKA), f"{shop}-internal"), work_dir=tmp_path)

    assert (same.code, prefixed.code) == (0, 0), same.stderr + prefixed.stderr
    assert copied(same) == {shop: shop}
    assert copied(prefixed) == {shop: f"{shop}-east.{shop}"}
    assert {name for name in names(target) if name.startswith(f"{shop}-east.")} == {f"{shop}-east.{shop}"}
    assert shop in groups(source)
    assert shop not in groups(target)
    assert (named.code, named.stdout) == (2, "")
    assert "internal topics, which no mirror copies" in named.stderr
    assert_exact(source.bootstrap, target.bootstrap, [shop])


async def test_a_copy_beside_its_original_is_known_by_its_prefix_and_not_copied_in_turn(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    On one cluster the pattern matches the copy as well: its name leads back to that of the original.
    """
    shop = await topic(source, prefix="shop")
    load(source.bootstrap, shop, json_rows(20, 50))
    wanted = once(source, source, rf"(copy\.)*{shop}", shop, "--names", "prefix", "--prefix", "copy.")

    first, again = [await twinsite(*wanted, work_dir=tmp_path) for _ in range(2)]
    await source.delete_topic(
        f"{STATE_TOPIC_PREFIX}{shop}"
    )  # all who read there look at it, in other tests, too

    assert (first.code, again.code) == (0, 0), first.stderr + again.stderr
    assert copied(first) == copied(again) == {shop: f"copy.{shop}"}
    assert again.document["topics_left_out"] == []
    assert {name for name in names(source) if name.endswith(f".{shop}")} == {f"copy.{shop}"}
    assert_exact(source.bootstrap, source.bootstrap, [shop], rename="copy.{}".format)
