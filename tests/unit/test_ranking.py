"""Who catches up first: what is lost soonest, then what matters most."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirror.flow import ranking
from mirror.flow.partition import PartitionCopy
from mirror.flow.ranking import (
    DANGER_SECONDS,
    HEADROOM_SECONDS,
    LITTLE_SECONDS,
    NEARLY_SECONDS,
    TOMBSTONES_SECONDS_MIN,
    Ranker,
    Standing,
    TopicClass,
    class_of,
    most_urgent,
    rank_of,
)
from mirror.kafka.fetch import Key
from mirror.model import TopicPartition

classes = st.sampled_from(TopicClass)
borders = st.sampled_from([0.0, *HEADROOM_SECONDS, math.inf])
headrooms = st.one_of(st.none(), borders, borders.map(lambda border: max(border - 1, 0)), st.floats(0, 1e8))
lags = st.one_of(st.none(), st.sampled_from([0.001, NEARLY_SECONDS, LITTLE_SECONDS, 1e6]), st.floats(0, 1e8))
DAYS = 3 * 86_400.0


def is_soon(headroom: float | None) -> bool:
    """Whether something is lost within ten minutes."""
    return headroom is not None and headroom < HEADROOM_SECONDS[0]


@given(classes, classes, headrooms, headrooms, lags)
def test_danger_goes_before_class_and_class_before_headroom(
    one: TopicClass, other: TopicClass, left: float | None, more: float | None, lag: float | None
) -> None:
    """
    Within a class the one that is lost sooner is never the later one, if both lag as much.
    """
    rank, than = rank_of(one, Standing(lag, left)), rank_of(other, Standing(lag, more))
    if lag is not None and lag <= NEARLY_SECONDS and not is_soon(left) and not is_soon(more):
        assert rank == than
        return
    in_danger = left is not None and left < DANGER_SECONDS
    other_is = more is not None and more < DANGER_SECONDS

    assert 0 <= rank <= 255
    if in_danger and not other_is:
        assert rank < than
    if not in_danger and not other_is and one < other:
        assert rank < than
    if one == other and left is not None and (more is None or left <= more):
        assert rank <= than


@given(classes, classes, headrooms, headrooms, lags)
def test_what_is_nearly_there_waits_only_for_what_is_lost_within_minutes(
    one: TopicClass, other: TopicClass, left: float | None, more: float | None, lag: float | None
) -> None:
    """
    It was caught up two minutes ago, and soon is again. Of what is not known so much is not assumed.
    """
    assume(not is_soon(left))
    nearly = rank_of(one, Standing(NEARLY_SECONDS, left))
    rank = rank_of(other, Standing(lag, more))

    assert (rank < nearly) == is_soon(more)
    assert (nearly == rank) == (not is_soon(more) and lag is not None and lag <= NEARLY_SECONDS)


@given(classes, classes, headrooms, headrooms)
def test_what_lags_little_goes_before_what_lags_for_days(
    one: TopicClass, other: TopicClass, left: float | None, more: float | None
) -> None:
    """
    Unless that is about to be lost, or the settings say otherwise.
    """
    little, days = rank_of(one, Standing(LITTLE_SECONDS, left)), rank_of(other, Standing(DAYS, more))
    in_danger = more is not None and more < DANGER_SECONDS

    assert in_danger or other < one or little < days


def test_classes_are_whole_names() -> None:
    """
    As everywhere in the settings.
    """
    first, last = [r"orders\..*", "payments"], [r".*\.log", r"orders\.old"]

    assert class_of("orders.eu", first, last) is TopicClass.FIRST
    assert class_of("payments", first, last) is TopicClass.FIRST
    assert class_of("orders.old", first, last) is TopicClass.FIRST
    assert class_of("a.log", first, last) is TopicClass.LAST
    assert class_of("a.logs", first, last) is TopicClass.OTHER


@pytest.mark.parametrize(
    ("retention", "tombstones", "counts"),
    [
        pytest.param(None, None, None, id="nothing known"),
        pytest.param(7_200.0, None, 7_200.0, id="not compacted"),
        pytest.param(None, 7_200.0, 7_200.0, id="retention not known"),
        pytest.param(math.inf, 7_200.0, 7_200.0, id="compacted only"),
        pytest.param(86_400.0, 7_200.0, 7_200.0, id="tombstones go first"),
        pytest.param(3_000.0, 7_200.0, 3_000.0, id="records go first"),
        pytest.param(math.inf, 0.0, TOMBSTONES_SECONDS_MIN, id="may be gone already"),
        pytest.param(60.0, 0.0, 60.0, id="records go for certain"),
    ],
)
def test_a_delete_that_would_be_missed_is_as_urgent_as_a_record_that_would_be_lost(
    retention: float | None, tombstones: float | None, counts: float | None
) -> None:
    """
    The sooner of both counts, but for what retention will take within half an hour: a tombstone may be there
    or not.
    """
    assert most_urgent(retention, tombstones) == counts


def test_tombstones_that_may_be_gone_wait_for_records_that_will_be() -> None:
    """
    They go before all that is in no danger, whatever the settings say of topics.
    """
    deletes = rank_of(TopicClass.LAST, Standing(DAYS, most_urgent(math.inf, 0.0)))
    records = rank_of(TopicClass.LAST, Standing(DAYS, 1_700.0))

    assert records < deletes < rank_of(TopicClass.FIRST, Standing(DAYS, DANGER_SECONDS))


def test_of_what_is_in_danger_the_first_to_be_lost_goes_first_whatever_the_settings_say() -> None:
    """
    A few minutes are left to one, half an hour to the other; with about as much left it is the settings.
    """
    minutes, more, half_an_hour = (Standing(DAYS, seconds) for seconds in (300.0, 500.0, 2_000.0))

    assert rank_of(TopicClass.LAST, minutes) < rank_of(TopicClass.FIRST, half_an_hour)
    assert rank_of(TopicClass.FIRST, more) < rank_of(TopicClass.LAST, minutes)


async def test_partitions_are_ranked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nobody asks for it.
    """
    monkeypatch.setattr(ranking, "RANK_SECONDS", 0.001)
    orders_0 = TopicPartition("orders", 0)
    copy = PartitionCopy(orders_0, orders_0, b"orders".ljust(16), in_flight_max=5)
    told: asyncio.Queue[int] = asyncio.Queue()
    standing = {copy: Standing(None, 60.0)}
    ranker = Ranker([], [], standing.__getitem__, lambda ranks: told.put_nowait(ranks[copy.key]))

    running = asyncio.create_task(ranker.run(lambda: [copy]))
    async with asyncio.timeout(5):
        soon = await told.get()
        standing[copy] = Standing(None, math.inf)
        never = await told.get()
    running.cancel()

    assert soon < never


def test_only_what_has_changed_is_told() -> None:
    """
    A thousand partitions cost nothing while nothing happens.
    """
    names = ("orders", "clicks")
    copies = [
        PartitionCopy(TopicPartition(n, 0), TopicPartition(n, 0), n.encode() * 2, in_flight_max=5)
        for n in names
    ]
    headroom: dict[str, float | None] = {"orders": None, "clicks": None}
    told: list[dict[Key, int]] = []
    ranker = Ranker(
        ["orders"],
        [],
        lambda p: Standing(None, headroom[p.tp.topic]),
        lambda ranks: told.append(dict(ranks)),
    )

    ranker.look(copies)
    ranker.look(copies)
    headroom["clicks"] = 60.0
    ranker.look(copies)

    assert [len(ranks) for ranks in told] == [2, 1]
    assert copies[1].rank < copies[0].rank
    assert told[1] == {copies[1].key: copies[1].rank}


def test_what_is_gone_at_the_source_is_not_ranked() -> None:
    """
    There is nothing of it that could catch up.
    """
    orders_0 = TopicPartition("orders", 0)
    copy = PartitionCopy(orders_0, orders_0, b"orders".ljust(16), in_flight_max=5)
    copy.topic_gone = True
    told: list[dict[Key, int]] = []

    Ranker([], [], lambda _: Standing(None, 60.0), lambda ranks: told.append(dict(ranks))).look([copy])

    assert told == []
