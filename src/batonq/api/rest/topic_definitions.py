"""Topics with their subscriptions in definitions: exported, and created or changed by an import after the queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import uuid4

from msgspec import UNSET, Meta

from batonq.api.rest import subscriptions, topics
from batonq.api.rest.key_shapes import AccountId
from batonq.api.rest.schedule_definitions import PlannedQueue
from batonq.api.rest.service import Call
from batonq.api.rest.topic_shapes import SubscriptionSpec, TopicSpec
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.core.catalog.topic_commands import (
    TOPIC_SUBSCRIPTIONS_MAX,
    check_topic_name,
    subscription_attributes,
    topic_attributes,
)
from batonq.core.catalog.topic_entries import SubscriptionEntry
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist, TopicDoesNotExist
from batonq.node.catalog.topic_control import Topic
from batonq.topic_attributes import (
    ATTRIBUTES_SCOPE,
    FIFO_TOPIC,
    FILTER_POLICY,
    FILTER_SCOPE,
    RAW_DELIVERY,
    RETENTION,
    RETENTION_DEFAULT_S,
    SUBSCRIPTION_TEXTS,
    TOPIC_CHOICES,
    TOPIC_TEXTS,
)

OtherAttributes = Annotated[dict[str, Annotated[str, Meta(max_length=30_720)]], Meta(max_length=20)]
_OTHER_OF_TOPICS = (TOPIC_TEXTS | TOPIC_CHOICES.keys()) - topics.FIELDS.keys()
_OTHER_OF_SUBSCRIPTIONS = SUBSCRIPTION_TEXTS - subscriptions.FIELDS.keys()


class SubscriptionDefinition(SubscriptionSpec, kw_only=True):
    """A subscription to create or to change."""

    queue_account: AccountId | None = None
    attributes: OtherAttributes | None = None


class TopicDefinition(TopicSpec, kw_only=True):
    """A topic to create or to change, with its subscriptions."""

    attributes: OtherAttributes | None = None
    subscriptions: Annotated[list[SubscriptionDefinition], Meta(max_length=TOPIC_SUBSCRIPTIONS_MAX)] = []


@dataclass(slots=True)
class PlannedSubscription:
    topic: str
    queue: QueueName
    existing: SubscriptionEntry | None
    changes: dict[str, str]  # attributes to set
    fields: list[str]  # their fields, if the subscription exists

    @property
    def id(self) -> str:
        return f"{self.queue.name}@{self.topic}"


@dataclass(slots=True)
class PlannedTopic:
    name: str
    fifo: bool
    existing: Topic | None
    changes: dict[str, str]  # attributes to set
    tags: dict[str, str] | None
    fields: list[str]  # what changes in a topic that exists
    subscriptions: list[PlannedSubscription] = field(default_factory=list)


# --- export -------------------------------------------------------------------------------------


def export_topic(call: Call, topic: Topic) -> dict[str, Any]:
    """A topic with its settings and subscriptions. Subscriptions of deleted queues are left out: they cannot be
    created.
    """
    shown = topics.shown(call, topic)
    exported: dict[str, Any] = {
        "name": shown.name,
        "mode": shown.mode,
        "displayName": shown.display_name or None,
        "retentionSeconds": shown.retention_seconds,
        **({"contentBasedDeduplication": shown.content_based_deduplication} if topic.fifo else {}),
        "tags": shown.tags,
    }
    _add_other(exported, topic.attributes, _OTHER_OF_TOPICS)
    entries = call.broker.subscriptions(topic.account, topic)
    exported["subscriptions"] = [_export_subscription(entry) for entry in entries if entry.link is not None]
    return exported


def _export_subscription(entry: SubscriptionEntry) -> dict[str, Any]:
    shown = subscriptions.shown(entry)
    exported: dict[str, Any] = {"queue": shown.queue}
    if entry.queue.account != entry.topic_name.account:
        exported["queueAccount"] = entry.queue.account
    exported["rawDelivery"] = shown.raw_delivery
    exported["filterPolicy"] = shown.filter_policy or None
    exported["filterPolicyScope"] = entry.scope
    if entry.dead_letter is None or entry.dead_letter_link is not None:  # a deleted queue cannot be set
        exported["deadLetterQueue"] = entry.dead_letter.name if entry.dead_letter is not None else None
    _add_other(exported, entry.attributes, _OTHER_OF_SUBSCRIPTIONS)
    return exported


def _add_other(exported: dict[str, Any], attributes: Mapping[str, str], names: Iterable[str]) -> None:
    """Add the SNS attributes that have no field."""
    others = {name: attributes[name] for name in sorted(names) if name in attributes}
    if others:
        exported["attributes"] = others


# --- import -------------------------------------------------------------------------------------


def plan_topics(
    call: Call, account: str, given: Sequence[TopicDefinition], planned: Mapping[str, PlannedQueue]
) -> tuple[list[PlannedTopic], list[str]]:
    """What to do with each topic, and what is wrong. `planned` has the queues that the import defines."""
    plans: dict[str, PlannedTopic] = {}
    problems: list[str] = []
    for definition in given:
        try:
            if definition.name in plans:
                raise InvalidInput("is defined twice.")
            plan = plans[definition.name] = _plan_topic(call, account, definition)
        except BatonError as problem:
            problems.append(f"Topic {definition.name}: {problem.message}")
            continue
        seen: set[QueueName] = set()
        for one in definition.subscriptions:
            target = QueueName(one.queue_account or account, one.queue)
            try:
                if target in seen:
                    raise InvalidInput("is defined twice.")
                seen.add(target)
                plan.subscriptions.append(_plan_subscription(call, account, plan, one, target, planned))
            except BatonError as problem:
                problems.append(f"Subscription {one.queue}@{definition.name}: {problem.message}")
    return [*plans.values()], problems


def _plan_topic(call: Call, account: str, given: TopicDefinition) -> PlannedTopic:
    fifo = given.mode == "FIFO"
    wanted = {**topics.attributes_of(given, fifo), **_other(given.attributes, _OTHER_OF_TOPICS)}
    tags = given.tags or {} if given.tags is not UNSET else None
    try:
        existing = call.broker.topic(account, given.name)
    except TopicDoesNotExist:
        check_topic_name(given.name, fifo, any_name=True)
        values = topic_attributes(wanted, {}, fifo=fifo)
        return PlannedTopic(given.name, fifo, None, {**values, **({FIFO_TOPIC: "true"} if fifo else {})}, tags, [])
    if existing.fifo != fifo:
        raise InvalidInput(f"exists with the mode {'FIFO' if existing.fifo else 'STANDARD'}, which cannot change.")
    changes = {
        name: value
        for name, value in wanted.items()
        if value != existing.attributes.get(name, "") and not (name == RETENTION and _is_default(value, existing))
    }
    topic_attributes(changes, existing.attributes, fifo=fifo)
    fields = sorted(topics.FIELDS.get(name, name) for name in changes)
    if tags is not None and tags != dict(existing.tags):
        fields.append("tags")
    return PlannedTopic(given.name, fifo, existing, changes, tags, fields)


def _is_default(value: str, existing: Topic) -> bool:
    return RETENTION not in existing.attributes and value == str(RETENTION_DEFAULT_S)


def _other(given: Mapping[str, str] | None, names: Iterable[str]) -> dict[str, str]:
    for name in given or {}:
        if name not in names:
            raise InvalidInput(f"attributes has {name[:100]!r}, which is not an SNS attribute without a field here.")
    return dict(given or {})


def _plan_subscription(
    call: Call,
    account: str,
    topic: PlannedTopic,
    given: SubscriptionDefinition,
    target: QueueName,
    planned: Mapping[str, PlannedQueue],
) -> PlannedSubscription:
    existing = _subscription(call, topic.existing, target)
    current = existing.attributes if existing is not None else {}
    wanted = {
        **subscriptions.attributes_of(given, account, current),
        **_other(given.attributes, _OTHER_OF_SUBSCRIPTIONS),
    }
    if existing is None:
        wanted = {RAW_DELIVERY: "true", **wanted}
    changes = {name: value for name, value in wanted.items() if not _is_same(name, value, current.get(name, ""))}
    subscription_attributes(changes, current)
    fifo = _fifo(call, target, planned if target.account == account else {})
    if existing is not None:
        fifo = existing.queue_fifo
    elif fifo is None:
        raise InvalidInput(f"its queue {target.name} neither exists nor is defined here. Add its definition.")
    elif fifo and not topic.fifo:
        raise InvalidInput(f"queue {target.name} is a FIFO queue, so only FIFO topics can deliver to it.")
    fields = sorted(subscriptions.FIELDS.get(name, name) for name in changes)
    if given.dead_letter_queue and (existing is None or "deadLetterQueue" in fields):
        _check_dead_letter(call, QueueName(account, given.dead_letter_queue), target, fifo, planned)
    return PlannedSubscription(topic.name, target, existing, changes, fields if existing is not None else [])


def _subscription(call: Call, topic: Topic | None, queue: QueueName) -> SubscriptionEntry | None:
    if topic is None:
        return None
    return call.broker.subscription_to(topic.number, queue)


def _is_same(name: str, value: str, current: str) -> bool:
    """Whether an attribute would mean the same. A filter of an SNS client may be written with other spaces."""
    if name == FILTER_POLICY and value and current:
        return json.dumps(json.loads(current)) == json.dumps(json.loads(value))
    if name == FILTER_SCOPE:
        return (value or ATTRIBUTES_SCOPE) == (current or ATTRIBUTES_SCOPE)
    return value == ("" if name == RAW_DELIVERY and current == "false" else current)


def _fifo(call: Call, queue: QueueName, planned: Mapping[str, PlannedQueue]) -> bool | None:
    """The kind of a queue that exists or is planned; None: there is none."""
    try:
        return call.broker.queue(*queue).fifo
    except QueueDoesNotExist:
        return planned[queue.name].fifo if queue.name in planned else None


def _check_dead_letter(
    call: Call, name: QueueName, target: QueueName, fifo: bool, planned: Mapping[str, PlannedQueue]
) -> None:
    if name == target:
        raise InvalidInput("its queue cannot be its own dead-letter queue.")
    found = _fifo(call, name, planned)
    if found is None:
        raise InvalidInput(f"its dead-letter queue {name.name} neither exists nor is defined here. Add its definition.")
    if found != fifo:
        raise InvalidInput(f"its dead-letter queue {name.name} has a different mode (STANDARD or FIFO) than its queue.")


async def apply_topic(call: Call, account: str, plan: PlannedTopic) -> None:
    """Create or change a topic, without its subscriptions."""
    broker = call.broker
    if plan.existing is None:
        wanted = {name: value for name, value in plan.changes.items() if value}
        await broker.create_topic(account, plan.name, wanted, plan.tags or {}, rest=True)
        return
    if plan.changes:
        await broker.set_topic_attributes(plan.existing, plan.changes)
    if plan.tags is not None and "tags" in plan.fields:
        removed = [tag for tag in plan.existing.tags if tag not in plan.tags]
        await broker.tag_topic(plan.existing, plan.tags, removed)


async def apply_subscription(call: Call, account: str, plan: PlannedSubscription) -> None:
    if plan.existing is None:
        wanted = {name: value for name, value in plan.changes.items() if value}
        topic = call.broker.topic(account, plan.topic)
        await call.broker.subscribe(topic, queue_arn(*plan.queue), wanted, str(uuid4()))
    elif plan.changes:
        await call.broker.set_subscription_attributes(plan.existing, plan.changes)
