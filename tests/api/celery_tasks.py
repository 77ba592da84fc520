"""The tasks of test_celery.py, as a program would have them. The worker runs this file in a process of its own."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from batonq.celery import use_baton

ENDPOINT = os.environ.get("BATON_TEST_ENDPOINT", "127.0.0.1:1")
ACCOUNT = os.environ.get("BATON_TEST_ACCOUNT", "000000000000")
RESULTS = os.environ.get("BATON_TEST_RESULTS", os.devnull)

app = Celery("celery_tasks", broker=f"sqs://{ACCOUNT}:secret@{ENDPOINT}//")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": int(os.environ.get("BATON_TEST_VISIBILITY", "60")),
        "polling_interval": 0.05,
        "wait_time_seconds": 1,
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_default_queue="celery",
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
)
if os.environ.get("BATON_TEST_PLAIN") != "1":
    use_baton()


def note(text: str) -> None:
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(text + "\n")


@app.task  # type: ignore[untyped-decorator]
def add(x: int, y: int) -> int:
    note(f"add {x + y}")
    return x + y


@app.task  # type: ignore[untyped-decorator]
def say(text: str) -> None:
    note(text)


@app.task  # type: ignore[untyped-decorator]
def say_when(text: str, due: float) -> None:
    """Notes whether it is time."""
    note(f"{text} {'in time' if time.time() >= due else 'too early'}")


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def fails_once(self: Any, text: str, countdown: float = 0) -> None:
    note(f"{text} try {self.request.retries}")
    if self.request.retries == 0:
        raise self.retry(countdown=countdown)


@app.task(bind=True, autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0)  # type: ignore[untyped-decorator]
def fails_always(self: Any, text: str) -> None:
    note(f"{text} try {self.request.retries}")
    raise ValueError(text)
