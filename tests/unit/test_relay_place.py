"""What an answer of its broker makes of the place where a partition is read next, without a broker."""

from __future__ import annotations

import pytest

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.kafka.fetch import Fetched, Isolation, Key
from mirror.link.parts import ASTRAY
from mirror.link.protocol import Channel
from mirror.relay.place import (
    PART_BYTES_CEILING,
    ROUTE_TRIES,
    Asked,
    Place,
    Step,
    Then,
    taken_in,
)
from tests.unit.batches import entries, v2

KEY = Key(bytes(16), 3)
NOT_LEADER, OFFSET_OUT_OF_RANGE, STORAGE_ERROR = 6, 1, 56
BATCH = bytes(v2(entries(10, 5)))
ASKED_BYTES = 4 * len(BATCH)


def place(offset: int = 10, *, bytes_max: int = ASKED_BYTES, tries: int = 0) -> Place:
    return Place(number=7, offset=offset, fetched_epoch=2, bytes_max=bytes_max, tries=tries)


def fetched(records: bytes = BATCH, *, end: int = 15, stable_end: int = 15, error_code: int = 0) -> Fetched:
    return Fetched(KEY, error_code, end, stable_end, 0, None, [], memoryview(records))


def asked(
    channel: Channel = Channel.BULK, *, isolation: Isolation = Isolation.READ_COMMITTED, spare: int = 1 << 20
) -> Asked:
    return Asked(channel, isolation, ASKED_BYTES, spare)


def offsets(step: Step) -> tuple[int, int, int]:
    assert step.part is not None
    return step.part.number, step.part.offset, step.part.next_offset


def test_what_is_behind_goes_on_by_bulk_from_where_the_last_batch_ended() -> None:
    """
    A batch that the broker has torn is left out of what goes on, and read again.
    """
    at = place()
    torn = bytes(v2(entries(15, 5)))[:20]

    step = taken_in(fetched(BATCH + torn, end=20, stable_end=20), at, asked())

    assert (step.then, step.behind, offsets(step)) == (Then.READ_ON, True, (7, 10, 15))
    assert step.part is not None
    assert bytes(step.part.fetched.records) == BATCH
    assert at.offset == 15


def test_what_was_read_up_to_its_end_changes_over_to_live() -> None:
    """
    The end is where the mirror may read, and that is not the same for all.
    """
    committed = taken_in(fetched(end=20, stable_end=15), place(), asked())
    uncommitted = taken_in(
        fetched(end=20, stable_end=15), place(), asked(isolation=Isolation.READ_UNCOMMITTED)
    )

    assert (committed.then, committed.behind) == (Then.CHANGE_OVER, False)
    assert (uncommitted.then, uncommitted.behind) == (Then.READ_ON, True)


def test_on_live_a_little_more_is_no_reason_to_change_over() -> None:
    """
    Much more is; nothing on LIVE waits for its turn in any case.
    """
    much = BATCH + bytes(v2(entries(15, 5))) + bytes(v2(entries(20, 5)))

    little = taken_in(fetched(end=90, stable_end=90), place(), asked(Channel.LIVE))
    full = taken_in(fetched(much, end=90, stable_end=90), place(), asked(Channel.LIVE))

    assert (little.then, little.behind) == (Then.READ_ON, False)
    assert (full.then, full.behind, offsets(full)) == (Then.CHANGE_OVER, False, (7, 10, 25))


def test_a_batch_larger_than_what_was_asked_for_is_asked_for_with_twice_the_room() -> None:
    """
    Not where the answer was full of other partitions: it had no room for it.
    """
    alone, among_others = place(), place()

    grown = taken_in(fetched(BATCH[:30]), alone, asked())
    crowded = taken_in(fetched(b""), among_others, asked(spare=ASKED_BYTES - 1))

    assert (grown.then, grown.part, alone.bytes_max) == (Then.READ_ON, None, 2 * ASKED_BYTES)
    assert (crowded.then, offsets(crowded)) == (Then.READ_ON, (7, 10, 10))
    assert among_others.bytes_max == ASKED_BYTES


def test_where_batches_are_large_there_is_room_for_the_next_one() -> None:
    """
    It would be asked for in vain first, each time. Where they are small again there is as much as usual.
    """
    large, at = bytes(v2(entries(10, 5, value=bytes(ASKED_BYTES)))), place(bytes_max=4 * ASKED_BYTES)

    taken_in(fetched(large, end=30, stable_end=30), at, asked())
    with_large = at.bytes_max
    taken_in(fetched(bytes(v2(entries(15, 5))), end=30, stable_end=30), at, asked())

    assert with_large >= len(large)
    assert at.bytes_max == ASKED_BYTES


def test_of_a_batch_too_large_for_any_mirror_the_mirror_is_told() -> None:
    """
    It is not asked for with more and more room for ever.
    """
    step = taken_in(fetched(BATCH[:30]), place(bytes_max=PART_BYTES_CEILING), asked(spare=PART_BYTES_CEILING))

    assert step.then is Then.FORGET
    assert step.part is not None
    assert step.part.fetched.error_code == CORRUPT_MESSAGE


@pytest.mark.parametrize(
    "answer",
    [fetched(b"", error_code=OFFSET_OUT_OF_RANGE), fetched(bytes(80))],
    ids=["an error", "no batch at all"],
)
def test_what_the_mirror_has_to_decide_goes_on_as_it_was_answered(answer: Fetched) -> None:
    """
    Whoever relays it concludes nothing from it, and reads nothing more of the partition.
    """
    at = place()

    step = taken_in(answer, at, asked())

    assert (step.then, step.part and step.part.fetched) == (Then.FORGET, answer)
    assert at.offset == 10


def test_a_partition_that_is_led_elsewhere_is_looked_for_and_the_mirror_told_once() -> None:
    """
    After so many tries its mirror is told what the broker has said, unless to a mirror that means just this.
    """
    moved, broken = fetched(b"", error_code=NOT_LEADER), fetched(b"", error_code=STORAGE_ERROR)

    first = taken_in(moved, place(), asked())
    again = [taken_in(moved, place(tries=tries), asked()) for tries in (1, ROUTE_TRIES)]
    at_last = taken_in(broken, place(tries=ROUTE_TRIES), asked())

    assert first.part is not None
    assert (first.then, first.part.fetched.error_code) == (Then.LOOK_AGAIN, ASTRAY)
    assert again == [Step(Then.LOOK_AGAIN, None)] * 2
    assert (at_last.then, at_last.part and at_last.part.fetched) == (Then.FORGET, broken)
