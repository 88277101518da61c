"""What is held against the source before a partition goes on: which record, what is kept of its batch, and
what the source has there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from structlog.testing import capture_logs

from checkpoint.errors import UntranslatableError
from checkpoint.offset_map import OffsetMap
from mirror.broker_codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE
from mirror.errors import ConnectionFailedError, NotInMetadataError, ThrottledError, TwinsiteError
from mirror.flow import ends, looking, replicas
from mirror.flow.context import Flow
from mirror.flow.ends import End, Seam, compare_ends, end_of, tail_of
from mirror.flow.facts import Known, SourceLook, Tail, TargetLook
from mirror.flow.following import SideError
from mirror.flow.looking import last_batches
from mirror.flow.position import Proceed, Stop, decide
from mirror.kafka.fetch import Fetched, FetchLimits, Key, Want
from mirror.kafka.record_batch import LOG_APPEND_TIME, MAGIC_AT, TRANSACTIONAL, seal, walk
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.batches import Codec, Entry, codecs, control, dense, entries, old, v2

ORDERS_0 = TopicPartition("orders", 0)
TAIL = Tail(4711, 490, 10, 0, 7, control=False)
LOOK = TargetLook(100, 500, 399, 0, 0, 4711, TAIL)
SAME = Known("id", OffsetMode.SAME, 100, prepared=True, to_source=lambda end: end, target_start_offset=100)


def tail(view: memoryview) -> Tail:
    ((header, seen),) = walk(view)
    return tail_of(header, seen)


def test_the_last_record_is_looked_for_where_the_source_should_have_it() -> None:
    """
    With the same offsets at the same; with mapped ones where the map says.
    """
    runs = OffsetMap([(100, 0), (300, 150), (900, 499)])
    mapped = replace(SAME, mode=OffsetMode.MAPPED, to_source=runs.position, target_start_offset=0)

    assert end_of(SAME, LOOK, ORDERS_0, 6) == End(ORDERS_0, 499, 499, 6, TAIL)
    assert end_of(replace(mapped, target_start_offset=0), LOOK, ORDERS_0, 6) == End(
        ORDERS_0, 499, 900, 6, TAIL
    )


@pytest.mark.parametrize(
    ("known", "look"),
    [
        pytest.param(SAME, replace(LOOK, tail=None), id="retention has taken the last batch"),
        pytest.param(SAME, replace(LOOK, target_log_end_offset=100), id="nothing was copied yet"),
        pytest.param(replace(SAME, target_start_offset=500), LOOK, id="what is there is of others"),
    ],
)
def test_where_nothing_of_ours_is_nothing_is_compared(known: Known, look: TargetLook) -> None:
    """
    The log end alone says where to go on.
    """
    assert end_of(known, look, ORDERS_0, 6) is None


def test_a_map_that_cannot_say_where_is_not_asked_to_guess() -> None:
    """
    The refusal reaches whoever asks.
    """
    late = replace(SAME, to_source=OffsetMap([(100, 600)]).position, target_start_offset=0)

    with pytest.raises(UntranslatableError):
        end_of(late, LOOK, ORDERS_0, 6)


@given(records=dense(), codec=codecs)
def test_a_copied_batch_has_the_tail_of_its_source(records: list[Entry], codec: Codec) -> None:
    """
    Count, time and CRC of the records are those of the batch that was copied; only the producer is ours.
    """
    source = v2(records, codec=codec, leader_epoch=3, producer=(9, 9, 9))
    copied = memoryview(bytearray(source))
    seal(copied, 4711, 0, 70)

    theirs, ours = tail(source), tail(copied)

    assert ours == replace(theirs, producer_id=4711, base_offset=0)
    assert (theirs.records, theirs.base_offset) == (len(records), records[0].offset)


@given(records=dense())
def test_one_other_byte_is_another_tail(records: list[Entry]) -> None:
    """
    Whatever it is that differs: key, value, header or time.
    """
    first = records[0]
    others = [
        first._replace(value=(first.value or b"") + b"x"),
        first._replace(key=(first.key or b"") + b"x"),
        first._replace(headers=(*first.headers, ("x", None))),
        first._replace(timestamp_ms=first.timestamp_ms + 1),
    ]

    tails = [tail(v2([other, *records[1:]])) for other in others]

    assert tail(v2(records)) not in tails


def test_a_marker_is_told_from_a_record() -> None:
    """
    It stands where the source has none.
    """
    assert tail(control(5, 4711, 1)).control
    assert not tail(v2([Entry(5)])).control


# -- held against the source ---------------------------------------------------------------------


LEADER, FOLLOWERS = 1, (2, 3)


class Clusters:
    """A source and a target that hold one batch each, on three replicas.

    Attributes:
        diverging: What the source says of a log that is not what was copied, (epoch, end offset).
        code: With which error the source's leader answers.
        log_end: Where the source's log ends.
        unstable: How much of it lies behind the last stable offset, and is not in that end.
        grown: Where it ends from the second answer of the leader on.
        frozen: Brokers that do not answer, by cluster and broker.
        throttled: Brokers that say nothing once, for a quota.
        unknown: Partitions whose topic is not in the metadata when their followers are asked.
        others: What a follower holds, where it is not what the leader holds, by cluster and broker.
        asked: What each leader was asked for.
        followers: What followers were asked for, by cluster.
        sent: Whom each request went to.
    """

    def __init__(
        self, source: memoryview | None, target: memoryview, aborted: Sequence[tuple[int, int]]
    ) -> None:
        about = SimpleNamespace(leader_epoch=4, leader=LEADER, in_sync_replicas=(*FOLLOWERS, LEADER))
        info = SimpleNamespace(partition=lambda _: about, leader=lambda _: LEADER)
        self.source = SimpleNamespace(name="source", info=info)
        self.target = SimpleNamespace(name="target", info=info)
        self.limits = SimpleNamespace(fetch=FetchLimits())
        self.comparing = asyncio.Lock()
        self.diverging: tuple[int, int] | None = None
        self.code, self.log_end = 0, 500
        self.grown: int | None = None
        self.unstable = 0
        self.frozen: set[tuple[str, int]] = set()
        self.throttled: set[tuple[str, int]] = set()
        self.unknown: set[TopicPartition] = set()
        self.sent: list[tuple[str, int]] = []
        self.others: dict[tuple[str, int], memoryview | None] = {}
        self.asked: dict[str, Want] = {}
        self.followers: dict[str, Want] = {}
        self._held = {"source": source, "target": target}
        self._aborted = list(aborted)

    async def peek_all_at(
        self, cluster: Any, node: int, wants: Mapping[TopicPartition, Want], *_: object
    ) -> dict[TopicPartition, Fetched]:
        self.sent.append((cluster.name, node))
        if (cluster.name, node) in self.frozen:
            raise ConnectionFailedError(f"{cluster.name}: no answer from {node}")
        if (cluster.name, node) in self.throttled:
            self.throttled.remove((cluster.name, node))
            raise ThrottledError(f"{cluster.name}: throttled by a quota")
        if node != LEADER and not self.unknown.isdisjoint(wants):
            raise NotInMetadataError(f"{cluster.name}: the topic is currently not in the metadata")
        want = next(iter(wants.values()))
        (self.asked if node == LEADER else self.followers)[cluster.name] = want
        held = self.others.get((cluster.name, node), self._held[cluster.name])
        aborted, diverging = (self._aborted, self.diverging) if cluster is self.source else ([], None)
        records = memoryview(b"") if held is None or diverging else read_from(held, want.offset)
        code = self.code if cluster is self.source and node == LEADER else 0
        end = self.log_end
        if self.grown is not None and node == LEADER and cluster is self.source:
            self.log_end = self.grown
        high_watermark = end + self.unstable
        answer = Fetched(Key(b"t" * 16, 0), code, high_watermark, end, 0, diverging, aborted, records)
        return dict.fromkeys(wants, answer)


def read_from(log: memoryview, offset: int) -> memoryview:
    """What a broker gives: it passes over batches that end before the offset, going by their headers."""
    at = 0
    for header, view in walk(log):
        if header.magic < 0 or header.next_offset > offset:
            break
        at += len(view)
    return log[at:]


Held = Callable[..., Awaitable[Stop | SideError | Seam | None]]


@pytest.fixture
def seen_of(monkeypatch: pytest.MonkeyPatch) -> Held:
    """What comes of the last record of a target's batch, held against what the source has there."""

    async def compared(
        target: memoryview,
        source: memoryview | None,
        *,
        at: int = 19,
        target_at: int | None = None,
        epoch: int = 1,
        aborted: Sequence[tuple[int, int]] = (),
        diverging: tuple[int, int] | None = None,
        code: int = 0,
        log_end: int = 500,
        grown: int | None = None,
        unstable: int = 0,
        others: Mapping[tuple[str, int], memoryview | None] | None = None,
    ) -> Stop | SideError | Seam | None:
        clusters = Clusters(source, target, aborted)
        clusters.diverging, clusters.code, clusters.log_end = diverging, code, log_end
        clusters.others.update(others or {})
        clusters.grown, clusters.unstable = grown, unstable
        for module in (ends, replicas):
            monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)
        end = End(ORDERS_0, at if target_at is None else target_at, at, epoch, tail(target))
        answers = await compare_ends(cast(Flow, clusters), {ORDERS_0: end})
        want = Want(at, 4, epoch, ends.PARTITION_BYTES_MAX)
        assert clusters.asked["source"] == want
        assert clusters.followers.get("source") in {None, want._replace(leader_epoch=-1)}
        return answers[ORDERS_0]

    return compared


@pytest.fixture
def held(seen_of: Held) -> Held:
    """The same where it does not matter what the source has behind that record."""

    async def differs(*batches: memoryview | None, **how: Any) -> Stop | SideError | None:
        found = await seen_of(*batches, **how)
        return None if isinstance(found, Seam) else found

    return differs


RECORDS = entries(10, 10)


def moved(records: Sequence[Entry], by: int, later_ms: int = 0) -> list[Entry]:
    """The same records at other offsets, or of another time."""
    return [one._replace(offset=one.offset + by, timestamp_ms=one.timestamp_ms + later_ms) for one in records]


async def test_where_the_batch_that_was_copied_last_ends_at_the_source_is_known_from_then_on(
    seen_of: Held,
) -> None:
    """
    It may end behind what was copied of it. Where the source does not have it any more nothing is known.
    """
    first, other = v2(RECORDS[:5]), v2(RECORDS, codec="zstd")

    whole, in_part = await seen_of(v2(RECORDS), v2(RECORDS)), await seen_of(first, other, at=14)

    assert (whole, in_part) == (Seam(20, None), Seam(20, None))
    assert await seen_of(v2(RECORDS), None) == Seam(None, None)


@pytest.mark.parametrize("at_all", [True, False])
@pytest.mark.parametrize("torn", [True, False])
async def test_what_follows_the_batch_that_was_copied_last_is_in_doubt_if_it_says_that_it_begins_before(
    seen_of: Held, torn: bool, at_all: bool
) -> None:
    """
    Asked for what follows only, the broker would skip it. It may say so at the leader only, or at all
    replicas.
    """
    sound = bytes(v2(RECORDS)) + bytes(v2(entries(20, 10)))
    follows = bytes(rotten(v2(entries(20, 10)), BASE_OFFSET_AT, 4))[: 8 if torn else None]
    damaged = memoryview(bytearray(bytes(v2(RECORDS)) + follows))
    others = {} if at_all else on("source", *[memoryview(bytearray(sound))] * 2)

    copied = await seen_of(v2(RECORDS), damaged, others=others)
    encoded_anew = await seen_of(v2(RECORDS[5:]), damaged, others=others)

    assert copied == Seam(20, 20)
    assert encoded_anew == Seam(None if at_all else 20, 20)


async def test_a_batch_that_was_copied_is_known_by_its_records_though_it_says_it_stands_elsewhere(
    seen_of: Held,
) -> None:
    """
    No replica has it in its place. It ended where the copy ends.
    """
    shifted = memoryview(bytearray(bytes(v2(moved(RECORDS, 1))) + bytes(v2(entries(20, 1)))))

    ours = await seen_of(v2(RECORDS), shifted)
    of_others = await seen_of(v2(moved(RECORDS, 0, 1_000)), shifted)

    assert ours == Seam(20, 20)
    assert of_others == Seam(None, 20)


async def test_a_batch_that_was_copied_as_it_is_passes(held: Held) -> None:
    """
    Wherever it stands at the target; so does one that was written anew, with the same records.
    """
    target = v2(moved(RECORDS, 20), producer=(4711, 0, 30))

    assert await held(v2(RECORDS), v2(RECORDS)) is None
    assert await held(target, v2(RECORDS), target_at=39) is None
    assert await held(target, v2(RECORDS, codec="zstd"), target_at=39) is None
    assert await held(v2(RECORDS[5:]), v2(RECORDS)) is None


async def test_the_same_batch_at_an_offset_of_which_the_source_has_another_record_is_found(
    held: Held,
) -> None:
    """
    Its bytes are the source's; but its last record is to be the source's record 17, and there is 19.
    """
    seen = await held(v2(moved(RECORDS, 20)), v2(RECORDS), at=17, target_at=39)

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert "target offset 39 holds a different record than the source at offset 17" in seen.detail


async def test_a_repeat_of_other_records_shows_in_the_last_record_and_not_in_the_position(held: Held) -> None:
    """
    Records 100 to 104 were still under way when a look found the target empty. Since then the source was
    compacted, a run was noted from 103 on, and 103 to 107 were sent: the broker calls them a repeat.
    """
    runs = OffsetMap([(100, 0), (103, 0)])
    known = replace(SAME, mode=OffsetMode.MAPPED, to_source=runs.position, target_start_offset=0)
    landed = v2(entries(0, 5, b"landed"), producer=(4711, 0, 0))
    target = TargetLook(0, 5, 4, 0, -1, 4711, tail(landed))

    decision = decide(
        known,
        SourceLook("id", 100, 108),
        target,
        producer_id=4711,
        producer_epoch=0,
        wanted="mapped",
        acknowledged_target_offset=0,
        continue_after_loss=False,
    )
    end = end_of(known, target, ORDERS_0, -1)
    assert end is not None
    seen = await held(landed, v2(entries(103, 5)), at=end.source_offset, target_at=end.target_offset)

    assert isinstance(decision, Proceed)
    assert decision.next_offset == 108
    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(v2(moved(RECORDS, 0, later_ms=1_000)), id="of another time"),
        pytest.param(
            v2(RECORDS, attributes=LOG_APPEND_TIME, max_timestamp_ms=1_800_000_000_000),
            id="with the time of the append",
        ),
    ],
)
async def test_records_of_the_same_bytes_and_another_time_are_other_records(
    held: Held, source: memoryview
) -> None:
    """
    What stands in a batch of a record's time is how much it differs from the batch's.
    """
    seen = await held(v2(RECORDS), source)

    assert isinstance(seen, Stop)
    assert "holds a different record than the source at offset 19" in seen.detail


async def test_where_the_target_has_the_time_of_the_append_times_say_nothing(held: Held) -> None:
    """
    As its topic has it, whatever the source's record says.
    """
    target = v2(RECORDS, attributes=LOG_APPEND_TIME, max_timestamp_ms=1_800_000_000_000)

    assert await held(target, v2(moved(RECORDS, 0, later_ms=1_000))) is None


async def test_a_record_where_the_source_has_a_marker_is_found(held: Held) -> None:
    """
    What is before it is shifted.
    """
    seen = await held(v2(RECORDS), control(19, 4711, 1))

    assert isinstance(seen, Stop)
    assert "a record where the source has a transaction marker" in seen.detail


async def test_what_compaction_has_taken_away_at_the_target_passes(held: Held) -> None:
    """
    Its batch keeps its end; which record that was nobody can tell any more.
    """
    assert await held(v2(RECORDS[:9], last_offset=19), v2(RECORDS)) is None


@pytest.mark.parametrize(
    ("epoch", "leader", "reason"),
    [
        (1, 4, Reason.SOURCE_TRUNCATED),
        (0, 4, Reason.SOURCE_TRUNCATED),
        (4, 4, Reason.OFFSETS_DIFFER),
        (-1, 4, Reason.OFFSETS_DIFFER),
    ],
)
async def test_another_record_of_a_newer_leader_epoch_has_replaced_the_one_that_was_copied(
    held: Held, epoch: int, leader: int, reason: Reason
) -> None:
    """
    Of the same one it would be the target that has something else; and where none was noted nobody knows.
    """
    seen = await held(v2(RECORDS), v2(entries(10, 10, b"other"), leader_epoch=leader), epoch=epoch)

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, reason)


async def test_a_record_that_the_source_will_not_show_is_no_record_that_is_the_same(held: Held) -> None:
    """
    Only where retention has taken it is there nothing to compare.
    """
    nothing = memoryview(b"")

    refused = await held(v2(RECORDS), nothing, code=KAFKA_STORAGE_ERROR)

    assert isinstance(refused, TwinsiteError)
    assert await held(v2(RECORDS), nothing, code=OFFSET_OUT_OF_RANGE) is None


async def test_who_cannot_be_asked_is_named_and_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    That is no answer that all is well.
    """
    clusters, lost = Clusters(None, v2(RECORDS), ()), ConnectionFailedError("source: gone")

    async def refuse(*_: object) -> dict[TopicPartition, Fetched]:
        raise lost

    monkeypatch.setattr(ends, "peek_all_at", refuse)

    answers = await compare_ends(
        cast(Flow, clusters), {ORDERS_0: End(ORDERS_0, 19, 19, 1, tail(v2(RECORDS)))}
    )

    assert told_by(answers[ORDERS_0]) == (clusters.source, lost)


def told_by(error: object) -> tuple[object, TwinsiteError]:
    assert isinstance(error, SideError)
    return error.cluster, error.cause


async def test_a_target_that_does_not_answer_is_not_told_as_the_source_nor_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It has told where its log ends; its last record is asked for because its bytes are not the source's.
    """
    clusters = Clusters(v2(RECORDS, codec="zstd"), v2(RECORDS), ())
    clusters.frozen = {("target", LEADER)}
    for module in (ends, replicas):
        monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)
    tps = [TopicPartition("orders", number) for number in range(3)]

    answers = await compare_ends(
        cast(Flow, clusters), {tp: End(tp, 19, 19, -1, tail(v2(RECORDS))) for tp in tps}
    )

    assert [told_by(answers[tp])[0] for tp in tps] == [clusters.target] * 3
    assert clusters.sent.count(("target", LEADER)) == 1


ABORTED = [(77, 10)]


def transactional(records: Sequence[Entry]) -> memoryview:
    """A batch of the transaction that ``ABORTED`` names."""
    return v2(records, attributes=TRANSACTIONAL, producer=(77, 0, 0))


@pytest.mark.parametrize("at", [15, 19])
async def test_a_record_where_the_source_has_an_aborted_one_is_found(held: Held, at: int) -> None:
    """
    A reader is given nothing there; the target can only have it where what is before it is shifted.
    """
    target = v2(entries(10, 10, b"shifted")[: at - 9])

    seen = await held(target, transactional(entries(10, 10)), at=at, aborted=ABORTED)

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert f"target offset {at} holds a record where the source has an aborted one" in seen.detail


async def test_an_aborted_record_that_was_copied_before_the_isolation_was_changed_passes(held: Held) -> None:
    """
    With ``read_uncommitted`` it was to be copied, and it is the same one.
    """
    same = entries(10, 5)

    assert await held(v2(same), transactional(entries(10, 10)), at=14, aborted=ABORTED) is None
    assert await held(transactional(same), transactional(same), at=14, aborted=ABORTED) is None


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(None, id="all of it"),
        pytest.param(transactional(entries(10, 3)[:2]), id="the last records of the log"),
        pytest.param(
            v2([], attributes=TRANSACTIONAL, producer=(77, 0, 0), base_offset=10, last_offset=19),
            id="a batch",
        ),
        pytest.param(transactional([*entries(10, 3), Entry(25)]), id="records within a batch"),
    ],
)
async def test_what_compaction_has_taken_away_of_an_aborted_transaction_passes(
    held: Held, source: memoryview | None
) -> None:
    """
    It was copied with ``read_uncommitted``, or was none; nobody can tell any more.
    """
    assert await held(v2(entries(10, 10)), source, aborted=ABORTED) is None


async def test_a_marker_stands_for_an_aborted_record(held: Held) -> None:
    """
    That is how a gap is filled; where a reader gets a record it came too late.
    """
    marker, aborted = control(15, 4711, 1), transactional(entries(10, 10))

    filled = await held(marker, aborted, at=15, aborted=ABORTED)
    late = await held(marker, aborted, at=15)

    assert filled is None
    assert isinstance(late, Stop)
    assert "a control marker where the source has a record" in late.detail


async def test_a_source_that_has_replaced_what_was_copied_says_so_when_it_is_asked(held: Held) -> None:
    """
    It does not answer with the record then: of the epoch under which that was copied it has nothing there.
    """
    seen = await held(v2(entries(10, 10)), None, diverging=(1, 15))

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.SOURCE_TRUNCATED)
    assert "copied up to 20, but the source's leader epoch 1 ends at 15" in seen.detail


# -- damaged on a disk -----------------------------------------------------------------------------

IN_LAST_VALUE = -2


def rotten(batch: memoryview, at: int = IN_LAST_VALUE, bit: int = 0) -> memoryview:
    """The same batch with one bit flipped."""
    damaged = bytearray(batch)
    damaged[at] ^= 1 << bit
    return memoryview(damaged)


def on(cluster: str, *followers: memoryview | None) -> dict[tuple[str, int], memoryview | None]:
    return {(cluster, node): held for node, held in zip(FOLLOWERS, followers, strict=False)}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("followers", ["intact", "damaged", "behind"])
async def test_a_copy_is_not_blamed_for_one_bad_sector_at_the_source(
    held: Held, codec: Codec, followers: str
) -> None:
    """
    The record that the leader shows was never written. Another replica has the one that was; if none has it,
    nothing is concluded.
    """
    damaged = rotten(v2(RECORDS, codec=codec))
    others = {"intact": v2(RECORDS, codec=codec), "damaged": damaged, "behind": None}

    assert await held(v2(RECORDS), damaged, others=on("source", *[others[followers]] * 2)) is None


async def test_a_difference_is_found_though_the_batch_is_damaged_at_the_leader_of_the_source(
    held: Held,
) -> None:
    """
    The second of its followers has it intact.
    """
    damaged = rotten(v2(RECORDS))

    seen = await held(v2(moved(RECORDS, 0, 1_000)), damaged, others=on("source", damaged, v2(RECORDS)))

    assert isinstance(seen, Stop)
    assert (seen.state, seen.reason) == (State.DIVERGED, Reason.OFFSETS_DIFFER)
    assert "holds a different record than the source at offset 19" in seen.detail


async def test_a_leader_of_the_source_that_cannot_read_its_own_batch_is_not_the_last_to_be_asked(
    held: Held,
) -> None:
    nothing, others = memoryview(b""), on("source", v2(moved(RECORDS, 0, 1_000)))

    assert isinstance(await held(v2(RECORDS), nothing, code=CORRUPT_MESSAGE, others=others), Stop)
    assert await held(v2(RECORDS), nothing, code=CORRUPT_MESSAGE) is None


@pytest.mark.parametrize("followers", ["intact", "damaged"])
async def test_a_copy_goes_on_though_its_last_batch_is_damaged_at_one_broker(
    held: Held, followers: str
) -> None:
    """
    What was appended was right: the broker has checked it. To stop would lose what comes, and mend nothing.
    """
    batch = v2(RECORDS)
    others = on("target", *[{"intact": batch, "damaged": rotten(batch)}[followers]] * 2)

    assert await held(rotten(batch), batch, others=others) is None


async def test_a_difference_is_found_though_the_batch_is_damaged_at_the_leader_of_the_target(
    held: Held,
) -> None:
    other = v2(moved(RECORDS, 0, 1_000))

    assert isinstance(await held(rotten(other), v2(RECORDS), others=on("target", other)), Stop)


async def test_a_batch_that_cannot_stand_where_it_says_is_not_compared(held: Held) -> None:
    """
    Its CRC is right: none covers where it stands. The next one begins before it ends, or the log does.
    """
    shifted = v2(moved(RECORDS, 1))
    overlapping = memoryview(bytearray(bytes(shifted) + bytes(v2(entries(20, 1)))))

    assert await held(v2(RECORDS), overlapping) is None
    assert await held(v2(RECORDS), shifted, log_end=20) is None
    assert isinstance(await held(v2(RECORDS), shifted), Stop)


@pytest.mark.parametrize(
    ("bit", "following", "log_end"),
    [
        pytest.param(3, 0, 20, id="a broker passes over the last batch: 10 to 2"),
        pytest.param(4, 0, 20, id="beyond the end of the log: 10 to 26"),
        pytest.param(4, 5, 500, id="beyond the next batch: 10 to 26"),
    ],
)
async def test_a_batch_that_says_it_stands_elsewhere_is_not_taken_for_one_that_was_compacted_away(
    held: Held, bit: int, following: int, log_end: int
) -> None:
    """
    Another replica has it in its place, and so it is compared.
    """
    after = bytes(v2(entries(20, following))) if following else b""
    damaged = memoryview(bytearray(bytes(rotten(v2(RECORDS), BASE_OFFSET_AT, bit)) + after))
    changed = v2(moved(RECORDS, 0, 1_000))

    with capture_logs() as lines:
        seen = await held(changed, damaged, log_end=log_end, others=on("source", v2(RECORDS)))

    assert isinstance(seen, Stop)
    assert "holds a different record than the source at offset 19" in seen.detail
    assert [line["event"] for line in lines] == ["read_from_another_replica"]


@pytest.mark.parametrize(
    ("log_end", "unstable"),
    [
        pytest.param(500, 0, id="it is in remote storage, and another partition was read"),
        pytest.param(20, 5, id="a marker that compaction has removed before a transaction that hangs"),
    ],
)
async def test_where_nothing_is_read_before_the_end_of_a_log_that_is_no_damage(
    held: Held, log_end: int, unstable: int
) -> None:
    """
    No replica is asked, and nothing is said.
    """
    others = on("source", v2(moved(RECORDS, 0, 1_000)))

    with capture_logs() as lines:
        seen = await held(v2(RECORDS), None, log_end=log_end, unstable=unstable, others=others)

    assert (seen, lines) == (None, [])


async def test_a_batch_that_was_appended_after_the_broker_looked_where_the_log_ends_is_not_damaged(
    held: Held,
) -> None:
    """
    The next answer knows better.
    """
    with capture_logs() as lines:
        seen = await held(v2(moved(RECORDS, 0, 1_000)), v2(RECORDS), log_end=15, grown=20)

    assert isinstance(seen, Stop)
    assert lines == []


PRODUCER_AT = 43
ONE = entries(19, 1)
BASE_OFFSET_AT = 7

Last = Callable[..., Awaitable[Tail | TwinsiteError | None]]


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> Last:
    """What is made of the last batch at the target's leader, or at followers where that one is damaged."""

    async def looked(
        leader: memoryview, *followers: memoryview | None, log_end: int = 20
    ) -> Tail | TwinsiteError | None:
        clusters = Clusters(None, leader, ())
        clusters.log_end = log_end
        clusters.others.update(on("target", *followers))
        for module in (looking, replicas):
            monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)
        return (await last_batches(cast(Any, clusters.target), {ORDERS_0: 20}))[ORDERS_0]

    return looked


@pytest.mark.parametrize("followers", ["intact", "damaged"])
@pytest.mark.parametrize(
    ("records", "at", "bit"),
    [
        pytest.param(RECORDS, PRODUCER_AT, 0, id="producer"),
        pytest.param(ONE, MAGIC_AT, 0, id="one record of an unknown format"),
        pytest.param(ONE, MAGIC_AT, 1, id="one record of an old format"),
        pytest.param(RECORDS, MAGIC_AT, 0, id="an unknown format"),
        pytest.param(RECORDS, MAGIC_AT, 1, id="an old format"),
        pytest.param(RECORDS, BASE_OFFSET_AT, 3, id="base offset, too low: a broker passes over it"),
        pytest.param(RECORDS, BASE_OFFSET_AT, 2, id="base offset, partly beyond the end"),
        pytest.param(RECORDS, BASE_OFFSET_AT, 4, id="base offset, beyond the end"),
    ],
)
async def test_who_wrote_last_is_not_read_from_a_damaged_batch(
    last: Last, records: list[Entry], at: int, bit: int, followers: str
) -> None:
    """
    Somebody else would seem to have written to the target. CRCs do not cover format and offset.
    """
    batch = v2(records, producer=(4711, 0, 0))
    damaged = rotten(batch, at, bit)

    with capture_logs() as lines:
        seen = await last(damaged, *[{"intact": batch, "damaged": damaged}[followers]] * 2)

    assert seen == (tail(batch) if followers == "intact" else None)
    said = "read_from_another_replica" if followers == "intact" else "last_batch_not_readable"
    assert said in {line["event"] for line in lines}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_messages_of_an_old_format_may_be_the_last_of_a_log_that_is_older_than_the_copy(
    last: Last, magic: Literal[0, 1], codec: Codec
) -> None:
    """
    They are not damaged: their own CRC says so. Nobody who has an id wrote them.
    """
    seen = await last(old(magic, ONE, codec=codec))

    assert isinstance(seen, Tail)
    assert (seen.producer_id, seen.base_offset) == (-1, 19)


async def test_a_last_batch_that_compaction_has_removed_is_not_damaged(last: Last) -> None:
    with capture_logs() as lines:
        assert await last(v2(entries(25, 3)), log_end=28) is None

    assert lines == []


async def test_a_leader_that_gives_nothing_before_the_end_of_its_log_has_no_damaged_batch(last: Last) -> None:
    """
    Brokers read one partition of a request from remote storage, and leave the others empty.
    """
    with capture_logs() as lines:
        assert await last(memoryview(b""), v2(RECORDS), log_end=28) is None

    assert lines == []


async def test_a_batch_that_says_it_stands_further_up_is_not_read_although_it_holds_the_offset(
    last: Last,
) -> None:
    """
    The next one, of a repair, begins before it ends: it is 10 to 19 and says 14 to 23.
    """
    batch, inserted = v2(RECORDS, producer=(4711, 0, 0)), bytes(v2(entries(20, 8)))
    damaged = memoryview(bytearray(bytes(rotten(batch, BASE_OFFSET_AT, 2)) + inserted))

    with capture_logs() as lines:
        seen = await last(damaged, batch, log_end=28)

    assert seen == tail(batch)
    assert [line["event"] for line in lines] == ["read_from_another_replica"]


async def test_a_follower_that_has_nothing_there_is_not_the_last_to_be_asked(last: Last) -> None:
    """
    Nor is the batch said to have been read from it.
    """
    batch, later = v2(RECORDS), v2(entries(25, 3))

    with capture_logs() as lines:
        seen = await last(rotten(batch), later, batch, log_end=28)
        nothing = await last(rotten(batch), later, later, log_end=28)

    assert (seen, nothing) == (tail(batch), None)
    said = [(line["event"], line.get("node")) for line in lines]
    assert said == [("read_from_another_replica", FOLLOWERS[1]), ("last_batch_not_readable", None)]


async def test_who_does_not_answer_is_not_waited_for_once_more_for_each_damaged_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    At either side. The other follower is asked each time.
    """
    batch, changed = v2(RECORDS), v2(moved(RECORDS, 0, 1_000))
    clusters = Clusters(rotten(batch), rotten(changed), ())
    clusters.others.update({("source", FOLLOWERS[1]): batch, ("target", FOLLOWERS[1]): changed})
    clusters.frozen = {("source", FOLLOWERS[0]), ("target", FOLLOWERS[0])}
    for module in (ends, looking, replicas):
        monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)
    tps = [TopicPartition("orders", number) for number in range(5)]

    tails = await last_batches(cast(Any, clusters.target), dict.fromkeys(tps, 20))
    looked = clusters.sent.copy()
    clusters.sent.clear()
    stops = await compare_ends(cast(Flow, clusters), {tp: End(tp, 19, 19, -1, tail(changed)) for tp in tps})

    assert tails == dict.fromkeys(tps, tail(changed))
    assert looked.count(("target", FOLLOWERS[0])) == 1
    assert looked.count(("target", FOLLOWERS[1])) == len(tps)
    assert all(isinstance(stop, Stop) for stop in stops.values())
    assert {clusters.sent.count(frozen) for frozen in clusters.frozen} == {1}


async def test_a_topic_that_is_not_in_the_metadata_keeps_no_other_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The broker could be asked.
    """
    batch, tps = v2(RECORDS), [TopicPartition("orders", number) for number in range(2)]
    clusters = Clusters(None, rotten(batch), ())
    clusters.others.update(on("target", batch, batch))
    clusters.unknown = {tps[0]}
    for module in (looking, replicas):
        monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)

    tails = await last_batches(cast(Any, clusters.target), dict.fromkeys(tps, 20))

    assert tails == {tps[0]: None, tps[1]: tail(batch)}


async def test_a_broker_that_says_nothing_for_a_quota_is_asked_again_for_the_next_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, tps = v2(RECORDS), [TopicPartition("orders", number) for number in range(2)]
    clusters = Clusters(None, rotten(batch), ())
    clusters.others.update(on("target", batch, None))
    clusters.throttled = {("target", FOLLOWERS[0])}
    for module in (looking, replicas):
        monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)

    tails = await last_batches(cast(Any, clusters.target), dict.fromkeys(tps, 20))

    assert tails == {tps[0]: None, tps[1]: tail(batch)}


async def test_a_replica_that_has_become_the_leader_meanwhile_is_asked_and_the_former_one_is_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The metadata are newer than the answer in which the batch is damaged.
    """
    batch = v2(RECORDS)
    clusters = Clusters(None, rotten(batch), ())
    clusters.others.update(on("target", batch, rotten(batch)))
    now = SimpleNamespace(leader_epoch=5, leader=FOLLOWERS[0], in_sync_replicas=(LEADER, *FOLLOWERS))
    clusters.target.info.partition = lambda _: now
    for module in (looking, replicas):
        monkeypatch.setattr(module, "peek_all_at", clusters.peek_all_at)

    tails = await last_batches(cast(Any, clusters.target), {ORDERS_0: 20})

    assert tails == {ORDERS_0: tail(batch)}
    assert clusters.sent == [("target", LEADER), ("target", FOLLOWERS[0])]
