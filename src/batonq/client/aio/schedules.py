"""Schedules of the client: messages that a queue gets at recurring times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from msgspec import UNSET

from batonq.client import codec
from batonq.client.models import Sent
from batonq.client.schedule_models import (
    FiredNow,
    ScheduleInfo,
    SchedulePage,
    ScheduleSettings,
    ScheduleTimes,
    changes_message,
    message_to_wire,
    timing_to_wire,
)
from batonq.errors import InvalidInput, ScheduleNotFound

if TYPE_CHECKING:
    from batonq.client.aio.calls import Calls

PATH = "/v1/schedules"


class AllSchedules:
    """The schedules of all queues: `baton.schedules`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def all(self) -> list[ScheduleInfo]:
        """The schedules of all queues, by queue and name, without their messages."""
        reply = await self._calls.request("GET", PATH)
        return codec.decode(SchedulePage, reply.answer).schedules

    async def preview(self, count: int = 10, **settings: Unpack[ScheduleSettings]) -> list[str]:
        """The next times of a cron expression or a rate, without creating a schedule."""
        spec = {**timing_to_wire(settings), "count": count}
        reply = await self._calls.request("POST", f"{PATH}:preview", spec)
        return codec.decode(ScheduleTimes, reply.answer).times


class QueueSchedules:
    """The schedules of one queue: `queue.schedules`."""

    def __init__(self, calls: Calls, queue: str) -> None:
        self._calls = calls
        self._queue = queue

    def _path(self, name: str) -> str:
        return f"{PATH}/{quote(f'{name}@{self._queue}', safe='@')}"

    async def create(self, name: str, body: Any, **settings: Unpack[ScheduleSettings]) -> ScheduleInfo:
        """Create a schedule that sends `body` at recurring times, by `cron` or `rate`. If it exists with the same
        definition, that is not an error.

        Raises ScheduleExists if it exists with a different definition; change it with `update`.
        """
        message = message_to_wire(body, settings)
        spec = {"name": name, "queue": self._queue, "message": message, **timing_to_wire(settings)}
        reply = await self._calls.request("POST", PATH, spec)
        return codec.decode(ScheduleInfo, reply.answer)

    async def get(self, name: str) -> ScheduleInfo:
        """A schedule with its message and what it has done."""
        reply = await self._calls.request("GET", self._path(name))
        return codec.decode(ScheduleInfo, reply.answer)

    async def all(self) -> list[ScheduleInfo]:
        """The queue's schedules, by name, without their messages."""
        reply = await self._calls.request("GET", f"{PATH}?queue={quote(self._queue, safe='')}")
        return codec.decode(SchedulePage, reply.answer).schedules

    async def update(self, name: str, body: Any = UNSET, **settings: Unpack[ScheduleSettings]) -> ScheduleInfo:
        """Change a schedule; what is not named does not change. A new body replaces the message as a whole.

        `enabled=False` pauses the schedule.
        """
        changes = timing_to_wire(settings)
        if body is not UNSET:
            changes["message"] = message_to_wire(body, settings)
        elif changes_message(settings):
            raise InvalidInput("The message of a schedule is replaced as a whole: give its body too.")
        reply = await self._calls.request("PATCH", self._path(name), changes)
        return codec.decode(ScheduleInfo, reply.answer)

    async def delete(self, name: str) -> None:
        """Delete a schedule. Messages that it has sent stay."""
        await self._calls.request("DELETE", self._path(name), done_before=(ScheduleNotFound,))

    async def fire(self, name: str) -> Sent:
        """Send the message of a schedule now, in addition to its own times. A lost answer may lead to a second
        message.
        """
        reply = await self._calls.request("POST", f"{self._path(name)}:fire")
        fired = codec.decode(FiredNow, reply.answer)
        return Sent(fired.message_id, fired.sequence)
