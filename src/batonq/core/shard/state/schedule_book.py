"""A shard's schedules, found by queue and name, and by their next due time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from batonq.core.records import SCHEDULES_VERSION, Type
from batonq.core.schedule import Schedule
from batonq.core.shard.state.journal import Journal

_HEAP_SPARE = 64  # entries that are not current any more, beyond the number of schedules


class ScheduleBook:
    """A `ScheduleSet` record holds the name and the fields that change; `gone` removes the schedule."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_queue: dict[int, dict[str, Schedule]] = {}
        self.bytes = 0  # of all schedules as JSON, roughly
        self._due: list[tuple[int, int, str]] = []  # (due, queue, name); an entry may be out of date
        # soft: not replayed
        self.fired: dict[int, int] = {}  # queue → firings by this owner, for metrics
        self.late: dict[int, int] = {}  # queue → late firings by this owner

    def __len__(self) -> int:
        return sum(map(len, self._by_queue.values()))

    def __bool__(self) -> bool:
        return bool(self._by_queue)

    def __iter__(self) -> Iterator[Schedule]:
        for schedules in self._by_queue.values():
            yield from schedules.values()

    def find(self, queue: int, name: str) -> Schedule | None:
        return self._by_queue.get(queue, {}).get(name)

    def of_queue(self, queue: int) -> list[Schedule]:
        return [*self._by_queue.get(queue, {}).values()]

    def next_due(self) -> int | None:
        """The first due time of a schedule; None if no schedule will fire."""
        while self._due:
            if self._current(self._due[0]) is not None:
                return self._due[0][0]
            heappop(self._due)
        return None

    def due(self, now: int, limit: int) -> list[Schedule]:
        """At most `limit` schedules that are due, the first one first."""
        found: list[Schedule] = []
        entries: list[tuple[int, int, str]] = []
        while self._due and self._due[0][0] <= now and len(found) < limit:
            entry = heappop(self._due)
            schedule = self._current(entry)
            if schedule is not None and entry not in entries[-1:]:
                found.append(schedule)
                entries.append(entry)
        for entry in entries:
            heappush(self._due, entry)
        return found

    def _current(self, entry: tuple[int, int, str]) -> Schedule | None:
        """The schedule of an entry, if it fires at that time."""
        due_ms, queue, name = entry
        schedule = self.find(queue, name)
        return schedule if schedule is not None and schedule.fires and schedule.next_ms == due_ms else None

    # --- records -----------------------------------------------------------------------------------------

    def put(self, schedule: Schedule, now: int) -> Schedule:
        """Record a new schedule, or one whose definition changes."""
        return self._set(schedule.queue, schedule.values(), now)

    def change(self, schedule: Schedule, now: int, sequence: int = 0, **changes: Any) -> Schedule:
        """Record changes of some fields. `sequence` is that of the message that a firing sent."""
        return self._set(schedule.queue, {"name": schedule.name, **changes}, now, sequence)

    def remove(self, schedule: Schedule, now: int) -> None:
        self._write(schedule.queue, {"name": schedule.name, "gone": True}, now, 0)

    def _set(self, queue: int, values: dict[str, Any], now: int, sequence: int = 0) -> Schedule:
        self._write(queue, values, now, sequence)
        return self._by_queue[queue][values["name"]]

    def _write(self, queue: int, values: dict[str, Any], now: int, sequence: int) -> None:
        data = json.dumps(values, separators=(",", ":"), sort_keys=True).encode()
        frame = self._journal.frame
        next_ms = values.get("next_ms", 0)
        frame.add(Type.SCHEDULE_SET | queue << 32, sequence, now, next_ms, 0, 0, frame.put(data), 0)
        self.on_set(queue, json.loads(data))

    def on_set(self, queue: int, values: dict[str, Any]) -> None:
        """Apply a record."""
        name = values["name"]
        old = self.find(queue, name)
        if values.get("gone"):
            self._forget(queue, name)
            return
        if old is None and "timing" not in values:
            return  # before the Base: the schedule's definition was in the dropped front, and the Base has it
        known = {field: value for field, value in values.items() if field in Schedule.__slots__}
        self._keep(Schedule.from_values(known) if old is None else replace(old, **known), old)

    def _keep(self, schedule: Schedule, old: Schedule | None) -> None:
        self._journal.use_format(SCHEDULES_VERSION)
        self._by_queue.setdefault(schedule.queue, {})[schedule.name] = schedule
        self.bytes += weight(schedule) - (weight(old) if old is not None else 0)
        if schedule.fires and (old is None or not old.fires or schedule.next_ms != old.next_ms):
            heappush(self._due, (schedule.next_ms, schedule.queue, schedule.name))
            if len(self._due) > 2 * len(self) + _HEAP_SPARE:
                self._due = [(one.next_ms, one.queue, one.name) for one in self if one.fires]
                heapify(self._due)

    def _forget(self, queue: int, name: str) -> None:
        schedules = self._by_queue.get(queue, {})
        old = schedules.pop(name, None)
        if old is not None:
            self.bytes -= weight(old)
            if not schedules:
                del self._by_queue[queue]

    def queue_closed(self, queue: int) -> None:
        """The schedules of a deleted queue end with it."""
        for name in list(self._by_queue.get(queue, ())):
            self._forget(queue, name)
        self.fired.pop(queue, None)
        self.late.pop(queue, None)

    def load(self, schedules: Iterable[dict[str, Any]]) -> None:
        self._by_queue.clear()
        self._due.clear()
        self.bytes = 0
        for values in schedules:
            self._keep(Schedule.from_values(values), None)

    def facts(self) -> list[dict[str, Any]]:
        return [schedule.values() for schedule in sorted(self, key=lambda one: (one.queue, one.name))]

    def validate(self, queues: Iterable[int]) -> None:
        assert self._by_queue.keys() <= set(queues), "a schedule names a queue that is gone"
        assert all(self._by_queue.values()), "a queue without schedules is listed"
        assert self.bytes == sum(map(weight, self)), "the bytes of the schedules are miscounted"
        listed = set(self._due)
        for schedule in self:
            entry = (schedule.next_ms, schedule.queue, schedule.name)
            assert not schedule.fires or entry in listed, "a schedule will not fire"
            assert schedule.last_due_ms < schedule.next_ms or not schedule.fires, "a due time would be fired again"
            assert schedule.late <= schedule.fired, "more firings were late than there were"
            assert bool(schedule.why) == bool(schedule.waiting_ms), "a schedule waits for nothing"


def weight(schedule: Schedule) -> int:
    """The bytes of what can be long in a schedule."""
    return len(schedule.message) + len(schedule.timing) + len(schedule.name)
