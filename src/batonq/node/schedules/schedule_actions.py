"""What is done to the schedules of a shard on the node that serves it: create, change, delete, move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from batonq.core.schedule import STAYS, Schedule
from batonq.core.spread import parse
from batonq.errors import BatonError, InvalidInput, ScheduleExists, ScheduleNotFound, Unavailable
from batonq.node.schedules.schedule_runner import timing_of
from batonq.node.shard_host.host import ShardHost, committed

CHANGEABLE = ("timing", "message", "group", "missed", "paused")
_NEVER_DUE = "The schedule is never due: its end is before its first due time."


async def create_schedule(host: ShardHost, schedule: Schedule) -> Schedule:
    """Create a schedule, or return the existing one if it is the same. Raises ScheduleExists, InvalidInput."""
    now_ms = host.admit(adds=True)
    known = host.shard.schedules.find(schedule.queue, schedule.name)
    if known is None:
        schedule = replace(schedule, created_ms=now_ms, changed_ms=now_ms, anchor_ms=now_ms, revision=1)
        next_ms = timing_of(schedule).after(now_ms)
        if not next_ms:
            raise InvalidInput(_NEVER_DUE)
        known = host.run(host.shard.create_schedule, replace(schedule, next_ms=next_ms), now_ms)
        host.schedules.changed()
    elif any(getattr(known, field) != getattr(schedule, field) for field in CHANGEABLE):
        raise ScheduleExists
    await committed(host)
    return known


async def change_schedule(host: ShardHost, queue: int, name: str, changes: Mapping[str, Any]) -> Schedule:
    """Change some fields of a schedule. A change of its timing takes effect at once: a firing of the old timing that
    still waits is not done. Raises ScheduleNotFound, InvalidInput, and Unavailable while the schedule is being moved.
    """
    now_ms = host.admit(adds=True)
    old = _resting(host, queue, name)
    new = replace(old, **{field: changes[field] for field in CHANGEABLE if field in changes})
    if new.timing != old.timing:
        new = replace(new, anchor_ms=now_ms)
    if new.timing != old.timing or (old.paused and not new.paused and old.next_ms <= now_ms):
        next_ms = timing_of(new).after(now_ms)
        if not next_ms:
            raise InvalidInput(_NEVER_DUE)
        new = replace(new, next_ms=next_ms, skipped=new.skipped + (old.fires and old.next_ms <= now_ms))
    if host.shard.schedule_moves_to(new) != STAYS:
        raise InvalidInput(
            "The message group belongs to another shard of the queue. Delete the schedule, and create it again."
        )
    new = replace(new, revision=old.revision + 1, changed_ms=now_ms, why="", why_code="", waiting_ms=0)
    host.run(host.shard.change_schedule, new, now_ms)
    host.schedules.changed(new)
    await committed(host)
    return new


async def delete_schedule(host: ShardHost, queue: int, name: str) -> None:
    """Raises ScheduleNotFound, and Unavailable while the schedule is being moved: it would live on at its new place."""
    await _remove(host, _resting(host, queue, name))


async def _remove(host: ShardHost, schedule: Schedule) -> None:
    host.run(host.shard.delete_schedule, schedule.queue, schedule.name, host.admit())
    host.schedules.changed(schedule)
    await committed(host)


async def adopt_schedule(host: ShardHost, schedule: Schedule) -> None:
    """Accept a schedule from another shard of its queue."""
    host.run(host.shard.adopt_schedule, schedule, host.admit(adds=True))
    host.schedules.changed()
    await committed(host)


def find(host: ShardHost, queue: int, name: str) -> Schedule:
    schedule = host.shard.schedules.find(queue, name)
    if schedule is None:
        raise ScheduleNotFound
    return schedule


def _resting(host: ShardHost, queue: int, name: str) -> Schedule:
    """A schedule that is not being moved to another shard that its queue has."""
    schedule = find(host, queue, name)
    if schedule.moving_to != STAYS:
        spread = host.shard.queues[queue].policy.spread
        if spread and schedule.moving_to in parse(spread).shards:
            raise Unavailable(f"Schedule {name} is being moved to another shard of its queue. Retry.")
    return schedule


# --- schedules whose queue has been moved or has more shards ----------------------------------------


class Adopter(Protocol):
    async def adopt_schedule(self, schedule: Schedule) -> None: ...


async def move_schedules(host: ShardHost, port: Callable[[int], Adopter]) -> None:
    """Move schedules that belong on other shards of their queues by now. Each is first stopped here, then created
    there, then removed here. After a crash the rest is done again, which changes nothing that is already done.
    """
    shard = host.shard
    for queue, name in [(schedule.queue, schedule.name) for schedule in shard.schedules]:
        schedule = shard.schedules.find(queue, name)
        if schedule is None:
            continue  # it was deleted, perhaps with its queue, while another one was moved
        to = schedule.moving_to if schedule.moving_to != STAYS else shard.schedule_moves_to(schedule)
        if to != STAYS:
            with suppress(BatonError):  # the next step of the maintenance tries again
                await _move(host, schedule, to, port(to).adopt_schedule)


async def _move(host: ShardHost, schedule: Schedule, to: int, adopt: Callable[[Schedule], Awaitable[None]]) -> None:
    if schedule.moving_to == STAYS:
        schedule = host.run(host.shard.begin_move, schedule.queue, schedule.name, to, host.admit())
        host.schedules.changed(schedule)
    await committed(host)
    await adopt(schedule)
    await _remove(host, schedule)
