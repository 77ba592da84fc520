"""The log lines of failed messages: the attempt, what happens next, and tracebacks only once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from batonq.errors import Unavailable
from batonq.testing import memory_async
from batonq.worker import Message, Poison, Retry, RetryLater, Worker
from batonq.worker.source import QueueFacts
from tests.worker.memory import MemorySource
from tests.worker.support import until, work


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "failed on attempt" in record.getMessage()]


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return sum(bool(record.exc_info) for record in caplog.records)


def test_the_line_says_which_attempt_it_was_and_where_the_message_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with await memory_async() as baton:
            emails = await baton.create_queue("emails", max_receives=3, dead_letter_queue="emails-dead")
            bad = await emails.send("no address")
            worse = await emails.send("poison")
            app = Worker(baton=baton)

            @app.task(queue="emails")
            async def send_mail(message: Message) -> None:
                if message.body == "poison":
                    raise Poison("never")
                raise ValueError("no address")

            serving = asyncio.create_task(app.serve())
            await until(lambda: app.counters and app.counters["send_mail"].dead_lettered == 2)
            app.stop()
            assert await serving == 0
            assert (await baton.queue("emails-dead").stats()).visible == 2
            name = bad.id
            assert [line for line in lines(caplog) if name in line] == [
                f"emails {name} failed on attempt 1 of 3: ValueError: no address; retried",
                f"emails {name} failed on attempt 2 of 3: ValueError: no address; retried",
                f"emails {name} failed on attempt 3 of 3: ValueError: no address; moved to emails-dead",
            ]
            assert f"emails {worse.id} failed on attempt 1 of 3: Poison: never; moved to emails-dead" in lines(caplog)
            (shown,) = [record.exc_info for record in caplog.records if record.exc_info]  # of the first ValueError
            assert shown[2] is not None and shown[2].tb_frame.f_code.co_name == "send_mail"  # without our own frames
            assert app.counters["send_mail"].retried == 2
            assert "4 received, 0 acked, 2 retried, 2 dead-lettered" in caplog.messages[-1]

    caplog.set_level("INFO", "batonq.worker")
    asyncio.run(main())


def test_the_tasks_own_maximum_counts_if_it_is_lower(caplog: pytest.LogCaptureFixture) -> None:
    source = MemorySource()
    source.dead_letters["q"] = (5, "q-dead")
    source.send("q", "x")
    app = Worker(source=source)

    @app.task(queue="q", retry=Retry(base=0.001, jitter=0, attempts=2), wait=0)
    async def handle(message: Message) -> None:
        raise RetryLater(reason="not now")

    caplog.set_level("INFO", "batonq.worker")
    work(app, lambda: source.dead)
    assert lines(caplog) == [
        "q 1 failed on attempt 1 of 2: RetryLater: not now; retried in 0.001 s",
        "q 1 failed on attempt 2 of 2: RetryLater: not now; moved to q-dead",
    ]
    assert tracebacks(caplog) == 0  # the text says it all
    assert [record.levelname for record in caplog.records if "failed" in record.getMessage()] == ["WARNING", "ERROR"]


def test_at_the_debug_level_every_failure_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    source = MemorySource()
    source.send("q", 1, 2, 3)
    app = Worker(source=source)

    @app.task(queue="q", retry=Retry(attempts=1))
    async def handle(message: Message) -> None:
        raise RuntimeError("no")

    caplog.set_level(logging.DEBUG, "batonq.worker")
    work(app, lambda: len(source.dead) == 3)
    assert tracebacks(caplog) == len(lines(caplog)) == 3
    assert (
        lines(caplog)[0]
        == "q 1 failed on attempt 1 of 1: RuntimeError: no; not retried, and q has no dead-letter queue"
    )


class Silent(MemorySource):
    """A broker that says nothing about its queues."""

    def __init__(self, problem: Exception | None) -> None:
        super().__init__()
        self.problem = problem

    async def facts(self, queue: str) -> QueueFacts:
        if self.problem is None:
            await asyncio.sleep(1000)
        assert self.problem is not None
        raise self.problem


@pytest.mark.parametrize("problem", [None, Unavailable("away"), KeyError("?")])
def test_a_broker_that_does_not_answer_costs_the_details_only(
    problem: Exception | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonq.worker.failure_log.CLOSE_S", 0.01)
    source = Silent(problem)
    source.send("q", 1)
    app = Worker(source=source)

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        raise Poison("no")

    work(app, lambda: source.dead)
    assert lines(caplog) == ["q 1 failed on attempt 1: Poison: no; dead-lettered"]
    assert app.counters["handle"].dead_lettered == 1


def test_lines_do_not_wait_in_an_unlimited_list(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonq.worker.failure_log.WAITING_MAX", 2)
    monkeypatch.setattr("batonq.worker.failure_log.CLOSE_S", 0.01)
    source = Silent(None)
    source.send("q", *range(5))
    app = Worker(source=source)

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        raise Poison("no")

    work(app, lambda: len(source.dead) == 5)
    assert len(lines(caplog)) == 5
