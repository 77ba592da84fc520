"""One server for the tests with boto3's SNS client; each test has an account of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import account, client, held_clock, server
from tests.api.support import arn_of
from tests.support.server import TestServer

__all__ = ["account", "held_clock", "server"]


@pytest.fixture
def sqs(server: TestServer, account: str) -> Iterator[Any]:
    made = client("sqs", server.url, account)
    yield made
    made.close()


@pytest.fixture
def sns(server: TestServer, account: str) -> Iterator[Any]:
    made = client("sns", server.url, account)
    yield made
    made.close()


def topic_of(sns: Any, name: str = "orders", **attributes: str) -> str:
    return str(sns.create_topic(Name=name, Attributes=attributes)["TopicArn"])


def queue_of(sqs: Any, name: str, **attributes: str) -> tuple[str, str]:
    """The URL and the ARN of a new queue."""
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url, arn_of(sqs, url)


def subscribe(sns: Any, topic: str, queue: str, **attributes: str) -> str:
    made = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes=attributes)
    return str(made["SubscriptionArn"])
