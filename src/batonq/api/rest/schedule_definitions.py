"""Schedules in definitions: exported with their messages, and created or changed by an import after the queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from batonq.api.rest import schedule_shapes as shapes
from batonq.api.rest.schedules import schedule_of, show
from batonq.api.rest.service import Call
from batonq.core.schedule import Schedule
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist, ScheduleNotFound, Unavailable
from batonq.node.broker import Queue
from batonq.node.schedules.schedule_actions import CHANGEABLE

_KEPT = ("name", "queue", "cron", "timeZone", "rateSeconds", "startAt", "endAt", "missed", "enabled", "message")


class PlannedQueue(NamedTuple):
    """A queue as an import is going to create or change it, as far as schedules, topics and reader groups depend on
    it.
    """

    number: int
    fifo: bool
    message_bytes_max: int
    retains: bool  # it keeps its history for reader groups


class PlannedSchedule(NamedTuple):
    given: shapes.ScheduleSpec
    existing: Schedule | None
    changed: bool  # it exists with a different definition

    @property
    def id(self) -> str:
        return f"{self.given.name}@{self.given.queue}"


async def export_schedules(call: Call, account: str) -> list[dict[str, Any]]:
    """Raises Unavailable if a shard does not answer: an export must be complete."""
    found, complete = await call.broker.schedules.of_account(account)
    if not complete:
        raise Unavailable("Not all schedules can be read at the moment. Retry.")
    exported: list[dict[str, Any]] = []
    for one in found:
        try:
            whole = await call.broker.schedules.find(one.queue, one.schedule.name)
        except ScheduleNotFound:
            continue  # it was deleted meanwhile
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(show(whole, binary=False)))
        exported.append({name: values[name] for name in _KEPT if name in values})
    return exported


async def plan_schedules(
    call: Call, account: str, given: Sequence[shapes.ScheduleSpec], planned: Mapping[str, PlannedQueue]
) -> tuple[list[PlannedSchedule], list[str]]:
    """What to do with each schedule, and what is wrong. `planned` has the queues that the import defines."""
    plans: dict[tuple[str, str], PlannedSchedule] = {}
    problems: list[str] = []
    for spec in given:
        try:
            key = spec.queue, spec.name
            if key in plans:
                raise InvalidInput("is defined twice.")
            plans[key] = await _plan(call, account, spec, planned.get(spec.queue))
        except BatonError as problem:
            problems.append(f"Schedule {spec.name}@{spec.queue}: {problem.message}")
    return [*plans.values()], problems


async def _plan(call: Call, account: str, spec: shapes.ScheduleSpec, planned: PlannedQueue | None) -> PlannedSchedule:
    queue = _existing(call, account, spec.queue)
    target = queue or planned
    if target is None:
        raise InvalidInput(f"its queue {spec.queue} neither exists nor is defined here. Add its definition.")
    wanted = schedule_of(spec, target, call.caller.sender)
    try:
        known = None if queue is None else (await call.broker.schedules.find(queue, spec.name)).schedule
    except ScheduleNotFound:
        known = None
    return PlannedSchedule(spec, known, known is not None and bool(_differences(known, wanted)))


def _existing(call: Call, account: str, name: str) -> Queue | None:
    try:
        return call.broker.queue(account, name)
    except QueueDoesNotExist:
        return None


def _differences(known: Schedule, wanted: Schedule) -> dict[str, Any]:
    changes = {field: getattr(wanted, field) for field in CHANGEABLE if getattr(wanted, field) != getattr(known, field)}
    if "message" in changes and _without_sender(known.message) == _without_sender(wanted.message):
        del changes["message"]
    return changes


def _without_sender(message: str) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(message)
    values.pop("sender", None)
    return values


async def apply_schedule(call: Call, account: str, plan: PlannedSchedule) -> None:
    queue = call.broker.queue(account, plan.given.queue)
    wanted = schedule_of(plan.given, queue, call.caller.sender)
    if plan.existing is None:
        await call.broker.schedules.create(queue, wanted)
    elif plan.changed:
        await call.broker.schedules.change(queue, wanted.name, _differences(plan.existing, wanted))
