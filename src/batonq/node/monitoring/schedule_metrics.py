"""The metrics of schedules, per queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batonq.core.shard.machine import Shard
from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import Families, many


class ScheduleReading(NamedTuple):
    """The schedules of a queue on the shards of a node."""

    fired: int = 0  # since the shards opened
    late: int = 0
    next_ms: int = 0  # 0: none will fire
    states: dict[str, int] = {}


def read_schedules(shards: Iterable[Shard]) -> dict[int, ScheduleReading]:
    """Per queue that has schedules, or has had firings."""
    found: dict[int, ScheduleReading] = {}
    for shard in shards:
        book = shard.schedules
        for queue in (*book.fired, *(schedule.queue for schedule in book)):
            if queue in found:
                continue
            found[queue] = ScheduleReading()
        for queue, count in book.fired.items():
            found[queue] = added(found[queue], ScheduleReading(count, book.late.get(queue, 0)))
        for schedule in book:
            next_ms = schedule.next_ms if schedule.fires else 0
            one = ScheduleReading(0, 0, next_ms, {schedule.state.lower(): 1})
            found[schedule.queue] = added(found[schedule.queue], one)
    return found


def added(first: ScheduleReading, second: ScheduleReading) -> ScheduleReading:
    times = [time for time in (first.next_ms, second.next_ms) if time]
    states = {
        name: first.states.get(name, 0) + second.states.get(name, 0) for name in {**first.states, **second.states}
    }
    return ScheduleReading(first.fired + second.fired, first.late + second.late, min(times, default=0), states)


def schedule_families(readings: Sequence[tuple[ScheduleReading, str]]) -> Families:
    """`readings` have the labels of their queues."""
    some = [(reading, labels) for reading, labels in readings if reading.states or reading.fired]
    return [
        many(
            metrics.SCHEDULES,
            [
                (f'{labels},state="{state}"', count)
                for reading, labels in some
                for state, count in sorted(reading.states.items())
            ],
        ),
        many(metrics.SCHEDULE_FIRINGS, [(labels, reading.fired) for reading, labels in some]),
        many(metrics.SCHEDULE_LATE, [(labels, reading.late) for reading, labels in some]),
        many(
            metrics.SCHEDULE_NEXT,
            [(labels, reading.next_ms / 1000) for reading, labels in some if reading.next_ms],
        ),
    ]
