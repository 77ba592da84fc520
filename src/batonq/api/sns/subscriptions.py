"""The operations on subscriptions. Only queues can subscribe, and a subscription is confirmed when it is made."""

from __future__ import annotations

from uuid import uuid4

from batonq.api.sns.errors import SnsError, invalid, missing
from batonq.api.sns.paging import page
from batonq.api.sns.service import Call, Service
from batonq.api.sns.shapes import (
    AttributesOutput,
    ConfirmSubscriptionInput,
    ListSubscriptionsByTopicInput,
    ListSubscriptionsInput,
    SetSubscriptionAttributesInput,
    SubscribeInput,
    Subscription,
    SubscriptionArnOutput,
    SubscriptionInput,
    SubscriptionsOutput,
)
from batonq.api.sqs.errors import shortened
from batonq.attribute_formats.arns import queue_arn
from batonq.core.catalog.topic_entries import SubscriptionEntry
from batonq.errors import InvalidInput, QueueDoesNotExist
from batonq.topic_attributes import FILTER_SCOPE, RAW_DELIVERY, SUBSCRIPTION_CHOICES, SUBSCRIPTION_TEXTS

PROTOCOL = "sqs"


async def subscribe(service: Service, call: Call, given: SubscribeInput) -> SubscriptionArnOutput:
    topic = service.topic(call, given.TopicArn)
    if not given.Protocol:
        raise missing("Protocol")
    if given.Protocol != PROTOCOL:
        raise invalid(
            f"Protocol Reason: {shortened(given.Protocol, 40)} is not supported: Baton delivers to queues only, so the "
            f"protocol must be {PROTOCOL} and the endpoint the ARN of a queue."
        )
    endpoint = service.check_endpoint(call, given.Endpoint)
    try:
        entry = await service.broker.subscribe(topic, endpoint, given.Attributes or {}, str(uuid4()))
    except QueueDoesNotExist:
        raise  # the application refreshes the catalog first
    except InvalidInput as problem:
        raise invalid(f"Attributes Reason: {problem.message}") from None
    return SubscriptionArnOutput(entry.arn)


async def confirm_subscription(service: Service, call: Call, given: ConfirmSubscriptionInput) -> SubscriptionArnOutput:
    service.topic(call, given.TopicArn)
    if not given.Token:
        raise missing("Token")
    raise invalid(
        f"Token Reason: no subscription waits for this token. Subscriptions with the protocol {PROTOCOL} are confirmed "
        "when they are made."
    )


async def unsubscribe(service: Service, call: Call, given: SubscriptionInput) -> None:
    """Removing a subscription that does not exist is not an error, as in SNS."""
    for _ in range(2):
        try:
            await service.broker.unsubscribe(service.subscription(call, given.SubscriptionArn))
            return
        except SnsError as problem:
            if problem.status != 404:
                raise
            if not await service.broker.refresh():
                return


async def list_subscriptions(service: Service, call: Call, given: ListSubscriptionsInput) -> SubscriptionsOutput:
    return _listed(service.broker.subscriptions(call.caller.account), given.NextToken)


async def list_subscriptions_by_topic(
    service: Service, call: Call, given: ListSubscriptionsByTopicInput
) -> SubscriptionsOutput:
    topic = service.topic(call, given.TopicArn)
    return _listed(service.broker.subscriptions(topic.account, topic), given.NextToken)


def _listed(entries: list[SubscriptionEntry], token: str | None) -> SubscriptionsOutput:
    # A space sorts before every character of a name, so that the keys are sorted as the names are.
    found, following = page(entries, lambda entry: f"{entry.topic_name.name} {entry.number:020d}", token)
    shown = [
        Subscription(entry.arn, entry.topic_name.account, entry.protocol, queue_arn(*entry.queue), _topic_arn(entry))
        for entry in found
    ]
    return SubscriptionsOutput(shown, following)


def _topic_arn(entry: SubscriptionEntry) -> str:
    return entry.arn.rpartition(":")[0]


async def get_subscription_attributes(service: Service, call: Call, given: SubscriptionInput) -> AttributesOutput:
    entry = service.subscription(call, given.SubscriptionArn)
    values = {
        "SubscriptionArn": entry.arn,
        "TopicArn": _topic_arn(entry),
        "Owner": entry.topic_name.account,
        "Protocol": entry.protocol,
        "Endpoint": queue_arn(*entry.queue),
        "ConfirmationWasAuthenticated": "true",
        "PendingConfirmation": "false",
        "SubscriptionPrincipal": f"arn:aws:iam::{entry.topic_name.account}:root",
        RAW_DELIVERY: "false",
    }
    if entry.filter_policy:
        values[FILTER_SCOPE] = entry.scope
    shown = {name: value for name, value in entry.attributes.items() if name != FILTER_SCOPE or entry.filter_policy}
    return AttributesOutput({**values, **shown})


async def set_subscription_attributes(service: Service, call: Call, given: SetSubscriptionAttributesInput) -> None:
    entry = service.subscription(call, given.SubscriptionArn)
    name = given.AttributeName
    if not name:
        raise missing("AttributeName")
    if name not in SETTABLE:
        raise invalid(f"AttributeName Reason: {shortened(name, 100)} is not an attribute that can be set.")
    await service.broker.set_subscription_attributes(entry, {name: given.AttributeValue or ""})


SETTABLE = SUBSCRIPTION_TEXTS | SUBSCRIPTION_CHOICES.keys()
