"""`baton demo` against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.cli.demo_scenario import PARTS, PREFIX, TAG
from tests.support.ports import reserve_port
from tests.system.process import STOP_TIMEOUT_S, Client, ServerProcess, baton


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        yield running


def read(server: ServerProcess, path: str) -> Any:
    client = Client(server.url)
    try:
        status, text = client.get(path)
        assert status == 200, text
        return json.loads(text)
    finally:
        client.close()


def create(server: ServerProcess, name: str) -> None:
    client = Client(server.url)
    try:
        assert client.post("/v1/queues", {"name": name})[0] == 201
    finally:
        client.close()


def stats(server: ServerProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = read(server, f"/v1/queues/{PREFIX}{name}/stats")
    return found


def test_the_shares_of_the_queues_are_all_messages() -> None:
    assert sum(part.share for part in PARTS) == pytest.approx(1.0)


def test_the_same_seed_makes_the_same_messages() -> None:
    for part in PARTS:
        first, second = Random(5), Random(5)
        assert [part.compose(first, n) for n in range(60)] == [part.compose(second, n) for n in range(60)]


def test_once_leaves_something_for_every_page(server: ServerProcess) -> None:
    done = baton("demo", "--url", server.url, "--once")
    assert done.returncode == 0, done.stderr
    assert f"{server.url}/ui" in done.stdout and "baton demo --remove" in done.stdout
    names = {queue["name"] for queue in read(server, "/v1/queues")["queues"]}
    assert names >= {part.queue for part in PARTS} and all(name in done.stdout for name in names)
    assert stats(server, "audit")["visible"] > 0 and stats(server, "audit")["received"] == 0
    assert stats(server, "reports")["delayed"] > 0
    assert stats(server, "orders")["inFlight"] > 0 and stats(server, "orders")["deleted"] > 0
    assert stats(server, "payments.fifo")["deleted"] > 0
    letters = read(server, f"/v1/queues/{PREFIX}emails-dead/messages?limit=100")["messages"]
    classes = {letter["deadLetter"]["errorClass"] for letter in letters}
    assert {"TypeError", "SMTPRecipientsRefused"} <= classes
    assert all(TAG in queue["tags"] for queue in read(server, "/v1/queues")["queues"])
    (topic,) = read(server, "/v1/topics")["topics"]
    assert topic["name"] in done.stdout and topic["subscriptions"] == 2 and TAG in topic["tags"]
    (group,) = read(server, f"/v1/queues/{PREFIX}audit/readers")["readers"]
    assert group["lagMessages"] > 0 and group["shards"][0]["committed"]
    (schedule,) = read(server, "/v1/schedules")["schedules"]
    assert schedule["queue"] == f"{PREFIX}reports" and schedule["state"] == "ACTIVE"


def test_a_second_run_uses_the_same_queues_and_remove_deletes_them_and_nothing_else(server: ServerProcess) -> None:
    create(server, f"{PREFIX}mine")
    for _ in range(2):
        assert baton("demo", "--url", server.url, "--once").returncode == 0
    removed = baton("demo", "--url", server.url, "--remove")
    assert removed.returncode == 0 and f"Deleted {PREFIX}orders" in removed.stdout
    assert [queue["name"] for queue in read(server, "/v1/queues")["queues"]] == [f"{PREFIX}mine"]
    assert read(server, "/v1/topics")["topics"] == [] and read(server, "/v1/schedules")["schedules"] == []
    assert "no queues" in baton("demo", "--url", server.url, "--remove").stdout


def test_a_queue_of_somebody_else_is_left_alone(server: ServerProcess) -> None:
    create(server, f"{PREFIX}orders")
    refused = baton("demo", "--url", server.url, "--once")
    assert refused.returncode != 0 and f"{PREFIX}orders exists and was not created by the demo" in refused.stderr
    assert len(read(server, "/v1/queues")["queues"]) == 1


def test_the_living_scenario_runs_for_its_time(server: ServerProcess) -> None:
    done = baton("demo", "--url", server.url, "--seconds", "3", "--rate", "100")
    assert done.returncode == 0, done.stderr
    assert sum(stats(server, part.name)["sent"] for part in PARTS) > 0
    assert read(server, f"/v1/queues/{PREFIX}audit/history")["messages"]


def test_without_a_server_it_starts_one_and_takes_it_away(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batonq", "demo", "--seconds", "600", "--port", str(reserve_port())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, "TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    with process.stdout as lines:
        assert "No server was running" in lines.readline()
        assert [path.name.startswith("baton-demo-") for path in tmp_path.iterdir()] == [True]
        while "Ctrl-C" not in (line := lines.readline()):
            assert line, "the demo ended early"
        process.send_signal(signal.SIGINT)
        lines.read()
    process.wait(STOP_TIMEOUT_S)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flag", "value"), [("--rate", "0"), ("--rate", "100000"), ("--seconds", "0")])
def test_values_outside_of_their_range_are_named(flag: str, value: str) -> None:
    refused = baton("demo", flag, value)
    assert refused.returncode != 0 and f"{flag} {value}" in refused.stderr
