"""Topic ACLs as values: read from a cluster, added to a cluster.

Sources: KIP-140 (requests for ACLs), KIP-290 (prefixed patterns), Kafka's enumerations
``ResourceType``, ``PatternType``, ``AclOperation`` and ``AclPermissionType``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error

ANY = 1
TOPIC = 2
SECURITY_DISABLED = 54
ACLS_AT_ONCE = 1000

PATTERN_TYPES: Mapping[int, str] = {3: "LITERAL", 4: "PREFIXED"}
PERMISSIONS: Mapping[int, str] = {2: "DENY", 3: "ALLOW"}
OPERATIONS: Mapping[int, str] = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
}


@dataclass(frozen=True, slots=True)
class TopicAcl:
    """One ACL binding of a topic pattern, in Kafka's own names (``PREFIXED``, ``READ``, ``ALLOW``).

    Attributes:
        name: A topic, the beginning of topic names (``PREFIXED``), or ``*`` for all topics (``LITERAL``).
        principal: Who, for example ``User:ann``; ``User:*`` is everyone.
        host: From where; ``*`` is anywhere.
    """

    name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


async def describe_topic_acls(cluster: Cluster) -> list[TopicAcl] | None:
    """All topic ACLs of a cluster; None if it has no authorizer.

    Raises:
        NotAuthorizedError: No DESCRIBE on the cluster.
        BrokerError: The cluster refuses for another reason.
    """
    request = DescribeAclsRequest(
        resource_type_filter=TOPIC,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    answer = await cluster.call(request)
    if answer.error_code == SECURITY_DISABLED:
        return None
    if answer.error_code:
        raise broker_error(answer.error_code, f"{cluster.name}: DescribeAcls", answer.error_message)
    return [
        TopicAcl(
            name=resource.resource_name,
            pattern_type=_word(PATTERN_TYPES, resource.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=_word(OPERATIONS, acl.operation),
            permission=_word(PERMISSIONS, acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


async def create_topic_acls(cluster: Cluster, acls: Sequence[TopicAcl]) -> None:
    """Add ACLs, in their order; those that exist already stay as they are.

    A refused ACL does not stop the others: the error is raised after all were tried.

    Raises:
        NotAuthorizedError: No ALTER on the cluster.
        BrokerError: The cluster has no authorizer, or refuses some of them; the error is that of the first.
    """
    refusals: list[TwinsiteError] = []
    for at in range(0, len(acls), ACLS_AT_ONCE):
        some = acls[at : at + ACLS_AT_ONCE]
        answer = await cluster.call_controller(CreateAclsRequest(creations=[_creation(acl) for acl in some]))
        for acl, result in zip(some, answer.results, strict=True):
            if result.error_code:
                what = f"{cluster.name}: adding {acl.permission} {acl.operation} on topic {acl.name}"
                refusals.append(broker_error(result.error_code, what, result.error_message))
    if refusals:
        raise refusals[0]


def _creation(acl: TopicAcl) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=TOPIC,
        resource_name=acl.name,
        resource_pattern_type=_code(PATTERN_TYPES, acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=_code(OPERATIONS, acl.operation),
        permission_type=_code(PERMISSIONS, acl.permission),
    )


def _word(words: Mapping[int, str], code: int) -> str:
    return words.get(code, f"UNKNOWN_{code}")


def _code(words: Mapping[int, str], word: str) -> int:
    return next(code for code, known in words.items() if known == word)
