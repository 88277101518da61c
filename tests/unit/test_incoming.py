"""Which topics have come from the target: by what is written down of them, not by their names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from checkpoint.model import FlowRecord, PartitionRecord
from mirror.errors import ConnectionFailedError, NotAuthorizedError
from mirror.flow.other_flows import OtherFlow
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.kafka.offsets import Answers
from mirror.model import OffsetMode, TopicLeftOut, TopicPartition
from mirror.sync.incoming import has_gone_round, judge
from mirror.sync.names import Ignored
from mirror.sync.returning import Returning

STATE = "__twinsite_state.back"
LEADER = PartitionInfo(1, 0, (1,), (1,))


ORIGINAL, ANOTHER, HERE = UUID(int=1), UUID(int=2), UUID(int=3)


def state(
    *copied: str,
    prefix: str | None = "b.",
    shared: bool = False,
    source: str = "target-id",
    at: UUID | None = None,
) -> dict[str, bytes]:
    """What a flow remembers that has copied the first partition of these topics; ``at``: into which topic."""
    named, target_topic_id = "b." if prefix is None else prefix, None if at is None else str(at)
    records = [
        PartitionRecord(t, 0, str(ORIGINAL), f"{named}{t}", OffsetMode.SAME, True, 0, 0, shared=shared)
        for t in copied
    ]
    records = [replace(record, target_topic_id=target_topic_id) for record in records]
    flow = FlowRecord(4000, 0, source, "source-id", 0, prefix)
    return {"flow": flow.to_bytes(), **{record.key: record.to_bytes() for record in records}}


def judged(
    topic: str,
    items: Mapping[str, bytes],
    *,
    copy: str = "",
    there: UUID | None = None,
    partitions: int = 1,
    written: tuple[int, ...] = (),
) -> Ignored | None:
    """Of a topic whose id is HERE; ``there`` is that of the target's topic named like the copy."""
    flow, found = (
        OtherFlow.of("back", items),
        TopicInfo(topic, HERE, False, dict.fromkeys(range(partitions), LEADER)),
    )
    assert flow is not None
    return judge(flow, found, copy_name=copy or f"a.{topic}", there=there, written=written)


def test_what_a_flow_from_the_target_has_written_down_is_not_copied_back() -> None:
    """
    Also when the topic it is a copy of is gone.
    """
    assert judged("b.orders", state("orders")) is Ignored.COPY_OF_TARGET


def test_a_topic_of_ones_own_that_is_called_like_a_copy_is_copied() -> None:
    """
    It holds records, and no flow has written it down: a copy would have been, ahead of its first record.
    """
    assert judged("b.mine", state("orders"), written=(0,)) is None
    assert judged("b.mine", state(), written=(0,)) is None


def test_an_empty_topic_called_like_a_copy_waits_for_what_it_becomes() -> None:
    """
    The other flow may have made it just now. There is nothing in it to copy, whosever it is.
    """
    assert judged("b.new", state("orders")) is Ignored.UNDECIDED
    assert judged("b.new", state()) is Ignored.UNDECIDED
    assert judged("new", state("orders")) is None


def test_a_topic_is_a_copy_only_with_all_its_partitions() -> None:
    """
    Beside a partition that is copied into, another one may hold what exists nowhere else.
    """
    assert judged("b.orders", state("orders"), partitions=2) is Ignored.UNDECIDED
    assert judged("b.orders", state("orders"), partitions=2, written=(0,)) is Ignored.UNDECIDED
    assert judged("b.orders", state("orders"), partitions=2, written=(0, 1)) is None
    assert judged("b.orders", state("orders", shared=True)) is None


@pytest.mark.parametrize("there", [None, ANOTHER])
@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_that_goes_home_is_copied_where_its_original_is_gone(there: UUID | None, shared: bool) -> None:
    """
    That is how a site that has lost its topics is brought back; it makes no further copy.
    """
    copied = state("orders", prefix="", shared=shared, at=HERE)

    assert judged("orders", copied, copy="orders", there=there, written=(0,)) is None
    assert judged("b.orders", state("orders"), copy="b.orders", there=there) is Ignored.COPY_OF_TARGET


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_copy_does_not_go_home_while_its_original_is_there(shared: bool, partitions: int) -> None:
    """
    Each flow would copy what the other has: for ever, or until two records are in one place. So also where
    one partition of it is a copy, or where it held records of others.
    """
    copied = state("orders", prefix="", shared=shared)
    seen = judged("orders", copied, copy="orders", there=ORIGINAL, partitions=partitions, written=(0,))

    assert seen is Ignored.COPY_OF_TARGET


def test_a_topic_both_sites_have_waits_for_what_it_becomes() -> None:
    """
    As long as it is empty: the flow from the target may be about to copy into it.
    """
    begun = state(prefix="")

    assert judged("orders", begun, copy="orders", there=ORIGINAL) is Ignored.UNDECIDED
    assert judged("orders", begun, copy="orders", there=ORIGINAL, written=(0,)) is None
    assert judged("orders", begun, copy="orders") is None


def test_a_topic_made_anew_is_no_copy_though_the_one_before_it_was() -> None:
    """
    Told by its id, where the flow has written it down.
    """
    assert judged("b.orders", state("orders", at=HERE), written=(0,)) is Ignored.COPY_OF_TARGET
    assert judged("b.orders", state("orders"), written=(0,)) is Ignored.COPY_OF_TARGET
    assert judged("b.orders", state("orders", at=ANOTHER), written=(0,)) is None
    assert judged("b.orders", state("orders", at=ANOTHER)) is Ignored.UNDECIDED


def test_names_of_copies_are_known_before_the_first_one_is_made() -> None:
    """
    Of a flow that has not said so, from its first copy on.
    """
    assert judged("b.new", state(prefix=None)) is None
    assert judged("b.new", state("orders", prefix=None)) is Ignored.UNDECIDED
    assert OtherFlow.of("back", {}) is None


@pytest.mark.parametrize(
    ("topic", "gone_round"),
    [("b.a.b.a.t", True), ("b.a.b.a.b.t", True), ("b.a.t", False), ("b.a.b.a.x", False), ("t", False)],
)
def test_a_name_that_has_gone_round_twice_is_the_sign_where_nothing_may_be_read(
    topic: str, gone_round: bool
) -> None:
    """
    Once may be somebody's choice: archive.eu.orders beside orders.
    """
    topics = {"t", "b.a.t", "b.t", "b.a.b.t", "b.a.b.a.t", "b.a.b.a.x"}

    assert has_gone_round(topic, topics, "a.") is gone_round
    assert not has_gone_round(topic, topics, "")


# -- read at the source ----------------------------------------------------------------------------


class Source:
    """A source with a few topics, at which flows keep what they remember.

    Attributes:
        there: The topics of the target, and their ids.
        hidden: Those of the target that may not be described.
        written_at_ms: When what flows remember was written last.
        hangs: Whether nobody says where what they remember ends.
    """

    name = "source"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: str, prefix: str = "a.") -> None:
        self.prefix = prefix
        self.there: dict[str, UUID] = {}
        self.hidden: set[str] = set()
        self.stored: dict[str, bytes] | None = {}
        self.written_at_ms = int(time.time() * 1000)
        self.loads = 0
        self.hangs = False
        self.ends: dict[str, int] = {}
        self.topics = {name: TopicInfo(name, uuid4(), False, {0: LEADER}) for name in (STATE, *topics)}
        self.info = ClusterInfo("target-id", 1, {}, {})
        self.returning = Returning(self, self, prefix)  # type: ignore[arg-type]
        monkeypatch.setattr("mirror.flow.other_flows.TopicStore", lambda _: self)
        monkeypatch.setattr("mirror.flow.other_flows.TopicLog", lambda *_, **__: self)
        monkeypatch.setattr("mirror.sync.returning.list_offsets", self.list_offsets)

    async def load(self) -> dict[str, bytes]:
        self.loads += 1
        if self.stored is None:
            raise NotAuthorizedError("source: Fetch: TOPIC_AUTHORIZATION_FAILED")
        return self.stored

    async def describe_topics(self, names: Collection[str]) -> ClusterInfo:
        found = {name: TopicInfo(name, self.there[name], False, {}) for name in names if name in self.there}
        errors = {name: NotAuthorizedError(f"no DESCRIBE on {name}") for name in self.hidden}
        return replace(self.info, topics=found, errors=errors)

    async def end(self) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        return 1

    def follow(self, topics: Collection[str]) -> None:
        assert STATE not in topics

    async def refresh(self) -> None:
        """Leaders are known."""

    async def list_offsets(self, _: object, tps: Collection[TopicPartition], __: int) -> Answers[int]:
        unknown = ConnectionFailedError("no leader")
        return {tp: self.ends.get(tp.topic, unknown) for tp in tps}

    async def left_out(self, *begun: str) -> dict[str, TopicLeftOut]:
        wanted = {name: f"{self.prefix}{name}" for name in self.topics if name != STATE}
        return await self.returning.left_out(ClusterInfo("source-id", 1, {}, self.topics), wanted, begun)


async def test_a_copy_is_named_once_with_its_reason_and_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    As long as the flow's state is there, or may come back; without it, the copy is a topic like any other.
    """
    source = Source(monkeypatch, "b.orders", "audit")
    source.stored = state("orders")

    with capture_logs() as logs:
        first = await source.left_out()
        again = await source.left_out("audit")

    detail = "flow back has copied it from the target, where it is called orders"
    assert first == again == {"b.orders": TopicLeftOut("b.orders", "copy_of_target", detail)}
    assert [(line["event"], line["topic"]) for line in logs] == [("topic_left_out", "b.orders")]
    assert source.loads == 1

    del source.topics[STATE]
    assert await source.left_out("audit") == first
    monkeypatch.setattr("mirror.flow.other_flows.KEPT_SECONDS", 0.0)
    assert await source.left_out("audit") == {}


async def test_a_flow_whose_state_topic_was_made_again_is_known_until_it_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Or for long enough to say that nobody writes it any more. Once it is written it is settled again.
    """
    source = Source(monkeypatch, "b.orders", "audit")
    source.stored, source.ends = state("orders"), {"b.orders": 3, "audit": 3}
    before = await source.left_out("audit")

    source.topics[STATE], source.stored = TopicInfo(STATE, uuid4(), False, {0: LEADER}), {}
    empty = [await source.left_out("audit"), await source.left_out("audit")]
    source.stored = state("orders")
    written = await source.left_out("audit")
    loads = source.loads
    settled = await source.left_out("audit")
    last_loads = source.loads

    source.topics[STATE], source.stored = TopicInfo(STATE, uuid4(), False, {0: LEADER}), {}
    once_more = await source.left_out("audit")
    monkeypatch.setattr("mirror.flow.other_flows.KEPT_SECONDS", 0.0)
    over = await source.left_out("audit")

    assert before.keys() == {"b.orders"}
    assert [*empty, written, settled, once_more] == [before] * 5
    assert last_loads == loads
    assert over == {}


async def test_a_copy_goes_home_once_its_original_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While that is there the way out is named, once, and it is looked at anew at each pass.
    """
    source = Source(monkeypatch, "orders", prefix="")
    source.stored, source.there = state("orders", prefix=""), {"orders": ORIGINAL}

    with capture_logs() as logs:
        before = [await source.left_out(), await source.left_out()]
    source.there = {"orders": ANOTHER}
    after = await source.left_out()

    assert [one["orders"].reason for one in before] == ["copy_of_target", "copy_of_target"]
    assert "to copy it back, delete the original first" in before[0]["orders"].detail
    assert [line["event"] for line in logs] == ["topic_left_out"]
    assert after == {}


async def test_a_copy_does_not_go_home_where_its_original_may_not_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is not taken for gone. What no flow from the target has begun is copied, and says itself what it lacks.
    """
    source = Source(monkeypatch, "orders", "audit", prefix="")
    source.stored, source.ends = state("orders", prefix=""), {"orders": 3, "audit": 3}
    source.hidden = {"orders", "audit"}

    before = await source.left_out()
    source.hidden = set()
    after = await source.left_out()

    assert {name: one.reason for name, one in before.items()} == {"orders": "not_known"}
    assert "no DESCRIBE on orders" in before["orders"].detail
    assert after == {}


async def test_a_topic_that_the_flow_has_begun_is_copied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nothing drops out of a copy that is under way; where nothing is new nothing is read.
    """
    source = Source(monkeypatch, "b.orders")
    source.stored = state("orders")

    assert await source.left_out("b.orders") == {}
    assert source.loads == 0


async def test_an_empty_topic_is_looked_at_until_it_is_known_whose_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    One gets records that no flow has written down, one is written down, of one nobody can tell yet.
    """
    source = Source(monkeypatch, "b.mine", "b.orders", "b.away")
    source.stored = state()
    source.ends = {"b.mine": 0, "b.orders": 0}

    before = await source.left_out()
    source.stored, source.ends = state("orders"), {"b.mine": 3, "b.orders": 3}
    after = await source.left_out()

    assert {one.reason for one in before.values()} == {"undecided"}
    assert before.keys() == {"b.mine", "b.orders", "b.away"}
    assert {name: one.reason for name, one in after.items()} == {
        "b.orders": "copy_of_target",
        "b.away": "undecided",
    }


async def test_flows_from_elsewhere_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What came from a third cluster is not at the target yet.
    """
    source = Source(monkeypatch, "b.orders")
    source.stored = state("orders", source="third-id")

    assert await source.left_out() == {}


async def test_a_state_that_may_not_be_read_is_named_and_keeps_no_topic_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A name that has gone round twice is left out all the same, loudly.
    """
    source = Source(monkeypatch, "t", "b.a.t", "b.a.b.a.t")
    source.stored = None

    with capture_logs() as logs:
        left_out = await source.left_out()

    assert {name: one.reason for name, one in left_out.items()} == {"b.a.b.a.t": "gone_round"}
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("copies_not_known", "warning"),
        ("topic_left_out", "warning"),
    ]


async def test_nothing_is_begun_while_a_state_is_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What was begun is copied on, whatever it is. Once the leader answers it is known which is a copy.
    """
    monkeypatch.setattr("mirror.flow.other_flows.ANSWER_SECONDS", 0.05)
    source = Source(monkeypatch, "b.orders", "audit", "begun")
    source.stored, source.ends = state("orders"), {"b.orders": 3, "audit": 3}
    source.hangs = True

    before = await asyncio.wait_for(source.left_out("begun"), 5)
    source.hangs = False
    after = await source.left_out("begun")

    assert {name: one.reason for name, one in before.items()} == dict.fromkeys(
        ("b.orders", "audit"), "not_known"
    )
    assert "no answer from a leader of __twinsite_state.back-0" in before["audit"].detail
    assert {name: one.reason for name, one in after.items()} == {"b.orders": "copy_of_target"}


async def test_nothing_is_begun_while_a_state_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its topic was deleted: what is there of it does not say yet from where the flow copies.
    """
    source = Source(monkeypatch, "b.orders", "audit")
    whole, source.ends = state("orders"), {"b.orders": 3, "audit": 3}
    source.stored = {key: value for key, value in whole.items() if key != "flow"}

    before = await source.left_out()
    source.stored = whole
    after = await source.left_out()

    assert {name: one.reason for name, one in before.items()} == dict.fromkeys(
        ("b.orders", "audit"), "not_known"
    )
    assert {name: one.reason for name, one in after.items()} == {"b.orders": "copy_of_target"}


async def test_what_is_left_of_a_state_since_yesterday_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A mirror has died while it wrote it. The first look says so, as a single copy has no other.
    """
    source = Source(monkeypatch, "b.orders")
    source.stored, source.ends = {"owner": b"there"}, {"b.orders": 3}
    source.written_at_ms -= 24 * 3600 * 1000

    assert await source.left_out() == {}


async def test_a_state_of_which_no_leader_answers_any_more_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It may be without one for hours. What was known of the flow is known still.
    """
    monkeypatch.setattr("mirror.flow.other_flows.ANSWER_SECONDS", 0.05)
    source = Source(monkeypatch, "b.orders", "audit")
    source.stored = state("orders")
    before = await source.left_out("audit")
    source.hangs = True

    with capture_logs() as logs:
        left_out = await asyncio.wait_for(source.left_out(), 5)

    assert left_out == before != {}
    assert [line["event"] for line in logs] == ["copies_not_known"]
    assert "no answer from a leader of __twinsite_state.back-0" in logs[0]["error"]
