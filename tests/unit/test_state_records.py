"""What of a flow is written down, and read again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import CorruptStateError
from checkpoint.model import LEADER_EPOCHS_KEPT, FlowRecord, OwnerRecord, PartitionRecord, parse_map_key
from tests.unit.flow_states import FLOW, OWNER, record


def test_records_are_json_that_a_person_can_read() -> None:
    """
    A console consumer is enough to see what a flow believes.
    """
    known = record().with_epochs(((3, 100),)).with_loss(5, 9)

    assert json.loads(known.to_bytes())["leader_epochs"] == [[3, 100]]
    assert json.loads(known.to_bytes())["mode"] == "mapped"
    assert PartitionRecord.from_bytes(known.to_bytes()) == known
    assert FlowRecord.from_bytes(FLOW.to_bytes()) == FLOW
    assert OwnerRecord.from_bytes(OWNER.to_bytes()) == OWNER


def test_an_owner_says_where_it_runs_in_words() -> None:
    """
    What an operator needs to find the process at three in the morning.
    """
    assert OWNER.place == "west-3, process 4711, since 2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "version None"),
        (FLOW.to_bytes().replace(b'"version": 1', b'"version": 2'), "version 2"),
        (FLOW.to_bytes().replace(b'"producer_id"', b'"producer"'), "wrong fields"),
        (FLOW.to_bytes().replace(b'"producer_epoch": 2', b'"producer_epoch": "2"'), "'2' for producer_epoch"),
        (
            FLOW.to_bytes().replace(b'"producer_epoch": 2', b'"producer_epoch": true'),
            "True for producer_epoch",
        ),
    ],
)
def test_a_record_that_is_not_understood_is_refused(data: bytes, words: str) -> None:
    """
    A newer version may mean something else by the same fields.
    """
    with pytest.raises(CorruptStateError, match=words):
        FlowRecord.from_bytes(data)


def test_a_partition_record_of_before_targets_had_ids_is_read() -> None:
    """
    The target's topic is known by its id from when that was written down on.
    """
    fields = json.loads(record().to_bytes())
    del fields["target_topic_id"]

    known = PartitionRecord.from_bytes(json.dumps(fields).encode())

    assert known == record()
    assert known.target_topic_id is None


@pytest.mark.parametrize(
    "changed",
    [
        (b'"mapped"', b'"other"'),
        (b'"8c9ad3c1-', b'"orders-'),
        (b'"target_topic_id": null', b'"target_topic_id": "orders"'),
    ],
)
def test_a_partition_record_with_an_unknown_mode_or_topic_id_is_refused(changed: tuple[bytes, bytes]) -> None:
    """
    Whatever it is, it cannot be copied by the rules of this version.
    """
    with pytest.raises(CorruptStateError, match="cannot be read"):
        PartitionRecord.from_bytes(record().to_bytes().replace(*changed))


def test_only_the_newest_leader_epochs_are_kept() -> None:
    """
    The record stays small however often the source elects.
    """
    known = record().with_epochs(tuple((epoch, epoch * 10) for epoch in range(100)))

    assert len(known.leader_epochs) == LEADER_EPOCHS_KEPT
    assert known.leader_epochs[-1] == (99, 990)
    assert known.with_epochs(((99, 5), (98, 1))) == known


@pytest.mark.parametrize(("offset", "epoch"), [(10, -1), (11, 2), (50, 2), (51, 7), (900, 7)])
def test_the_epoch_of_the_last_record_below_an_offset_is_known(offset: int, epoch: int) -> None:
    """
    The record at the first offset of an epoch is not below it.
    """
    known = record().with_epochs(((2, 10), (7, 50)))

    assert known.epoch_before(offset) == epoch


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=8))
def test_lost_ranges_hold_each_lost_offset_once(losses: list[tuple[int, int]]) -> None:
    """
    However often the same loss is noted, before or after a crash.
    """
    known, lost = record(), set[int]()

    for begin, count in losses:
        known = known.with_loss(begin, begin + count)
        lost |= set(range(begin, begin + count))

    noted = [offset for begin, end in known.lost for offset in range(begin, end)]
    assert noted == sorted(lost)


@pytest.mark.parametrize("key", ["map/t/0", "map/t/x/0", "map/t/0/-1", "other/t/0/0"])
def test_a_key_that_makes_no_sense_is_refused(key: str) -> None:
    """
    It is not the state of a flow.
    """
    with pytest.raises(CorruptStateError, match="invalid key"):
        parse_map_key(key)
