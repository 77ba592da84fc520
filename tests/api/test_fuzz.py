"""Ten thousand damaged requests: each gets a proper refusal or an answer, none breaks, leaks or loses anything."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.api.conftest import client
from tests.api.mutations import Target, mutated
from tests.api.support import bodies, counts, receive, wait_until

REQUESTS = 10_000
WARM_UP = 2_500
CLIENTS = 8
ANSWER_S = 30
# Caches fill up, and the allocator keeps what it had: that is not growth, and takes less than this.
GROWTH_BYTES_MAX = 24 * 1024 * 1024
SEED = int(os.environ.get("BATON_FUZZ_SEED", "20260101"))
KEPT = [f"kept {number}" for number in range(10)]


class Running:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = psutil.Process(process.pid)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log

    def memory_bytes(self) -> int:
        return int(self.process.memory_info().rss)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`baton serve` in a process of its own, whose memory is its own."""
    directory = tmp_path_factory.mktemp("fuzz")
    log = directory / "log.txt"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", str(directory / "data")]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until(lambda: process.poll() is not None or b" serves http://" in log.read_bytes())
        assert process.poll() is None, log.read_text()
        port = int(log.read_text().split(" serves http://127.0.0.1:")[1].split()[0])
        yield Running(process, port, log)
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


async def ask(port: int, data: bytes) -> int | None:
    """The status of the answer; None when the connection ended without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()  # nothing more comes: whatever the damage, the server need not wait for the rest
        line = await asyncio.wait_for(reader.readline(), ANSWER_S)
        if line.startswith(b"HTTP/1.1 100"):
            await reader.readline()
            line = await asyncio.wait_for(reader.readline(), ANSWER_S)
        await asyncio.wait_for(reader.read(), ANSWER_S)
    except ConnectionError:
        return None
    finally:
        writer.close()
    return int(line.split()[1]) if line else None


async def attack(running: Running, rng: random.Random, target: Target, count: int) -> Counter[int | None]:
    statuses: Counter[int | None] = Counter()
    sends = [mutated(rng, target) for _ in range(count)]

    async def work() -> None:
        while sends:
            data, whole = sends.pop()
            status = await ask(running.port, data)
            statuses[status] += 1
            assert status is None or 200 <= status < 500, (status, data)
            assert status is not None or not whole or b"ReceiveMessage" in data, data

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return statuses


def prepare(sqs: Any) -> tuple[Target, str]:
    kept = sqs.create_queue(QueueName="precious-and-kept")["QueueUrl"]
    sqs.send_message_batch(QueueUrl=kept, Entries=[{"Id": str(n), "MessageBody": text} for n, text in enumerate(KEPT)])
    url = sqs.create_queue(QueueName="fuzzed")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="the first")
    [message] = receive(sqs, url, 1)
    arn = "arn:aws:sqs:us-east-1:333333333333:fuzzed"
    return Target(url, "fuzzed", arn, message["ReceiptHandle"]), kept


def test_ten_thousand_damaged_requests(running: Running) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    sqs = client("sqs", running.url, "333333333333")
    target, kept = prepare(sqs)
    statuses = asyncio.run(attack(running, rng, target, WARM_UP))
    before_bytes = running.memory_bytes()
    statuses += asyncio.run(attack(running, rng, target, REQUESTS - WARM_UP))
    assert sum(statuses.values()) == REQUESTS
    assert (
        statuses[200] > REQUESTS // 20 and statuses[400] > REQUESTS // 4
    )  # the damage is neither too much nor too little
    assert running.memory_bytes() - before_bytes < GROWTH_BYTES_MAX
    said = running.log.read_text()
    assert "Traceback" not in said and "failed" not in said, said
    # Nothing was lost: what was there before is there, and what the queue took is accounted for.
    assert counts(sqs, kept) == (len(KEPT), 0, 0)
    assert sorted(bodies(receive(sqs, kept))) == KEPT
    names = ["Baton.MessagesSent", "Baton.MessagesDeleted", "Baton.MessagesExpired"]
    try:
        found = sqs.get_queue_attributes(QueueUrl=target.url, AttributeNames=names)["Attributes"]
        sent, deleted, expired = (int(found[name]) for name in names)
        assert sent - deleted - expired == sum(counts(sqs, target.url))
        assert sent > REQUESTS // 100
    finally:
        sqs.close()
