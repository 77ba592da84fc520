"""Operations on the subscriptions of a topic, and which of them would get a message."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import cast
from uuid import uuid4

import msgspec
from msgspec import UNSET

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_from, bodies_from_json, bodies_from_packed
from batonq.api.rest.queues import query, read_cursor, whole
from batonq.api.rest.service import NO_CONTENT, Answer, Call, find_queue
from batonq.api.rest.topic_shapes import (
    PAGE_MAX,
    Match,
    Matches,
    MatchSpec,
    Scope,
    Subscription,
    SubscriptionChanges,
    Subscriptions,
    SubscriptionSpec,
)
from batonq.api.rest.topics import PAGE_DEFAULT, find_topic
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.attribute_formats.topic_arns import subscription_arn
from batonq.core.catalog.topic_entries import SubscriptionEntry
from batonq.core.payload import decode_attributes
from batonq.core.topics.filters import ATTRIBUTES, BODY, parse_filter
from batonq.core.topics.message_values import read_json, read_json_yielding
from batonq.errors import BatonError, InvalidInput, NotFound, SubscriptionExists
from batonq.node.messages.body_reader import LARGE_BYTES
from batonq.topic_attributes import FILTER_POLICY, FILTER_SCOPE, RAW_DELIVERY, REDRIVE_POLICY

MATCHES_MAX = 1_000  # subscriptions in one answer
TURN_S = 0.01  # after which other requests get a turn


async def create_subscription(call: Call) -> Answer:
    topic = find_topic(call, call.name)
    given = call.read(SubscriptionSpec)
    queue = find_queue(call, given.queue)
    attributes = {RAW_DELIVERY: "true", **_attributes(call, given, None)}
    existing = call.broker.subscription_of(topic.number, queue.number)
    if existing is not None:
        _check_same(existing, attributes)
        return Answer(200, shown(existing))
    wanted = {name: value for name, value in attributes.items() if value}
    arn = queue_arn(queue.account, queue.name)
    entry = await call.broker.subscribe(topic, arn, wanted, str(uuid4()))
    location = f"/v1/topics/{topic.name}/subscriptions/{entry.uuid}"
    return Answer(201, shown(entry), (("Location", location),))


def _check_same(existing: SubscriptionEntry, attributes: dict[str, str]) -> None:
    """Raise a conflict if a field of the request differs from the existing subscription."""
    for name, value in attributes.items():
        if existing.attributes.get(name, "").replace("false", "") != value:
            raise SubscriptionExists(
                f"Queue {existing.queue.name} is already subscribed to topic {existing.topic_name.name}, with a "
                f"different {FIELDS[name]}. Update the existing subscription {existing.uuid}."
            )


async def list_subscriptions(call: Call) -> Answer:
    topic = find_topic(call, call.name)
    values = query(call, ("limit", "cursor"))
    limit = whole(values.get("limit"), "limit", 1, PAGE_MAX, PAGE_DEFAULT)
    entries = call.broker.subscriptions(topic.account, topic)
    if "cursor" in values:
        after = whole(read_cursor(values["cursor"]), "The number in cursor", 0, 1 << 53, 0)
        entries = [entry for entry in entries if entry.number > after]
    page = entries[:limit]
    cursor = urlsafe_b64encode(str(page[-1].number).encode()).decode() if len(entries) > limit else UNSET
    return Answer(200, Subscriptions([*map(shown, page)], cursor))


async def get_subscription(call: Call) -> Answer:
    return Answer(200, shown(await _find(call)))


async def update_subscription(call: Call) -> Answer:
    entry = await _find(call)
    changes = _attributes(call, call.read(SubscriptionChanges), entry)
    if changes:
        await call.broker.set_subscription_attributes(entry, changes)
    return Answer(200, shown(await _find(call)))


async def delete_subscription(call: Call) -> Answer:
    await call.broker.unsubscribe(await _find(call))
    return NO_CONTENT


async def _find(call: Call) -> SubscriptionEntry:
    """The subscription that the request names. A missing one is reported only after a refresh of the catalog."""
    topic = find_topic(call, call.name)
    for is_last in (False, True):
        try:
            return call.broker.subscription(subscription_arn(topic.key, call.token))
        except NotFound:
            if is_last or not await call.broker.refresh():
                break
    raise NotFound(f"Topic {topic.name} has no subscription {call.token[:64]!r}.")


# --- which subscriptions would get a message ----------------------------------------------------


async def match_topic(call: Call) -> Answer:
    topic = find_topic(call, call.name)
    given = call.read(MatchSpec)
    encoded = attributes_from(given.attributes or {})
    attributes = {attribute.name: attribute for attribute in decode_attributes(encoded)}
    body = _text(call, given)
    bodies = call.broker.bodies
    is_large = len(body) > LARGE_BYTES
    parsed = await bodies.run(partial(read_json_yielding, body)) if is_large else read_json(body)
    entries = call.broker.subscriptions(topic.account, topic)
    call.request.cancellable = True
    found: list[Match] = []
    matched = 0
    began_s = perf_counter()
    for entry in entries:
        if perf_counter() - began_s > TURN_S:  # large policies and a large body take long
            await asyncio.sleep(0)
            began_s = perf_counter()
        reason = ""
        if entry.filter_policy:
            match = partial(parse_filter(entry.filter_policy, entry.scope).mismatch, attributes, lambda: parsed)
            reason = await bodies.run(match) if is_large and entry.scope == BODY else match()
        matched += not reason
        found.append(Match(entry.uuid, entry.queue.name, not reason, reason or UNSET))
    found.sort(key=lambda match: not match.matches)  # those that match first; it keeps the order otherwise
    return Answer(200, Matches(matched, found[:MATCHES_MAX], max(0, len(found) - MATCHES_MAX)))


def _text(call: Call, given: MatchSpec) -> bytes:
    """The body as a message with it would be stored."""
    if given.body is UNSET:
        return b""
    problems: list[BatonError] = []

    def refuse(at: int, problem: BatonError) -> None:
        problems.append(problem)

    if call.given is MSGPACK:
        [body], _ = bodies_from_packed([given.body], refuse)
    else:
        [body], _ = bodies_from_json([bytes(given.body)], refuse)
    for problem in problems:
        raise problem
    return body


# --- fields and attributes ----------------------------------------------------------------------

FIELDS = {
    RAW_DELIVERY: "rawDelivery",
    FILTER_POLICY: "filterPolicy",
    FILTER_SCOPE: "filterPolicyScope",
    REDRIVE_POLICY: "deadLetterQueue",
}


def _attributes(call: Call, given: SubscriptionChanges, current: SubscriptionEntry | None) -> dict[str, str]:
    """The attributes for the given fields. A dead-letter queue that is not the current one must exist."""
    account = call.caller.account
    if given.dead_letter_queue:
        name = QueueName(account, given.dead_letter_queue)
        if current is None or current.dead_letter != name:
            find_queue(call, name.name)
    return attributes_of(given, account, current.attributes if current is not None else {})


def attributes_of(given: SubscriptionChanges, account: str, current: Mapping[str, str]) -> dict[str, str]:
    """The attributes for the given fields. A default is an empty value. Raises InvalidInput for a wrong filter."""
    result: dict[str, str] = {}
    if given.raw_delivery is not UNSET:
        result[RAW_DELIVERY] = "" if given.raw_delivery is False else "true"
    if given.filter_policy is not UNSET:
        result[FILTER_POLICY] = json.dumps(given.filter_policy, separators=(",", ":")) if given.filter_policy else ""
    if given.filter_policy_scope is not UNSET:
        result[FILTER_SCOPE] = "" if given.filter_policy_scope in (None, ATTRIBUTES) else str(given.filter_policy_scope)
    if given.dead_letter_queue is not UNSET:
        result[REDRIVE_POLICY] = _redrive_policy(account, given.dead_letter_queue) if given.dead_letter_queue else ""
    _check_filter({**current, **result})
    return result


def _check_filter(attributes: Mapping[str, str]) -> None:
    """Check a filter in the words of this API."""
    policy = attributes.get(FILTER_POLICY)
    if policy:
        try:
            parse_filter(policy, attributes.get(FILTER_SCOPE) or ATTRIBUTES)
        except InvalidInput as problem:
            raise InvalidInput(problem.message.replace(FILTER_POLICY, FIELDS[FILTER_POLICY], 1)) from None


def _redrive_policy(account: str, name: str) -> str:
    return json.dumps({"deadLetterTargetArn": queue_arn(account, name)}, separators=(",", ":"))


def shown(entry: SubscriptionEntry) -> Subscription:
    policy = entry.filter_policy
    return Subscription(
        subscription_id=entry.uuid,
        topic=entry.topic_name.name,
        queue=entry.queue.name,
        arn=entry.arn,
        queue_arn=queue_arn(*entry.queue),
        created_at_ms=entry.created_ms,
        raw_delivery=entry.raw,
        filter_policy=msgspec.json.decode(policy) if policy else UNSET,
        filter_policy_scope=cast(Scope, entry.scope) if policy else UNSET,
        dead_letter_queue=entry.dead_letter.name if entry.dead_letter is not None else UNSET,
        queue_missing=entry.link is None,
    )
