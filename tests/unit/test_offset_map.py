"""The exact offset map, held against a model that remembers every record one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import map_chunk, runs
from checkpoint.errors import CorruptStateError, UntranslatableError
from checkpoint.map_chunk import (
    CHUNK_RUNS,
    CRC_BYTES,
    VERSION,
    changed_chunks,
    chunks_below,
    decode_chunk,
    decode_map,
    encode_chunk,
)
from checkpoint.offset_map import OffsetMap, Run
from checkpoint.runs import pack

Segments = list[tuple[int, int]]
"""A gap and a number of records after it, several times."""

segments = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=6)
passes = st.lists(st.tuples(segments, st.integers(0, 40)), max_size=12)
"""What a mirror reads, and how many of those records it appends before it crashes."""


@pytest.fixture(autouse=True, scope="module")
def _packed_early() -> Iterator[None]:
    """All but the last few runs of a map are packed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "GROUP_RUNS", 2)
        yield


@dataclass
class NaiveMirror:
    """Copies record by record and remembers each; writes runs ahead as the real one does."""

    start: int
    target_start: int
    map: OffsetMap = field(init=False)
    position: int = field(init=False)
    copied: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.map = OffsetMap([(self.start, self.target_start)], begins_at=self.start)
        self.position = self.start

    @property
    def log_end(self) -> int:
        return self.target_start + len(self.copied)

    def read(self, ahead: Segments) -> tuple[list[Run], list[int]]:
        """The runs after each gap, and the source offsets of the records in order."""
        runs: list[Run] = []
        records: list[int] = []
        source = self.position
        for gap, count in ahead:
            source += gap
            if gap:
                runs.append((source, self.log_end + len(records)))
            records.extend(range(source, source + count))
            source += count
        return runs, records

    def copy(self, ahead: Segments, append: int) -> list[Run]:
        """Forget what was written ahead before, write all runs ahead, append a few records, crash."""
        runs, records = self.read(ahead)
        self.map.drop_ahead(self.log_end)
        self.map.extend(runs)
        for source in records[:append]:
            self.copied[self.log_end] = source
            self.position = source + 1
        for source, target in runs:
            if target == self.log_end:
                self.position = source
        return runs


def refused(translate: object, *arguments: int) -> bool:
    assert callable(translate)
    try:
        translate(*arguments)
    except UntranslatableError:
        return True
    return False


@given(start=st.integers(0, 20), target_start=st.integers(0, 20), story=passes)
def test_every_record_is_translated_both_ways_and_nothing_else_is(
    start: int, target_start: int, story: list[tuple[Segments, int]]
) -> None:
    """
    Whatever was written ahead and superseded after crashes, the map says what a list of all records says.
    """
    mirror = NaiveMirror(start, target_start)

    for ahead, append in story:
        mirror.copy(ahead, append)

        assert mirror.map.position(mirror.log_end) == mirror.position
    end = mirror.log_end
    targets = {source: target for target, source in mirror.copied.items()}
    for offset in range(max(mirror.position, end) + 10):
        if offset in targets:
            assert mirror.map.target_of(offset, end) == targets[offset]
        else:
            assert refused(mirror.map.target_of, offset, end)
        if offset in mirror.copied:
            assert mirror.map.source_of(offset, end) == mirror.copied[offset]
        else:
            assert refused(mirror.map.source_of, offset, end)


@given(start=st.integers(0, 20), target_start=st.integers(0, 20), story=passes)
def test_a_group_goes_on_with_the_next_record_it_has_not_seen(
    start: int, target_start: int, story: list[tuple[Segments, int]]
) -> None:
    """
    A committed offset in a gap means the record after it, at the position the log end, beyond it nothing.
    """
    mirror = NaiveMirror(start, target_start)

    for ahead, append in story:
        mirror.copy(ahead, append)

    end = mirror.log_end
    for committed in range(start, mirror.position + 1):
        unseen = [target for target, source in mirror.copied.items() if source >= committed]
        assert mirror.map.committed_to_target(committed, end) == min(unseen, default=end)
    for committed in range(target_start, end):
        assert mirror.map.committed_to_source(committed, end) == mirror.copied[committed]
    assert mirror.map.committed_to_source(end, end) == mirror.position
    assert refused(mirror.map.committed_to_target, mirror.position + 1, end)
    assert refused(mirror.map.committed_to_target, start - 1, end)
    assert refused(mirror.map.committed_to_source, end + 1, end)
    assert refused(mirror.map.committed_to_source, target_start - 1, end)


@given(start=st.integers(0, 20), target_start=st.integers(0, 20), story=passes, more=passes, data=st.data())
def test_a_shortened_map_translates_what_the_target_still_holds_and_refuses_the_rest(
    start: int,
    target_start: int,
    story: list[tuple[Segments, int]],
    more: list[tuple[Segments, int]],
    data: st.DataObject,
) -> None:
    """
    Wherever the target's log begins now, up to its end, and whatever is copied behind it later.
    """
    mirror = NaiveMirror(start, target_start)
    for ahead, append in story:
        mirror.copy(ahead, append)
    log_start = data.draw(st.integers(target_start, mirror.log_end))
    forgotten = data.draw(st.integers(0, mirror.map.below(log_start)))
    whole = OffsetMap(mirror.map, begins_at=start)

    mirror.map.forget(forgotten)

    first_source, first_target = list(whole)[forgotten]
    end = mirror.log_end
    assert list(mirror.map) == list(whole)[forgotten:]
    assert first_target < log_start or not forgotten
    for target in range(log_start, end):
        assert mirror.map.source_of(target, end) == whole.source_of(target, end) == mirror.copied[target]
        assert mirror.map.target_of(mirror.copied[target], end) == target
    for target in range(log_start - 1 if forgotten else log_start, end + 1):
        assert mirror.map.position(target) == whole.position(target)
    if forgotten:
        begins = f"begins at source offset {first_source}, target offset {first_target}"
        for source in range(first_source):
            for asked in (mirror.map.target_of, mirror.map.committed_to_target):
                with pytest.raises(UntranslatableError, match=begins):
                    asked(source, end)
        for target in range(first_target):
            for back in (mirror.map.source_of, mirror.map.committed_to_source):
                with pytest.raises(
                    UntranslatableError, match=f"target offset {target}: the offset map {begins}"
                ):
                    back(target, end)
    for ahead, append in more:
        mirror.copy(ahead, append)
        assert mirror.map.position(mirror.log_end) == mirror.position
    end = mirror.log_end
    assert all(mirror.map.source_of(target, end) == mirror.copied[target] for target in range(log_start, end))


@pytest.mark.parametrize(("log_start", "below"), [(0, 0), (3, 0), (4, 1), (5, 1), (6, 2), (99, 2)])
def test_the_run_that_holds_the_record_before_the_log_start_stays(log_start: int, below: int) -> None:
    """
    In an emptied log the run that begins at its end may be superseded, and then the one before goes on.
    """
    offsets = OffsetMap([(0, 0), (5, 3), (9, 5)])

    assert offsets.below(log_start) == below


def test_a_map_never_forgets_all_it_has() -> None:
    """
    Without its last run it could not say where to go on; nor without its first, once runs were forgotten.
    """
    offsets = OffsetMap([(0, 0), (5, 3), (9, 5)])

    with pytest.raises(ValueError, match="3 of 3 runs cannot be forgotten"):
        offsets.forget(3)
    offsets.forget(2)
    with pytest.raises(ValueError, match="begins at source offset 9, target offset 5, and what was before"):
        offsets.drop_ahead(4)
    with pytest.raises(ValueError, match="is forgotten"):
        offsets.add(3, 3)

    assert list(offsets) == [(9, 5)]


@given(story=passes, data=st.data())
def test_the_stored_chunks_of_a_map_that_is_shortened_are_the_map_after_every_step(
    story: list[tuple[Segments, int]], data: st.DataObject
) -> None:
    """
    Chunks of three runs here. Between any two chunks removed what is stored is the end of the map.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_chunk, "CHUNK_RUNS", 3)
        mirror = NaiveMirror(0, 0)
        stored = {0: encode_chunk(list(mirror.map))}

        for ahead, append in story:
            changes = changed_chunks(mirror.map, mirror.read(ahead)[0], drop_ahead_of=mirror.log_end)
            mirror.copy(ahead, append)
            for number in changes.gone:
                del stored[number]
            stored.update(changes.written)
            gone = chunks_below(mirror.map, data.draw(st.integers(0, mirror.log_end)))
            before = list(mirror.map)
            for number in gone:
                del stored[number]
                assert list(decode_map(stored)) == before[-len(list(decode_map(stored))) :]
            mirror.map.forget(3 * len(gone))

            assert list(decode_map(stored)) == list(mirror.map)
            assert decode_map(stored).forgotten == mirror.map.forgotten


@given(story=passes)
def test_the_stored_chunks_are_the_map_after_every_pass(story: list[tuple[Segments, int]]) -> None:
    """
    Chunks of three runs here: crashes supersede runs across the border of chunks, again and again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_chunk, "CHUNK_RUNS", 3)
        mirror = NaiveMirror(0, 0)
        stored = {0: encode_chunk(list(mirror.map))}

        for ahead, append in story:
            runs, _ = mirror.read(ahead)
            changes = changed_chunks(mirror.map, runs, drop_ahead_of=mirror.log_end)
            before = list(mirror.map)
            mirror.copy(ahead, append)
            for number in changes.gone:
                del stored[number]
                assert_beginning_of(list(decode_map(stored)), before, list(mirror.map))
            for number, chunk in changes.written.items():
                stored[number] = chunk
                assert_beginning_of(list(decode_map(stored)), before, list(mirror.map))

            assert list(decode_map(stored)) == list(mirror.map)


def assert_beginning_of(stored: list[Run], before: list[Run], after: list[Run]) -> None:
    """A crash between two writes leaves the beginning of the map as it was or as it will be."""
    assert stored in (before[: len(stored)], after[: len(stored)])


@given(story=passes)
def test_only_chunks_that_changed_are_written(story: list[tuple[Segments, int]]) -> None:
    """
    Every chunk announced differs from the one stored.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_chunk, "CHUNK_RUNS", 3)
        mirror = NaiveMirror(0, 0)
        stored = {0: encode_chunk(list(mirror.map))}

        for ahead, append in story:
            changes = changed_chunks(mirror.map, mirror.read(ahead)[0], drop_ahead_of=mirror.log_end)
            mirror.copy(ahead, append)

            for number in changes.gone:
                del stored[number]
            assert all(stored.get(number) != chunk for number, chunk in changes.written.items())
            stored.update(changes.written)


def test_the_position_at_the_start_of_a_run_is_behind_the_gap() -> None:
    """
    The run was written ahead and its first record was not appended: the gap need not be read again.
    """
    offsets = OffsetMap([(0, 0), (5, 3), (9, 5)])

    positions = [offsets.position(end) for end in range(7)]

    assert positions == [0, 1, 2, 5, 6, 9, 10]


def test_a_run_that_is_there_already_leaves_what_is_foreseen_behind_it() -> None:
    """
    Whoever noted both may have sent what belongs to them; another run at its place supersedes them all.
    """
    offsets = OffsetMap([(0, 0), (5, 3), (9, 5), (20, 8)])

    offsets.extend([(5, 3), (9, 5)])
    agreed = list(offsets)
    offsets.add(10, 5)

    assert agreed == [(0, 0), (5, 3), (9, 5), (20, 8)]
    assert list(offsets) == [(0, 0), (5, 3), (10, 5)]


def test_a_log_that_ends_below_the_map_has_no_position() -> None:
    """
    The target lost what it held; going on anywhere would be a guess.
    """
    offsets = OffsetMap([(0, 100)])

    with pytest.raises(UntranslatableError, match="begins at source offset 0, target offset 100"):
        offsets.position(99)


def test_an_empty_map_refuses_everything() -> None:
    """
    No run, no answer.
    """
    offsets = OffsetMap()

    with pytest.raises(UntranslatableError, match="is empty"):
        offsets.target_of(0, 10)
    with pytest.raises(UntranslatableError, match="is empty"):
        offsets.position(10)


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (2, "begins at source offset 3"),
        (4, r"in the gap \[3, 5\)"),
        (8, r"in the gap \[7, 20\)"),
        (21, "not copied yet: the copy has reached 21"),
    ],
)
def test_a_refusal_says_why(offset: int, reason: str) -> None:
    """
    Before the map, in a gap with its bounds, or not copied yet.
    """
    offsets = OffsetMap([(5, 10), (20, 12)], begins_at=3)

    with pytest.raises(UntranslatableError, match=reason) as refusal:
        offsets.target_of(offset, 13)

    assert refusal.value.reason == str(refusal.value)


def test_a_run_that_would_go_backwards_at_the_source_is_refused_and_changes_nothing() -> None:
    """
    It would make two target offsets of one record.
    """
    offsets = OffsetMap([(0, 0), (10, 5)])

    with pytest.raises(ValueError, match="reaches source offset 15"):
        offsets.add(14, 10)

    assert list(offsets) == [(0, 0), (10, 5)]


def test_a_run_without_a_gap_before_it_is_not_noted() -> None:
    """
    It says nothing the run before does not say.
    """
    offsets = OffsetMap([(0, 0)])

    offsets.add(7, 7)

    assert list(offsets) == [(0, 0)]


def test_a_chunk_of_small_gaps_takes_two_bytes_a_run() -> None:
    """
    Transaction markers every few records: 512 of them in about 1 KiB.
    """
    runs = list(OffsetMap((n * 11, n * 10) for n in range(CHUNK_RUNS)))

    chunk = encode_chunk(runs)

    assert decode_chunk(chunk) == runs
    assert len(chunk) < 2 * CHUNK_RUNS + 16


def test_a_chunk_keeps_offsets_up_to_the_largest_there_are() -> None:
    """
    Nothing is cut off at 32 bits or in a float.
    """
    runs = [(0, 0), (2**62, 1), (2**63 - 1, 3)]

    assert decode_chunk(encode_chunk(runs)) == runs


@given(data=st.data())
def test_a_damaged_chunk_is_never_read(data: st.DataObject) -> None:
    """
    Any one bit, or a lost end.
    """
    chunk = bytearray(encode_chunk([(n * 7 + 3, n * 5) for n in range(50)]))
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, len(chunk) * 8 - 1))
        chunk[bit // 8] ^= 1 << bit % 8
    else:
        del chunk[data.draw(st.integers(0, len(chunk) - 1)) :]

    with pytest.raises(CorruptStateError):
        decode_chunk(bytes(chunk))


def sealed(body: bytes) -> bytes:
    """With the CRC that belongs to it."""
    return body + int(crc32c(body)).to_bytes(CRC_BYTES, "big")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "4 bytes, does not match"),
        (bytes((VERSION + 1,)) + pack([(0, 0)]), "version 2, this program reads 1"),
        (bytes((VERSION,)) + pack([(0, 0), (5, 3)])[:-1], "cannot be read"),
        (bytes((VERSION,)) + pack([(0, 0)]) + b"\x01", "cannot be read: 1 bytes follow"),
        (bytes((VERSION,)) + pack([(n * 2, n) for n in range(CHUNK_RUNS + 1)]), "has 513 runs"),
    ],
    ids=["nothing at all", "of a later program", "cut off", "too long", "too many runs"],
)
def test_a_chunk_that_is_whole_and_makes_no_sense_is_refused(body: bytes, words: str) -> None:
    """
    Its CRC only says that it is what was written, not that this program can read it.
    """
    with pytest.raises(CorruptStateError, match=words):
        decode_chunk(sealed(body))


def test_a_missing_chunk_is_noticed() -> None:
    """
    A hole in the map would be taken for one long run.
    """
    chunk = encode_chunk([(0, 0), (5, 3)])

    with pytest.raises(CorruptStateError, match="chunk 1 of an offset map of 2 chunks is missing"):
        decode_map({0: chunk, 2: chunk})


def test_a_map_may_begin_with_any_chunk_and_has_all_behind_it() -> None:
    """
    Those before were forgotten; one that is missing between others was not.
    """
    runs = list(OffsetMap((n * 3, n) for n in range(4 * CHUNK_RUNS)))
    chunks = {n: encode_chunk(runs[n * CHUNK_RUNS : (n + 1) * CHUNK_RUNS]) for n in range(4)}
    del chunks[0]

    assert list(decode_map(chunks)) == runs[CHUNK_RUNS:]
    del chunks[2]
    with pytest.raises(CorruptStateError, match="chunk 2 of an offset map of 2 chunks is missing"):
        decode_map(chunks)


def test_a_short_chunk_before_the_last_is_noticed() -> None:
    """
    Only the last one may hold fewer runs than fit.
    """
    with pytest.raises(CorruptStateError, match="does not continue"):
        decode_map({0: encode_chunk([(0, 0)]), 1: encode_chunk([(9, 5)])})


@pytest.mark.parametrize("count", [0, CHUNK_RUNS + 1])
def test_a_chunk_of_no_runs_or_too_many_is_not_made(count: int) -> None:
    """
    The bound keeps a chunk below what a broker takes in one record.
    """
    with pytest.raises(ValueError, match="runs, not"):
        encode_chunk([(n * 2, n) for n in range(count)])
