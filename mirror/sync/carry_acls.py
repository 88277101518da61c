"""Carry the ACLs of copied topics to the target; :mod:`mirror.sync.acls` decides which."""

from __future__ import annotations

from collections.abc import Collection

from mirror.config import SecuritySettings
from mirror.failpoints import reach
from mirror.kafka.acls import create_topic_acls, describe_topic_acls
from mirror.kafka.cluster import Cluster
from mirror.sync.acls import AclPlan, plan_acls
from mirror.sync.names import NamePolicy


async def carry_acls(
    source: Cluster,
    target: Cluster,
    topics: Collection[str],
    policy: NamePolicy,
    *,
    mirror_principals: Collection[str] = (),
) -> AclPlan | None:
    """Add the ACLs that are missing at the target.

    Args:
        topics: The source topics that are copied.
        mirror_principals: See :func:`mirror.sync.acls.plan_acls`.

    Returns:
        What was added and left out; None if one of the clusters has no authorizer.

    Raises:
        NotAuthorizedError: No DESCRIBE on the source cluster, or no DESCRIBE or ALTER on the target cluster.
        BrokerError: A cluster refuses something else; the other ACLs have been added.
        ConnectionFailedError: A cluster did not answer.
    """
    there = await describe_topic_acls(source)
    here = await describe_topic_acls(target)
    if there is None or here is None:
        return None
    plan = plan_acls(there, here, topics, policy, mirror_principals=mirror_principals)
    if plan.create:
        await create_topic_acls(target, plan.create)
        reach("acls_added")
    return plan


def principals(security: SecuritySettings) -> frozenset[str]:
    """The mirror's own principal at a cluster, by its user name; certificates and tokens are not read."""
    if security.sasl is None or not security.sasl.username:
        return frozenset()
    return frozenset({f"User:{security.sasl.username}"})
