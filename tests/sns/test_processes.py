"""SNS on a server with several processes: whichever process a request reaches knows the topic at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import client
from tests.system.process import ServerProcess

COUNT = 12


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with ServerProcess(tmp_path, "--processes", "2", "--shards", "4") as server:
        yield server.url


def fresh(service: str, url: str) -> Any:
    """A client with a connection of its own, which reaches any of the processes."""
    return client(service, url, "any")


def call(service: str, url: str, operation: str, **given: Any) -> Any:
    made = fresh(service, url)
    try:
        return getattr(made, operation)(**given)
    finally:
        made.close()


def test_a_topic_is_known_to_every_process_at_once(url: str) -> None:
    topic = call("sns", url, "create_topic", Name="orders")["TopicArn"]
    queues = []
    for number in range(4):  # on several shards
        queue = call("sqs", url, "create_queue", QueueName=f"q{number}")["QueueUrl"]
        names = {"QueueUrl": queue, "AttributeNames": ["QueueArn"]}
        arn = call("sqs", url, "get_queue_attributes", **names)["Attributes"]["QueueArn"]
        made = call(
            *("sns", url, "subscribe"),
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=arn,
            Attributes={"RawMessageDelivery": "true"},
        )
        assert call("sns", url, "get_subscription_attributes", SubscriptionArn=made["SubscriptionArn"])
        queues.append(queue)
    for number in range(COUNT):
        call("sns", url, "publish", TopicArn=topic, Message=str(number))
    for queue in queues:
        sqs = fresh("sqs", url)
        found: list[str] = []
        while len(found) < COUNT:
            answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20)
            found += [message["Body"] for message in answer.get("Messages", [])]
        assert sorted(found, key=int) == [str(number) for number in range(COUNT)]
        sqs.close()
    call("sns", url, "delete_topic", TopicArn=topic)
    assert call("sns", url, "list_subscriptions")["Subscriptions"] == []
