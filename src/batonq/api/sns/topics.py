"""The operations on topics and their tags."""

from __future__ import annotations

import json

from batonq.api.sns.errors import SnsError, invalid, missing, topic_not_found
from batonq.api.sns.paging import page
from batonq.api.sns.service import Call, Service
from batonq.api.sns.shapes import (
    AttributesOutput,
    CreateTopicInput,
    EmptyOutput,
    ListTopicsInput,
    ListTopicsOutput,
    ResourceInput,
    SetTopicAttributesInput,
    Tag,
    TagResourceInput,
    TagsOutput,
    TopicArnOutput,
    TopicInput,
    UntagResourceInput,
)
from batonq.errors import TopicDoesNotExist
from batonq.node.catalog.topic_control import Topic
from batonq.topic_attributes import CONTENT_DEDUPLICATION, FIFO_TOPIC, TOPIC_POLICY

# What SNS does for deliveries to queues is not configurable in Baton, but tools expect to read something.
_DELIVERY_POLICY = json.dumps({"http": {"defaultHealthyRetryPolicy": {}, "disableSubscriptionOverrides": False}})
_ACTIONS = (
    "GetTopicAttributes",
    "SetTopicAttributes",
    "DeleteTopic",
    "Subscribe",
    "ListSubscriptionsByTopic",
    "Publish",
)


async def create_topic(service: Service, call: Call, given: CreateTopicInput) -> TopicArnOutput:
    if not given.Name:
        raise missing("Name")
    if given.DataProtectionPolicy:
        raise invalid("DataProtectionPolicy Reason: Baton does not support data protection policies.")
    tags = _tags(given.Tags or [])
    topic = await service.broker.create_topic(call.caller.account, given.Name, given.Attributes or {}, tags)
    return TopicArnOutput(topic.arn)


async def delete_topic(service: Service, call: Call, given: TopicInput) -> None:
    """Deleting a topic that does not exist is not an error, as in SNS."""
    try:
        topic = service.topic(call, given.TopicArn)
    except TopicDoesNotExist:
        if not await service.broker.refresh():
            return
        try:
            topic = service.topic(call, given.TopicArn)
        except TopicDoesNotExist:
            return
    await service.broker.delete_topic(topic)


async def list_topics(service: Service, call: Call, given: ListTopicsInput) -> ListTopicsOutput:
    topics = service.broker.topics(call.caller.account)
    found, token = page(topics, lambda topic: topic.name, given.NextToken)
    return ListTopicsOutput([TopicArnOutput(topic.arn) for topic in found], token)


async def get_topic_attributes(service: Service, call: Call, given: TopicInput) -> AttributesOutput:
    topic = service.topic(call, given.TopicArn)
    confirmed = len(service.broker.subscriptions(topic.account, topic))
    values = {
        TOPIC_POLICY: _default_policy(topic),
        "Owner": topic.account,
        "SubscriptionsPending": "0",
        "TopicArn": topic.arn,
        "EffectiveDeliveryPolicy": _DELIVERY_POLICY,
        "SubscriptionsConfirmed": str(confirmed),
        "DisplayName": "",
        "SubscriptionsDeleted": "0",
    }
    if topic.fifo:
        values |= {FIFO_TOPIC: "true", CONTENT_DEDUPLICATION: "false"}
    return AttributesOutput({**values, **topic.attributes})


def _default_policy(topic: Topic) -> str:
    """The policy that SNS gives a new topic: its owner may do everything."""
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{action}" for action in _ACTIONS],
        "Resource": topic.arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": topic.account}},
    }
    return json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]})


async def set_topic_attributes(service: Service, call: Call, given: SetTopicAttributesInput) -> None:
    topic = service.topic(call, given.TopicArn)
    if not given.AttributeName:
        raise missing("AttributeName")
    await service.broker.set_topic_attributes(topic, {given.AttributeName: given.AttributeValue or ""})


# --- tags -------------------------------------------------------------------------------------


async def tag_resource(service: Service, call: Call, given: TagResourceInput) -> EmptyOutput:
    topic = _resource(service, call, given.ResourceArn)
    if not given.Tags:
        raise missing("Tags")
    await service.broker.tag_topic(topic, _tags(given.Tags))
    return EmptyOutput()


async def untag_resource(service: Service, call: Call, given: UntagResourceInput) -> EmptyOutput:
    topic = _resource(service, call, given.ResourceArn)
    if not given.TagKeys:
        raise missing("TagKeys")
    await service.broker.tag_topic(topic, {}, given.TagKeys)
    return EmptyOutput()


async def list_tags_for_resource(service: Service, call: Call, given: ResourceInput) -> TagsOutput:
    topic = _resource(service, call, given.ResourceArn)
    return TagsOutput([Tag(key, value) for key, value in topic.tags.items()])


def _resource(service: Service, call: Call, arn: str | None) -> Topic:
    return service.topic(call, arn, "ResourceArn")


def resource_not_found(problem: SnsError) -> SnsError:
    """The operations on tags have a code of their own for a topic that does not exist."""
    if problem.code == topic_not_found().code:
        return SnsError("ResourceNotFound", "Resource does not exist", 404)
    return problem


def _tags(given: list[Tag]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for tag in given:
        if not tag.Key:
            raise invalid("Tags Reason: a tag has no Key.")
        if tag.Key in tags:
            raise invalid("Tags Reason: Duplicated keys are not allowed.")
        tags[tag.Key] = tag.Value or ""
    return tags
