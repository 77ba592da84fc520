"""kill -9 under load, again and again: nothing acknowledged is lost, nothing deleted comes back, leases are kept.

What the clients know is one judge, the audit of the whole history the other.
"""

from __future__ import annotations

import json
import threading
from itertools import count
from pathlib import Path
from random import Random

from tests.system.process import STOP_TIMEOUT_S, Client, NotAnswered, ServerProcess, baton

ROUNDS = 30
WORKERS = 3
LEASE_S = 36_000
AUDIT_TIMEOUT_S = 1_800


class Ledger:
    """What the clients know: what they tried, and what they were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()
        self.received: dict[str, str] = {}  # body → receipt
        self.deleting: set[str] = set()  # asked to delete, perhaps not answered
        self.deleted: set[str] = set()
        self.wrong: list[str] = []

    def take(self, bodies: list[tuple[str, str]]) -> None:
        """Messages were received. Every lease outlives the test, so none may come twice."""
        with self.lock:
            for body, receipt in bodies:
                if body not in self.tried:
                    self.wrong.append(f"{body} was never sent")
                if body in self.deleted:
                    self.wrong.append(f"{body} was deleted and came back")
                if body in self.received:
                    self.wrong.append(f"{body} was leased, and given to somebody else")
                self.received[body] = receipt


def work(url: str, queue: str, ledger: Ledger, enough: threading.Event, seed: int) -> None:
    """Send, receive and delete until the server goes away; tell when something was acknowledged."""
    random = Random(seed)
    client = Client(url)
    try:
        while True:
            bodies = [f"message {next(ledger.numbers)}" for _ in range(random.randint(1, 10))]
            with ledger.lock:
                ledger.tried.update(bodies)
            entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
            answer = client.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
            with ledger.lock:
                ledger.acknowledged.update(bodies[int(entry["Id"])] for entry in answer["Successful"])
            answer = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=random.randint(1, 10))
            held = [(message["Body"], message["ReceiptHandle"]) for message in answer.get("Messages", [])]
            ledger.take(held)
            for body, receipt in held[: len(held) // 2]:
                with ledger.lock:
                    ledger.deleting.add(body)
                client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=receipt)
                with ledger.lock:
                    ledger.deleted.add(body)
            enough.set()
    except NotAnswered:
        pass
    finally:
        client.close()


def one_round(data: Path, ledger: Ledger, seed: int) -> None:
    random = Random(seed)
    with ServerProcess(data) as server:
        client = Client(server.url)
        attributes = {"VisibilityTimeout": str(LEASE_S), "Baton.StrictReceipts": "true"}
        queue = client.call("CreateQueue", QueueName="orders", Attributes=attributes)["QueueUrl"]
        check_leases(client, queue, ledger, random)
        gates = [threading.Event() for _ in range(WORKERS)]
        threads = [
            threading.Thread(target=work, args=(server.url, queue, ledger, gate, seed * WORKERS + at))
            for at, gate in enumerate(gates)
        ]
        for thread in threads:
            thread.start()
        for gate in gates:
            assert gate.wait(STOP_TIMEOUT_S)
        for _ in range(random.randint(0, 30)):  # somewhere in the middle of what they do
            client.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"])
        server.kill()
        for thread in threads:
            thread.join(STOP_TIMEOUT_S)
            assert not thread.is_alive()
        client.close()
    assert ledger.wrong == []


def check_leases(client: Client, queue: str, ledger: Ledger, random: Random) -> None:
    """A lease from before the kill is still held: its receipt, on a strict queue, deletes."""
    held = sorted(ledger.received.keys() - ledger.deleting)
    for body in random.sample(held, min(3, len(held))):
        ledger.deleting.add(body)
        client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=ledger.received[body])
        ledger.deleted.add(body)


def test_thirty_kills_lose_nothing_and_keep_every_lease(tmp_path: Path) -> None:
    ledger = Ledger()
    for seed in range(ROUNDS):
        one_round(tmp_path, ledger, seed)
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = f"{server.url}/000000000000/orders"
        check_leases(client, queue, ledger, Random(ROUNDS))
        waiting = drain(client, queue)
        ledger.take(waiting)
        assert ledger.wrong == []
        client.advance(LEASE_S + 60)  # what the killed clients held comes back now
        left = {body for body, _ in waiting} | {body for body, _ in drain(client, queue)}
        client.close()
        assert server.terminate() == 0
    assert len(ledger.acknowledged) > ROUNDS * WORKERS
    lost = ledger.acknowledged - ledger.deleting - left
    assert not lost, f"{len(lost)} acknowledged messages are gone"
    assert not left & ledger.deleted
    assert left <= ledger.tried
    audit(tmp_path)


def audit(data: Path) -> None:
    """Every rule holds over the whole history, each restart and each torn write in it."""
    words = ("pipeline", "audit", "--direct", "--history", str(data), "--lake", str(data / "lake"), "--json")
    done = baton(*words, timeout_s=AUDIT_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["violations"] == 0 and found["events"] > ROUNDS * WORKERS


def drain(client: Client, queue: str) -> list[tuple[str, str]]:
    """Receive and delete all that is visible."""
    found: list[tuple[str, str]] = []
    while messages := client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        found += [(message["Body"], message["ReceiptHandle"]) for message in messages]
        entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
        answer = client.call("DeleteMessageBatch", QueueUrl=queue, Entries=entries)
        assert "Failed" not in answer or not answer["Failed"]
    return found
