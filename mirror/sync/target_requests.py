"""Requests to the target about its topics, and how long each may take.

Copying waits for a pass over the topics, so no change holds up a pass for longer than the limits here,
whatever hangs. A change that is not answered in time may still be made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.topics import NewTopic, create_partitions, create_topics, set_configs, topic_defaults

VISIBLE_SECONDS = 30.0
"""How long it may take until all partitions of a new topic have leaders."""
VISIBLE_PAUSE_SECONDS = 0.05
CHANGE_SECONDS = 3.0
"""How long a change may take: copying waits no longer for a controller that hangs."""
CREATION_SECONDS = 10.0
"""The same for a request that creates hundreds of topics."""
PROBE = "twinsite-settings-probe"

T = TypeVar("T")


async def list_topics(target: Cluster, names: Collection[str]) -> ClusterInfo:
    """All topics of the target; of ``names``, those that are not listed are asked for by name.

    A list omits topics that may not be described, as if they did not exist.

    Raises:
        ConnectionFailedError: No broker of the target answers.
    """
    listed = await target.describe_topics(None)
    missing = [name for name in sorted(names) if name not in listed.topics]
    if not missing:
        return listed
    named = await target.describe_topics(missing)
    return replace(listed, topics={**listed.topics, **named.topics}, errors=named.errors)


async def ask_defaults(target: Cluster) -> tuple[dict[str, str] | None, str]:
    """The settings that new topics would get, and why they cannot be read for now.

    Returns:
        None for the settings if they may not be read, or the target did not answer in time. The words are
        empty unless it is the latter.
    """
    try:
        asked = topic_defaults(target, PROBE)
        return await _answered(asked, "the request for the settings of new topics"), ""
    except ConnectionFailedError as error:
        return None, str(error)


async def make_topics(target: Cluster, topics: Sequence[NewTopic]) -> dict[str, bool | TwinsiteError]:
    """Make topics, as :func:`mirror.kafka.topics.create_topics` does, in the time for creations."""
    return await create_topics(target, topics, timeout_ms=int(CREATION_SECONDS * 1000))


async def add_partitions(target: Cluster, name: str, total: int) -> None:
    """Raise the number of a topic's partitions.

    Args:
        total: How many it has then; nothing happens if it has as many or more.

    Raises:
        NotAuthorizedError: No ALTER on the topic.
        BrokerError: The brokers refuse.
        ConnectionFailedError: The target did not answer in time; the change may still be made.
    """
    await _answered(create_partitions(target, name, total), f"adding partitions to {name}")


async def change_settings(target: Cluster, name: str, values: Mapping[str, str | None]) -> None:
    """Set settings of a topic; None removes one.

    Raises:
        NotAuthorizedError: No ALTER_CONFIGS on the topic.
        BrokerError: A value is refused; nothing was changed.
        ConnectionFailedError: The target did not answer in time; the change may still be made.
    """
    await _answered(set_configs(target, name, values), f"a change of settings of {name}")


async def _answered(change: Awaitable[T], what: str) -> T:
    """The target's answer.

    Raises:
        ConnectionFailedError: It did not come within ``CHANGE_SECONDS``.
    """
    try:
        async with asyncio.timeout(CHANGE_SECONDS):
            return await change
    except TimeoutError as slow:
        raise ConnectionFailedError(f"target: no answer within {CHANGE_SECONDS:g} s to {what}") from slow


async def wait_until_led(target: Cluster, missing: Mapping[str, int]) -> None:
    """Wait until these topics have so many partitions, all with a leader, but no longer than
    ``VISIBLE_SECONDS``; then read the snapshot of the target again.

    Raises:
        ConnectionFailedError: No broker of the target answers.
    """
    end = time.monotonic() + VISIBLE_SECONDS
    while missing and time.monotonic() < end:
        missing = _not_led(await target.describe_topics(missing), missing)
        if missing:
            await asyncio.sleep(VISIBLE_PAUSE_SECONDS)
    await target.refresh()


def _not_led(info: ClusterInfo, wanted: Mapping[str, int]) -> dict[str, int]:
    """Those of the topics that have fewer partitions than wanted, or one without a leader."""
    missing = {}
    for name, count in wanted.items():
        topic = info.topics.get(name)
        led = topic is not None and all(p.leader >= 0 for p in topic.partitions.values())
        if topic is None or len(topic.partitions) < count or not led:
            missing[name] = count
    return missing
