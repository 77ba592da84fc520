"""When a schedule is due: by a cron expression in a time zone, or at a rate. Pure functions of times in milliseconds.

A cron expression has five fields, or six with seconds in front, with the rules of Debian's cron. A fixed time of day
that does not exist on a day, because the clocks go forward, is due at the first minute after the gap. A time of day
that exists twice is due once, the first time. An expression whose minutes or hours are `*`, or that has seconds,
follows real time instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from batonq.errors import InvalidInput
from batonq.quantities import plural

RATE_MIN_MS = 1_000
RATE_MAX_MS = 366 * 86_400_000
CRON_LENGTH_MAX = 200
ZONE_LENGTH_MAX = 64
MISSED = ("all", "last", "none")
MISSED_AFTER_MS = 60_000  # with `none`, a due time is fired at most this late
DUE_MAX_MS = 253_402_214_400_000  # the last day of the year 9999: no time zone can show a later one
STEPS_MAX = 200  # due times that are counted one by one when many have passed
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_RANGES = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day of week": "0 to 7 or SUN to SAT, 5L or MON#2",
}
_SHAPE = (
    'Use "MINUTE HOUR DAY-OF-MONTH MONTH DAY-OF-WEEK", such as "30 8 * * MON-FRI", or six fields with seconds first'
)
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Timing:
    """Either `cron` and `zone`, or `rate_ms` and `start_ms`."""

    cron: str = ""
    zone: str = "UTC"
    rate_ms: int = 0
    start_ms: int = 0  # the first due time of a rate; no due time of a cron expression is before it
    end_ms: int = 0  # no due time is after it; 0: no end

    def text(self) -> str:
        """The timing as a schedule stores it."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({name: value for name, value in values.items() if value}, separators=(",", ":"))

    def times(self, after_ms: int) -> Iterator[int]:
        """The due times after a time, in order."""
        last_ms = after_ms
        end_ms = min(self.end_ms or DUE_MAX_MS, DUE_MAX_MS)
        if max(after_ms, self.start_ms) > end_ms:
            return
        for due_ms in self._rate_times(after_ms) if self.rate_ms else self._cron_times(after_ms):
            if due_ms > end_ms:
                return
            if due_ms > last_ms:  # two times of day in the gap of a clock change are one time
                last_ms = due_ms
                yield due_ms

    def after(self, after_ms: int) -> int:
        """The first due time after a time; 0: none."""
        return next(self.times(after_ms), 0)

    def _rate_times(self, after_ms: int) -> Iterator[int]:
        due_ms = self.start_ms
        if due_ms <= after_ms:
            due_ms += ((after_ms - due_ms) // self.rate_ms + 1) * self.rate_ms
        while True:
            yield due_ms
            due_ms += self.rate_ms

    def _cron_times(self, after_ms: int) -> Iterator[int]:
        after_ms = max(after_ms, self.start_ms - 1)
        try:
            for due in _cron_steps(self.cron, datetime.fromtimestamp(after_ms // 1000, find_zone(self.zone))):
                yield round(due.timestamp()) * 1000
        except OverflowError:  # the year 10,000
            return


class Plan(NamedTuple):
    """What to do about a schedule that is due."""

    due_ms: int  # the due time to fire
    next_ms: int  # the due time after it; 0: none
    skipped: int  # due times that are not fired; at least, if many have passed
    fires: bool  # False: `due_ms` is skipped too


def plan(timing: Timing, missed: str, first_ms: int, now_ms: int) -> Plan:
    """Decide about a schedule whose next due time, `first_ms`, has come."""
    if missed == "all":
        return Plan(first_ms, timing.after(first_ms), 0, True)
    due_ms, next_ms, passed = latest(timing, first_ms, now_ms)
    if missed == "none" and now_ms - due_ms > MISSED_AFTER_MS:
        return Plan(due_ms, next_ms, passed + 1, False)
    return Plan(due_ms, next_ms, passed, True)


def latest(timing: Timing, first_ms: int, now_ms: int) -> tuple[int, int, int]:
    """The last due time that has come, the one after it, and how many came before it, from `first_ms` on."""
    due_ms, passed = first_ms, 0
    if timing.rate_ms:
        end_ms = min(now_ms, timing.end_ms or now_ms)
        passed = max(0, (end_ms - first_ms) // timing.rate_ms)
        due_ms = first_ms + passed * timing.rate_ms
        return due_ms, timing.after(due_ms), passed
    for next_ms in islice(timing.times(due_ms), STEPS_MAX):
        if next_ms > now_ms:
            return due_ms, next_ms, passed
        due_ms, passed = next_ms, passed + 1
    while True:  # far behind: look for the last due time with a few questions
        next_ms = timing.after(due_ms)
        if not next_ms or next_ms > now_ms:
            return due_ms, next_ms, passed
        due_ms, high_ms = next_ms, now_ms  # no due time is between `high_ms` and now
        while high_ms - due_ms > 1000:
            middle_ms = (due_ms + high_ms) // 2
            found_ms = timing.after(middle_ms)
            if found_ms and found_ms <= now_ms:
                due_ms = found_ms
            else:
                high_ms = middle_ms


def _cron_steps(cron: str, last: datetime) -> Iterator[datetime]:
    """The due times after a time. CronSim goes from hour to hour, and passes some due times when the clocks change by
    half an hour on the way. Then it begins again, for the rest of that hour and at the next one.
    """
    zone = last.tzinfo
    within = last  # a time in the hour of a change
    is_changed_hour = _differ_by_half(last.replace(minute=0, second=0), last)
    while True:
        if not is_changed_hour:
            for due in CronSim(cron, last):
                if _differ_by_half(last, due):
                    break
                yield due
                last = due
            else:
                return
            change_s = _change_s(last, due)
            within, last = (datetime.fromtimestamp(time_s, zone) for time_s in (change_s, change_s - 1))
        hour_end_s = round(within.timestamp()) + 3600 - within.minute * 60 - within.second
        for due in CronSim(cron, last):
            if due.timestamp() >= hour_end_s:
                break
            yield due
        last, is_changed_hour = datetime.fromtimestamp(hour_end_s - 1, zone), False


def _differ_by_half(one: datetime, other: datetime) -> bool:
    """Whether the clocks differ at two times, by something else than whole hours."""
    return (_offset_s(other) - _offset_s(one)) % 3600 != 0


def _change_s(before: datetime, after: datetime) -> int:
    """When the clocks changed between two times, in seconds since 1970."""
    low_s, high_s = int(before.timestamp()), int(after.timestamp())
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset_s(datetime.fromtimestamp(middle_s, before.tzinfo)) == _offset_s(before):
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _offset_s(time: datetime) -> float:
    offset = time.utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


# --- reading ----------------------------------------------------------------------------------------


@lru_cache(maxsize=10_000)
def parse_timing(text: str) -> Timing:
    """The timing that a schedule stores."""
    return Timing(**json.loads(text))


def cron_timing(cron: str, zone: str, start_ms: int = 0, end_ms: int = 0) -> Timing:
    """Raises InvalidInput, which says which field is wrong."""
    find_zone(zone)
    return Timing(cron=check_cron(cron), zone=zone, start_ms=start_ms, end_ms=end_ms)


def rate_timing(rate_ms: int, start_ms: int, end_ms: int = 0) -> Timing:
    """Raises InvalidInput."""
    if not RATE_MIN_MS <= rate_ms <= RATE_MAX_MS:
        raise InvalidInput(
            f"The rate of a schedule must be {RATE_MIN_MS // 1000} second to {RATE_MAX_MS // 86_400_000} days, not "
            f"{rate_ms / 1000:g} seconds."
        )
    return Timing(rate_ms=rate_ms, start_ms=start_ms, end_ms=end_ms)


def check_cron(cron: str) -> str:
    """The expression with single spaces. Raises InvalidInput."""
    text = " ".join(cron[: CRON_LENGTH_MAX + 1].split())
    if len(text) > CRON_LENGTH_MAX or not text.isascii() or not text.isprintable():
        raise InvalidInput(f"A cron expression has at most {CRON_LENGTH_MAX} ASCII characters. {_SHAPE}.")
    text = _NAMED.get(text.lower(), text)
    if text.startswith("@"):
        raise InvalidInput(f"The cron expression {text!r} is unknown. The short forms are {', '.join(_NAMED)}.")
    parts = text.split()
    if len(parts) not in (5, 6):
        raise InvalidInput(f"The cron expression {text!r} has {plural(len(parts), 'field')} instead of 5. {_SHAPE}.")
    names = _FIELDS if len(parts) == 5 else ("second", *_FIELDS)
    for at, (name, part) in enumerate(zip(names, parts, strict=True)):
        alone = ["*"] * len(parts)
        alone[at] = part
        try:
            CronSim(" ".join(alone), datetime.fromtimestamp(0, UTC))
        except (CronSimError, AssertionError, ValueError, IndexError, TypeError):
            raise InvalidInput(
                f"The cron expression {text!r} is not valid: field {at + 1} ({name}) is {part!r}, which must be "
                f"{_RANGES[name]}, *, or a list, range or step of those."
            ) from None
    try:
        first = next(CronSim(text, datetime.fromtimestamp(0, UTC)), None)
    except (CronSimError, OverflowError):
        first = None
    if first is None:
        raise InvalidInput(f"The cron expression {text!r} is never due: no such day exists.")
    return text


def find_zone(name: str) -> tzinfo:
    """Raises InvalidInput."""
    zone = _zone(name) if 0 < len(name) <= ZONE_LENGTH_MAX else None
    if zone is None:
        near = get_close_matches(name[:ZONE_LENGTH_MAX], _zone_names(), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InvalidInput(
            f"The time zone {name[:ZONE_LENGTH_MAX]!r} is unknown: use a name such as Europe/Berlin.{hint}"
        )
    return zone


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo | None:
    if name == "UTC":
        return UTC  # which cron expressions are computed in without regard to clock changes
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


@lru_cache(maxsize=1)
def _zone_names() -> list[str]:
    return sorted(available_timezones())
