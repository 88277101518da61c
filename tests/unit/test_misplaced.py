"""The first eight bytes of a batch say where it belongs. No CRC covers them: every bit of them may rot."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import CorruptBatchError, EarlyBatchError, MisplacedBatchError
from mirror.flow.intake import Intake, take
from mirror.flow.misplaced import Asked
from mirror.model import Batch, Gap
from tests.unit.batches import OLD_CODECS, Codec, Entry, Magic, entries, old, read_v2, v2

BITS = range(64)
BEGIN, EACH, COUNT = 40, 10, 5
END = BEGIN + COUNT * EACH
"""A log of five batches of ten records each, which nobody has compacted."""
BATCHES = [entries(first, EACH) for first in range(BEGIN, END, EACH)]
RECORDS = [record for batch in BATCHES for record in batch]
NO_LIMIT = 1 << 30
REFUSALS = {MisplacedBatchError, EarlyBatchError, CorruptBatchError}


def sound() -> list[memoryview]:
    return [v2(records) for records in BATCHES]


def rotten(batches: Sequence[memoryview], number: int, bit: int) -> list[memoryview]:
    """The same batches, of which one says that it is somewhere else."""
    copy = memoryview(bytearray(batches[number]))
    [base_offset] = struct.unpack_from(">Q", copy)
    struct.pack_into(">Q", copy, 0, base_offset ^ 1 << bit)
    return [copy if at == number else batch for at, batch in enumerate(batches)]


def taken(batches: Sequence[memoryview], bytes_max: int = NO_LIMIT, **asked: Any) -> Intake:
    """What is made of an answer, cut off somewhere, to a mirror that has read all that was before it."""
    data = memoryview(bytearray(b"".join(batches)[:bytes_max]))
    known = {"offset": BEGIN, "batch_end": BEGIN, "end": END} | asked
    return take(data, fetch_offset=BEGIN, aborted=(), batch_bytes_max=NO_LIMIT, asked=Asked(**known))


def content(items: Sequence[Batch | Gap]) -> list[Entry]:
    return [record for item in items if isinstance(item, Batch) for record in read_v2(item.view)]


# -- every bit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(COUNT))
def test_a_batch_in_a_wrong_place_is_refused_where_it_belongs(number: int) -> None:
    """
    Whichever of the bits has changed, whichever batch of the log it is: what stands before it is taken, and
    no gap is left.
    """
    intakes = [taken(rotten(sound(), number, bit)) for bit in BITS]

    place = BEGIN + number * EACH
    assert {type(intake.error) for intake in intakes} == {MisplacedBatchError, EarlyBatchError}
    for intake in intakes:
        assert intake.error is not None
        assert (intake.error.offset, intake.next_offset) == (place, place)
        assert content(intake.items) == RECORDS[: number * EACH]
        assert [item for item in intake.items if isinstance(item, Gap)] == []


@pytest.mark.parametrize("bit", BITS)
def test_a_batch_that_is_cut_off_is_refused_before_it_is_asked_for(bit: int) -> None:
    """
    Asked for what follows, a broker passes over a batch that says it stands further down; and if it says that
    it stands further up, the next answer has it whole.
    """
    batches = rotten(sound(), 3, bit)
    whole = sum(map(len, batches[:3]))

    intake = taken(batches, whole + 8)

    up = struct.unpack_from(">q", batches[3])[0] > BEGIN + 3 * EACH
    assert content(intake.items) == RECORDS[: 3 * EACH]
    assert (intake.error is None) is up


@given(number=st.integers(0, COUNT - 1), bit=st.sampled_from(BITS), share=st.floats(0, 1))
def test_nothing_is_taken_that_is_not_true_wherever_an_answer_ends(
    number: int, bit: int, share: float
) -> None:
    """
    But a batch that says it stands further up, and behind which nothing can be seen.
    """
    batches = rotten(sound(), number, bit)
    bytes_max = int(share * sum(map(len, batches)))
    seen = sum(map(len, batches[: number + 1]))

    intake = taken(batches, bytes_max)

    if not (seen <= bytes_max < seen + 8 and number < COUNT - 1):
        assert content(intake.items) == RECORDS[: intake.next_offset - BEGIN]
        assert [item for item in intake.items if isinstance(item, Gap)] == []


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_formats_are_held_against_each_other_too(
    number: int, codec: Codec, magic: Magic
) -> None:
    """
    Whichever of the bits has changed: of v0 the offsets of compressed records are inside, under the CRC; all
    else is moved with the set.
    """
    batches = [old(magic, records, codec=codec) for records in BATCHES]

    intakes = [taken(rotten(batches, number, bit)) for bit in BITS]

    place = BEGIN + number * EACH
    assert {type(intake.error) for intake in intakes} <= REFUSALS
    assert {intake.next_offset for intake in intakes} == {place}
    for intake in intakes:
        assert [record.offset for record in content(intake.items)] == list(range(BEGIN, place))


# -- what is known of where it was asked from -----------------------------------------------------


@pytest.mark.parametrize("bit", BITS)
def test_where_nobody_knows_that_a_batch_ends_the_first_one_may_begin_before(bit: int) -> None:
    """
    After a restart a mirror does not know: what could be true of the first batch is taken for true.
    """
    batches = rotten(sound(), 0, bit)
    [base_offset] = struct.unpack_from(">q", batches[0])

    intake = taken(batches, batch_end=-1)

    could_be = base_offset < BEGIN < base_offset + EACH
    assert (intake.error is None) is could_be
    assert could_be == (bit == 3 and BEGIN & 8 != 0)


def test_a_batch_that_was_copied_and_says_it_stands_further_up_is_not_copied_once_more() -> None:
    """
    After a restart it could reach beyond what was copied, but the next batch begins before it ends.
    """
    before = memoryview(bytearray(v2(entries(BEGIN - EACH, EACH))))
    struct.pack_into(">Q", before, 0, BEGIN - 2)

    intake = taken([before, *sound()], batch_end=-1)

    assert isinstance(intake.error, MisplacedBatchError)
    assert (intake.error.offset, intake.next_offset, intake.items) == (BEGIN, BEGIN, [])


@pytest.mark.parametrize("offset", [BEGIN, BEGIN - 1])
@pytest.mark.parametrize("up", [1, EACH - 1])
def test_where_a_batch_is_known_to_end_none_is_taken_that_spans_it_though_nothing_contradicts(
    offset: int, up: int
) -> None:
    """
    It comes alone. Nor is it taken where it is asked for with the batch before it: that is the one that says
    it stands further up.
    """
    before = memoryview(bytearray(v2(entries(BEGIN - EACH, EACH))))
    struct.pack_into(">Q", before, 0, BEGIN - EACH + up)

    intake = taken([before], offset=offset)

    assert isinstance(intake.error, MisplacedBatchError)
    assert (intake.next_offset, intake.items) == (BEGIN, [])


def test_an_answer_that_was_asked_for_further_down_is_held_against_that() -> None:
    """
    The batch before is there again, so that one behind it that says it stands below is seen, and not passed
    over.
    """
    batches = [v2(entries(BEGIN - EACH, EACH)), *rotten(sound(), 0, 5)]

    intake = taken(batches, offset=BEGIN - 1, batch_end=-1)

    assert isinstance(intake.error, MisplacedBatchError)
    assert (intake.error.offset, intake.items) == (BEGIN, [])


def test_a_batch_asked_for_only_to_see_the_one_behind_it_is_not_taken_back_where_it_follows_a_gap() -> None:
    """
    Nothing of it was taken: the words would blame it.
    """
    alone = [v2(entries(BEGIN - 2, 2)), *rotten(sound(), 0, 5)]

    intake = taken(alone, offset=BEGIN - 5, batch_end=-1)

    assert isinstance(intake.error, MisplacedBatchError)
    assert (intake.error.offset, intake.items) == (BEGIN, [])
    assert intake.error.words.startswith("it claims")


def test_a_batch_beyond_the_end_that_was_told_may_only_be_early() -> None:
    """
    A broker looks at the end of its log before it reads: an error of its own, that a second answer confirms.
    """
    intake = taken(sound(), end=END - 1)
    compacted = taken([v2(entries(BEGIN + 1, EACH - 1)), *sound()[1:]], end=END - 1)
    unknown = taken([v2(entries(BEGIN + 1, EACH - 1)), *sound()[1:]], end=-1)

    assert (intake.error, unknown.error) == (None, None)  # what leaves no gap before it needs no end
    assert isinstance(compacted.error, EarlyBatchError)
    assert "end at 90, but the log ends at 89" in str(compacted.error)


# -- what compaction has left ---------------------------------------------------------------------


def test_gaps_between_batches_stay_what_they_are() -> None:
    """
    Also those that no following batch confirms.
    """
    batches = [v2(entries(first, 2)) for first in (BEGIN + 3, BEGIN + 5, BEGIN + 9)]

    intake = taken(batches)

    assert intake.error is None
    assert [(type(item), item.base_offset, item.next_offset) for item in intake.items] == [
        (Gap, BEGIN, BEGIN + 3),
        (Batch, BEGIN + 3, BEGIN + 5),
        (Batch, BEGIN + 5, BEGIN + 7),
        (Gap, BEGIN + 7, BEGIN + 9),
        (Batch, BEGIN + 9, BEGIN + 11),
    ]


def test_of_two_batches_that_overlap_the_first_is_not_believed_if_it_left_a_gap() -> None:
    """
    Either of them may be wrong; where the first one follows what is before it, it is the second one.
    """
    after_a_gap = taken([v2(entries(BEGIN, 2)), v2(entries(BEGIN + 5, 5)), v2(entries(BEGIN + 8, 5))])
    dense = taken([v2(entries(BEGIN, 2)), v2(entries(BEGIN + 2, 5)), v2(entries(BEGIN + 5, 5))])

    assert (after_a_gap.next_offset, len(after_a_gap.items)) == (BEGIN + 2, 1)
    assert (dense.next_offset, len(dense.items)) == (BEGIN + 7, 2)


def test_a_gap_that_is_given_back_leaves_the_one_before_it_as_it_was() -> None:
    """
    Neighbouring gaps become one; of two that did the second one is taken out again.
    """
    nothing = v2([], base_offset=BEGIN, last_offset=BEGIN + 1)
    more = v2([], base_offset=BEGIN + 9, last_offset=BEGIN + 12)

    intake = taken([nothing, more, v2(entries(BEGIN + 2, 2))])

    assert isinstance(intake.error, MisplacedBatchError)
    assert intake.items == [Gap(BEGIN, BEGIN + 2)]


def test_a_batch_moved_within_the_gap_beside_it_is_what_nothing_can_tell() -> None:
    """
    A consumer of the source sees the same.
    """
    intake = taken([v2(entries(BEGIN + 4, 2)), v2(entries(BEGIN + 20, 2))])

    assert intake.error is None
