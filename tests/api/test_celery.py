"""Celery with its SQS transport: a real worker in a process of its own, unchanged except for the endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import client
from tests.api.support import counts, wait_until
from tests.support.server import TestServer

HERE = Path(__file__).parent


def send_tasks(environment: dict[str, str]) -> None:
    """In a process of its own too: Celery reads its settings when it is imported."""
    code = (
        "import celery_tasks\n"
        "for number in range(20):\n"
        "    celery_tasks.add.delay(number, 100)\n"
        "celery_tasks.fails_once.delay('task')\n"
        "celery_tasks.add.apply_async((1, 1000), countdown=1)\n"
        "celery_tasks.add.apply_async((2, 2000), queue='other.queue')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=HERE, env=environment, timeout=60, check=True)


def test_a_worker(server: TestServer, account: str, tmp_path: Path) -> None:
    results = tmp_path / "results.txt"
    environment = {
        **os.environ,
        "BATON_TEST_ENDPOINT": server.url.removeprefix("http://"),
        "BATON_TEST_ACCOUNT": account,
        "BATON_TEST_RESULTS": str(results),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    send_tasks(environment)
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool", "solo", "--loglevel", "INFO"]
    log = (tmp_path / "worker.log").open("wb")
    worker = subprocess.Popen(
        [*command, "--queues", "celery,other.queue"], cwd=HERE, env=environment, stdout=log, stderr=log
    )
    expected = {f"add {number + 100}" for number in range(20)}
    expected |= {"task try 0", "task try 1", "add 1001", "add 2002"}
    try:
        wait_until(lambda: worker.poll() is not None or noted(results) >= expected, 60)
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        sqs: Any = client("sqs", server.url, account)
        urls = sqs.list_queues()["QueueUrls"]
        assert {url.rsplit("/", 1)[1] for url in urls} >= {"celery", "other-queue"}
        wait_until(lambda: all(counts(sqs, url) == (0, 0, 0) for url in urls if "celery" in url or "other" in url))
        sqs.close()
    finally:
        worker.terminate()
        worker.wait(30)
        log.close()
    assert sorted(results.read_text().split("\n")[:-1]) == sorted(expected)  # each once


def noted(results: Path) -> set[str]:
    return set(results.read_text().splitlines()) if results.exists() else set()


@pytest.mark.parametrize("name", ["celery", "kombu"])
def test_the_client_is_there(name: str) -> None:
    """The transport is imported lazily; without it the test above would say nothing of what is missing."""
    assert __import__(name).__version__
