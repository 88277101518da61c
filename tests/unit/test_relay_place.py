"""What an answer of its broker makes of the place where a partition is read next, without a broker."""

from __future__ import annotations

import pytest

from mirror.broker_codes import CORRUPT_MESSAGE
from mirror.kafka.fetch import Fetched, Isolation, Key
from mirror.link.parts import ASTRAY
from mirror.link.protocol import Channel
from mirror.relay.place import (
    LIVE_BYTES_LEFT_MAX,
    LIVE_SECONDS_MAX,
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
    channel: Channel = Channel.BULK,
    *,
    isolation: Isolation = Isolation.READ_COMMITTED,
    spare: int = 1 << 20,
    at: float = 0.0,
) -> Asked:
    """``at``: when the answer has come, in seconds."""
    return Asked(channel, isolation, ASKED_BYTES, spare, int(at * 1e6))


def answered(at: Place, *answers: tuple[Fetched, Asked]) -> list[Then]:
    """What happens next to a partition after each of these."""
    return [taken_in(came, at, how).then for came, how in answers]


def with_left(left_bytes: int) -> Fetched:
    """An answer that is full, and leaves as many bytes more of records as large."""
    much = BATCH + bytes(v2(entries(15, 5))) + bytes(v2(entries(20, 5)))
    end = 25 + left_bytes * 15 // len(much)
    return fetched(much, end=end, stable_end=end)


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


def test_what_is_nearly_there_stays_on_live_however_much_an_answer_brings() -> None:
    """
    Nothing on LIVE waits for its turn. It changes over where more is left than goes before it on BULK.
    """
    at = place()

    near = taken_in(with_left(LIVE_BYTES_LEFT_MAX - 1_000), at, asked(Channel.LIVE))
    far = taken_in(with_left(LIVE_BYTES_LEFT_MAX + 1_000), place(), asked(Channel.LIVE))

    assert (near.then, near.behind, offsets(near)) == (Then.READ_ON, False, (7, 10, 25))
    assert (far.then, far.behind) == (Then.CHANGE_OVER, False)


def test_what_live_cannot_carry_changes_over_after_a_while() -> None:
    """
    However little is left of it, and also where answers are full of others. It does not count for how long
    there was nothing to read, nor what was left before all was read once.
    """
    little, nothing = with_left(1_000), fetched(b"", end=90, stable_end=90)
    live = [asked(Channel.LIVE, at=1_000.0 + part * LIVE_SECONDS_MAX) for part in (0, 0.9, 1.1, 1.9)]
    crowded = [one._replace(spare_bytes=0) for one in live]
    all_there_was = fetched(bytes(v2(entries(25, 5))), end=30, stable_end=30)

    never = answered(place(), (little, live[0]), (nothing, crowded[1]), (nothing, crowded[2]))
    once = answered(
        place(),
        (little, live[0]),
        (all_there_was, live[1]),
        (nothing, crowded[2]),
        (nothing, crowded[3]),
    )

    assert never == [Then.READ_ON, Then.READ_ON, Then.CHANGE_OVER]
    assert once == [Then.READ_ON] * 4


def test_each_is_read_once_before_it_counts_as_behind() -> None:
    """
    Not where an answer was full of others: it would wait for its turn, and nobody know how little it lacks.
    One that was found to be behind stays so.
    """
    full_of_others, read_before = place(), place()
    read_before.behind = True

    nothing = fetched(b"", end=90, stable_end=90)
    crowded = [taken_in(nothing, one, asked(spare=0)) for one in (full_of_others, read_before)]

    assert [(step.then, step.behind) for step in crowded] == [(Then.READ_ON, False), (Then.READ_ON, True)]


def test_only_a_little_is_asked_for_until_something_of_it_was_read() -> None:
    """
    All that are wanted are read once ahead of the ranks, and there may be very many.
    """
    unread, caught_up = place(bytes_max=ASKED_BYTES // 4), place(bytes_max=ASKED_BYTES // 4)

    taken_in(fetched(b"", end=90, stable_end=90), unread, asked(spare=0))
    taken_in(fetched(b"", end=10, stable_end=10), caught_up, asked(spare=0))

    assert (unread.bytes_max, caught_up.bytes_max) == (ASKED_BYTES // 4, ASKED_BYTES)


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
