"""Which topics of a source a flow copies: those its lists select, except copies of the target's.

Only with the target is it known which are copies: whether it is the same cluster, which topics it has, and
which of them the flow has begun. If no target is named, or it does not answer, the lists alone count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirror.clusters import connected
from mirror.config import Settings, TopicsSettings
from mirror.errors import TwinsiteError, UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.offline import begun_topics
from mirror.sync.names import HIDDEN, NamePolicy, TopicSelector
from mirror.sync.returning import Returning

PATIENCE_SECONDS = 5.0
"""How long a cluster that does not answer is tried again."""
NO_TARGET = "no target is named: use --config with the mirror's settings"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Topics of a flow, by their names at the source.

    Attributes:
        left_out: How many more the lists select that are copies of the target's; or why that is not known.
    """

    topics: tuple[str, ...]
    left_out: int | str


async def choose(
    source: Cluster, topics: TopicsSettings, flow: Settings | None, say: Callable[[str], None]
) -> Chosen:
    """Choose as a mirror that starts now would. A topic counts as copied while it may be a copy or not.

    Args:
        flow: The flow whose target is asked; None: no target is.
        say: Called with a warning if the target cannot be asked.

    Raises:
        UsageError: The lists want no topic of the source.
        ConnectionFailedError: The source does not answer.
    """
    found = await source.describe_topics(None)
    wanted = _wanted(found, topics)
    if flow is None:
        return Chosen(tuple(wanted), NO_TARGET)
    try:
        left_out = await _copies_of_target(source, found, wanted, topics, flow)
    except TwinsiteError as error:
        say(f"warning: topics that are copies of what the target has are also counted: {error}")
        return Chosen(tuple(wanted), str(error))
    return Chosen(tuple(name for name in wanted if name not in left_out), len(left_out))


def _wanted(found: ClusterInfo, topics: TopicsSettings) -> Mapping[str, str]:
    selector = TopicSelector(topics.include, topics.exclude, NamePolicy(topics.prefix or ""))
    internal = [topic.name for topic in found.topics.values() if topic.internal]
    wanted = selector.select(found.topics, internal=internal).chosen
    if not wanted:
        patterns = ", ".join(topics.include)
        raise UsageError(
            f"none of the {len(found.topics)} topics at the source matches {patterns}",
            hint=f"check topics.include and topics.exclude, or --topics; {HIDDEN}",
        )
    return wanted


async def _copies_of_target(
    source: Cluster, found: ClusterInfo, wanted: Mapping[str, str], topics: TopicsSettings, flow: Settings
) -> set[str]:
    """Those of the topics wanted that the flow is known to leave out."""
    async with connected("target", flow.target, patience_seconds=PATIENCE_SECONDS) as target:
        policy = NamePolicy(topics.prefix or "")
        same_cluster = source.info.cluster_id == target.info.cluster_id
        selector = TopicSelector(topics.include, topics.exclude, policy, same_cluster=same_cluster)
        own = {name for name in wanted if selector.why_not(name) is not None}
        others = {name: copy for name, copy in wanted.items() if name not in own}
        begun = await begun_topics(target, flow.flow) or ()  # it goes on with them, whatever is known by now
        left = await Returning(source, target, policy.prefix).left_out(found, others, begun)
        return own | {name for name, one in left.items() if one.is_known}
