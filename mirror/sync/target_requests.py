"""What the target is asked about its topics, and how long each answer is waited for.

Copying waits for a pass over the topics, so none waits longer than is said here, whatever hangs. A change
that is not answered in time may be made all the same.
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
"""How long a topic just made may take until all its partitions have leaders."""
VISIBLE_PAUSE_SECONDS = 0.05
CHANGE_SECONDS = 3.0
"""How long a change may take: copying does not wait longer for a controller that hangs."""
CREATION_SECONDS = 10.0
"""The same of hundreds of topics that are made with one request."""
PROBE = "twinsite-settings-probe"

T = TypeVar("T")


async def list_topics(target: Cluster, names: Collection[str]) -> ClusterInfo:
    """All topics of the target; those of the names that are not listed are asked for by name.

    A list leaves out what may not be described, as if it did not exist.
    """
    listed = await target.describe_topics(None)
    missing = [name for name in sorted(names) if name not in listed.topics]
    if not missing:
        return listed
    named = await target.describe_topics(missing)
    return replace(listed, topics={**listed.topics, **named.topics}, errors=named.errors)


async def ask_defaults(target: Cluster) -> tuple[dict[str, str] | None, str]:
    """What new topics would get, as far as that may be read; and why it cannot be just now."""
    try:
        asked = topic_defaults(target, PROBE)
        return await _answered(asked, "the question what new topics get"), ""
    except ConnectionFailedError as error:
        return None, str(error)


async def make_topics(target: Cluster, topics: Sequence[NewTopic]) -> dict[str, bool | TwinsiteError]:
    """Make topics, as :func:`mirror.kafka.topics.create_topics` does."""
    return await create_topics(target, topics, timeout_ms=int(CREATION_SECONDS * 1000))


async def add_partitions(target: Cluster, name: str, total: int) -> None:
    """Raise the number of a topic's partitions.

    Raises:
        NotAuthorizedError: That is not allowed.
        BrokerError: The brokers refuse.
        ConnectionFailedError: The target did not say in time whether it does.
    """
    await _answered(create_partitions(target, name, total), f"adding partitions to {name}")


async def change_settings(target: Cluster, name: str, values: Mapping[str, str | None]) -> None:
    """Set settings of a topic; None takes one off.

    Raises:
        NotAuthorizedError: That is not allowed.
        BrokerError: A value is refused.
        ConnectionFailedError: The target did not say in time whether it does.
    """
    await _answered(set_configs(target, name, values), f"a change of settings of {name}")


async def _answered(change: Awaitable[T], what: str) -> T:
    """What the target says to a change.

    Raises:
        ConnectionFailedError: It did not say it in time.
    """
    try:
        async with asyncio.timeout(CHANGE_SECONDS):
            return await change
    except TimeoutError as slow:
        raise ConnectionFailedError(f"target: no answer within {CHANGE_SECONDS:g} s to {what}") from slow


async def wait_until_led(target: Cluster, missing: Mapping[str, int]) -> None:
    """Until these topics have so many partitions with a leader, or for long enough; then the followed are
    looked at.
    """
    end = time.monotonic() + VISIBLE_SECONDS
    while missing and time.monotonic() < end:
        missing = _not_led(await target.describe_topics(missing), missing)
        if missing:
            await asyncio.sleep(VISIBLE_PAUSE_SECONDS)
    await target.refresh()


def _not_led(info: ClusterInfo, wanted: Mapping[str, int]) -> dict[str, int]:
    """Those of the topics that do not have so many partitions yet, or not a leader for each."""
    missing = {}
    for name, count in wanted.items():
        topic = info.topics.get(name)
        led = topic is not None and all(p.leader >= 0 for p in topic.partitions.values())
        if topic is None or len(topic.partitions) < count or not led:
            missing[name] = count
    return missing
