"""A worker on SQS's API, by boto3: as it would run against any SQS endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import boto3
import pytest
from botocore.config import Config

from batonq.errors import InvalidInput
from batonq.worker import Message, Middleware, Poison, RetryLater, SqsSource, Worker
from tests.support.doubles import double
from tests.support.server import TestServer
from tests.worker.support import until, work

_accounts = count(500_000_000_001)


@pytest.fixture(scope="module")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("sqs"))) as server:
        yield server


@pytest.fixture
def sqs(sqs_server: TestServer) -> Iterator[Any]:
    client = boto3.client(
        "sqs",
        endpoint_url=sqs_server.url,
        region_name="us-east-1",
        aws_access_key_id=str(next(_accounts)),  # one for each test
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=20),
    )
    yield client
    client.close()


def make_queue(sqs: Any, name: str = "jobs", dead: str = "") -> str:
    attributes = {}
    if dead:
        url = sqs.create_queue(QueueName=dead)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        attributes["RedrivePolicy"] = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 3}}'
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def depth(sqs: Any, url: str) -> int:
    names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    values = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(value) for value in values.values())


def test_messages_with_their_attributes(sqs: Any) -> None:
    url = make_queue(sqs)
    sqs.send_message(
        QueueUrl=url,
        MessageBody="hello",
        MessageAttributes={
            "tier": {"DataType": "String", "StringValue": "paid"},
            "size": {"DataType": "Number", "StringValue": "7"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
        },
    )
    app = Worker(source=SqsSource(sqs))
    seen: list[Message] = []

    @app.task(queue="jobs", wait=1)
    async def handle(message: Message) -> None:
        seen.append(message)

    work(app, lambda: bool(app.counters) and app.counters["handle"].acked == 1)
    assert depth(sqs, url) == 0
    (message,) = seen
    assert (message.body, message.queue, message.receive_count) == ("hello", "jobs", 1)
    assert message.attributes == {"tier": "paid", "size": 7, "raw": b"\x00\x01"} and message.sent_at > 0


def test_many_messages_go_in_tens(sqs: Any) -> None:
    url = make_queue(sqs)
    for start in range(0, 60, 10):
        entries = [{"Id": str(number), "MessageBody": str(start + number)} for number in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    app = Worker(source=SqsSource(sqs))
    seen: list[int] = []

    @app.task(queue="jobs", concurrency=25, wait=1)
    def handle(message: Message) -> None:
        seen.append(int(message.body))

    work(app, lambda: bool(app.counters) and app.counters["handle"].acked == 60)
    assert sorted(seen) == list(range(60)) and depth(sqs, url) == 0


def test_failures_come_back_and_poison_goes_to_the_queues_dead_letters(sqs: Any) -> None:
    url = make_queue(sqs, dead="jobs-dead")
    for body in ("poison", "later", "fine"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    app = Worker(source=SqsSource(sqs))
    counts: dict[str, int] = {}

    @app.task(queue="jobs", wait=1)
    async def handle(message: Message) -> None:
        counts[message.body] = message.receive_count
        if message.body == "poison":
            raise Poison("corrupt")
        if message.body == "later" and message.receive_count == 1:
            raise RetryLater(1, "busy")

    work(app, lambda: bool(app.counters) and app.counters["handle"].acked == 2 and depth(sqs, url) == 0)
    assert counts == {"poison": 1, "later": 2, "fine": 1}
    dead = sqs.get_queue_url(QueueName="jobs-dead")["QueueUrl"]
    (letter,) = sqs.receive_message(QueueUrl=dead, MessageAttributeNames=["All"])["Messages"]
    assert letter["Body"] == "poison"
    told = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert told == {"ErrorClass": "Poison", "ErrorReason": "corrupt"}


def test_poison_without_a_dead_letter_queue_stays(sqs: Any) -> None:
    url = make_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="poison")
    app = Worker(source=SqsSource(sqs))

    @app.task(queue="jobs", wait=0)
    async def handle(message: Message) -> None:
        if message.receive_count < 3:
            raise Poison("corrupt")

    work(app, lambda: bool(app.counters) and app.counters["handle"].acked == 1)
    assert depth(sqs, url) == 0 and app.counters["handle"].dead_lettered == 2


def test_a_slow_handler_keeps_its_lease_on_sqs(sqs: Any, sqs_server: TestServer) -> None:
    url = make_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="slow")
    app = Worker(source=SqsSource(sqs))

    @app.task(queue="jobs", visibility=3, concurrency=2, wait=1)
    async def handle(message: Message) -> None:
        await until(lambda: app.counters["handle"].extended >= 4)  # for longer than the lease would have lasted

    work(app, lambda: bool(app.counters) and app.counters["handle"].acked == 1)
    counters = app.counters["handle"]
    assert counters.received == 1 and counters.refused == 0


def test_several_queues_are_polled_in_turn_and_patterns_are_refused(sqs: Any) -> None:
    for name in ("paid", "free"):
        sqs.send_message(QueueUrl=make_queue(sqs, name), MessageBody=name)
    source = SqsSource(sqs)
    app = Worker(source=source)
    seen: list[str] = []

    @double()
    class Done(Middleware):
        def done(self, message: Message) -> None:
            seen.append(message.body)

    app.use(Done())

    @app.task(queue=["paid", "free"], wait=1)
    async def handle(message: Message) -> None:
        """Nothing to do."""

    work(app, lambda: len(seen) == 2)
    with pytest.raises(InvalidInput, match="does not support patterns"):
        asyncio.run(source.receive(["hooks-*"], 1, 0, 30))
