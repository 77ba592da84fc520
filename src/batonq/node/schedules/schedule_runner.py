"""Fires a shard's schedules. The owner of a shard runs them.

Computing a firing and recording it happen in one turn of the event loop, and the shard's log has the message and the
next due time in one frame. So an owner that dies has either done a firing or left it to the next owner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from batonq.core.commands import Send
from batonq.core.limits import STEP_BYTES_MAX
from batonq.core.schedule import Schedule
from batonq.core.shard.commands.schedules import Firing
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, DiskFull, InvalidInput
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.schedules.scheduled_message import parse_message
from batonq.node.schedules.timing import STEPS_MAX, Timing, parse_timing, plan

FIRINGS_MAX = 100  # per step
RETRY_MS = 1_000  # after a refused firing, doubled up to the maximum
RETRY_MAX_MS = 30_000
ALARM_AFTER_MS = 60_000  # a firing that waits longer raises an alarm

Key = tuple[int, str]  # queue and name of a schedule


class Host(Protocol):
    """The host whose schedules these are."""

    shard: Shard
    log: Log

    def run(self, command: Callable[..., Any], *arguments: Any) -> Any: ...
    def make_room(self) -> None: ...
    @property
    def frame_is_full(self) -> bool: ...
    def now_ms(self) -> int: ...
    def due_changed(self) -> None:
        """Called when something may be due earlier than before."""

    def schedule_alarm(self, schedule: Schedule, text: str) -> None:
        """Raise an alarm about a schedule that cannot fire; an empty text ends it."""


class Wait(NamedTuple):
    until_ms: int
    tries: int


class ScheduleRunner:
    def __init__(self, host: Host) -> None:
        self.due_ms: int | None = None  # when `step` should be called
        self._host = host
        self._waits: dict[Key, Wait] = {}  # firings that were refused
        self._alarms: dict[Key, Schedule] = {}

    def begin(self) -> None:
        """Resume the schedules in the log. Called when the shard is served."""
        self._plan()

    def end(self) -> None:
        self.due_ms = None

    def changed(self, schedule: Schedule | None = None) -> None:
        """Called when schedules were created, changed or removed."""
        if schedule is not None:
            self._done(schedule)
        self._plan()
        self._host.due_changed()

    def step(self, now_ms: int) -> None:
        """Do the firings that are due, up to a limit."""
        host = self._host
        book = host.shard.schedules
        bytes_end = host.shard.frame.size + STEP_BYTES_MAX
        left = FIRINGS_MAX
        while left > 0 and not host.frame_is_full and host.shard.frame.size < bytes_end:
            due = [
                schedule for schedule in book.due(now_ms, left + len(self._waits)) if self._may_fire(schedule, now_ms)
            ]
            if not due:
                break
            for schedule in due[:left]:
                host.make_room()
                left -= self._fire(schedule, now_ms)
                if left <= 0 or host.shard.frame.size >= bytes_end:
                    break
        for key in [key for key in self._waits if book.find(*key) is None]:
            self._done(self._alarms.get(key), key)
        self._plan()

    def _may_fire(self, schedule: Schedule, now_ms: int) -> bool:
        wait = self._waits.get((schedule.queue, schedule.name))
        return wait is None or wait.until_ms <= now_ms

    def _fire(self, schedule: Schedule, now_ms: int) -> int:
        """Do one firing. Returns what it costs: to pass due times one by one takes longer than to fire."""
        host = self._host
        cost = 1
        problem: BatonError | None = None
        fired: Schedule | None = None
        if host.log.room() is not Room.PLENTY:
            problem = DiskFull()  # nothing is recorded, to leave the last space for deletes
        else:
            try:
                firing, message = firing_of(schedule, now_ms)
            except InvalidInput as wrong:
                problem = wrong
                host.run(host.shard.schedule_waits, schedule.queue, schedule.name, wrong, now_ms)
            else:
                cost += min(firing.skipped, STEPS_MAX) // 4
                fired = host.run(host.shard.fire, schedule.queue, schedule.name, firing, message, now_ms)
        if problem is None and (fired is None or not fired.why):
            self._done(schedule)
            return cost
        self._wait(fired or host.shard.schedules.find(schedule.queue, schedule.name) or schedule, problem, now_ms)
        return cost

    def _wait(self, schedule: Schedule, problem: BatonError | None, now_ms: int) -> None:
        key = schedule.queue, schedule.name
        tries = self._waits[key].tries if key in self._waits else 0
        self._waits[key] = Wait(now_ms + min(RETRY_MS << tries, RETRY_MAX_MS), min(tries + 1, 16))
        if now_ms - (schedule.waiting_ms or schedule.next_ms) >= ALARM_AFTER_MS:
            self._alarms[key] = schedule
            why = problem.message if problem is not None else schedule.why
            self._host.schedule_alarm(schedule, f"Schedule {schedule.name} cannot fire: {why}")

    def _done(self, schedule: Schedule | None, key: Key | None = None) -> None:
        """The schedule does not wait any more."""
        if schedule is not None:
            key = schedule.queue, schedule.name
        if key is None:
            return
        self._waits.pop(key, None)
        raised = self._alarms.pop(key, None)
        if raised is not None:
            self._host.schedule_alarm(raised, "")

    def _plan(self) -> None:
        """Set the time of the next step."""
        book = self._host.shard.schedules
        if not self._waits:
            self.due_ms = book.next_due() if book else None
            return
        times = [wait.until_ms for key, wait in self._waits.items() if book.find(*key) is not None]
        times += [one.next_ms for one in book if one.fires and (one.queue, one.name) not in self._waits]
        self.due_ms = min(times, default=None)


def firing_of(schedule: Schedule, now_ms: int) -> tuple[Firing, Send | None]:
    """The firing of a schedule that is due, and its message, if it sends one.

    Raises InvalidInput if this node cannot read the schedule, for example because it does not know the time zone.
    """
    try:
        found = plan(timing_of(schedule), schedule.missed, schedule.next_ms, now_ms)
        firing = Firing(schedule.revision, schedule.next_ms, found.due_ms, found.next_ms, found.skipped)
        if not found.fires:
            return firing, None
        return firing, parse_message(schedule.message).command(schedule.queue, schedule.name, found.due_ms)
    except InvalidInput:
        raise
    except Exception as problem:
        events.logger.exception("schedule %s of queue %d cannot be read", schedule.name, schedule.queue)
        raise InvalidInput(f"This node cannot read the schedule ({problem}). Change it, or upgrade the node.") from None


def timing_of(schedule: Schedule) -> Timing:
    """When a schedule is due. A rate without a start counts from when it was set."""
    return _timing(schedule.timing, schedule.anchor_ms)


@lru_cache(maxsize=10_000)
def _timing(text: str, anchor_ms: int) -> Timing:
    timing = parse_timing(text)
    if timing.rate_ms and not timing.start_ms:
        return replace(timing, start_ms=anchor_ms + timing.rate_ms)
    return timing
