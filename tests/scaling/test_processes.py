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
APP = """
import os, time
from batonq.worker import Worker

app = Worker()

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


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def children(process: subprocess.Popen[str]) -> set[int]:
    """The processes that the pool has started and that have not ended."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(pid) for pid in listed}


def test_processes_follow_the_backlog(server: TestServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    results = tmp_path / "results.txt"
    results.touch()
    sqs: Any = client("sqs", server.url, ACCOUNT)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    autoscale = "1:3,per-worker=10,up=0,window=1,down=0,interval=0.2"
    process = subprocess.Popen(
        [sys.executable, "-m", "batonq", "worker", "jobs:app", "--autoscale", autoscale, "--url", server.url],
        cwd=tmp_path,
        env={**os.environ, "RESULTS": str(results)},
        stderr=subprocess.PIPE,
        text=True,
    )
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
        _, errors = process.communicate(timeout=60)
        sqs.close()
    assert process.returncode == 0, errors
    assert "to 3 workers: " in errors
    done = Counter(line.split()[1] for line in results.read_text().splitlines())
    assert done == {str(number): 1 for number in range(MESSAGES)}
