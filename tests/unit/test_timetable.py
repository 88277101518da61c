"""Which rate holds when: days, hours, nights, zones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from mirror.cli.flags import relay_settings_of
from mirror.config_limits import periods_of
from mirror.errors import UsageError
from mirror.timetable import Period, days_of, hours_of, lowest, rate_at

BERLIN = ZoneInfo("Europe/Berlin")
OFFICE = Period(2.5e6, days_of("mon-fri"), *hours_of("08:00-18:00"), zone=BERLIN)
NIGHT = Period(1e9, days_of("fri"), *hours_of("22:00-06:00"), zone=BERLIN)
WEEKEND = Period(None, days_of("sat,sun"), *hours_of("00:00-24:00"), zone=BERLIN)
ELSE = Period(5e6, days_of("mon-sun"), *hours_of("00:00-24:00"), zone=UTC)


@pytest.mark.parametrize(
    ("when", "rate"),
    [
        ("2026-11-20T08:00", 2.5e6),
        ("2026-11-20T07:59", 5e6),
        ("2026-11-20T17:59", 2.5e6),
        ("2026-11-20T18:00", 5e6),
        ("2026-11-20T22:00", 1e9),
        ("2026-11-21T05:59", 1e9),
        ("2026-11-21T06:00", None),
        ("2026-11-22T23:59", None),
        ("2026-11-23T05:00", 5e6),
    ],
)
def test_the_first_period_that_holds_says_the_rate(when: str, rate: float | None) -> None:
    """
    A night belongs to the day on which it begins.
    """
    now = datetime.fromisoformat(when).replace(tzinfo=BERLIN)

    assert rate_at([OFFICE, NIGHT, WEEKEND, ELSE], now) == rate
    assert rate_at([OFFICE, NIGHT, WEEKEND, ELSE], now.astimezone(ZoneInfo("Asia/Tokyo"))) == rate


def test_hours_are_those_of_the_zone_in_summer_too() -> None:
    """
    Eight in Berlin is six in July and seven in January, elsewhere.
    """
    assert rate_at([OFFICE], datetime(2026, 7, 1, 6, 0, tzinfo=UTC)) == 2.5e6
    assert rate_at([OFFICE], datetime(2026, 1, 1, 6, 59, tzinfo=UTC)) is None
    assert rate_at([OFFICE], datetime(2026, 1, 1, 7, 0, tzinfo=UTC)) == 2.5e6


def test_hours_have_minutes() -> None:
    """
    A night that is said to begin at 24:00 begins with the next day.
    """
    assert hours_of("08:30-18:45") == (8 * 60 + 30, 18 * 60 + 45)
    assert hours_of(" 23:59-24:00 ") == (24 * 60 - 1, 24 * 60)
    late = Period(1e9, days_of("fri"), *hours_of("24:00-06:00"), zone=UTC)
    assert rate_at([late], datetime(2026, 11, 20, 23, 59, tzinfo=UTC)) is None
    assert rate_at([late], datetime(2026, 11, 21, 0, 0, tzinfo=UTC)) == 1e9
    assert rate_at([late], datetime(2026, 11, 21, 6, 0, tzinfo=UTC)) is None


def test_where_several_limits_hold_the_lowest_counts() -> None:
    """
    None is no limit, and not the lowest.
    """
    assert lowest(5e6, None, 2.5e6) == 2.5e6
    assert lowest(None, None) is None


def test_days_are_lists_and_ranges() -> None:
    """
    Also over the end of the week.
    """
    assert days_of("mon-fri") == {0, 1, 2, 3, 4}
    assert days_of("Sat, sun") == {5, 6}
    assert days_of("fri-mon") == {4, 5, 6, 0}
    assert days_of("mon-mon") == {0}


def relay_file(folder: Path, limit: str) -> Path:
    path = folder / "relay.yaml"
    path.write_text(f"cluster: {{bootstrap_servers: 'kafka:9092'}}\nlimits:\n  - {limit}\n")
    return path


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("20 Mbit/s", 2.5e6), ("2.5 MB/s", 2.5e6), ("8 kbit/s", 1000), ("2500000", 2.5e6), ("null", None)],
)
def test_rates_are_written_as_people_write_them(tmp_path: Path, rate: str, expected: float | None) -> None:
    """
    Networks count in powers of ten, and bits.
    """
    settings = relay_settings_of({"config": relay_file(tmp_path, f"rate: {rate}")})

    assert rate_at(periods_of(settings.limits), datetime.now(UTC)) == expected


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("rate: 20 MiB", "must be a rate"),
        ("rate: 20 Mb/s", "Mbit/s or MB/s"),
        ("rate: 2.5mb/s", "Mbit/s or MB/s"),
        ("rate: 1 bit/s", "too small: at least 1000"),
        ("{rate: 1 MB/s, days: monday}", "must be days"),
        ("{rate: 1 MB/s, days: mon-friday}", "must be days"),
        ("{rate: 1 MB/s, days: mon-}", "must be days"),
        ("{rate: 1 MB/s, hours: '8-18'}", "must be hours like"),
        ("{rate: 1 MB/s, hours: '08:00-08:00'}", "must not end when they begin"),
        ("{rate: 1 MB/s, hours: '24:00-00:00'}", "must not end when they begin"),
        ("{rate: 1 MB/s, hours: '08:00-24:30'}", "between 00:00 and 24:00"),
        ("{rate: 1 MB/s, zone: Europe/Berlyn}", "must be a time zone that this machine knows"),
        ("{rate: 1 MB/s, zone: ../../etc/passwd}", "must be a time zone"),
        ("{days: mon}", "rate"),
    ],
)
def test_what_is_no_limit_is_refused_with_the_reason(tmp_path: Path, limit: str, words: str) -> None:
    """
    At the start, with the path of the setting.
    """
    with pytest.raises(UsageError, match=words) as refused:
        relay_settings_of({"config": relay_file(tmp_path, limit)})

    assert "limits" in str(refused.value)
