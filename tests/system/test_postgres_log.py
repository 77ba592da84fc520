"""`baton serve --log-url postgres://…`: a node whose truth is a database."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from botocore.exceptions import ClientError

from tests.support.postgres import PostgresServer, running_postgres
from tests.system.process import STOP_TIMEOUT_S, ServerProcess, baton
from tests.system.test_process import sqs

_numbers = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres("max_connections = 100\n") as server:
        yield server


@pytest.fixture
def log(postgres: PostgresServer) -> str:
    """The address of logs of one test's own."""
    joint = "&" if "?" in postgres.address else "?"
    return f"{postgres.address}{joint}schema=test_{next(_numbers)}"


def serve(directory: Path, log: str, *flags: str, lease_s: int = 10) -> ServerProcess:
    """Who starts waits for the lease of one that was killed, twice as long as its own."""
    return ServerProcess(directory, "--log-url", log, "--lease-s", str(lease_s), "--node", directory.name, *flags)


def send(client: Any, queue: str, bodies: range, padding: bytes = b"") -> None:
    for start in range(bodies.start, bodies.stop, 10):
        numbers = range(start, min(start + 10, bodies.stop))
        entries = [{"Id": str(at), "MessageBody": f"{at} {padding.decode()}"} for at in numbers]
        assert len(client.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == len(entries)


def drain(client: Any, queue: str) -> list[int]:
    bodies: list[int] = []
    while messages := client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", []):
        bodies += [int(message["Body"].split()[0]) for message in messages]
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
        assert not client.delete_message_batch(QueueUrl=queue, Entries=entries).get("Failed")
    return bodies


def test_all_that_a_node_knows_is_in_the_database(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "first", log, "--shards", "2") as first:
        client = sqs(first.url)
        queue = client.create_queue(QueueName="work", Attributes={"VisibilityTimeout": "77"})["QueueUrl"]
        send(client, queue, range(100))
        taken = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)["Messages"][0]
        client.delete_message(QueueUrl=queue, ReceiptHandle=taken["ReceiptHandle"])
        assert first.terminate() == 0
    with serve(tmp_path / "second", log) as second:
        client = sqs(second.url)
        queue = client.get_queue_url(QueueName="work")["QueueUrl"]
        attributes = client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert attributes["VisibilityTimeout"] == "77"
        assert sorted([*drain(client, queue), int(taken["Body"])]) == list(range(100))
        assert second.terminate() == 0


def test_a_backup_is_restored_into_a_directory_with_its_own_log(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "first", log, "--shards", "2") as first:
        client = sqs(first.url)
        queue = client.create_queue(QueueName="work")["QueueUrl"]
        send(client, queue, range(60))
        done = baton("backup", "--output", str(tmp_path / "saved"), "--url", first.url)
        assert done.returncode == 0, done.stderr
        send(client, queue, range(60, 70))
        assert first.terminate() == 0
    assert baton("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "restored")).returncode == 0
    with ServerProcess(tmp_path / "restored") as restored:
        client = sqs(restored.url)
        assert sorted(drain(client, client.get_queue_url(QueueName="work")["QueueUrl"])) == list(range(60))
        assert restored.terminate() == 0


def test_another_node_takes_over_from_one_that_was_killed_and_only_then(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "first", log) as first:
        client = sqs(first.url)
        queue = client.create_queue(QueueName="work")["QueueUrl"]
        send(client, queue, range(50))
        refused = baton(
            *("serve", "--port", "0", "--data", str(tmp_path / "other"), "--log-url", log),
            *("--lease-s", "1", "--node", "other"),
        )
        assert refused.returncode == 1 and "is owned by node first" in refused.stderr
        send(client, queue, range(50, 100))
        first.kill()
    with serve(tmp_path / "other", log) as other:
        client = sqs(other.url)
        assert sorted(drain(client, client.get_queue_url(QueueName="work")["QueueUrl"])) == list(range(100))
        assert other.terminate() == 0
    with serve(tmp_path / "first", log) as again:
        client = sqs(again.url)
        assert drain(client, client.get_queue_url(QueueName="work")["QueueUrl"]) == [], "its mirror is not the truth"


def test_a_node_that_slept_past_its_lease_is_fenced(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "sleeper", log, lease_s=1) as sleeper:
        client = sqs(sleeper.url)
        queue = client.create_queue(QueueName="work", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        send(client, queue, range(10))
        lease = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)["Messages"][0]
        sleeper.process.send_signal(signal.SIGSTOP)
        with serve(tmp_path / "awake", log, lease_s=60) as awake:  # the sleeper cannot have it again
            other = sqs(awake.url)
            other_queue = other.get_queue_url(QueueName="work")["QueueUrl"]
            send(other, other_queue, range(10, 20))
            sleeper.process.send_signal(signal.SIGCONT)
            attempts: list[Callable[[], Any]] = [
                lambda: client.send_message(QueueUrl=queue, MessageBody="stale"),
                lambda: client.receive_message(QueueUrl=queue),
                lambda: client.delete_message(QueueUrl=queue, ReceiptHandle=lease["ReceiptHandle"]),
            ]
            for attempt in attempts:
                with pytest.raises(ClientError) as refused:
                    attempt()
                assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
            other.delete_message(QueueUrl=other_queue, ReceiptHandle=lease["ReceiptHandle"])
            found = sorted([*drain(other, other_queue), int(lease["Body"])])
            assert found == list(range(20)), "what was leased by one node is deleted by the next; nothing stale is in"


def test_the_database_is_killed_while_messages_are_sent(tmp_path: Path, log: str, postgres: PostgresServer) -> None:
    with serve(tmp_path / "node", log, lease_s=60) as server:
        client = sqs(server.url)
        queue = client.create_queue(QueueName="work")["QueueUrl"]
        acknowledged: list[int] = []
        stopping = threading.Event()

        def produce() -> None:
            producer = sqs(server.url)
            for at in count():
                if stopping.is_set():
                    return
                producer.send_message(QueueUrl=queue, MessageBody=str(at))
                acknowledged.append(at)

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            for _ in range(2):
                _wait_for_more(acknowledged, producing)
                postgres.kill()
                postgres.start()
            _wait_for_more(acknowledged, producing)
        finally:
            stopping.set()
            producing.join(STOP_TIMEOUT_S)
        assert drain(client, queue) == acknowledged, "each once, and the shard kept its state"
        assert server.terminate() == 0


def _wait_for_more(acknowledged: list[int], producing: threading.Thread) -> None:
    wanted = len(acknowledged) + 20
    while len(acknowledged) < wanted:
        assert producing.is_alive()
        producing.join(0.02)


def test_the_front_is_dropped_in_the_database_too(tmp_path: Path, log: str, postgres: PostgresServer) -> None:
    small = (
        "--segment-bytes",
        "64KiB",
        "--history-bytes",
        "64KiB",
        "--history-hours",
        "0",
        "--snapshot-bytes",
        "64KiB",
    )
    schema = log.rpartition("=")[2]
    with (
        serve(tmp_path / "first", log, *small) as first,
        psycopg.connect(postgres.address, autocommit=True) as database,
    ):
        client = sqs(first.url)
        queue = client.create_queue(QueueName="work")["QueueUrl"]
        client.send_message(QueueUrl=queue, MessageBody="from the beginning", DelaySeconds=900)
        sent = 0
        while _first_frame(database, schema) == 1:
            send(client, queue, range(sent, sent + 100), b"x" * 1_000)
            sent += 100
            assert sorted(drain(client, queue)) == list(range(sent - 100, sent))
        send(client, queue, range(50))
        assert first.terminate() == 0
    with serve(tmp_path / "second", log) as second:
        client = sqs(second.url)
        assert sorted(drain(client, queue)) == list(range(50))
        attributes = client.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert attributes["ApproximateNumberOfMessagesDelayed"] == "1", "carried over the dropped front"


def _first_frame(database: psycopg.Connection, schema: str) -> int:
    row = database.execute(f"SELECT first FROM {schema}.tails WHERE shard = 0").fetchone()
    assert row is not None
    return int(row[0])


def test_a_directory_is_a_mirror_or_has_logs_of_its_own(tmp_path: Path, log: str) -> None:
    with serve(tmp_path / "mirror", log) as server:
        assert server.terminate() == 0
    plain = baton("serve", "--port", "0", "--data", str(tmp_path / "mirror"))
    assert plain.returncode == 1 and "is a mirror of the logs in postgres" in plain.stderr
    keys = baton("keys", "create", "--data", str(tmp_path / "mirror"))
    assert keys.returncode == 1 and "--log-url" in keys.stderr
    made = baton("keys", "create", "--data", str(tmp_path / "mirror"), "--log-url", log)
    assert made.returncode == 0, made.stderr
    with ServerProcess(tmp_path / "own") as server:
        assert server.terminate() == 0
    mixed = baton("serve", "--port", "0", "--data", str(tmp_path / "own"), "--log-url", log)
    assert mixed.returncode == 1 and "contains logs of its own" in mixed.stderr


def test_a_log_that_cannot_be_is_told(tmp_path: Path) -> None:
    for address, why in (
        ("mysql://x", "begins with nats:// or postgres://"),
        ("postgres://nobody@127.0.0.1:1/x", "127.0.0.1"),
    ):
        done = baton("serve", "--port", "0", "--data", str(tmp_path / "data"), "--log-url", address)
        assert done.returncode == 1 and why in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
