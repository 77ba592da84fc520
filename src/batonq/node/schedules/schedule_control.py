"""Schedules for the front doors: create, list, change and delete them, wherever their shards are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batonq.core.ids import key_hash
from batonq.core.records import SCHEDULES_VERSION
from batonq.core.schedule import STAYS, Schedule
from batonq.errors import BatonError, InvalidInput, NotOwner, ScheduleExists, ScheduleNotFound
from batonq.node.catalog.queue_control import Queue
from batonq.node.messages.message_control import Ask
from batonq.node.routing.ports import ShardPort

LISTED_MAX = 10_000
ALL_QUEUES = 0


class Found(NamedTuple):
    schedule: Schedule
    queue: Queue
    shard: int


class ScheduleControl:
    def __init__(
        self,
        ask: Ask,
        port: Callable[[int], ShardPort],
        queue_by_number: Callable[[int], Queue | None],
        shards: Callable[[], Iterable[int]],
        too_old: Callable[[int], Any],
    ) -> None:
        """`too_old` names the nodes that cannot read a version of the log format."""
        self._ask = ask
        self._port = port
        self._queue_by_number = queue_by_number
        self._shards = shards
        self._too_old = too_old

    async def create(self, queue: Queue, schedule: Schedule) -> tuple[Found, bool]:
        """Create a schedule, and say whether it is new. An existing one with the same definition is returned.

        Raises ScheduleExists, InvalidInput, OverLimit.
        """
        older = await self._too_old(SCHEDULES_VERSION)
        if older:
            raise InvalidInput(f"Schedules cannot be created yet. {older}")
        there = await self._places(queue, schedule.name)
        is_new = not there
        places = [found.shard for found in there] or self._homes(queue, schedule.group)
        problem: BatonError | None = None
        for shard in places:
            try:
                made = await self._ask(queue, shard, lambda port: port.create_schedule(schedule))
            except NotOwner as moved:
                problem = moved  # its group is on a later shard
                continue
            except ScheduleExists:
                raise ScheduleExists(
                    f"Queue {queue.name} already has a schedule {schedule.name} with a different definition. Change "
                    "that one, or choose another name."
                ) from None
            if is_new and len(queue.shards) > 1:
                await self._keep_one(queue, schedule.name, shard)
            return Found(made, queue, shard), is_new
        assert problem is not None
        raise problem

    async def _keep_one(self, queue: Queue, name: str, shard: int) -> None:
        """If another request has created a schedule of this name on another shard at the same time, the one on the
        shard with the lowest number stays.
        """
        others = [found.shard for found in await self._places(queue, name) if found.shard != shard]
        if others and min(others) < shard:
            await self._ask(queue, shard, lambda port: port.delete_schedule(queue.number, name))
            raise ScheduleExists(f"Another request has just created schedule {name} of queue {queue.name}.")

    @staticmethod
    def _homes(queue: Queue, group: str) -> Sequence[int]:
        """The shards to ask for a new schedule, in order, until one accepts it."""
        return queue.spread.asked(key_hash(group)) if queue.fifo else [queue.spread.first]

    async def find(self, queue: Queue, name: str) -> Found:
        """Raises ScheduleNotFound."""
        found = await self._places(queue, name)
        if not found:
            raise ScheduleNotFound(f"Queue {queue.name} has no schedule {name!r}.")
        return found[0]

    async def _places(self, queue: Queue, name: str) -> list[Found]:
        """Where a schedule is. While it is being moved, that can be two shards; its new place comes first."""
        found = [
            Found(schedule, queue, shard)
            for shard, schedules in zip(queue.shards, await self._on_shards(queue, name), strict=True)
            for schedule in schedules
        ]
        return sorted(found, key=lambda one: (one.schedule.moving_to != STAYS, one.shard))

    async def _on_shards(self, queue: Queue, name: str = "") -> list[list[Schedule]]:
        return await asyncio.gather(
            *(self._ask(queue, shard, lambda port: port.schedules(queue.number, name)) for shard in queue.shards)
        )

    async def of_queue(self, queue: Queue) -> list[Found]:
        """The schedules of a queue, by name, without their messages."""
        parts = zip(queue.shards, await self._on_shards(queue), strict=True)
        return _once(Found(schedule, queue, shard) for shard, schedules in parts for schedule in schedules)

    async def of_account(self, account: str) -> tuple[list[Found], bool]:
        """The schedules of all queues of an account, by queue and name, without their messages; and whether all shards
        answered. The number is limited.
        """
        shards = sorted(self._shards())
        told = await asyncio.gather(
            *(self._port(shard).schedules(ALL_QUEUES, "") for shard in shards), return_exceptions=True
        )
        found: list[Found] = []
        for shard, schedules in zip(shards, told, strict=True):
            if isinstance(schedules, BaseException):
                if not isinstance(schedules, BatonError):
                    raise schedules
                continue
            for schedule in schedules:
                queue = self._queue_by_number(schedule.queue)
                if queue is not None and queue.account == account:
                    found.append(Found(schedule, queue, shard))
        complete = not any(isinstance(schedules, BaseException) for schedules in told)
        listed = _once(found)
        return listed[:LISTED_MAX], complete and len(listed) <= LISTED_MAX

    async def change(self, queue: Queue, name: str, changes: Mapping[str, Any]) -> Found:
        """Raises ScheduleNotFound, InvalidInput."""
        found = await self.find(queue, name)
        given = dict(changes)
        schedule = await self._ask(queue, found.shard, lambda port: port.change_schedule(queue.number, name, given))
        return found._replace(schedule=schedule)

    async def delete(self, queue: Queue, name: str) -> None:
        """Delete a schedule. Raises ScheduleNotFound, and Unavailable while it is being moved to another shard."""
        places = await self._places(queue, name)
        if not places:
            raise ScheduleNotFound(f"Queue {queue.name} has no schedule {name!r}.")
        for found in reversed(places):
            try:
                await self._ask(queue, found.shard, lambda port: port.delete_schedule(queue.number, name))
            except ScheduleNotFound:
                continue  # it has just been moved


def _once(found: Iterable[Found]) -> list[Found]:
    """Each schedule once, by queue and name. Of a schedule that is being moved, the new place counts."""
    by_name: dict[tuple[str, str], Found] = {}
    for one in found:
        key = one.queue.name, one.schedule.name
        if key not in by_name or by_name[key].schedule.moving_to != STAYS:
            by_name[key] = one
    return [by_name[key] for key in sorted(by_name)]
