"""Handlers in processes of their own, which may die."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from batonq.worker import Message, Poison, Retry, Worker
from tests.worker.memory import MemorySource
from tests.worker.support import work


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
def app(source: MemorySource) -> Worker:
    return Worker(source=source)


def in_process(message: Message) -> str:
    if message.body == "exit":
        os._exit(7)
    if message.body == "segfault":
        ctypes.string_at(0)
    if message.body == "killed":
        os.kill(os.getpid(), 9)  # as the kernel does when memory runs out
    if message.body == "raise":
        raise Poison("said the process")
    return f"{message.body}"


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_dies_takes_nothing_with_it(app: Worker, source: MemorySource) -> None:
    source.send("q", "exit", "segfault", "killed", "raise", "fine")
    app.task(queue="q", run="process", concurrency=2, retry=Retry(base=0.01, attempts=2), wait=0)(in_process)
    work(app, lambda: source.left == 0)
    assert source.acked == ["fine"]
    reasons = {body: (nack.error_class, nack.reason) for body, nack in source.dead}
    assert reasons == {
        "exit": ("HandlerCrashed", "the handler's process exited with code 7"),
        "segfault": ("HandlerCrashed", "the handler's process was killed by SIGSEGV"),
        "killed": ("HandlerCrashed", "the handler's process was killed by SIGKILL"),
        "raise": ("Poison", "said the process"),
    }
    assert app.counters["in_process"].crashes == 6


def test_a_handler_that_no_process_can_find_is_told(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    app.task(queue="q", run="process", name="lambda", retry=Retry(attempts=1))(lambda message: None)
    work(app, lambda: source.left == 0)
    assert "must be a function at the top level of a module" in source.dead[0][1].reason


@pytest.mark.filterwarnings("ignore")
def test_a_process_past_its_deadline_is_killed(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    app.task(queue="q", run="process", visibility=5, deadline=1.5, retry=Retry(attempts=1))(hang)
    work(app, lambda: source.left == 0)
    assert source.dead[0][1].error_class == "DeadlineExceeded"


def hang(message: Message) -> None:
    time.sleep(1000)
