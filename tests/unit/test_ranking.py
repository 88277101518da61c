"""Who catches up first: what is lost soonest, then what matters most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror.flow.partition import PartitionCopy
from mirror.flow.ranking import DANGER_SECONDS, Ranker, TopicClass, class_of, rank_of
from mirror.kafka.fetch import Key
from mirror.model import TopicPartition

classes = st.sampled_from(TopicClass)
headrooms = st.one_of(st.none(), st.floats(0, 1e8))


@given(classes, classes, headrooms, headrooms)
def test_danger_goes_before_class_and_class_before_headroom(
    one: TopicClass, other: TopicClass, left: float | None, more: float | None
) -> None:
    """
    Within a class the one that is lost sooner is never the later one.
    """
    rank, than = rank_of(one, left), rank_of(other, more)
    in_danger = left is not None and left < DANGER_SECONDS
    other_is = more is not None and more < DANGER_SECONDS

    assert 0 <= rank <= 255
    if in_danger and not other_is:
        assert rank < than
    if not in_danger and not other_is and one < other:
        assert rank < than
    if one == other and left is not None and (more is None or left <= more):
        assert rank <= than


def test_classes_are_whole_names() -> None:
    """
    As everywhere in the settings.
    """
    first, last = [r"orders\..*"], [r".*\.log", r"orders\.old"]

    assert class_of("orders.eu", first, last) is TopicClass.FIRST
    assert class_of("orders.old", first, last) is TopicClass.FIRST
    assert class_of("a.log", first, last) is TopicClass.LAST
    assert class_of("a.logs", first, last) is TopicClass.OTHER


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
    ranker = Ranker(["orders"], [], lambda p: headroom[p.tp.topic], lambda ranks: told.append(dict(ranks)))

    ranker.look(copies)
    ranker.look(copies)
    headroom["clicks"] = 60.0
    ranker.look(copies)

    assert [len(ranks) for ranks in told] == [2, 1]
    assert copies[1].rank < copies[0].rank
    assert told[1] == {copies[1].key: copies[1].rank}
