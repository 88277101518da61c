"""A status as people read it: on every screen it can be seen which partition is in what state, and why."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mirror.cli.columns import shortened
from mirror.cli.output import PIPE_COLUMNS, number
from mirror.cli.render import ALIKE_MAX, status_table
from mirror.model import LinkStatus, OffsetMode, OwnerStatus, PartitionStatus, Reason, State, TopicLeftOut
from tests.unit.statuses import (
    a_flow,
    a_late_partition,
    a_link,
    a_loss,
    a_partition,
    a_standby,
    an_unknown_partition,
)

LONG = "orders-of-the-north-region-with-a-name-of-sixty-letters-east"


def drawn(
    *partitions: PartitionStatus, columns: int, lines: int | None = None, everything: bool = False
) -> list[str]:
    """The table as lines; kept to one screen where the number of its lines is given."""
    out = io.StringIO()
    console = Console(file=out, width=columns, height=lines, markup=False, highlight=False)
    console.print(status_table(a_flow(*partitions), everything=everything, one_screen=lines is not None))
    return out.getvalue().splitlines()


def rows(screen: Sequence[str]) -> list[list[str]]:
    """What stands below the titles, each line in words."""
    titles = next(number for number, line in enumerate(screen) if line.startswith("PARTITION"))
    return [line.split() for line in screen[titles + 1 :]]


def titles(screen: Sequence[str]) -> str:
    return next(line for line in screen if line.startswith("PARTITION"))


def diverged(count: int) -> list[PartitionStatus]:
    return [
        a_partition(
            "told-twice",
            number,
            state=State.DIVERGED,
            reason=Reason.FOREIGN_WRITE,
            detail="somebody else wrote at 4711",
        )
        for number in range(count)
    ]


def blocked() -> PartitionStatus:
    return a_partition(
        "held", state=State.BLOCKED, reason=Reason.MARKERS_NOT_AUTHORIZED, detail="error 31 was the answer"
    )


# -- the width of the screen ---------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80, 100, 140])
@pytest.mark.parametrize("topic", ["orders", LONG])
def test_which_partition_is_in_what_state_can_be_read_on_every_screen(columns: int, topic: str) -> None:
    """
    Names and states of all kinds, the longest among them, and figures of a large topic.
    """
    large = {"next_offset": 123_456_789_012, "source_high_watermark": 123_456_789_012}
    partitions = [
        a_partition(topic, number, state=state, **large)
        for number, state in enumerate([State.DIVERGED, State.TOPIC_RECREATED, State.BLOCKED, State.ACTIVE])
    ]

    screen = drawn(*partitions, an_unknown_partition(), columns=columns)

    lines = [line.split() for line in screen]
    for one in [*partitions, an_unknown_partition()]:
        ends = (one.topic[:5], f"-{one.partition}")
        [line] = [
            line
            for line in lines
            if line[0].startswith(ends[0]) and line[0].endswith(ends[1]) and len(line) > 1
        ]
        assert one.state in line[1:4]
    assert max(map(len, screen)) <= columns


@pytest.mark.parametrize(
    ("columns", "there", "left_out"),
    [
        (80, "REASON NEXT LAG", "RECORDS OFFSETS"),
        (100, "REASON NEXT SOURCE LAG TIME", "RECORDS"),
        (140, "REASON OFFSETS NEXT SOURCE TARGET LAG TIME RECORDS", ""),
    ],
)
def test_a_narrow_screen_leaves_out_what_is_needed_least(columns: int, there: str, left_out: str) -> None:
    """
    Of a short name nothing is cut while there are columns to leave out.
    """
    held = a_partition(state=State.BLOCKED, reason=Reason.TARGET_UNAVAILABLE)

    screen = drawn(held, columns=columns)

    assert {*there.split()} <= {*titles(screen).split()}
    assert not {*left_out.split()} & {*titles(screen).split()}
    assert rows(screen)[0][0] == "orders-0"
    assert "BLOCKED" in rows(screen)[0]


def test_what_is_to_come_has_columns_only_where_something_lags() -> None:
    """
    A table of partitions that are fine is as narrow as ever.
    """
    fine = drawn(a_partition(), a_partition("audit"), columns=200)
    late = drawn(a_partition(), a_late_partition(), columns=200)

    assert "CAUGHT UP IN" not in titles(fine)
    assert "LOSS IN" not in titles(fine)
    assert "CAUGHT UP IN LOSS IN" in " ".join(titles(late).split())
    behind, in_time = rows(late)[:2]
    assert " ".join(behind[:6]) == "late-0 > east.late LAGGING retention near"
    assert "never 2 h 10 min" in " ".join(behind)
    assert "never" not in in_time


def test_a_topic_that_is_gone_has_no_lag() -> None:
    """
    A question mark would say that something may be missing.
    """
    unknown: dict[str, Any] = {"state": State.BLOCKED, "lag_records": None, "lag_seconds": None}
    gone, hidden = (
        a_partition(topic, reason=reason, topic_gone=reason is Reason.TOPIC_DELETED, **unknown)
        for topic, reason in (("gone", Reason.TOPIC_DELETED), ("hidden", Reason.SOURCE_NOT_AUTHORIZED))
    )

    first, second = rows(drawn(gone, hidden, columns=200))

    assert first[-3:-1] == ["none", "none"]
    assert second[-3:-1] == ["?", "?"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.001, "< 1 s"), (0.6, "< 1 s"), (1.2, "1.2 s"), (33.5, "34 s"), (None, "?")]
)
def test_a_lag_below_a_second_stands_still(seconds: float | None, words: str) -> None:
    """
    It goes up and down with each word of the source; "0.0 s" would say that nothing can be missing.
    """
    screen = drawn(a_partition(lag_seconds=seconds), columns=200)

    assert f" {words} " in screen[-1]
    assert "0.0 s" not in screen[-1]


def test_a_flow_that_lags_says_when_it_is_there_and_what_it_will_lose() -> None:
    """
    The sum, the last partition and the first loss, in one line above the table; nothing while all is well.
    """
    late, fine = drawn(a_late_partition(), columns=200), drawn(a_partition(), columns=200)

    assert late[1].strip() == (
        "5 000 offsets behind; at this pace all is copied in 90 s, the last partition in 20 min, "
        "and records are lost in 2 h 10 min"
    )
    assert "at this pace" not in "\n".join(fine)


def test_a_loss_to_come_is_told_with_its_way_out() -> None:
    """
    Unlike a copy that only takes its time.
    """
    screen = "\n".join(drawn(a_late_partition(), columns=200))

    assert "late-0: LAGGING: 200 offsets behind; at this pace records are lost in 2 h 10 min" in screen
    assert "hint: Raise retention.ms" in screen


def test_the_reason_is_there_at_80_columns_beside_a_long_name() -> None:
    """
    The name gives way before the reason does.
    """
    held = a_partition(LONG, 12, state=State.BLOCKED, reason=Reason.MARKERS_NOT_AUTHORIZED)

    [row] = rows(drawn(held, columns=80))

    assert row[0].startswith("orders-of-the")
    assert row[0].endswith("east-12")
    assert row[1:5] == ["BLOCKED", "markers", "not", "authorized"]


def test_a_name_at_the_target_is_shown_whole_or_not_at_all() -> None:
    """
    Half a name at the target would be taken for another topic.
    """
    narrow, wide = (drawn(a_partition(LONG), columns=columns) for columns in (140, 250))

    assert not any(">" in line for line in narrow)
    assert any(f"{LONG}-0 > east.{LONG}" in line for line in wide)


def test_a_large_offset_is_told_to_its_last_digit() -> None:
    """
    Above 2^53 a float has not all of them.
    """
    assert [number(value) for value in (2**53 + 1, 2**63 - 1, 1_234.4, None)] == [
        "9 007 199 254 740 993",
        "9 223 372 036 854 775 807",
        "1 234",
        "?",
    ]


def test_in_a_pipe_nothing_is_cut() -> None:
    """
    The longest name that Kafka allows, on both sides: who reads it is a program.
    """
    longest = "t" * 249

    screen = drawn(replace(a_partition(longest, 100), target_topic="u" * 249), columns=PIPE_COLUMNS)

    assert f"{longest}-100 > {'u' * 249}" in screen[2]
    assert "RECORDS" in screen[1]


@pytest.mark.parametrize("width", range(6, 40))
def test_a_name_that_is_cut_keeps_its_number_and_both_ends(width: int) -> None:
    """
    Many topics begin alike, and many end alike.
    """
    cut = shortened("orders-of-the-north-12", width, "-12")

    assert len(cut) == min(width, len("orders-of-the-north-12"))
    assert cut.startswith("o")
    assert cut.endswith("-12")


# -- the height of the screen --------------------------------------------------------------------------


def test_a_screen_that_is_too_low_shows_the_worst_and_how_many_it_leaves_out() -> None:
    """
    No more than one screen: what is taller would scroll away.
    """
    healthy = [a_partition("orders", number) for number in range(50)]

    screen = drawn(*healthy, a_loss(), columns=80, lines=24)

    last = next(number for number, line in enumerate(screen) if "other partitions" in line)
    shown = [line.split()[0] for line in screen[:last] if line.startswith(("audit", "orders"))]
    assert len(screen) <= 24
    assert shown[:3] == ["audit-2", "orders-0", "orders-1"]
    assert screen[last] == f"and {51 - len(shown)} other partitions (they do not fit the screen)"
    assert any("hint: Save what another copy may have" in line for line in screen)


@pytest.mark.parametrize("lines", [16, 24, 60])
def test_every_way_out_is_on_the_screen_however_many_are_in_trouble(lines: int) -> None:
    """
    Rather each hint once than one partition more.
    """
    troubled = [*diverged(40), blocked(), a_loss()]

    screen = drawn(*troubled, columns=100, lines=lines)

    assert len(screen) <= lines
    for one in (troubled[0], blocked(), a_loss()):
        assert any(one.hint[:40] in line for line in screen)


def test_a_screen_of_a_few_lines_says_that_there_is_more() -> None:
    """
    Nothing is left out in silence.
    """
    screen = drawn(*diverged(40), blocked(), a_loss(), columns=60, lines=10)

    assert len(screen) <= 10
    assert any("that does not fit the screen" in line for line in screen)


def test_what_fits_the_screen_is_all_there() -> None:
    """
    The last line of the screen is used before anything is left out.
    """
    partitions = [a_partition("orders", number) for number in range(21)]

    screen = drawn(*partitions, columns=140, lines=23)

    assert "orders-20" in screen[-1]
    assert not any("other partitions" in line for line in screen)


# -- what is to be done --------------------------------------------------------------------------------


def test_a_hint_is_not_hidden_behind_many_others() -> None:
    """
    Twenty of one kind are told of in part, so that the one of another kind is seen; with ``--all`` each is.
    """
    troubled = [*diverged(200), blocked()]

    short = drawn(*troubled, columns=200)
    long = drawn(*troubled, columns=200, everything=True)

    assert sum("somebody else wrote at 4711" in line for line in short) == ALIKE_MAX
    assert f"and {200 - ALIKE_MAX} more, DIVERGED like these" in short
    assert any("held-0: BLOCKED: error 31 was the answer" in line for line in short)
    assert any(blocked().hint in line for line in short)
    assert sum("somebody else wrote at 4711" in line for line in long) == 200


@pytest.mark.parametrize("count", [2, 500])
@pytest.mark.parametrize("lines", [None, 24])
def test_what_to_do_about_partitions_that_catch_up_is_said_once_of_all(count: int, lines: int | None) -> None:
    """
    Each is in the table; a line for each below that would hide those that need somebody.
    """
    behind = [
        a_partition("late", number, state=State.LAGGING, reason=Reason.CATCHING_UP, detail="90 behind")
        for number in range(count)
    ]

    screen = drawn(*behind, blocked(), columns=100, lines=lines)

    at = next(number for number, line in enumerate(screen) if line == f"{count} LAGGING, catching up")
    assert screen[at + 1].startswith("  hint: Wait; if the lag grows")
    assert sum("if the lag grows" in line for line in screen) == 1
    assert not any("90 behind" in line for line in screen)
    assert any(blocked().hint[:40] in line for line in screen[:at])
    assert "catching up" not in "\n".join(drawn(a_late_partition(), blocked(), columns=100))


@pytest.mark.parametrize("columns", [80, 200])
def test_mapped_offsets_are_counted_above_the_table_on_every_screen(columns: int) -> None:
    """
    The column that says so of each has no room on a narrow one.
    """
    same, mapped = a_partition(), a_partition("late", offset_mode=OffsetMode.MAPPED)

    screen = drawn(same, mapped, mapped, an_unknown_partition(), columns=columns)

    assert ("OFFSETS" in titles(screen)) is (columns == 200)
    assert "  offsets: 1 same, 2 mapped" in screen[: screen.index(titles(screen))]
    assert "  offsets: 1 mapped" in drawn(mapped, columns=columns)
    assert not any("offsets:" in line for line in drawn(same, same, columns=columns))


# -- what was given up ---------------------------------------------------------------------------------


def test_what_was_given_up_stays_to_be_read() -> None:
    """
    Long after it was accepted, and though the partition is in order.
    """
    held = a_partition("orders", 3, lost_ranges=((20, 35), (50, 60)))

    screen = drawn(held, a_partition("fine"), columns=100)

    assert screen[-1] == "orders-3: 25 offsets given up: 20 to 35, 50 to 60"
    assert sum("given up" in line for line in screen) == 1


def test_of_many_ranges_that_were_given_up_the_last_are_named() -> None:
    """
    The status document has them all.
    """
    ranges = tuple((start, start + 1) for start in range(0, 20, 2))

    screen = drawn(a_partition(lost_ranges=ranges), columns=100)

    assert screen[-1] == "orders-0: 10 offsets given up: the last of them 14 to 15, 16 to 17, 18 to 19"


def test_many_partitions_that_have_given_up_something_are_told_of_in_part() -> None:
    """
    It needs nobody any more: it must not fill the screen.
    """
    partitions = [a_partition("orders", number, lost_ranges=((0, 5),)) for number in range(30)]

    screen = drawn(*partitions, columns=100)

    assert sum("offsets given up: 0 to 5" in line for line in screen) == ALIKE_MAX
    assert screen[-1] == f"and {30 - ALIKE_MAX} more that have given up offsets"


def test_how_far_the_relay_is_and_how_it_sends_stands_below_the_flow() -> None:
    """
    What is known of it; nothing where there is none.
    """
    status = a_flow(a_partition())
    known, unknown = a_link(), a_link(round_trip_seconds=None, level=None)

    def second_line(link: LinkStatus | None) -> str:
        out = io.StringIO()
        Console(file=out, width=200).print(status_table(replace(status, link=link)))
        return out.getvalue().splitlines()[1].strip()

    assert second_line(known) == (
        "through relay relay-1.east:9650: bbr, round trip 101.5 ms; zstd level 3 over 16 MiB, batches "
        "inflated (not measured yet)"
    )
    assert second_line(unknown) == "through relay relay-1.east:9650: bbr"
    assert second_line(None).startswith("PARTITION")


def test_topics_left_out_are_counted_and_a_few_of_them_named() -> None:
    """
    Nothing that the lists want is missing without a word, also where nothing else is copied.
    """
    copies = [TopicLeftOut(f"west.t{number}", "copy_of_target", "") for number in range(4)]

    def head(left_out: Sequence[TopicLeftOut]) -> str:
        out = io.StringIO()
        status = replace(a_flow(), partitions=(), topics_left_out=tuple(left_out))
        Console(file=out, width=200).print(status_table(status))
        return out.getvalue()

    assert "topics left out, as copies of what the target has: 1 (west.t0)" in head(copies[:1])
    assert "has: 4 (west.t0, west.t1, west.t2, ...)" in head(copies)
    assert "no topic of the source matches" not in head(copies)
    unsure = TopicLeftOut("west.new", "not_known", "")
    assert "as copies of what the target has: 1 (west.t0)" in head([copies[0], unsure])
    assert "as possible copies of what the target has: 1 (west.new)" in head([copies[0], unsure])


def test_a_mirror_that_stands_by_says_once_who_copies_and_where_to_ask() -> None:
    """
    Not of each partition; what else is in its way, and what was given up, is told as ever.
    """
    waiting = [
        a_partition(
            "orders",
            number,
            state=State.STANDBY,
            reason=Reason.ANOTHER_MIRROR,
            detail="the owner of the flow is the mirror on west-4",
        )
        for number in range(3)
    ]

    def shown(owner: OwnerStatus | None, *, held: bool = False) -> str:
        out = io.StringIO()
        lost = a_partition("lost", state=State.STANDBY, detail="likewise", lost_ranges=((0, 5),))
        status = replace(a_standby(*waiting, lost, blocked(), owner=owner), owner=held)
        Console(file=out, width=200, markup=False, highlight=False).print(status_table(status))
        return out.getvalue()

    known = shown(OwnerStatus("west-4", 4711, 1_700_000_000_000, "http://west-4:9640"))
    unknown, turning = shown(None), shown(None, held=True)

    assert known.splitlines()[1:3] == [
        "  stands by: the owner of the flow is the mirror on west-4, process 4711, since 2023-11-14 22:13:20 "
        "UTC; this one takes over when that one ends or makes no progress",
        "  ask it for the status: twinsite status --url http://west-4:9640",
    ]
    assert "stands by: the owner of the flow is another mirror; this one takes over" in unknown
    far = shown(OwnerStatus("west-4", 4711, 1_516_000_000_000_000, ""))
    assert "process 4711, since an unknown time; this one takes over" in far
    assert "orders-2: STANDBY: the owner of the flow is the mirror on west-4" in unknown
    assert "STANDBY:" not in known
    at_home = shown(OwnerStatus("west-4", 4711, 1_700_000_000_000, "http://127.0.0.1:9640"))
    assert "ask it, on west-4, for the status: twinsite status --url http://127.0.0.1:9640" in at_home
    for screen in (known, unknown):
        assert "held-0: BLOCKED: error 31 was the answer" in screen
        assert "lost-0: 5 offsets given up: 0 to 5" in screen
    assert "stands by" not in turning
    assert "orders-2: STANDBY: the owner of the flow is the mirror on west-4" in turning
