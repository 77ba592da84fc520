"""kill -9 while large bodies are sent, received, deleted and swept: every message that is there has its body. The
server has stored the bodies of some messages, and the client those of others.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.client import Outgoing
from batonq.client.payloads import POINTER, SIZE, Payloads
from batonq.payload_store import CLIENT, PayloadStore
from tests.system.process import Client, NotAnswered, ServerProcess, Unavailable

ROUNDS = 5
BODY_BYTES = 6_000
TOO_OLD = "that hour (in UTC) is over"  # two hours passed between the upload and the send
LEASE_S = 1  # what a killed server had leased comes back


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.acknowledged: set[str] = set()
        self.deleting: set[str] = set()
        self.wrong: list[str] = []
        self.ahead_s = 0.0  # the server's clock, which the test advances


class Stored:
    """The payload store of the clients, which have the server's time."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._store = PayloadStore(f"file://{folder}")
        self._payloads = Payloads(f"file://{folder}", 2048, lambda: time.time() + ledger.ahead_s)

    def entry(self, number: int) -> dict[str, Any]:
        """Of a batch of messages: every second one has a body that the client stores."""
        body = body_of(number)
        if number % 2:
            return {"Id": str(number), "MessageBody": body}
        outgoing = self._payloads.offload(Outgoing(body))
        attributes = {SIZE: {"DataType": "Number", "StringValue": str(len(body))}}
        return {"Id": str(number), "MessageBody": outgoing.body, "MessageAttributes": attributes}

    def body(self, message: dict[str, Any]) -> str:
        """The body of a received message."""
        body: str = message["Body"]
        if POINTER not in body:
            return body
        key: str = json.loads(body)[1]["s3Key"]
        assert key.startswith(f"{CLIENT}/") and key.count("/") == 3, "the server deletes it"
        return self._store.get(key, int(message["MessageAttributes"][SIZE]["StringValue"])).decode()


def body_of(number: int) -> str:
    return f"{number:08d}" * (BODY_BYTES // 8) + f"|{number}"


def name_of(body: str) -> str:
    return body.rpartition("|")[2]


def work(url: str, queue: str, ledger: Ledger, stored: Stored, enough: threading.Event, seed: int) -> None:
    """Send, receive and delete until the server goes away. A send during which two hours pass is refused."""
    random = Random(seed)
    with closing(Client(url)) as client:
        while True:
            try:
                send_receive_delete(client, queue, ledger, stored, random)
            except Unavailable:
                continue
            except NotAnswered:
                return
            enough.set()


def send_receive_delete(client: Client, queue: str, ledger: Ledger, stored: Stored, random: Random) -> None:
    with ledger.lock:
        numbers = [next(ledger.numbers) for _ in range(random.randint(1, 5))]
    answer = client.call("SendMessageBatch", QueueUrl=queue, Entries=[*map(stored.entry, numbers)])
    with ledger.lock:
        ledger.acknowledged.update(entry["Id"] for entry in answer.get("Successful", []))
        ledger.wrong += [one["Message"] for one in answer.get("Failed", []) if TOO_OLD not in one["Message"]]
    wanted = {"MaxNumberOfMessages": random.randint(1, 5), "MessageAttributeNames": ["All"]}
    answer = client.call("ReceiveMessage", QueueUrl=queue, **wanted)
    for message in answer.get("Messages", []):
        body = stored.body(message)
        name = name_of(body)
        with ledger.lock:
            if body != body_of(int(name)):
                ledger.wrong.append(f"message {name} has another body")
            ledger.deleting.add(name)
        client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.parametrize("processes", ["1", "2"])
def test_every_message_that_survives_a_kill_has_its_body(tmp_path: Path, processes: str) -> None:
    """With one process, two hours pass in each round, so that the sweeper deletes what it may meanwhile."""
    ledger = Ledger()
    store = tmp_path / "store"
    stored = Stored(store, ledger)
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
                threading.Thread(target=work, args=(server.url, queue, ledger, stored, enough, seed * 10 + at))
                for at in range(3)
            ]
            for thread in threads:
                thread.start()
            assert enough.wait(120)
            if processes == "1":
                ledger.ahead_s += 7_200
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
        held["MessageAttributeNames"] = ["All"]
        while messages := client.call("ReceiveMessage", **held).get("Messages"):
            for message in messages:
                body = stored.body(message)
                name = name_of(body)
                assert body == body_of(int(name))
                found.add(name)
    assert ledger.acknowledged - ledger.deleting <= found, "nothing acknowledged is lost"
    if processes == "1":
        for hours in ("[0-9]*", f"{CLIENT}/*/[0-9]*"):
            assert len([*store.glob(f"{hours}/*")]) < len(ledger.acknowledged) / 2, "the sweeper has deleted some"
