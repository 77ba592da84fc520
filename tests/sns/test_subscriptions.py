"""Subscriptions and their attributes, with boto3."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from tests.api.support import query_request, refused
from tests.sns.conftest import queue_of, subscribe, topic_of
from tests.support.server import TestServer


def test_a_queue_subscribes_and_unsubscribes(sns: Any, sqs: Any, account: str) -> None:
    topic = topic_of(sns)
    _, queue = queue_of(sqs, "emails")
    arn = subscribe(sns, topic, queue)
    assert arn.startswith(topic + ":")
    assert UUID(arn.rpartition(":")[2]).version == 4
    assert subscribe(sns, topic, queue) == arn  # subscribing again finds it
    shown = {"SubscriptionArn": arn, "Owner": account, "Protocol": "sqs", "Endpoint": queue, "TopicArn": topic}
    assert sns.list_subscriptions()["Subscriptions"] == [shown]
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == [shown]
    assert sns.get_topic_attributes(TopicArn=topic)["Attributes"]["SubscriptionsConfirmed"] == "1"
    sns.unsubscribe(SubscriptionArn=arn)
    sns.unsubscribe(SubscriptionArn=arn)  # not an error
    assert sns.list_subscriptions()["Subscriptions"] == []
    with refused("NotFound", "Subscription does not exist", 404):
        sns.get_subscription_attributes(SubscriptionArn=arn)


def test_the_url_to_unsubscribe_needs_only_an_action(server: TestServer, sns: Any, sqs: Any) -> None:
    arn = subscribe(sns, topic_of(sns), queue_of(sqs, "emails")[1])
    answer = query_request(server, {"Action": "Unsubscribe", "SubscriptionArn": arn}, method="GET")
    assert answer.status == 200
    assert sns.list_subscriptions()["Subscriptions"] == []


def test_deleting_a_topic_removes_its_subscriptions(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    subscribe(sns, topic, queue_of(sqs, "emails")[1])
    sns.delete_topic(TopicArn=topic)
    assert sns.list_subscriptions()["Subscriptions"] == []
    with refused("NotFound", "Topic does not exist", 404):
        sns.list_subscriptions_by_topic(TopicArn=topic)


def test_lists_have_pages(sns: Any, sqs: Any) -> None:
    topics = [topic_of(sns, name) for name in ("b", "b-eu")]
    expected = []
    for number in range(60):
        _, queue = queue_of(sqs, f"q{number}")
        expected += [(topic, queue, subscribe(sns, topic, queue)) for topic in topics]
    pages = [*sns.get_paginator("list_subscriptions").paginate()]
    assert [len(page["Subscriptions"]) for page in pages] == [100, 20]
    found = [
        (one["TopicArn"], one["Endpoint"], one["SubscriptionArn"]) for page in pages for one in page["Subscriptions"]
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("protocol", ["https", "email", "lambda", "SQS", "firehose"])
def test_only_queues_can_subscribe(sns: Any, protocol: str) -> None:
    with refused(
        "InvalidParameter",
        f"Invalid parameter: Protocol Reason: {protocol} is not supported: Baton delivers to queues only, so the "
        "protocol must be sqs and the endpoint the ARN of a queue.",
    ):
        sns.subscribe(TopicArn=topic_of(sns), Protocol=protocol, Endpoint="https://example.com")


def test_an_endpoint_must_be_a_queue_that_exists(sns: Any, sqs: Any, account: str) -> None:
    topic = topic_of(sns)
    with refused("InvalidParameter", "Invalid parameter: SQS endpoint ARN: emails is not the ARN of a queue."):
        subscribe(sns, topic, "emails")
    with refused("InvalidParameter", "Invalid parameter: Queue emails does not exist."):
        subscribe(sns, topic, f"arn:aws:sqs:us-east-1:{account}:emails")
    with refused("InvalidParameter", "...so only FIFO topics can deliver to it."):
        subscribe(sns, topic, queue_of(sqs, "emails.fifo", FifoQueue="true")[1])


def test_attributes(sns: Any, sqs: Any, account: str) -> None:
    topic = topic_of(sns)
    _, queue = queue_of(sqs, "emails")
    _, dead = queue_of(sqs, "dead")
    redrive = json.dumps({"deadLetterTargetArn": dead})
    arn = subscribe(sns, topic, queue, RawMessageDelivery="true", RedrivePolicy=redrive)
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"] == {
        "SubscriptionArn": arn,
        "TopicArn": topic,
        "Owner": account,
        "Protocol": "sqs",
        "Endpoint": queue,
        "ConfirmationWasAuthenticated": "true",
        "PendingConfirmation": "false",
        "SubscriptionPrincipal": f"arn:aws:iam::{account}:root",
        "RawMessageDelivery": "true",
        "RedrivePolicy": redrive,
    }
    policy = '{"shop": ["north"]}'
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue=policy)
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="RedrivePolicy", AttributeValue="{}")
    attributes = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert (attributes["FilterPolicy"], attributes["FilterPolicyScope"]) == (policy, "MessageAttributes")
    assert "RedrivePolicy" not in attributes
    sns.set_subscription_attributes(
        SubscriptionArn=arn, AttributeName="FilterPolicyScope", AttributeValue="MessageBody"
    )
    assert sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]["FilterPolicyScope"] == "MessageBody"
    with refused("InvalidParameter", "...Colour is not an attribute that can be set."):
        sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="Colour", AttributeValue="red")
    with refused(
        "InvalidParameter",
        "...with a different RawMessageDelivery. Change the attributes of that subscription instead.",
    ):
        subscribe(sns, topic, queue, RawMessageDelivery="false")


def test_a_wrong_filter_says_where(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    _, queue = queue_of(sqs, "emails")
    wrong = json.dumps({"shop": ["a", {"starts": "b"}]})
    problem = (
        "FilterPolicy: at shop[1]: unrecognized match type starts; use one of prefix, suffix, equals-ignore-case, "
        "anything-but, numeric, exists, cidr."
    )
    with refused("InvalidParameter", f"Invalid parameter: Attributes Reason: {problem}"):
        subscribe(sns, topic, queue, FilterPolicy=wrong)
    arn = subscribe(sns, topic, queue)
    with refused("InvalidParameter", f"Invalid parameter: {problem}"):
        sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue=wrong)
    nested = json.dumps({"shop": {"name": ["a"]}})
    with refused("InvalidParameter", "...write a list of values here."):
        sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue=nested)


def test_there_is_nothing_to_confirm(sns: Any) -> None:
    with refused("InvalidParameter", "...Subscriptions with the protocol sqs are confirmed when they are made."):
        sns.confirm_subscription(TopicArn=topic_of(sns), Token="abc")
