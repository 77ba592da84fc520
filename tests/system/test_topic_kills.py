"""kill -9 while messages are published: every copy of an acknowledged message arrives, and none arrives twice."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.profile import FULL
from tests.system.process import STOP_TIMEOUT_S, Client, NotAnswered, ServerProcess

ROUNDS = 8 if FULL else 3
QUEUES = ("a", "b", "c", "d")
ACCOUNT = "000000000000"


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.tried: set[str] = set()
        self.acknowledged: set[str] = set()


def post(client: Client, path: str, body: dict[str, Any]) -> None:
    """Raises NotAnswered, also for an answer that may mean anything."""
    try:
        status, answer = client.post(path, body)
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise NotAnswered(str(problem)) from None
    if status >= 500:
        raise NotAnswered
    assert status < 300, answer


def publish(url: str, ledger: Ledger, enough: threading.Event) -> None:
    """Publish until the server goes away."""
    client = Client(url)
    try:
        while True:
            text = f"message {next(ledger.numbers)}"
            with ledger.lock:
                ledger.tried.add(text)
            post(client, "/v1/topics/news/messages", {"body": text})
            with ledger.lock:
                ledger.acknowledged.add(text)
                if len(ledger.acknowledged) % 20 == 0:
                    enough.set()
    except NotAnswered:
        pass
    finally:
        client.close()


@pytest.mark.parametrize(
    "flags", [("--shards", "3"), ("--shards", "2", "--processes", "2")], ids=["shards", "processes"]
)
def test_kills_during_publishes(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ledger, random = Ledger(), Random(1)
    for round_ in range(ROUNDS):
        with ServerProcess(tmp_path, *flags) as server:
            if round_ == 0:
                set_up(server.url)
            enough = threading.Event()
            threads = [threading.Thread(target=publish, args=(server.url, ledger, enough)) for _ in range(2)]
            for thread in threads:
                thread.start()
            assert enough.wait(STOP_TIMEOUT_S)
            client = Client(server.url)
            for _ in range(random.randint(0, 20)):
                client.call("ListQueues")
            client.close()
            server.kill()
            for thread in threads:
                thread.join(STOP_TIMEOUT_S)
                assert not thread.is_alive()
    with ServerProcess(tmp_path, *flags) as server:
        client = Client(server.url)
        found = {name: drain(client, server.url, name, ledger.acknowledged) for name in QUEUES}
        client.close()
        assert server.terminate() == 0
    for name, bodies in found.items():
        assert max(Counter(bodies).values()) == 1, f"queue {name} got a message twice"
        assert ledger.acknowledged <= set(bodies) <= ledger.tried
    assert len({frozenset(bodies) for bodies in found.values()}) == 1, "all queues have the same messages"


def set_up(url: str) -> None:
    client = Client(url)
    post(client, "/v1/topics", {"name": "news"})
    for at, name in enumerate(QUEUES):
        client.call("CreateQueue", QueueName=name)
        post(client, "/v1/topics/news/subscriptions", {"queue": name, "rawDelivery": at % 2 == 0})
    client.close()


def drain(client: Client, url: str, name: str, wanted: set[str]) -> list[str]:
    queue = f"{url}/{ACCOUNT}/{name}"
    found: list[str] = []
    idle = 0
    while idle < 3 or not wanted <= set(found):
        answer = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        idle = 0 if messages else idle + 1
        assert idle < 20, "copies are missing"
        for message in messages:
            body = message["Body"]
            found.append(json.loads(body)["Message"] if body.startswith("{") else body)
        if messages:
            entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
            client.call("DeleteMessageBatch", QueueUrl=queue, Entries=entries)
    return found
