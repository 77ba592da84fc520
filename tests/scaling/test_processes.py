"""`baton worker --autoscale`: real worker processes come with a backlog and go after it, and no message is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import client
from tests.support.server import ACCOUNT, TestServer

MESSAGES = 60
WAIT_S = 300.0
FLAGS = "up=0,window=1,down=0,interval=0.2"
APP = """
import os, time
from batonq.worker import Worker

app = Worker()

@app.task(queue="free", concurrency=1, run="thread")
def work_for_nothing(message):
    work(message)

@app.task(queue="jobs", concurrency=1, run="thread")
def work(message):
    while not os.path.exists(os.environ["RESULTS"] + ".go"):
        time.sleep(0.02)
    with open(os.environ["RESULTS"], "a") as file:
        file.write(f"{os.getpid()} {message.body}\\n")
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    with TestServer(str(tmp_path / "data")) as running:
        yield running


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def children(process: subprocess.Popen[str]) -> set[int]:
    """The processes that the pool has started and that have not ended."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(pid) for pid in listed}


def prepared(directory: Path) -> Path:
    (directory / "jobs.py").write_text(APP)
    results = directory / "results.txt"
    results.touch()
    return results


def start(server: TestServer, directory: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "batonq", "worker", "jobs:app", "--url", server.url, *flags],
        cwd=directory,
        env={**os.environ, "RESULTS": str(directory / "results.txt")},
        stderr=subprocess.PIPE,
        text=True,
    )


def queues_of(process: subprocess.Popen[str]) -> list[str]:
    """Which queue each of the pool's processes is for."""
    found = []
    for pid in children(process):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        found.append(words[words.index("--queues") + 1] if "--queues" in words else "")
    return sorted(found)


def test_processes_follow_the_backlog(server: TestServer, tmp_path: Path) -> None:
    results = prepared(tmp_path)
    sqs: Any = client("sqs", server.url, ACCOUNT)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    process = start(server, tmp_path, "--autoscale", f"1:3,per-worker=10,{FLAGS}")
    try:
        wait_for(lambda: len(children(process)) == 1, process)  # the minimum, whatever there is to do
        for number in range(MESSAGES):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        wait_for(lambda: len(children(process)) == 3, process)
        (tmp_path / "results.txt.go").touch()
        wait_for(lambda: len(results.read_text().splitlines()) >= MESSAGES, process)
        wait_for(lambda: len(children(process)) == 1, process)  # and after a while fewer
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
        sqs.close()
    assert process.returncode == 0, errors
    assert "to 3 workers: " in errors
    done = Counter(line.split()[1] for line in results.read_text().splitlines())
    assert done == {str(number): 1 for number in range(MESSAGES)}


def test_each_lane_has_processes_and_a_policy_of_its_own(server: TestServer, tmp_path: Path) -> None:
    prepared(tmp_path)
    sqs: Any = client("sqs", server.url, ACCOUNT)
    urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("jobs", "free")}
    lanes = ["--autoscale", f"jobs=1:3,per-worker=1,{FLAGS}", "--autoscale", f"free=1:3,per-worker=1000,{FLAGS}"]
    process = start(server, tmp_path, *lanes)
    try:
        wait_for(lambda: queues_of(process) == ["free", "jobs"], process)
        for url in urls.values():
            for number in range(5):
                sqs.send_message(QueueUrl=url, MessageBody=str(number))
        wait_for(lambda: queues_of(process) == ["free", "jobs", "jobs", "jobs"], process)
    finally:
        (tmp_path / "results.txt.go").touch()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
        sqs.close()
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--autoscale", "jobs=1:2", "--autoscale", "jobs=1:3"], "names a queue twice"),
        (["--autoscale", "jobs=1:2", "--queues", "jobs"], "not in both"),
        (["--autoscale", "jobs=1:2", "--autoscale", "nobody=1:2"], "No task serves nobody"),
        (["--autoscale", "1:2", "--autoscale", "1:3"], "QUEUE=MIN:MAX"),
        (["--autoscale", "2"], "for example 2:50"),
    ],
)
def test_lanes_that_make_no_sense_are_refused(server: TestServer, tmp_path: Path, flags: list[str], said: str) -> None:
    prepared(tmp_path)
    process = start(server, tmp_path, *flags)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert said in errors
