"""Fan-out exchanges of kombu, which Celery's broadcasts use, with nothing changed but the endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from kombu import common, connection, entity, messaging

from tests.support.server import TestServer

# kombu has no types.
Connection: Any = connection.Connection
Consumer: Any = messaging.Consumer
Exchange: Any = entity.Exchange
Producer: Any = messaging.Producer
Queue: Any = entity.Queue
Broadcast: Any = common.Broadcast

TIME_PASSES = True  # for kombu's polls
WAIT_S = 60


@pytest.fixture
def connect(server: TestServer, account: str) -> Any:
    @contextmanager
    def connected() -> Iterator[Any]:
        options = {
            "region": "us-east-1",
            "is_secure": False,
            "supports_fanout": True,
            "wait_time_seconds": 1,
            "polling_interval": 0.05,
        }
        address = f"sqs://{account}:secret@{server.url.removeprefix('http://')}//"
        with Connection(address, transport_options=options) as connection:
            yield connection

    return connected


class Worker:
    """Consumes one queue on a connection of its own. kombu subscribes the queue when the consumer starts."""

    def __init__(self, connection: Any, queue: Any) -> None:
        self.connection = connection
        self.found: list[Any] = []
        self.consumer = Consumer(connection, [queue], callbacks=[self._take], accept=["json"])

    def _take(self, body: Any, message: Any) -> None:
        self.found.append(body)
        message.ack()

    def drained(self, count: int) -> list[Any]:
        """The bodies of this many messages."""
        while len(self.found) < count:
            self.connection.drain_events(timeout=WAIT_S)
        return self.found


@contextmanager
def working(connect: Any, *queues: Any) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        workers = [Worker(stack.enter_context(connect()), queue) for queue in queues]
        for worker in workers:
            stack.enter_context(worker.consumer)
        yield workers


def publish(connect: Any, exchange: Any, *bodies: Any) -> None:
    with connect() as connection:
        producer = Producer(connection, exchange=exchange, serializer="json")
        for body in bodies:
            producer.publish(body)


def queues_of(sns: Any) -> list[str]:
    found = sns.list_subscriptions()["Subscriptions"]
    return sorted(one["Endpoint"].rpartition(":")[2] for one in found)


def test_a_message_to_a_fanout_exchange_reaches_every_queue(connect: Any, sns: Any) -> None:
    exchange = Exchange("prices", type="fanout")
    queues = [Queue(name, exchange=exchange) for name in ("shop-a", "shop-b")]
    with working(connect, *queues) as workers:
        publish(connect, exchange, *({"price": number} for number in range(3)))
        for worker in workers:
            assert sorted(body["price"] for body in worker.drained(3)) == [0, 1, 2]
    [topic] = sns.list_topics()["Topics"]
    assert topic["TopicArn"].endswith(":prices")
    assert queues_of(sns) == ["shop-a", "shop-b"]


def test_broadcasts_of_celery_reach_every_worker_s_own_queue(connect: Any) -> None:
    queues = [Broadcast("news") for _ in range(2)]
    with working(connect, *queues) as workers:
        publish(connect, queues[0].exchange, {"n": 1})
        for worker in workers:
            assert worker.drained(1) == [{"n": 1}]


def test_subscriptions_of_deleted_queues_are_cleaned_up(connect: Any, sns: Any, sqs: Any) -> None:
    exchange = Exchange("weather", type="fanout")
    queues = [Queue(name, exchange=exchange) for name in ("kept", "gone")]
    with working(connect, *queues):
        assert queues_of(sns) == ["gone", "kept"]
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="gone")["QueueUrl"])
    with working(connect, queues[0]):
        assert queues_of(sns) == ["kept"]


def test_an_exchange_delivers_only_to_its_own_queues(connect: Any) -> None:
    exchanges = [Exchange(name, type="fanout") for name in ("left", "right")]
    queues = [Queue(f"of-{exchange.name}", exchange=exchange) for exchange in exchanges]
    with working(connect, *queues) as workers:
        publish(connect, exchanges[0], {"n": 1})
        publish(connect, exchanges[1], {"n": 2})
        assert [worker.drained(1) for worker in workers] == [[{"n": 1}], [{"n": 2}]]
