"""Reader groups in definitions: their settings are exported, without positions, and an import creates the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec import field as msgspec_field

from batonq.api.rest.queue_shapes import QueueName
from batonq.api.rest.reader_shapes import Failures, GroupName, Session, StartOrTime
from batonq.api.rest.readers import start_of
from batonq.api.rest.schedule_definitions import PlannedQueue
from batonq.api.rest.service import Call, milliseconds
from batonq.api.rest.shapes import Given
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist, ReaderDoesNotExist
from batonq.node.broker import Queue

_DEFAULTS = GroupSettings()


class ReaderDefinition(Given, kw_only=True):
    """A reader group to create. `from` is `start`, `end` or a time."""

    queue: QueueName
    name: GroupName
    from_: StartOrTime = msgspec_field(default="start", name="from")
    dead_letter_queue: QueueName | UnsetType | None = UNSET
    max_failures: Failures | UnsetType = UNSET
    session_seconds: Session | UnsetType = UNSET


class PlannedReader(NamedTuple):
    given: ReaderDefinition
    start: Start
    exists: bool

    @property
    def id(self) -> str:
        return f"{self.given.name}@{self.given.queue}"


async def export_readers(call: Call, queue: Queue) -> list[dict[str, Any]]:
    """The groups of a queue. Raises Unavailable if a shard does not answer: an export must be complete."""
    if not queue.policy.retain_ms:
        return []
    exported: list[dict[str, Any]] = []
    for view in await call.broker.readers.groups(queue):
        settings = view.reader.settings
        group: dict[str, Any] = {"queue": queue.name, "name": view.reader.group}
        dead = call.broker.queue_by_number(settings.dead_letter_queue) if settings.dead_letter_queue else None
        if dead is not None or not settings.dead_letter_queue:  # a deleted queue cannot be set
            group["deadLetterQueue"] = dead.name if dead is not None else None
        exported.append({**group, "maxFailures": settings.max_failures, "sessionSeconds": settings.session_ms / 1000})
    return exported


async def plan_readers(
    call: Call, account: str, given: Sequence[ReaderDefinition], planned: Mapping[str, PlannedQueue]
) -> tuple[list[PlannedReader], list[str]]:
    """What to do with each reader group, and what is wrong. `planned` has the queues that the import defines."""
    plans: dict[tuple[str, str], PlannedReader] = {}
    problems: list[str] = []
    for one in given:
        try:
            if (one.queue, one.name) in plans:
                raise InvalidInput("is defined twice.")
            plans[one.queue, one.name] = await _plan(call, account, one, planned)
        except BatonError as problem:
            problems.append(f"Reader group {one.name}@{one.queue}: {problem.message}")
    return [*plans.values()], problems


async def _plan(
    call: Call, account: str, given: ReaderDefinition, planned: Mapping[str, PlannedQueue]
) -> PlannedReader:
    queue = _queue(call, account, given.queue)
    plan = planned.get(given.queue)
    if queue is None and plan is None:
        raise InvalidInput(f"its queue {given.queue} neither exists nor is defined here. Add its definition.")
    fifo = queue.fifo if queue is not None else plan is not None and plan.fifo
    start = start_of(given.from_, "from")
    if queue is not None:
        try:
            existing = (await call.broker.readers.get(queue, given.name)).reader.settings
        except ReaderDoesNotExist:
            pass
        else:
            _check_same(call, given, existing)
            return PlannedReader(given, start, exists=True)
    retains = plan.retains if plan is not None else queue is not None and queue.policy.retain_ms > 0
    if not retains:
        raise InvalidInput(f"its queue {given.queue} retains no history. Set its retainSeconds.")
    if given.dead_letter_queue:
        dead = _queue(call, account, given.dead_letter_queue) or planned.get(given.dead_letter_queue)
        if dead is None:
            raise InvalidInput(f"its dead-letter queue {given.dead_letter_queue} neither exists nor is defined here.")
        if dead.fifo != fifo:
            raise InvalidInput(
                f"its dead-letter queue {given.dead_letter_queue} has a different mode (STANDARD or FIFO)."
            )
    return PlannedReader(given, start, exists=False)


def _check_same(call: Call, given: ReaderDefinition, existing: GroupSettings) -> None:
    """Raises InvalidInput if the definition differs from the existing group: a group's settings cannot change."""
    dead = call.broker.queue_by_number(existing.dead_letter_queue) if existing.dead_letter_queue else None
    differences = {
        "deadLetterQueue": given.dead_letter_queue not in (UNSET, dead.name if dead is not None else None),
        "maxFailures": given.max_failures not in (UNSET, existing.max_failures),
        "sessionSeconds": given.session_seconds is not UNSET
        and milliseconds(given.session_seconds) != existing.session_ms,
    }
    fields = [name for name, differs in differences.items() if differs]
    if fields:
        raise InvalidInput(
            f"exists with a different {fields[0]}, which cannot change. Delete the group first, or mend the definition."
        )


def _queue(call: Call, account: str, name: str) -> Queue | None:
    try:
        return call.broker.queue(account, name)
    except QueueDoesNotExist:
        return None


async def apply_reader(call: Call, account: str, plan: PlannedReader) -> None:
    if plan.exists:
        return
    given = plan.given
    dead = call.broker.queue(account, given.dead_letter_queue) if given.dead_letter_queue else None
    settings = GroupSettings(
        given.max_failures if given.max_failures is not UNSET else _DEFAULTS.max_failures,
        dead.number if dead is not None else 0,
        dead.name if dead is not None else "",
        milliseconds(given.session_seconds) if given.session_seconds is not UNSET else _DEFAULTS.session_ms,
    )
    await call.broker.readers.create(call.broker.queue(account, given.queue), given.name, settings, plan.start)
