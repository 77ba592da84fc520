"""kill -9 during a replay, again and again: every retained message is sent again exactly once."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.system.process import STOP_TIMEOUT_S, Client, ServerProcess

MESSAGES = 400
KILLS = 10
RATE_PER_S = 100
BATCH = 100


def post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, value = client.post(path, body)
    assert 200 <= status < 300, (status, value)
    answer: dict[str, Any] = value
    return answer


def get(client: Client, path: str) -> dict[str, Any]:
    status, text = client.get(path)
    assert status == 200, (status, text)
    found: dict[str, Any] = json.loads(text)
    return found


def test_ten_kills_during_a_replay(tmp_path: Path) -> None:
    random = Random(5)
    job = ""
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        post(client, "/v1/queues", {"name": "work", "retainSeconds": 86_400})
        post(client, "/v1/queues", {"name": "again"})
        for at in range(0, MESSAGES, BATCH):
            messages = [{"body": number} for number in range(at, at + BATCH)]
            post(client, "/v1/queues/work/messages:batch", {"messages": messages})
        client.call("PurgeQueue", QueueUrl=f"{server.url}/000000000000/work")
        spec = {"targetQueue": "again", "maxMessagesPerSecond": RATE_PER_S}
        job = str(post(client, "/v1/queues/work:replay", spec)["jobId"])
        time.sleep(random.uniform(0, 0.3))
        server.kill()
        client.close()
    for _ in range(KILLS - 1):
        with ServerProcess(tmp_path) as server:
            time.sleep(random.uniform(0, 0.3))
            server.kill()
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        ends = time.monotonic() + STOP_TIMEOUT_S
        while (shown := get(client, f"/v1/jobs/{job}"))["state"] == "RUNNING":
            assert time.monotonic() < ends, shown
            time.sleep(0.05)
        assert (shown["state"], shown["moved"]) == ("COMPLETED", MESSAGES)
        counters = get(client, "/v1/queues/again/counters")["counters"]
        assert (counters["sent"], counters["present"], counters["unaccounted"]) == (MESSAGES, MESSAGES, 0)
        counters = get(client, "/v1/queues/work/counters")["counters"]
        assert (counters["sent"], counters["deleted"], counters["unaccounted"]) == (MESSAGES, MESSAGES, 0)
        found: Counter[int] = Counter()
        while got := post(client, "/v1/queues/again/messages:receive", {"maxMessages": 100})["messages"]:
            found.update(message["body"] for message in got)
        assert found == Counter(range(MESSAGES))
        client.close()
        assert server.terminate() == 0
