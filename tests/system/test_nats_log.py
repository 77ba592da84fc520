"""`baton serve --log-url nats://…`: a node whose truth is in JetStream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.nats import NatsServers, nats_servers
from tests.system.process import STOP_TIMEOUT_S
from tests.system.test_postgres_log import drain, send, serve
from tests.system.test_process import sqs

_numbers = count(1)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServers]:
    with nats_servers(1) as servers:
        yield servers


@pytest.fixture
def log(nats: NatsServers) -> str:
    """The address of logs of one test's own."""
    return f"{nats.address}/test_{next(_numbers)}?replicas=1&{nats.monitoring}"


def test_all_that_a_node_knows_is_in_jetstream(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "first", log, "--shards", "2") as first:
        client = sqs(first.url)
        queue = client.create_queue(QueueName="work", Attributes={"VisibilityTimeout": "77"})["QueueUrl"]
        send(client, queue, range(100))
        taken = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)["Messages"][0]
        client.delete_message(QueueUrl=queue, ReceiptHandle=taken["ReceiptHandle"])
        first.kill()
    with serve(tmp_path / "second", log) as second:
        client = sqs(second.url)
        queue = client.get_queue_url(QueueName="work")["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert attributes["VisibilityTimeout"] == "77"
        assert sorted([*drain(client, queue), int(taken["Body"])]) == list(range(100))
        assert second.terminate() == 0


def test_the_front_of_a_log_in_jetstream_is_dropped(tmp_path: Path, log: str, nats: NatsServers) -> None:
    """Many large messages pass, and frames stay within what a NATS message may hold."""
    flags = ("--segment-bytes", "2MiB", "--history-bytes", "0", "--history-hours", "0", "--maintenance-every-s", "0.1")
    with serve(tmp_path / "node", log, *flags) as server:
        client = sqs(server.url)
        queue = client.create_queue(QueueName="work")["QueueUrl"]
        client.send_message(QueueUrl=queue, MessageBody="1000 stays")
        for start in range(0, 200, 10):
            send(client, queue, range(start, start + 10), b"x" * 60_000)
            assert len(client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]) == 10
        client.purge_queue(QueueUrl=queue)
        send(client, queue, range(5))
        stream = f"baton-{log.partition('?')[0].rpartition('/')[2]}-shard-0000"
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while nats.first_sequence(stream) < 10:
            assert time.monotonic() < deadline_s, "the front was not dropped"
            time.sleep(0.2)
        server.kill()
    with serve(tmp_path / "other", log, *flags) as other:
        client = sqs(other.url)
        queue = client.get_queue_url(QueueName="work")["QueueUrl"]
        assert sorted(drain(client, queue)) == list(range(5))
        assert other.terminate() == 0
