"""Celery with its SQS transport: a real worker in a process of its own, unchanged except for the endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from batonq.celery import DELAY_MAX_S, attributes_for
from tests.api.conftest import client
from tests.api.support import counts, wait_until
from tests.support.server import TestServer

TIME_PASSES = True  # for the worker too
HERE = Path(__file__).parent
VISIBILITY_S = 8  # a worker that is not given a processor for so long takes a message twice
WAIT_S = 300
LATER_S = 2 * VISIBILITY_S + 1  # so long that a message that a worker holds comes back twice


class Celery:
    """An app's producers and worker, each in a process of its own: Celery reads its settings when it is imported."""

    def __init__(self, server: TestServer, account: str, directory: Path, visibility_s: int = 60) -> None:
        self.server = server
        self.account = account
        self.directory = directory
        self.results = directory / "results.txt"
        self.environment = {
            **os.environ,
            "BATON_TEST_ENDPOINT": server.url.removeprefix("http://"),
            "BATON_TEST_ACCOUNT": account,
            "BATON_TEST_RESULTS": str(self.results),
            "BATON_TEST_VISIBILITY": str(visibility_s),
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def send(self, code: str, *, plain: bool = False) -> None:
        """Run this with `tasks` as the module of tasks; `plain`: as Celery does it by itself."""
        environment = {**self.environment, "BATON_TEST_PLAIN": "1" if plain else "0"}
        program = f"import time\nimport celery_tasks as tasks\n{code}"
        subprocess.run([sys.executable, "-c", program], cwd=HERE, env=environment, timeout=WAIT_S, check=True)

    @contextmanager
    def worker(self, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_tasks",
            "worker",
            "--pool",
            "solo",
            "--loglevel",
            "INFO",
        ]
        with (self.directory / "worker.log").open("wb") as log:
            worker = subprocess.Popen([*command, *flags], cwd=HERE, env=self.environment, stdout=log, stderr=log)
            try:
                yield worker
            finally:
                worker.terminate()
                worker.wait(WAIT_S)

    def noted(self) -> list[str]:
        return self.results.read_text().splitlines() if self.results.exists() else []

    def wait_for(self, worker: subprocess.Popen[bytes], *lines: str) -> None:
        wait_until(lambda: worker.poll() is not None or set(self.noted()) >= set(lines), WAIT_S)
        assert worker.poll() is None, (self.directory / "worker.log").read_text()

    def wait_until_empty(self) -> None:
        sqs: Any = client("sqs", self.server.url, self.account)
        urls = [url for url in sqs.list_queues()["QueueUrls"] if "pidbox" not in url]
        wait_until(lambda: all(counts(sqs, url) == (0, 0, 0) for url in urls), WAIT_S)
        sqs.close()


def test_a_worker(server: TestServer, account: str, tmp_path: Path) -> None:
    celery = Celery(server, account, tmp_path)
    celery.send(
        "for number in range(20):\n"
        "    tasks.add.delay(number, 100)\n"
        "tasks.fails_once.delay('task')\n"
        "tasks.add.apply_async((1, 1000), countdown=1)\n"
        "tasks.add.apply_async((2, 2000), queue='other.queue')\n"
    )
    expected = {f"add {number + 100}" for number in range(20)}
    expected |= {"task try 0", "task try 1", "add 1001", "add 2002"}
    with celery.worker("--queues", "celery,other.queue") as worker:
        celery.wait_for(worker, *expected)
        sqs: Any = client("sqs", server.url, account)
        urls = sqs.list_queues()["QueueUrls"]
        sqs.close()
        assert {url.rsplit("/", 1)[1] for url in urls} >= {"celery", "other-queue"}
        celery.wait_until_empty()
    assert sorted(celery.noted()) == sorted(expected)  # each once


def test_priorities(server: TestServer, account: str, tmp_path: Path) -> None:
    celery = Celery(server, account, tmp_path)
    celery.send(
        "for number in range(6):\n"
        "    tasks.say.apply_async((f'low {number}',), priority=1)\n"
        "    tasks.say.apply_async((f'none {number}',))\n"
        "    tasks.say.apply_async((f'high {number}',), priority=9)\n"
    )
    expected = [f"{name} {number}" for name in ("high", "low", "none") for number in range(6)]
    with celery.worker() as worker:
        celery.wait_for(worker, *expected)
    assert celery.noted() == expected


def test_retries(server: TestServer, account: str, tmp_path: Path) -> None:
    """A retry that waits longer than the visibility timeout, and one that gives up: no try is made twice."""
    celery = Celery(server, account, tmp_path, VISIBILITY_S)
    celery.send(f"tasks.fails_once.delay('later', {VISIBILITY_S + 2})\ntasks.fails_always.delay('always')\n")
    expected = ["later try 0", "later try 1", *(f"always try {number}" for number in range(3))]
    with celery.worker() as worker:
        celery.wait_for(worker, *expected)
        celery.wait_until_empty()
    assert sorted(celery.noted()) == sorted(expected)


def test_an_eta_beyond_the_visibility_timeout_makes_no_duplicates(
    server: TestServer, account: str, tmp_path: Path
) -> None:
    """The task waits in the queue, not in the worker. The plain one shows what happens otherwise: the worker holds it,
    its lease runs out, it is delivered again, and in the end it runs more than once."""
    celery = Celery(server, account, tmp_path, VISIBILITY_S)
    send = f"due = time.time() + {LATER_S}\ntasks.say_when.apply_async((%r, due), countdown={LATER_S})\n"
    with celery.worker() as worker:
        celery.send("tasks.say.delay('ready')\n")
        celery.wait_for(worker, "ready")  # else a slow start would shorten the time for which it holds a task
        celery.send(send % "plain", plain=True)
        celery.send(send % "kept")
        sqs: Any = client("sqs", server.url, account)
        url = sqs.get_queue_url(QueueName="celery")["QueueUrl"]
        assert counts(sqs, url)[2] == 1  # the one that is kept is delayed
        sqs.close()
        celery.wait_for(worker, "plain in time", "kept in time")
        celery.wait_until_empty()
    found = Counter(celery.noted()[1:])
    assert found["kept in time"] == 1
    assert found["plain in time"] > 1
    assert found.total() == found["plain in time"] + 1


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("priority", "eta", "expected"),
    [
        (None, None, {}),
        (0, None, {}),
        (9, None, {"Baton.Priority": "255"}),
        (5, None, {"Baton.Priority": "199"}),
        (99, None, {"Baton.Priority": "255"}),
        (None, NOW - timedelta(hours=1), {}),
        (None, NOW + timedelta(seconds=1.2), {"Baton.DelaySeconds": "2"}),
        (None, "2026-01-01T01:00:00+00:00", {"Baton.DelaySeconds": "3600"}),
        (None, "2026-01-01T01:00:00", {"Baton.DelaySeconds": "3600"}),
        (3, NOW + timedelta(days=400), {"Baton.Priority": "170", "Baton.DelaySeconds": str(DELAY_MAX_S)}),
    ],
)
def test_what_a_message_says(priority: int | None, eta: Any, expected: dict[str, str]) -> None:
    found = attributes_for(priority, eta, NOW)
    assert {name: value["StringValue"] for name, value in found.items()} == expected


@pytest.mark.parametrize("name", ["celery", "kombu"])
def test_the_client_is_there(name: str) -> None:
    """The transport is imported lazily; without it the test above would say nothing of what is missing."""
    assert __import__(name).__version__
