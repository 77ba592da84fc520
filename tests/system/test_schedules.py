"""Schedules of a real server that is killed with SIGKILL, backed up and restored: no firing is lost or doubled."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.system.process import Client, ServerProcess, baton

KILLS = 4


def wait_for_firings(client: Client, count: int) -> dict[str, Any]:
    give_up_s = time.monotonic() + 120
    while time.monotonic() < give_up_s:
        shown: dict[str, Any] = json.loads(client.get("/v1/schedules/often@ticks")[1])
        if shown["firings"] >= count:
            return shown
        time.sleep(0.1)
    raise AssertionError(f"it has fired {shown['firings']} times")


def due_times_ms(client: Client) -> list[int]:
    found: list[int] = []
    after = 0
    while True:
        page = json.loads(client.get(f"/v1/queues/ticks/messages?limit=100&after={after}")[1])
        if not page["messages"]:
            return found
        times = [datetime.fromisoformat(one["attributes"]["scheduledTime"]) for one in page["messages"]]
        found += [round(time.timestamp() * 1000) for time in times]
        after = page["messages"][-1]["sequence"]


def test_kills_and_a_restore(tmp_path: Path) -> None:
    random = Random(KILLS)
    data, backup, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    server = ServerProcess(data)
    try:
        client = Client(server.url)
        assert client.post("/v1/queues", {"name": "ticks"})[0] == 201
        spec = {"name": "often", "queue": "ticks", "rateSeconds": 1, "missed": "all", "message": {"body": "tick"}}
        status, made = client.post("/v1/schedules", spec)
        assert status == 201
        firings = 0
        for _ in range(KILLS):
            firings = wait_for_firings(client, firings + 1)["firings"]
            time.sleep(random.random() * 1.2)
            client.close()
            server.kill()
            server = ServerProcess(data)
            client = Client(server.url)
        shown = wait_for_firings(client, firings + 3)
        times = due_times_ms(client)
        expected = range(made["nextAtMs"], made["nextAtMs"] + 1_000 * len(times), 1_000)
        assert len(times) >= shown["firings"] and times == [*expected]
        done = baton("backup", "--output", str(backup), "--url", server.url)
        assert done.returncode == 0, done.stderr
        client.close()
    finally:
        server.kill()
    done = baton("restore", str(backup), "--data", str(restored))
    assert done.returncode == 0, done.stderr
    with ServerProcess(restored) as server:
        client = Client(server.url)
        wait_for_firings(client, len(times) + 1)
        again = due_times_ms(client)
        assert again == [*range(made["nextAtMs"], made["nextAtMs"] + 1_000 * len(again), 1_000)]
        client.close()
