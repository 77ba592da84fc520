"""kill -9 while large bodies are sent, received, deleted and swept: every message that is there has its body."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.system.process import Client, NotAnswered, ServerProcess, Unavailable

ROUNDS = 5
SIZE = 6_000
LEASE_S = 1  # what a killed server had leased comes back


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.acknowledged: set[str] = set()
        self.deleting: set[str] = set()
        self.wrong: list[str] = []


def body_of(number: int) -> str:
    return f"{number:08d}" * (SIZE // 8) + f"|{number}"


def name_of(body: str) -> str:
    return body.rpartition("|")[2]


def work(url: str, queue: str, ledger: Ledger, enough: threading.Event, seed: int) -> None:
    """Send, receive and delete until the server goes away. A send during which two hours pass is refused with 503."""
    random = Random(seed)
    with closing(Client(url)) as client:
        while True:
            try:
                send_receive_delete(client, queue, ledger, random)
            except Unavailable:
                continue
            except NotAnswered:
                return
            enough.set()


def send_receive_delete(client: Client, queue: str, ledger: Ledger, random: Random) -> None:
    with ledger.lock:
        numbers = [next(ledger.numbers) for _ in range(random.randint(1, 5))]
    entries = [{"Id": str(number), "MessageBody": body_of(number)} for number in numbers]
    answer = client.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
    with ledger.lock:
        ledger.acknowledged.update(entry["Id"] for entry in answer["Successful"])
    answer = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=random.randint(1, 5))
    for message in answer.get("Messages", []):
        name = name_of(message["Body"])
        with ledger.lock:
            if message["Body"] != body_of(int(name)):
                ledger.wrong.append(f"message {name} has another body")
            ledger.deleting.add(name)
        client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.parametrize("processes", ["1", "2"])
def test_every_message_that_survives_a_kill_has_its_body(tmp_path: Path, processes: str) -> None:
    """With one process, two hours pass in each round, so that the sweeper deletes what it may meanwhile."""
    ledger = Ledger()
    store = tmp_path / "store"
    flags = [
        *("--payload-store", f"file://{store}", "--payload-threshold", "2048", "--payload-sweep-s", "0.05"),
        *("--processes", processes, "--shards", "2"),
    ]
    for seed in range(ROUNDS if processes == "1" else 2):
        with ServerProcess(tmp_path / "data", *flags) as server, closing(Client(server.url)) as client:
            attributes = {"VisibilityTimeout": str(LEASE_S), "MessageRetentionPeriod": "1209600"}
            queue = client.call("CreateQueue", QueueName="large", Attributes=attributes)["QueueUrl"]
            enough = threading.Event()
            threads = [
                threading.Thread(target=work, args=(server.url, queue, ledger, enough, seed * 10 + at))
                for at in range(3)
            ]
            for thread in threads:
                thread.start()
            assert enough.wait(120)
            if processes == "1":
                client.advance(7_200)
                enough.clear()
                assert enough.wait(120)
            server.kill()
            for thread in threads:
                thread.join(120)
    assert not ledger.wrong
    with ServerProcess(tmp_path / "data", *flags) as server, closing(Client(server.url)) as client:
        found: set[str] = set()
        held = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "VisibilityTimeout": 600, "WaitTimeSeconds": 3 * LEASE_S}
        while messages := client.call("ReceiveMessage", **held).get("Messages"):
            for message in messages:
                name = name_of(message["Body"])
                assert message["Body"] == body_of(int(name))
                found.add(name)
    assert ledger.acknowledged - ledger.deleting <= found, "nothing acknowledged is lost"
    if processes == "1":
        assert len([*store.glob("[0-9]*/*")]) < len(ledger.acknowledged), "the sweeper has deleted some"
