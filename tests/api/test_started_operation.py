"""An operation in progress: the retry for a queue that was not found, and answers that reach no client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batonq.api.http import Request
from batonq.api.started_operation import Finish, StartedOperation, answer_to
from batonq.errors import BatonError, QueueDoesNotExist, Unavailable

Outcome = str | BatonError


class Application:
    """Answers with texts. `refreshes` holds what the coming refreshes of the catalog return or raise."""

    def __init__(self, *refreshes: bool | Exception) -> None:
        self.refreshes = [*refreshes]
        self.tasks: list[asyncio.Task[None]] = []

    def error_of(self, problem: BaseException, request: Request) -> Outcome:
        return problem if isinstance(problem, BatonError) else BatonError(f"fault: {problem}")

    def has_no_queue(self, outcome: Outcome) -> bool:
        return isinstance(outcome, QueueDoesNotExist)

    async def refresh(self) -> bool:
        result = self.refreshes.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]


def write(outcome: Outcome) -> str:
    if outcome == "cannot be written":
        raise ValueError(outcome)
    return f"error: {outcome.message}" if isinstance(outcome, BatonError) else outcome


class Undone:
    """Counts how often the leases of an answer were released."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def answers(application: Application, start: Callable[[Finish[Outcome]], None], *, client: bool = True) -> list[str]:
    """The answers that are written for an operation. `client`: whether there is one to read them."""
    written: list[str] = []

    def reply(answer: str) -> bool:
        written.append(answer)
        return client

    async def run() -> None:
        StartedOperation(application, Request("POST", "/"), start, write, reply).begin()
        await asyncio.gather(*application.tasks)

    asyncio.run(run())
    return written


def one_after_another(*outcomes: Outcome) -> Callable[[Finish[Outcome]], None]:
    """An operation with these outcomes, one for each start."""
    coming = iter(outcomes)
    return lambda finish: finish(next(coming))


NO_QUEUE = QueueDoesNotExist("no queue")


@pytest.mark.parametrize(
    ("refreshes", "outcomes", "answer"),
    [
        ((), ["done"], "done"),
        ((True,), [NO_QUEUE, "done"], "done"),
        ((True,), [NO_QUEUE, NO_QUEUE], "error: no queue"),
        ((False,), [NO_QUEUE], "error: no queue"),
        ((Unavailable("no catalog"),), [NO_QUEUE], "error: no catalog"),
        ((ValueError("broken"),), [NO_QUEUE], "error: fault: broken"),
    ],
)
def test_a_queue_that_is_not_found_is_looked_for_once_more(
    refreshes: tuple[bool | Exception, ...], outcomes: list[Outcome], answer: str
) -> None:
    application = Application(*refreshes)
    assert answers(application, one_after_another(*outcomes)) == [answer]
    assert not application.refreshes


def test_an_operation_that_raises_is_answered() -> None:
    def start(finish: Finish[Outcome]) -> None:
        raise ValueError("broken")

    assert answers(Application(), start) == ["error: fault: broken"]


@pytest.mark.parametrize(
    ("outcome", "client", "written", "times"),
    [
        ("done", True, ["done"], 0),
        ("done", False, ["done"], 1),
        ("cannot be written", True, ["error: fault: cannot be written"], 1),
        ("cannot be written", False, ["error: fault: cannot be written"], 1),
    ],
)
def test_what_reaches_no_client_is_undone(outcome: str, client: bool, written: list[str], times: int) -> None:
    undone = Undone()
    assert answers(Application(), lambda finish: finish(outcome, undone), client=client) == written
    assert undone.times == times


def test_an_answer_can_be_awaited() -> None:
    start = one_after_another(NO_QUEUE, "done")
    assert asyncio.run(answer_to(Application(True), Request("POST", "/"), start, write)) == "done"


@pytest.mark.parametrize("at_the_same_time", [False, True])
def test_a_caller_that_leaves_gets_no_messages(at_the_same_time: bool) -> None:
    abandoned, undone = Undone(), Undone()
    request = Request("POST", "/")
    request.abandon = abandoned

    async def leave() -> None:
        finishes: list[Finish[Outcome]] = []
        task = asyncio.create_task(answer_to(Application(), request, finishes.append, write))
        await asyncio.sleep(0)
        if at_the_same_time:
            finishes[0]("done", undone)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not at_the_same_time:
            finishes[0]("done", undone)

    asyncio.run(leave())
    assert (abandoned.times, undone.times) == (1, 1)
