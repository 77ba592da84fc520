"""FIFO queues with boto3: order within a group, deduplication, attempts."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.api.support import bodies, counts, receive, refused
from tests.support.server import TestServer

NO_ID = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"


def send(sqs: Any, url: str, body: str, group: str = "g", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)
    return answer


def test_order_and_what_a_message_carries(sqs: Any, fifo: str) -> None:
    sent = [send(sqs, fifo, str(number)) for number in range(3)]
    numbers = [answer["SequenceNumber"] for answer in sent]
    assert numbers == sorted(numbers) and all(len(number) == 20 for number in numbers)
    messages = receive(sqs, fifo, AttributeNames=["All"])
    assert bodies(messages) == ["0", "1", "2"]
    system = messages[0]["Attributes"]
    assert system["MessageGroupId"] == "g" and system["SequenceNumber"] == numbers[0]
    assert system["MessageDeduplicationId"] == hashlib.sha256(b"0").hexdigest()


def test_a_group_in_flight_is_locked(sqs: Any, fifo: str) -> None:
    for number in range(4):
        send(sqs, fifo, f"a{number}", "a")
    send(sqs, fifo, "b0", "b")
    first = receive(sqs, fifo, 2)
    assert bodies(first) == ["a0", "a1"]
    assert bodies(receive(sqs, fifo)) == ["b0"]
    send(sqs, fifo, "a4", "a")  # a new send does not unlock it
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first[0]["ReceiptHandle"])  # nor does a partial delete
    assert receive(sqs, fifo) == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first[1]["ReceiptHandle"])
    assert bodies(receive(sqs, fifo)) == ["a2", "a3", "a4"]


def test_only_messages_before_an_extended_one_come_again(server: TestServer, sqs: Any, fifo: str) -> None:
    for number in range(3):
        send(sqs, fifo, str(number))
    messages = receive(sqs, fifo, VisibilityTimeout=10)
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=messages[1]["ReceiptHandle"], VisibilityTimeout=100)
    server.advance(11)
    assert bodies(receive(sqs, fifo)) == ["0"]


def test_duplicates(server: TestServer, sqs: Any, fifo: str) -> None:
    first = send(sqs, fifo, "same")
    again = send(sqs, fifo, "same")
    assert again["MessageId"] == first["MessageId"] and again["SequenceNumber"] == first["SequenceNumber"]
    explicit = send(sqs, fifo, "same", MessageDeduplicationId="x")  # an explicit id wins over the content
    assert explicit["MessageId"] != first["MessageId"]
    assert send(sqs, fifo, "other", MessageDeduplicationId="x")["MessageId"] == explicit["MessageId"]
    messages = receive(sqs, fifo)
    assert bodies(messages) == ["same", "same"]
    for message in messages:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, fifo, "same")  # even after the first was deleted
    assert counts(sqs, fifo) == (0, 0, 0)
    server.advance(301)
    send(sqs, fifo, "same")
    assert counts(sqs, fifo) == (1, 0, 0)
    sqs.purge_queue(QueueUrl=fifo)  # clears the window
    send(sqs, fifo, "same")
    assert counts(sqs, fifo) == (1, 0, 0)


def test_deduplication_within_a_group(sqs: Any) -> None:
    attributes = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    url = sqs.create_queue(QueueName="scoped.fifo", Attributes=attributes)["QueueUrl"]
    assert send(sqs, url, "same", "a")["MessageId"] != send(sqs, url, "same", "b")["MessageId"]
    assert counts(sqs, url) == (2, 0, 0)


def test_attempts(server: TestServer, sqs: Any, fifo: str) -> None:
    """For five minutes the same attempt id gives the same messages and receipts, and starts their lease anew."""
    for number in range(2):
        send(sqs, fifo, str(number))
    first = receive(sqs, fifo, ReceiveRequestAttemptId="try-1")
    server.advance(20)
    again = receive(sqs, fifo, ReceiveRequestAttemptId="try-1")
    assert [message["ReceiptHandle"] for message in again] == [message["ReceiptHandle"] for message in first]
    server.advance(20)  # past the first lease's end
    assert receive(sqs, fifo, ReceiveRequestAttemptId="try-2") == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first[0]["ReceiptHandle"])
    assert receive(sqs, fifo, ReceiveRequestAttemptId="try-1") == []


def test_a_delete_after_expiry_is_refused(server: TestServer, sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "x")
    [message] = receive(sqs, fifo, VisibilityTimeout=5)
    server.advance(6)
    receipt = message["ReceiptHandle"]
    with refused(
        "InvalidParameterValue",
        f"Value {receipt} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
    ):
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=receipt)
    assert len(receive(sqs, fifo)) == 1


def test_what_a_fifo_queue_asks_for(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="plain.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    with refused("MissingParameter", "The request must contain the parameter MessageGroupId."):
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")
    with refused("InvalidParameterValue", NO_ID):
        send(sqs, url, "x")
    with refused(
        "InvalidParameterValue",
        "Value 2 for parameter DelaySeconds is invalid. "
        "Reason: The request include parameter that is not valid for this queue type.",
    ):
        send(sqs, url, "x", MessageDeduplicationId="d", DelaySeconds=2)
    send(sqs, url, "x", MessageDeduplicationId="d", DelaySeconds=0)
    # in a batch the whole request is refused, and the code of a missing group is another one
    with refused("InvalidParameterValue", "The request must contain the parameter MessageGroupId."):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "x", "MessageDeduplicationId": "e"}])
    with refused("InvalidParameterValue", NO_ID):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "x", "MessageGroupId": "g"}])
    assert counts(sqs, url) == (1, 0, 0)


@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId", "ReceiveRequestAttemptId"])
@pytest.mark.parametrize("value", ["x" * 129, "sp ace", "\u00e9"])
def test_ids_that_are_refused(sqs: Any, fifo: str, parameter: str, value: str) -> None:
    message = (
        f"Value {value} for parameter {parameter} is invalid. Reason: {parameter} can only include alphanumeric "
        "and punctuation characters. 1 to 128 in length."
    )
    with refused("InvalidParameterValue", message):
        if parameter == "ReceiveRequestAttemptId":
            receive(sqs, fifo, ReceiveRequestAttemptId=value)
        else:
            sqs.send_message(**{"QueueUrl": fifo, "MessageBody": "x", "MessageGroupId": "g", parameter: value})


def test_a_fifo_batch(sqs: Any, fifo: str) -> None:
    entries = [{"Id": str(n), "MessageBody": f"m{n % 3}", "MessageGroupId": "g"} for n in range(5)]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    ids = [entry["MessageId"] for entry in answer["Successful"]]
    assert ids[3:] == ids[:2] and len(set(ids)) == 3  # two of them were there already
    assert all(len(entry["SequenceNumber"]) == 20 for entry in answer["Successful"])
    assert bodies(receive(sqs, fifo)) == ["m0", "m1", "m2"]
