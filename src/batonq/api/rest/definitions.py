"""Definitions: the settings of an account's queues as one document, to export and to import.

An import checks everything before it changes anything. It creates dead-letter queues before the queues that use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from batonq.api.rest import policies
from batonq.api.rest.key_shapes import AccountId
from batonq.api.rest.queue_shapes import QueueSpec, _struct
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import Answered, Given
from batonq.core.catalog.attributes import effective, first_difference, validate
from batonq.core.catalog.names import ACCOUNT_DIGITS, check_queue_name
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist
from batonq.node.broker import Queue
from batonq.queue_attributes import ATTRIBUTES, DEAD_LETTER_POLICY, DEAD_LETTER_SOURCES, FIFO, REST_ATTRIBUTES

T = TypeVar("T")
VERSION = 1
QUEUES_MAX = 20_000
TURN_QUEUES = 50  # read or checked before other requests get a turn
PROBLEMS_MAX = 100  # of one answer
MAX_RECEIVES = "Baton.MaxReceives"
ACCOUNT_PARAMETER = ("account", AccountId, "Account of the queues; default: the caller's.")
_IDENTITY = ("queueId", "fifo", "arn", "createdAtMs", "modifiedAtMs")
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
    "The queues of an account.",
    [
        ("version", Literal[1]),
        ("queues", Annotated[GenericAlias(list, (QueueDefinition,)), Meta(max_length=QUEUES_MAX)]),
        ("account", AccountId | None, None),
    ],
    Given,
)


class ExportedDefinitions(Answered):
    """The queues of an account, with all their settings."""

    version: int
    account: str
    queues: list[dict[str, Any]]


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


# --- export --------------------------------------------------------------------------------------


async def export_definitions(call: Call) -> Answer:
    call.require_operator(write=False)
    account = _account(call, query(call, ("account",)))
    queues = [_definition(queue) async for queue in _in_turns(call.broker.queues(account))]
    return Answer(200, ExportedDefinitions(VERSION, account, queues))


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
    answer = Imported(False, [], [], sum(not _is_new(plan) for plan in plans), problems)
    if values.get("dryRun") == "true":
        for plan in plans:
            _count(answer, plan)
    elif not problems:
        answer.applied = any(_is_new(plan) for plan in plans)
        await _apply(call, account, plans, answer)
    return Answer(200, answer)


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
    if len(problems) > PROBLEMS_MAX:
        problems = [*problems[:PROBLEMS_MAX], f"… and {len(problems) - PROBLEMS_MAX} more problems."]
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
