"""Publishing with boto3: which queues get what, in SNS's envelope or raw, one by one and in batches."""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import md5
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.support import bodies, counts, receive, refused, wait_until
from tests.sns.conftest import queue_of, subscribe, topic_of
from tests.support.server import TestServer

ATTRIBUTES = {
    "shop": {"DataType": "String", "StringValue": "north"},
    "total": {"DataType": "Number", "StringValue": "12.5"},
    "tags": {"DataType": "String.Array", "StringValue": '["new", 7, true]'},
    "picture": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


def test_a_raw_copy_is_the_message_with_its_attributes(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    subscribe(sns, topic, queue, RawMessageDelivery="true")
    published = sns.publish(TopicArn=topic, Message="hello", MessageAttributes=ATTRIBUTES, Subject="Hi")
    assert published["MessageId"]
    assert "SequenceNumber" not in published
    [message] = receive(sqs, url, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert message["Body"] == "hello"
    assert message["MD5OfBody"] == md5(b"hello").hexdigest()
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_copy_in_an_envelope_is_sns_s_json(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    arn = subscribe(sns, topic, queue)
    text = 'a "quoted" line\nü \u2028'
    published = sns.publish(TopicArn=topic, Message=text, MessageAttributes=ATTRIBUTES, Subject="Hi")
    [message] = receive(sqs, url, MessageAttributeNames=["All"])
    assert message["MD5OfBody"] == md5(message["Body"].encode()).hexdigest()
    assert "MessageAttributes" not in message
    envelope = json.loads(message["Body"])
    assert datetime.fromisoformat(envelope.pop("Timestamp")).tzinfo is not None
    assert quote(arn, safe="") in envelope.pop("UnsubscribeURL")
    for name in ("SignatureVersion", "Signature", "SigningCertURL"):
        assert isinstance(envelope.pop(name), str)
    assert envelope == {
        "Type": "Notification",
        "MessageId": published["MessageId"],
        "TopicArn": topic,
        "Subject": "Hi",
        "Message": text,
        "MessageAttributes": {
            "shop": {"Type": "String", "Value": "north"},
            "total": {"Type": "Number", "Value": "12.5"},
            "tags": {"Type": "String.Array", "Value": '["new", 7, true]'},
            "picture": {"Type": "Binary", "Value": "AP8="},
        },
    }
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sns.publish(TopicArn=topic, Message="plain")
    [message] = receive(sqs, url)
    assert not {"Subject", "MessageAttributes"} & json.loads(message["Body"]).keys()


def test_filters_decide_who_gets_a_message(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    policies = {
        "all": None,
        "north": {"shop": ["north"]},
        "other": {"shop": [{"anything-but": "north"}]},
        "large": {"total": [{"numeric": [">", 12]}]},
        "new": {"tags": ["new"], "shop": [{"exists": True}]},
    }
    urls = {}
    for name, policy in policies.items():
        urls[name], queue = queue_of(sqs, name)
        more = {"FilterPolicy": json.dumps(policy)} if policy else {}
        subscribe(sns, topic, queue, RawMessageDelivery="true", **more)
    sns.publish(TopicArn=topic, Message="a", MessageAttributes=ATTRIBUTES)
    sns.publish(TopicArn=topic, Message="b", MessageAttributes={"shop": {"DataType": "String", "StringValue": "south"}})
    sns.publish(TopicArn=topic, Message="c")
    found = {name: sorted(bodies(receive(sqs, url))) for name, url in urls.items()}
    assert found == {"all": ["a", "b", "c"], "north": ["a"], "other": ["b"], "large": ["a"], "new": ["a"]}


def test_filters_on_the_body(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "large")
    policy = json.dumps({"order": {"lines": {"price": [{"numeric": [">=", 100]}]}}})
    subscribe(sns, topic, queue, RawMessageDelivery="true", FilterPolicyScope="MessageBody", FilterPolicy=policy)
    large = json.dumps({"order": {"lines": [{"price": 5}, {"price": 100}]}})
    for text in (large, json.dumps({"order": {"lines": [{"price": 5}]}}), "not json", '"text"'):
        sns.publish(TopicArn=topic, Message=text)
    assert bodies(receive(sqs, url)) == [large]


def test_a_changed_filter_holds_for_the_next_publish(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    arn = subscribe(sns, topic, queue, RawMessageDelivery="true", FilterPolicy='{"shop": ["south"]}')
    sns.publish(TopicArn=topic, Message="a", MessageAttributes=ATTRIBUTES)
    sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="FilterPolicy", AttributeValue="{}")
    sns.publish(TopicArn=topic, Message="b", MessageAttributes=ATTRIBUTES)
    sns.unsubscribe(SubscriptionArn=arn)
    sns.publish(TopicArn=topic, Message="c", MessageAttributes=ATTRIBUTES)
    assert bodies(receive(sqs, url)) == ["b"]


def test_a_message_per_protocol(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    subscribe(sns, topic, queue, RawMessageDelivery="true")
    for texts in ({"default": "a", "email": "x"}, {"default": "x", "sqs": "b"}):
        sns.publish(TopicArn=topic, Message=json.dumps(texts), MessageStructure="json")
    assert sorted(bodies(receive(sqs, url))) == ["a", "b"]
    with refused("InvalidParameter", "Invalid parameter: Message Structure - No default entry in JSON message body"):
        sns.publish(TopicArn=topic, Message='{"sqs": "b"}', MessageStructure="json")
    with refused("InvalidParameter", "Invalid parameter: Message Structure - JSON message body failed to parse"):
        sns.publish(TopicArn=topic, Message="b", MessageStructure="json")


def test_a_batch_has_a_result_per_entry(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    subscribe(sns, topic, queue, RawMessageDelivery="true")
    entries = [
        {"Id": "a", "Message": "one"},
        {"Id": "b", "Message": ""},
        {"Id": "c", "Message": "two", "Subject": "line\nbreak"},
        {"Id": "d", "Message": "three", "MessageAttributes": {"x": {"DataType": "Number", "StringValue": "y"}}},
        {"Id": "e", "Message": "four", "MessageAttributes": {"x": {"DataType": "String.Array", "StringValue": "y"}}},
        {"Id": "f", "Message": "five", "Subject": "Hi"},
    ]
    answer = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["a", "f"]
    assert len({one["MessageId"] for one in answer["Successful"]}) == 2
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("b", "InvalidParameter", True),
        ("c", "InvalidParameter", True),
        ("d", "InvalidParameter", True),
        ("e", "ParameterValueInvalid", True),
    ]
    assert all(one["Message"] for one in answer["Failed"])
    assert sorted(bodies(receive(sqs, url))) == ["five", "one"]


def test_batches_that_are_refused_as_a_whole(sns: Any) -> None:
    topic = topic_of(sns)
    for code, entries in (
        ("EmptyBatchRequest", []),
        ("TooManyEntriesInBatchRequest", [{"Id": str(at), "Message": "x"} for at in range(11)]),
        ("BatchEntryIdsNotDistinct", [{"Id": "a", "Message": "x"}, {"Id": "a", "Message": "y"}]),
        ("InvalidBatchEntryId", [{"Id": "a b", "Message": "x"}]),
        ("BatchRequestTooLong", [{"Id": str(at), "Message": "x" * 200_000} for at in range(6)]),
    ):
        with refused(code):
            sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"Message": ""}, "InvalidParameter"),
        ({"Message": "x", "Subject": "x" * 101}, "InvalidParameter"),
        ({"Message": "x", "Subject": "ü"}, "InvalidParameter"),
        ({"Message": "x", "MessageStructure": "xml"}, "InvalidParameter"),
        ({"Message": "x", "MessageDeduplicationId": "a"}, "InvalidParameter"),
        ({"Message": "\x00"}, "InvalidParameter"),
        ({"Message": "x" * (1 << 20), "MessageAttributes": ATTRIBUTES}, "InvalidParameter"),
        ({"Message": "x", "MessageAttributes": {"AWS.x": ATTRIBUTES["shop"]}}, "InvalidParameter"),
    ],
)
def test_messages_that_are_refused(sns: Any, given: dict[str, Any], code: str) -> None:
    with refused(code):
        sns.publish(TopicArn=topic_of(sns), **given)


def test_other_targets_are_refused(sns: Any) -> None:
    with refused("InvalidParameter", "...Baton sends no text messages. Publish to a topic."):
        sns.publish(PhoneNumber="+15550100", Message="x")
    with refused("NotFound", "Topic does not exist", 404):
        sns.publish(TargetArn="arn:aws:sns:us-east-1:123456789012:none", Message="x")


def test_a_topic_without_subscriptions_accepts_messages(sns: Any) -> None:
    assert sns.publish(TopicArn=topic_of(sns), Message="x")["MessageId"]


# --- FIFO -------------------------------------------------------------------------------------


def test_a_fifo_topic_keeps_the_order_of_a_group_in_each_queue(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns, "orders.fifo", FifoTopic="true", ContentBasedDeduplication="true")
    queues = [queue_of(sqs, f"q{number}.fifo", FifoQueue="true") for number in range(2)]
    for _, queue in queues:
        subscribe(sns, topic, queue, RawMessageDelivery="true")
    numbers = [
        sns.publish(TopicArn=topic, Message=f"{group}{number}", MessageGroupId=group)["SequenceNumber"]
        for number in range(4)
        for group in "ab"
    ]
    assert numbers == sorted(numbers)
    assert len({*map(len, numbers)}) == 1
    for url, _ in queues:
        found = bodies(receive(sqs, url))
        assert [body for body in found if body.startswith("a")] == ["a0", "a1", "a2", "a3"]
        assert [body for body in found if body.startswith("b")] == ["b0", "b1", "b2", "b3"]


def test_a_fifo_topic_publishes_a_message_once(sns: Any, sqs: Any) -> None:
    topic = topic_of(sns, "orders.fifo", FifoTopic="true")
    url, queue = queue_of(sqs, "emails.fifo", FifoQueue="true")
    subscribe(sns, topic, queue, RawMessageDelivery="true")
    given = {"TopicArn": topic, "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = sns.publish(Message="x", **given)
    assert sns.publish(Message="x", **given)["MessageId"] == first["MessageId"]
    [message] = receive(sqs, url, AttributeNames=["All"])
    assert message["Attributes"]["MessageGroupId"] == "g"
    assert message["Attributes"]["MessageDeduplicationId"] == "d"


def test_what_a_fifo_topic_needs(sns: Any) -> None:
    topic = topic_of(sns, "orders.fifo", FifoTopic="true")
    with refused("InvalidParameter", "Invalid parameter: The MessageGroupId parameter is required for FIFO topics"):
        sns.publish(TopicArn=topic, Message="x", MessageDeduplicationId="d")
    with refused(
        "InvalidParameter", "...ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    ):
        sns.publish(TopicArn=topic, Message="x", MessageGroupId="g")
    entries = [
        {"Id": "a", "Message": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"},
        {"Id": "b", "Message": "x"},
    ]
    answer = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert [one["Id"] for one in answer["Failed"]] == ["b"]
    assert answer["Successful"][0]["SequenceNumber"]


# --- copies that a queue refuses ----------------------------------------------------------------


def test_copies_for_a_deleted_queue_go_to_the_subscription_s_dead_letter_queue(
    server: TestServer, sns: Any, sqs: Any
) -> None:
    topic = topic_of(sns)
    url, queue = queue_of(sqs, "emails")
    dead_url, dead = queue_of(sqs, "dead")
    redrive = json.dumps({"deadLetterTargetArn": dead})
    subscribe(sns, topic, queue, RawMessageDelivery="true", RedrivePolicy=redrive)
    sqs.delete_queue(QueueUrl=url)
    sns.publish(TopicArn=topic, Message="x")
    server.advance(1)
    wait_until(lambda: counts(sqs, dead_url) == (1, 0, 0))
    assert bodies(receive(sqs, dead_url)) == ["x"]


def test_a_copy_is_a_message_of_its_queue(sns: Any, sqs: Any) -> None:
    """It has its own lease, its own receives, and is deleted on its own."""
    topic = topic_of(sns)
    queues = [queue_of(sqs, name) for name in ("emails", "audit")]
    for _, queue in queues:
        subscribe(sns, topic, queue)
    sns.publish(TopicArn=topic, Message="x")
    first, second = (url for url, _ in queues)
    [message] = receive(sqs, first)
    sqs.delete_message(QueueUrl=first, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, first) == (0, 0, 0)
    assert counts(sqs, second) == (1, 0, 0)
