"""When schedules are due, compared with a naive model that looks at every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.errors import InvalidInput
from batonq.node.schedules.timing import (
    MISSED_AFTER_MS,
    STEPS_MAX,
    Timing,
    check_cron,
    cron_timing,
    find_zone,
    latest,
    parse_timing,
    plan,
    rate_timing,
)

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca")
MINUTE = timedelta(minutes=1)


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def at(text: str, zone: str = "UTC") -> int:
    return ms(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


# --- a naive cron ---------------------------------------------------------------------------------


def values_of(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start = low if span == "*" else int(first)
        end = high if span == "*" or (step and not last) else int(last or first)
        found.update(range(start, end + 1, int(step or 1)))
    return found


class NaiveCron:
    def __init__(self, text: str, zone: str) -> None:
        minute, hour, day, month, weekday = text.split()
        self.zone = ZoneInfo(zone)
        self.minutes, self.hours = values_of(minute, 0, 59), values_of(hour, 0, 23)
        self.days, self.months = values_of(day, 1, 31), values_of(month, 1, 12)
        self.weekdays = {number % 7 for number in values_of(weekday, 0, 7)}
        self.both_days = day.startswith("*") or weekday.startswith("*")
        self.real_time = minute.startswith("*") or hour.startswith("*")

    def matches(self, wall: datetime) -> bool:
        of_month, of_week = wall.day in self.days, (wall.weekday() + 1) % 7 in self.weekdays
        day = of_month and of_week if self.both_days else of_month or of_week
        return day and wall.month in self.months and wall.hour in self.hours and wall.minute in self.minutes

    def times(self, start: datetime, end: datetime) -> list[int]:
        """The due times after `start` and until `end`, which are in UTC."""
        if self.real_time:
            return [
                ms(minute)
                for minute in minutes(start, end)
                if self.matches(minute.astimezone(self.zone)) and minute > start
            ]
        found: set[int] = set()
        day = timedelta(days=1)
        for wall in minutes(start - day, end + day):
            naive = wall.replace(tzinfo=None)
            if not self.matches(naive):
                continue
            local = naive.replace(tzinfo=self.zone)
            while local.astimezone(UTC).astimezone(self.zone).replace(tzinfo=None) != local.replace(tzinfo=None):
                local += MINUTE  # the clocks go forward over it
            if start < local.astimezone(UTC) <= end:
                found.add(ms(local))
        return sorted(found)


def minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    time = start.replace(second=0, microsecond=0)
    while time <= end:
        yield time
        time += MINUTE


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    listed = st.lists(number, min_size=1, max_size=3).map(lambda numbers: ",".join(map(str, numbers)))
    steps = st.integers(2, 20).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), number.map(str), span, listed, steps)


expressions = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)
frequent = st.tuples(field(0, 59), field(0, 23)).map(lambda pair: f"{pair[0]} {pair[1]} * * *")
# Days with a clock change in one of the zones, leap days, and ends of years.
DAYS = (
    "2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05", "2026-10-04",
    "2024-02-28", "2025-02-28", "2000-02-29", "2026-12-31", "2026-02-15", "2026-03-22",
)  # fmt: skip
starts = st.builds(
    lambda day, minute: datetime.fromisoformat(day).replace(tzinfo=UTC) + minute * MINUTE,
    st.sampled_from(DAYS),
    st.integers(-1_440, 1_440),
)


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(frequent, expressions), zone=st.sampled_from(ZONES), start=starts)
def test_due_times_are_those_of_a_naive_cron(text: str, zone: str, start: datetime) -> None:
    end = start + timedelta(days=2)
    expected = NaiveCron(text, zone).times(start, end)
    try:
        timing = cron_timing(text, zone)
    except InvalidInput:
        assert not expected
        return
    found = []
    for due_ms in timing.times(ms(start)):
        if due_ms > ms(end):
            break
        found.append(due_ms)
    assert found == expected
    # Every due time also follows when the computation begins anew at the one before it.
    step = ms(start)
    for due_ms in found[:20]:
        assert timing.after(step) == due_ms
        step = due_ms


@settings(max_examples=100, deadline=None)
@given(rate_s=st.integers(1, 100_000), start_s=st.integers(0, 10**6), after_s=st.integers(0, 10**7), end=st.booleans())
def test_a_rate_counts_from_its_start(rate_s: int, start_s: int, after_s: int, end: bool) -> None:
    timing = rate_timing(rate_s * 1000, start_s * 1000, 5_000_000_000 if end else 0)
    due = timing.after(after_s * 1000)
    if not due:
        assert end and after_s * 1000 + rate_s * 1000 > 5_000_000_000
        return
    assert due > after_s * 1000 and (due - start_s * 1000) % (rate_s * 1000) == 0
    assert due == start_s * 1000 or due - rate_s * 1000 <= after_s * 1000


# --- missed firings -------------------------------------------------------------------------------

timings = st.one_of(
    st.builds(rate_timing, st.integers(1_000, 500_000), st.integers(0, 10_000_000)),
    st.builds(cron_timing, frequent, st.sampled_from(ZONES)),
)


@settings(max_examples=150, deadline=None)
@given(
    timing=timings,
    missed=st.sampled_from(("all", "last", "none")),
    wakes_s=st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
)
def test_every_due_time_is_fired_or_skipped_as_the_schedule_says(
    timing: Timing, missed: str, wakes_s: list[int]
) -> None:
    """The owner wakes up at some times. Each due time is handled once, and only a late one is skipped."""
    now_ms = 1_774_000_000_000
    next_ms = timing.after(now_ms)
    fired: list[int] = []
    skipped = 0
    began_ms = now_ms
    for span_s in wakes_s:
        now_ms += span_s * 1000
        while next_ms and next_ms <= now_ms:
            planned = plan(timing, missed, next_ms, now_ms)
            assert next_ms <= planned.due_ms <= now_ms
            if planned.fires:
                fired.append(planned.due_ms)
                assert missed != "none" or now_ms - planned.due_ms <= MISSED_AFTER_MS
            else:
                assert missed == "none"
            skipped += planned.skipped
            next_ms = planned.next_ms
            assert planned.due_ms < next_ms
    every = []
    for due_ms in timing.times(began_ms):
        if due_ms > now_ms:
            break
        every.append(due_ms)
    assert fired == sorted(set(fired)) and set(fired) <= set(every)
    assert next_ms == timing.after(now_ms)
    if missed == "all":
        assert fired == every and not skipped
    elif timing.rate_ms or len(every) < STEPS_MAX:
        assert len(fired) + skipped == len(every)
    if missed == "last" and every:
        assert fired[-1] == every[-1]


@pytest.mark.parametrize("cron", ["* * * * *", "30 8 * * MON-FRI", "0 0 29 2 *", "0 0 1 1 *", "* * * * * FRI"])
def test_a_long_outage_costs_little(cron: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = cron_timing(cron, "Europe/Berlin")
    first_ms, now_ms = timing.after(at("2001-01-01")), at("2026-06-01T12:00:30")
    times, computed = Timing.times, 0

    def counted(self: Timing, after_ms: int) -> Iterator[int]:
        nonlocal computed
        for due_ms in times(self, after_ms):
            computed += 1
            yield due_ms

    monkeypatch.setattr(Timing, "times", counted)
    due_ms, next_ms, passed = latest(timing, first_ms, now_ms)
    assert computed <= STEPS_MAX + 100
    monkeypatch.undo()
    assert due_ms <= now_ms < next_ms and timing.after(due_ms) == next_ms
    assert 0 < passed <= STEPS_MAX


def test_clock_changes() -> None:
    daily = cron_timing("30 2 * * *", "Europe/Berlin")
    spring = [daily.after(at("2026-03-28T12:00")), daily.after(at("2026-03-29T12:00"))]
    assert spring == [at("2026-03-29T03:00", "Europe/Berlin"), at("2026-03-30T02:30", "Europe/Berlin")]
    first = daily.after(at("2026-10-24T12:00"))
    assert first == at("2026-10-25T00:30")  # 02:30 in summer time
    assert daily.after(first) == at("2026-10-26T01:30")  # not at 02:30 in winter time as well
    hourly = cron_timing("30 * * * *", "Europe/Berlin")
    around = [hourly.after(at(f"2026-10-25T0{hour}:00")) for hour in range(3)]
    assert around == [at(f"2026-10-25T0{hour}:30") for hour in range(3)]


@pytest.mark.parametrize("day", ["2026-04-05", "2026-10-04"])
@pytest.mark.parametrize("cron", ["*/15 0 * * *", "*/15 3 * * *", "45 * * * *", "*/20 1,2 * * *", "10 2 * * *"])
def test_a_clock_change_of_half_an_hour_passes_no_due_time(cron: str, day: str) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Australia/Lord_Howe")).astimezone(UTC)
    for minutes in range(-600, 600, 7):
        start = midnight + minutes * MINUTE
        end = start + timedelta(days=2)
        expected = NaiveCron(cron, "Australia/Lord_Howe").times(start, end)
        times = cron_timing(cron, "Australia/Lord_Howe").times(ms(start))
        assert list(islice(times, len(expected))) == expected and next(times) > ms(end)


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("61 * * * *", "field 1 (minute) is '61', which must be 0 to 59"),
        ("* 24 * * *", "field 2 (hour) is '24'"),
        ("* * 0 * *", "field 3 (day of month) is '0'"),
        ("* * * 13 *", "field 4 (month) is '13'"),
        ("* * * * 8", "field 5 (day of week) is '8'"),
        ("60 * * * * *", "field 1 (second) is '60'"),
        ("*/0 * * * *", "field 1 (minute)"),
        ("9-5 * * * *", "field 1 (minute)"),
        ("* * * *", "has 4 fields instead of 5"),
        ("x", "has 1 field instead of 5"),
        ("", "has 0 fields"),
        ("@often", "'@often' is unknown. The short forms are @yearly, @monthly, @weekly, @daily, @hourly."),
        ("0 0 30 2 *", "is never due"),
        ("* * * * MON#6", "field 5 (day of week)"),
        ("é * * * *", "ASCII"),
        ("1," * 200 + "1 * * * *", "at most 200"),
    ],
)
def test_wrong_expressions_are_refused_with_the_place(cron: str, said: str) -> None:
    with pytest.raises(InvalidInput) as info:
        check_cron(cron)
    assert said in str(info.value)


@pytest.mark.parametrize(
    "name", ["", "Europe/Berln", "America", "../Europe/Berlin", "/etc/localtime", "x" * 99, "a\0b"]
)
def test_unknown_time_zones_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as info:
        find_zone(name)
    assert "is unknown" in str(info.value)
    assert ("Did you mean Europe/Berlin?" in str(info.value)) == (name in ("Europe/Berln", "../Europe/Berlin"))


@pytest.mark.parametrize("rate_ms", [0, -5, 999, 366 * 86_400_000 + 1])
def test_rates_out_of_range_are_refused(rate_ms: int) -> None:
    with pytest.raises(InvalidInput):
        rate_timing(rate_ms, 0)


def test_a_timing_is_stored_as_text() -> None:
    for timing in (cron_timing("@daily", "Asia/Tokyo", 5, 6), rate_timing(60_000, 7)):
        assert parse_timing(timing.text()) == timing
    assert cron_timing("  0   0 * * sun ", "UTC").cron == "0 0 * * sun"
    assert [*cron_timing("@hourly", "UTC", 0, 7_200_000).times(0)] == [3_600_000, 7_200_000]
    assert cron_timing("@yearly", "UTC", at("2030-05-01")).after(0) == at("2031-01-01")


@pytest.mark.parametrize("zone", ZONES)
def test_a_due_time_at_the_end_of_the_calendar_is_the_last(zone: str) -> None:
    assert cron_timing("0 0 1 1 *", zone).after(at("9999-06-01")) == 0
