"""Definitions: the settings of an account's queues, reader groups, topics, subscriptions and schedules as one document,
to export and to import.

An import checks everything before it changes anything. It creates dead-letter queues before the queues that use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from batonq.api.rest import policies
from batonq.api.rest.key_shapes import AccountId
from batonq.api.rest.queue_shapes import QueueSpec, _struct
from batonq.api.rest.queues import query
from batonq.api.rest.reader_definitions import (
    PlannedReader,
    ReaderDefinition,
    apply_reader,
    export_readers,
    plan_readers,
)
from batonq.api.rest.schedule_definitions import (
    PlannedQueue,
    PlannedSchedule,
    apply_schedule,
    export_schedules,
    plan_schedules,
)
from batonq.api.rest.schedule_shapes import ScheduleSpec
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import Answered, Given
from batonq.api.rest.topic_definitions import (
    PlannedSubscription,
    PlannedTopic,
    TopicDefinition,
    apply_subscription,
    apply_topic,
    export_topic,
    plan_topics,
)
from batonq.core.catalog.attributes import effective, first_difference, validate
from batonq.core.catalog.names import ACCOUNT_DIGITS, check_queue_name
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist
from batonq.node.broker import Queue
from batonq.queue_attributes import (
    ATTRIBUTES,
    DEAD_LETTER_POLICY,
    DEAD_LETTER_SOURCES,
    FIFO,
    MAX_RECEIVES,
    MESSAGE_BYTES,
    REST_ATTRIBUTES,
    RETAIN,
)

T = TypeVar("T")
VERSION = 1
QUEUES_MAX = 20_000
SCHEDULES_MAX = 20_000
TOPICS_MAX = 20_000
READERS_MAX = 20_000
TURN_QUEUES = 50  # read or checked before other requests get a turn
PROBLEMS_MAX = 100  # of one answer
ACCOUNT_PARAMETER = ("account", AccountId, "Account of the queues; default: the caller's.")
_IDENTITY = ("queueId", "fifo", "arn", "createdAtMs", "modifiedAtMs", "warnings")
_IN_FIELDS = {row.name for row in REST_ATTRIBUTES} | {FIFO, DEAD_LETTER_POLICY, MAX_RECEIVES}

Attributes = Annotated[dict[str, Annotated[str, Meta(max_length=8192)]], Meta(max_length=100)]
QueueDefinition = _struct(
    "QueueDefinition",
    "A queue to create or to change.",
    [("attributes", Attributes | None, None)],
    QueueSpec,
    kw_only=True,
)

Definitions = _struct(
    "Definitions",
    "The queues of an account, with their reader groups and schedules, and its topics with their subscriptions.",
    [
        ("version", Literal[1]),
        ("queues", Annotated[GenericAlias(list, (QueueDefinition,)), Meta(max_length=QUEUES_MAX)]),
        ("account", AccountId | None, None),
        ("schedules", Annotated[list[ScheduleSpec], Meta(max_length=SCHEDULES_MAX)] | None, None),
        ("readers", Annotated[list[ReaderDefinition], Meta(max_length=READERS_MAX)] | None, None),
        ("topics", Annotated[list[TopicDefinition], Meta(max_length=TOPICS_MAX)] | None, None),
    ],
    Given,
)


class ExportedDefinitions(Answered):
    """The queues of an account with all their settings, reader groups and schedules, and its topics with their
    subscriptions.
    """

    version: int
    account: str
    queues: list[dict[str, Any]]
    schedules: list[dict[str, Any]] = []
    readers: list[dict[str, Any]] = []
    topics: list[dict[str, Any]] = []


class Change(Answered):
    name: str
    fields: list[str]


class Imported(Answered):
    """What an import has done, or would do in a dry run."""

    applied: bool
    created: list[str]
    changed: list[Change]
    unchanged: int
    problems: list[str]
    schedules_created: list[str] = []
    schedules_changed: list[str] = []
    readers_created: list[str] = []
    topics_created: list[str] = []
    topics_changed: list[Change] = []
    subscriptions_created: list[str] = []
    subscriptions_changed: list[Change] = []


# --- export --------------------------------------------------------------------------------------


async def export_definitions(call: Call) -> Answer:
    call.require_operator(write=False)
    account = _account(call, query(call, ("account",)))
    queues: list[dict[str, Any]] = []
    readers: list[dict[str, Any]] = []
    async for queue in _in_turns(call.broker.queues(account)):
        queues.append(_definition(queue))
        readers += await export_readers(call, queue)
    schedules = await export_schedules(call, account)
    topics = [export_topic(call, topic) async for topic in _in_turns(call.broker.topics(account))]
    return Answer(200, ExportedDefinitions(VERSION, account, queues, schedules, readers, topics))


async def _in_turns(entries: Iterable[T]) -> AsyncIterator[T]:
    """The entries, with time for other requests in between: an account can have thousands of queues."""
    for number, entry in enumerate(entries, 1):
        yield entry
        if number % TURN_QUEUES == 0:
            await asyncio.sleep(0)


def _account(call: Call, values: Mapping[str, str]) -> str:
    account = values.get("account", call.caller.account)
    if len(account) != ACCOUNT_DIGITS or not account.isascii() or not account.isdigit():
        raise InvalidInput(f"account must be {ACCOUNT_DIGITS} digits, not {account[:64]!r}.")
    return account


def _definition(queue: Queue) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(policies.show(queue))
    definition = {name: value for name, value in shown.items() if name not in _IDENTITY}
    definition.setdefault("retry", {"kind": "none"})  # otherwise an import would choose the default
    others = {name: value for name, value in queue.attributes.items() if name not in _IN_FIELDS}
    if others:
        definition["attributes"] = others
    return definition


# --- import --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Planned:
    """What one definition asks for."""

    name: str
    fifo: bool
    attributes: dict[str, str]  # without those of the dead-letter queue
    tags: dict[str, str] | None
    target: str  # the dead-letter queue; empty: none
    redrive: dict[str, str]  # the attributes of the dead-letter queue, and the maximum number of receives
    existing: Queue | None
    changes: dict[str, str]  # attributes to change in the existing queue
    fields: list[str]  # their fields


async def import_definitions(call: Call) -> Answer:
    call.require_operator(write=True)
    values = query(call, ("account", "dryRun"))
    account = _account(call, values)
    if values.get("dryRun", "false") not in ("true", "false"):
        raise InvalidInput("dryRun must be true or false.")
    given = call.read(Definitions)
    plans, problems = await _plan(call, account, given)
    queues = {plan.name: _queue_of(plan) for plan in plans}
    rest = Parts(
        *await plan_readers(call, account, given.readers or (), queues),
        *plan_topics(call, account, given.topics or (), queues),
        *await plan_schedules(call, account, given.schedules or (), queues),
    )
    problems = _limited([*problems, *rest.reader_problems, *rest.topic_problems, *rest.schedule_problems])
    answer = Imported(False, [], [], sum(not _is_new(plan) for plan in plans), problems)
    steps = [*_steps(call, account, rest, answer)]
    if values.get("dryRun") == "true":
        for plan in plans:
            _count(answer, plan)
        for step in steps:
            step.report()
    elif not problems:
        answer.applied = bool(steps) or any(_is_new(plan) for plan in plans)
        await _apply(call, account, plans, answer)
        await _apply_steps(steps, answer)
    return Answer(200, answer)


def _queue_of(plan: Planned) -> PlannedQueue:
    current = plan.existing.attributes if plan.existing is not None else {}
    settings = {name: value for name, value in {**current, **plan.attributes}.items() if value}
    return PlannedQueue(
        0, plan.fifo, int(effective(plan.attributes)[MESSAGE_BYTES]), effective(settings).get(RETAIN, "0") != "0"
    )


class Parts(NamedTuple):
    """The plans for what is not a queue, and what is wrong with them."""

    readers: list[PlannedReader]
    reader_problems: list[str]
    topics: list[PlannedTopic]
    topic_problems: list[str]
    schedules: list[PlannedSchedule]
    schedule_problems: list[str]


class Step(NamedTuple):
    """Something that an import creates or changes after the queues."""

    what: str
    apply: Callable[[], Awaitable[None]]
    report: Callable[[], None]  # into the answer


def _steps(call: Call, account: str, parts: Parts, answer: Imported) -> Iterator[Step]:
    """What an import has to create or to change, in order. What is as it shall be has no step."""
    for reader in parts.readers:
        if not reader.exists:
            report = partial(answer.readers_created.append, reader.id)
            yield Step(f"Reader group {reader.id}", partial(apply_reader, call, account, reader), report)
    for topic in parts.topics:
        if topic.existing is None or topic.fields:
            report = partial(_count_topic, answer, topic)
            yield Step(f"Topic {topic.name}", partial(apply_topic, call, account, topic), report)
        for subscription in topic.subscriptions:
            if subscription.existing is None or subscription.fields:
                report = partial(_count_subscription, answer, subscription)
                apply = partial(apply_subscription, call, account, subscription)
                yield Step(f"Subscription {subscription.id}", apply, report)
    for schedule in parts.schedules:
        if schedule.existing is None or schedule.changed:
            ids = answer.schedules_created if schedule.existing is None else answer.schedules_changed
            apply = partial(apply_schedule, call, account, schedule)
            yield Step(f"Schedule {schedule.id}", apply, partial(ids.append, schedule.id))


def _count_topic(answer: Imported, plan: PlannedTopic) -> None:
    if plan.existing is None:
        answer.topics_created.append(plan.name)
    else:
        answer.topics_changed.append(Change(plan.name, plan.fields))


def _count_subscription(answer: Imported, plan: PlannedSubscription) -> None:
    if plan.existing is None:
        answer.subscriptions_created.append(plan.id)
    else:
        answer.subscriptions_changed.append(Change(plan.id, plan.fields))


async def _apply_steps(steps: Iterable[Step], answer: Imported) -> None:
    """Create and change what is not a queue, unless a queue could not be made. After a failure the rest is left out."""
    for step in [] if answer.problems else steps:
        try:
            await step.apply()
        except BatonError as problem:
            answer.problems.append(f"{step.what}: {problem.message} Import the definitions again.")
            return
        step.report()


def _limited(problems: list[str]) -> list[str]:
    if len(problems) <= PROBLEMS_MAX:
        return problems
    return [*problems[:PROBLEMS_MAX], f"… and {len(problems) - PROBLEMS_MAX} more problems."]


def _is_new(plan: Planned) -> bool:
    return plan.existing is None or bool(plan.fields)


def _count(answer: Imported, plan: Planned) -> None:
    if plan.existing is None:
        answer.created.append(plan.name)
    elif plan.fields:
        answer.changed.append(Change(plan.name, plan.fields))


async def _plan(call: Call, account: str, given: Any) -> tuple[list[Planned], list[str]]:
    """The plans in the order in which they can be carried out, and what is wrong with the definitions."""
    plans: dict[str, Planned] = {}
    problems: list[str] = []
    async for definition in _in_turns(given.queues):
        name: str = definition.name
        try:
            if name in plans:
                raise InvalidInput("is defined twice.")
            plans[name] = _planned(call, account, definition, given.account or account)
        except BatonError as problem:
            problems.append(f"Queue {name}: {problem.message}")
    async for plan in _in_turns(plans.values()):
        wrong = _target_problem(call, account, plan, plans)
        if wrong:
            problems.append(f"Queue {plan.name}: {wrong}")
    return _ordered(plans), problems


def _planned(call: Call, account: str, given: Any, origin: str) -> Planned:
    fifo = given.mode == "FIFO"
    passed = policies.attributes_of(given)
    others = given.attributes or {}
    for name in others:
        if name in _IN_FIELDS or name not in ATTRIBUTES:
            raise InvalidInput(f"attributes has {name[:100]!r}, which is not an SQS attribute without a field here.")
    if DEAD_LETTER_SOURCES in others:  # it names queues by their ARNs, which contain the account
        others = {**others, DEAD_LETTER_SOURCES: others[DEAD_LETTER_SOURCES].replace(f":{origin}:", f":{account}:")}
    passed.update(others)
    passed = passed if fifo else policies.without_fifo_only(passed)
    existing = _existing(call, account, given.name)
    if existing is None:
        check_queue_name(given.name, fifo=fifo, any_name=True)
        passed = {**policies.REST_DEFAULTS, **passed, **({FIFO: "true"} if fifo else {})}
        validate(passed, fifo=fifo, creating=True)
    else:
        if existing.fifo != fifo:
            raise InvalidInput(f"exists with the mode {'FIFO' if existing.fifo else 'STANDARD'}, which cannot change.")
        validate(passed, fifo=fifo, creating=False, current=existing.attributes)
    target, redrive = _redrive(account, given, existing)
    tags = given.tags if isinstance(given.tags, dict) else None
    changes = {} if existing is None else _differences({**passed, **redrive}, existing)
    fields = sorted({_field(name) for name in changes})
    if existing is not None and tags is not None and tags != dict(existing.tags):
        fields.append("tags")
    return Planned(given.name, fifo, passed, tags, target, redrive, existing, changes, fields)


def _existing(call: Call, account: str, name: str) -> Queue | None:
    try:
        return call.broker.queue(account, name)
    except QueueDoesNotExist:
        return None


def _redrive(account: str, given: Any, existing: Queue | None) -> tuple[str, dict[str, str]]:
    """The dead-letter queue, and the attributes for it and for the maximum number of receives."""
    now, receives = ("", 0) if existing is None else policies.redrive_of(existing)
    absent = given.dead_letter_queue is msgspec.UNSET and given.max_receive_count is msgspec.UNSET
    if absent and existing is not None:
        return now, {}
    target = now if given.dead_letter_queue is msgspec.UNSET else given.dead_letter_queue or ""
    if given.max_receive_count is not msgspec.UNSET:
        receives = given.max_receive_count or 0
    if not target:
        if existing is None:
            return "", {MAX_RECEIVES: str(receives)} if receives else {}
        return "", {DEAD_LETTER_POLICY: "", MAX_RECEIVES: str(receives) if receives else ""}
    policy = policies.redrive_policy(account, target, receives or policies.RECEIVES_DEFAULT)
    return target, {DEAD_LETTER_POLICY: policy, **({} if existing is None else {MAX_RECEIVES: ""})}


def _differences(passed: Mapping[str, str], existing: Queue) -> dict[str, str]:
    """The attributes whose value differs from the one in effect."""
    have = effective(existing.attributes)
    found = {}
    for name, value in passed.items():
        if value == "" and not existing.attributes.get(name):
            continue
        if name == MAX_RECEIVES and not value and DEAD_LETTER_POLICY in existing.attributes:
            continue
        if value != have.get(name, "") and (value == "" or first_difference({name: value}, existing.attributes)):
            found[name] = value
    return found


def _field(attribute: str) -> str:
    if attribute == DEAD_LETTER_POLICY:
        return "deadLetterQueue"
    if attribute == MAX_RECEIVES:
        return "maxReceiveCount"
    return policies.field_of(attribute) if attribute in _IN_FIELDS else attribute


def _target_problem(call: Call, account: str, plan: Planned, plans: Mapping[str, Planned]) -> str:
    if not plan.target:
        return ""
    if plan.target == plan.name:
        return "it cannot be its own dead-letter queue."
    there = plans.get(plan.target)
    existing = _existing(call, account, plan.target)
    if there is None and existing is None:
        return f"its dead-letter queue {plan.target} neither exists nor is defined here. Add its definition."
    fifo = there.fifo if there is not None else existing is not None and existing.fifo
    if fifo != plan.fifo:
        return f"its dead-letter queue {plan.target} has a different mode (STANDARD or FIFO)."
    return ""


def _ordered(plans: Mapping[str, Planned]) -> list[Planned]:
    """Dead-letter queues before the queues that use them. In a cycle, the order is that of the definitions."""
    ordered: dict[str, Planned] = {}
    for name in plans:
        path: dict[str, None] = {}
        step = name
        while step in plans and step not in ordered and step not in path:
            path[step] = None
            step = plans[step].target
        for each in reversed(path):
            ordered[each] = plans[each]
    return list(ordered.values())


async def _apply(call: Call, account: str, plans: Iterable[Planned], answer: Imported) -> None:
    """Carry out the plans. After a failure the rest is left out, and the answer says so."""
    late: dict[str, dict[str, str]] = {}  # in a cycle of dead-letter queues: queues get theirs once all exist
    waiting = list(plans)
    name = ""
    try:
        while waiting:
            plan = waiting[0]
            name = plan.name
            await _apply_one(call, account, plan, late)
            _count(answer, plan)
            del waiting[0]
        for name, attributes in late.items():
            await call.broker.set_attributes(call.broker.queue(account, name), attributes)
    except BatonError as problem:
        rest = f" {len(waiting)} definitions were not applied, this one included." if waiting else ""
        answer.problems.append(f"Queue {name}: {problem.message}{rest} Import the definitions again.")


async def _apply_one(call: Call, account: str, plan: Planned, late: dict[str, dict[str, str]]) -> None:
    broker = call.broker
    attributes = {**plan.attributes, **plan.redrive} if plan.existing is None else plan.changes
    if plan.target and _existing(call, account, plan.target) is None:
        waiting = {name: value for name, value in attributes.items() if name in plan.redrive}
        if waiting:
            late[plan.name] = waiting
        attributes = {name: value for name, value in attributes.items() if name not in waiting}
    if plan.existing is None:
        await broker.create_queue(account, plan.name, attributes, plan.tags or {}, rest=True, chains=True)
        return
    if attributes:
        await broker.set_attributes(plan.existing, attributes)
    if plan.tags is not None and "tags" in plan.fields:
        removed = [tag for tag in plan.existing.tags if tag not in plan.tags]
        await broker.set_tags(plan.existing, plan.tags, removed)
