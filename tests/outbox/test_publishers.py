"""Publishing by the SQS protocol, with boto3 and a real server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest

from batonq.client.models import Outgoing
from batonq.errors import QueueDoesNotExist, TopicDoesNotExist, Unavailable
from batonq.outbox import Relay, SqsPublisher, create_tables, put
from batonq.outbox.sqlite import SqliteSource
from tests.support.doubles import double
from tests.system.process import ServerProcess


@pytest.fixture
def sqs(server: ServerProcess) -> Iterator[Any]:
    client = boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
    with closing(client):
        yield client


def received(sqs: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while messages := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    ).get("Messages"):
        found += messages
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_an_outbox_is_relayed_to_a_fifo_queue_of_sqs_in_order_and_once(sqs: Any, sqlite_path: str, name: str) -> None:
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    with closing(sqlite3.connect(sqlite_path)) as connection:
        create_tables(connection)
        for number in range(25):
            put(connection, f"{name}.fifo", {"n": number}, key=f"k{number % 3}", attributes={"a": "x", "b": b"\1"})
        connection.commit()

    @double()
    class Dies(SqsPublisher):
        def publish(self, queue: str, producer: str, messages: Any) -> Any:
            super().publish(queue, producer, messages)
            raise Unavailable("the answer is lost")

    with closing(SqliteSource(sqlite_path)) as source:
        assert Relay(source, Dies(sqs)).run_once() == 0
        assert Relay(source, SqsPublisher(sqs)).run_until_empty() == 25
    messages = received(sqs, url)
    by_key: dict[str, list[str]] = {}
    for message in messages:
        by_key.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
        assert message["MessageAttributes"]["b"]["BinaryValue"] == b"\1"
    assert by_key == {f"k{key}": [f'{{"n":{n}}}' for n in range(key, 25, 3)] for key in range(3)}


def test_a_queue_that_is_missing_and_one_that_is_away(sqs: Any, name: str) -> None:
    publisher = SqsPublisher(sqs)
    with pytest.raises(QueueDoesNotExist, match=name):
        publisher.publish(name, "p", [(1, Outgoing("x"))])
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert publisher.publish(name, "p", [(1, Outgoing("x")), (2, Outgoing(b"text", delay=0))]) == [None, None]
    assert sorted(message["Body"] for message in received(sqs, url)) == ["text", "x"]
    sqs.delete_queue(QueueUrl=url)
    problems = publisher.publish(name, "p", [(3, Outgoing("x", group="k")), (4, Outgoing("y", group="k"))])
    assert [isinstance(problem, Unavailable) for problem in problems] == [True, True]


def test_an_outbox_is_relayed_to_a_topic_of_sns_in_order_and_once(
    server: ServerProcess, sqs: Any, sqlite_path: str, name: str
) -> None:
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    given = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    with closing(boto3.client("sns", endpoint_url=server.url, **given)) as sns:
        publisher = SqsPublisher(sqs, sns=sns)
        with pytest.raises(TopicDoesNotExist, match=name):
            publisher.publish(f"topic:{name}.fifo", "p", [(1, Outgoing("x", group="k"))])
        topic = sns.create_topic(Name=f"{name}.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=raw)
        with closing(sqlite3.connect(sqlite_path)) as connection:
            create_tables(connection)
            for number in range(12):
                put(connection, topic=f"{name}.fifo", body={"n": number}, key="k", attributes={"a": "x"})
            connection.commit()

        @double()
        class Dies(SqsPublisher):
            def publish(self, queue: str, producer: str, messages: Any) -> Any:
                super().publish(queue, producer, messages)
                raise Unavailable("the answer is lost")

        with closing(SqliteSource(sqlite_path)) as source:
            assert Relay(source, Dies(sqs, sns=sns)).run_once() == 0
            assert Relay(source, publisher).run_until_empty() == 12
    messages = received(sqs, url)
    assert [message["Body"] for message in messages] == [f'{{"n":{n}}}' for n in range(12)]
    assert messages[0]["MessageAttributes"]["a"]["StringValue"] == "x"
