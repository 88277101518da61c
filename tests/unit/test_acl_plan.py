"""Who may read a topic may read its copy; nobody gets a right to change it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import BrokerError
from mirror.kafka.acls import ACLS_AT_ONCE, TopicAcl, create_topic_acls
from mirror.sync.acls import AclPlan, plan_acls
from mirror.sync.names import NamePolicy

TOPICS = ["orders", "orders.eu", "payments"]
INVALID_REQUEST = 42
READ = TopicAcl("orders", "LITERAL", "User:ann", "*", "READ", "ALLOW")


def plan(
    *source: TopicAcl, target: tuple[TopicAcl, ...] = (), prefix: str = "", mirror: str = "User:twinsite"
) -> AclPlan:
    return plan_acls(source, target, TOPICS, NamePolicy(prefix), mirror_principals=[mirror])


def test_a_right_to_read_a_topic_becomes_one_to_read_its_copy() -> None:
    """
    Principal and host stay what they are.
    """
    from_host = replace(READ, host="10.0.0.7")

    assert plan(from_host, prefix="east.").create == (replace(from_host, name="east.orders"),)


@pytest.mark.parametrize("permission", ["ALLOW", "DENY"])
def test_a_prefixed_pattern_stays_one_where_copies_have_a_prefix_of_their_own(permission: str) -> None:
    """
    It goes on to cover topics that come later. With identity names, or a prefix with which other names may
    begin too, it would speak of the target's own topics: it becomes one pattern for each topic copied.
    """
    prefixed = replace(READ, name="ord", pattern_type="PREFIXED", permission=permission)

    assert plan(prefixed, prefix="east.").create == (replace(prefixed, name="east.ord"),)
    assert plan(prefixed).create == tuple(
        replace(prefixed, name=name, pattern_type="LITERAL") for name in ("orders", "orders.eu")
    )
    assert [acl.name for acl in plan(prefixed, prefix="east").create] == ["eastorders", "eastorders.eu"]


@pytest.mark.parametrize(
    "other",
    [
        replace(READ, name="secret"),
        replace(READ, name="sec", pattern_type="PREFIXED"),
        replace(READ, name="orders", pattern_type="UNKNOWN_7"),
    ],
)
def test_bindings_of_what_is_not_copied_are_no_concern(other: TopicAcl) -> None:
    """
    They are neither carried over nor reported.
    """
    assert plan(other) == AclPlan((), ())


@pytest.mark.parametrize("operation", ["WRITE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"])
def test_a_right_to_change_a_topic_is_left_out_and_reported(operation: str) -> None:
    """
    The mirror is the only writer of a copy.
    """
    write = replace(READ, operation=operation)

    made = plan(write)

    assert made.create == ()
    assert made.skipped[0].acl == write
    assert "would let User:ann change the copy" in made.skipped[0].why


@pytest.mark.parametrize("permission", ["ALLOW", "DENY"])
def test_an_operation_of_a_later_kafka_is_left_out_and_reported(permission: str) -> None:
    """
    What it allows or denies is not known here.
    """
    later = replace(READ, operation="UNKNOWN_99", permission=permission)

    made = plan(later)

    assert made.create == ()
    assert made.skipped[0].why == "UNKNOWN_99 is unknown to this version"


def test_a_right_to_everything_becomes_the_rights_to_read_and_to_describe() -> None:
    """
    ALL holds WRITE.
    """
    created = plan(replace(READ, operation="ALL")).create

    assert created == (READ, replace(READ, operation="DESCRIBE"))


@pytest.mark.parametrize("operation", ["READ", "WRITE", "ALL"])
def test_a_denial_stays_a_denial(operation: str) -> None:
    """
    Who was kept out at the source is kept out of the copy.
    """
    denial = replace(READ, operation=operation, permission="DENY")

    assert plan(denial).create == (denial,)


@pytest.mark.parametrize("principal", ["User:*", "User:twinsite"])
def test_a_denial_that_would_stop_the_mirror_is_left_out_and_reported(principal: str) -> None:
    """
    A source that is closed for writing does not close its copy for the mirror.
    """
    denial = replace(READ, principal=principal, operation="WRITE", permission="DENY")

    made = plan(denial)

    assert made.create == ()
    assert made.skipped[0].why == "it would stop the mirror itself"


def test_a_pattern_for_all_topics_opens_the_copies_and_nothing_else() -> None:
    """
    With identity names the target has topics of its own, which the source has no say in.
    """
    everything = replace(READ, name="*")

    assert [(acl.name, acl.pattern_type) for acl in plan(everything).create] == [
        ("orders", "LITERAL"),
        ("orders.eu", "LITERAL"),
        ("payments", "LITERAL"),
    ]
    assert plan(everything, prefix="east.").create == (
        replace(everything, name="east.", pattern_type="PREFIXED"),
    )


def test_only_what_is_missing_is_added() -> None:
    """
    Carrying the plan out makes the next one empty, and what two bindings ask for is added once.
    """
    source = (READ, replace(READ, operation="ALL"), replace(READ, name="*"))

    first = plan(*source).create
    second = plan(*source, target=first).create

    assert len(first) == len(set(first)) == 4
    assert second == ()


def test_who_is_kept_out_is_so_before_others_are_let_in() -> None:
    """
    Bindings are added a request at a time, and one of them may not arrive.
    """
    denials = [replace(READ, principal=f"User:{name}", permission="DENY") for name in ("eve", "mallory")]

    assert plan(READ, denials[0], replace(READ, principal="User:bob"), denials[1]).create == (
        *denials,
        READ,
        replace(READ, principal="User:bob"),
    )


class Controller:
    """Adds bindings but for those of one principal, and notes whose it was asked to add."""

    name = "target"

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.asked: list[str] = []

    async def call_controller(self, request: Any) -> Any:
        principals = [one.principal for one in request.creations]
        self.asked += principals
        codes = [INVALID_REQUEST if principal == self.refused else 0 for principal in principals]
        return SimpleNamespace(results=[SimpleNamespace(error_code=c, error_message="no") for c in codes])


async def test_a_binding_that_is_refused_keeps_no_other_from_being_added() -> None:
    """
    It would be refused again at every pass.
    """
    acls = [replace(READ, principal=f"User:{number}") for number in range(2 * ACLS_AT_ONCE)]
    controller = Controller(refused="User:3")

    with pytest.raises(BrokerError, match="READ on topic orders"):
        await create_topic_acls(cast(Any, controller), acls)

    assert controller.asked == [acl.principal for acl in acls]
