"""A task at work, against a broker in memory: every outcome of a handler, and what the broker is told of it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from batonq.client import tracing
from batonq.errors import BatonError, QueueDoesNotExist, Unavailable
from batonq.idempotency import Busy
from batonq.worker import (
    Failure,
    Lane,
    Logging,
    Message,
    Middleware,
    Poison,
    Rate,
    Retry,
    RetryLater,
    TimeLimit,
    Tracing,
    Worker,
    poller,
)
from tests.support.doubles import double
from tests.worker.memory import MemorySource, StillClock
from tests.worker.support import TIMEOUT_S, no_new_tokens, until, work


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
def app(source: MemorySource) -> Worker:
    return Worker(source=source, name="test")


@pytest.fixture
def clock(source: MemorySource) -> StillClock:
    """For the leases of the source: they end when the test says so."""
    source.clock = clock = StillClock()
    return clock


@double()
class Watching(Middleware):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def done(self, message: Message) -> None:
        self.told.append(("done", message.body))

    def failed(self, message: Message, failure: Failure, error: BaseException) -> None:
        self.told.append(("failed", (message.body, failure.error_class)))

    def lease_lost(self, message: Message, error: BatonError) -> None:
        self.told.append(("lease lost", (message.body, error.code)))

    def deadline_passed(self, message: Message) -> None:
        self.told.append(("deadline", message.body))

    def refused(self, message: Message, error: BatonError) -> None:
        self.told.append(("refused", (message.body, error.code)))


# --- done and failed


def test_messages_are_handled_and_acknowledged_in_batches(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(500))
    seen: list[int] = []

    @app.task(queue="q", concurrency=50)
    async def handle(message: Message) -> None:
        seen.append(message.body)

    assert work(app, lambda: source.left == 0) == 0
    assert sorted(seen) == sorted(source.acked) == list(range(500))
    assert sum(name == "ack" for name, _ in source.requests) <= 11  # the first, and then one for each filling at most
    counters = app.counters["handle"]
    assert (counters.received, counters.acked, counters.refused, counters.running) == (500, 500, 0, 0)


def test_a_poll_asks_for_no_more_than_there_are_free_slots(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(40))
    at_once = most = 0

    @app.task(queue="q", concurrency=7, visibility=33.0)
    async def handle(message: Message) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001 * (message.body % 5))
        at_once -= 1

    work(app, lambda: source.left == 0)
    polls = [given for name, given in source.requests if name == "receive"]
    assert 2 <= most <= 7 and max(count for _, count, _, _ in polls) == 7
    # The worker's own visibility goes with every receive: the queue's default is for others.
    assert {visibility for _, _, _, visibility in polls} == {33.0}


def test_failures_are_told_with_class_and_reason(app: Worker, source: MemorySource) -> None:
    source.send("q", "poison", "later", "broken", "fine")
    watching = Watching()
    app.use(watching)

    @app.task(queue="q", wait=0)
    async def handle(message: Message) -> None:
        if message.receive_count > 1:
            return
        if message.body == "poison":
            raise Poison("no such user")
        if message.body == "later":
            raise RetryLater(0.01, "rate limit")
        if message.body == "broken":
            raise KeyError("id")

    work(app, lambda: source.left == 0)
    told = {body: (nack.delay, nack.error_class, nack.reason, nack.dead_letter) for body, nack in source.nacked}
    assert told == {
        "poison": (None, "Poison", "no such user", True),
        "later": (0.01, "RetryLater", "rate limit", False),
        "broken": (None, "KeyError", "'id'", False),  # no delay: the queue's own policy
    }
    assert sorted(source.acked) == ["broken", "fine", "later"]
    assert ("failed", ("poison", "Poison")) in watching.told and ("done", "fine") in watching.told
    counters = app.counters["handle"]
    assert (counters.dead_lettered, counters.retried, counters.acked) == (1, 2, 3)


def test_a_busy_claim_goes_back_untried_and_is_no_failure(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    busy = iter([True, True])

    @app.task(queue="q", retry=Retry(attempts=1), wait=0)
    async def handle(message: Message) -> None:
        if next(busy, False):
            raise Busy(0.001, "another holder works on it")

    work(app, lambda: source.left == 0)
    counters = app.counters["handle"]
    assert source.acked == ["x"] and [nack.untried for _, nack in source.nacked] == [True, True]
    assert (counters.acked, counters.released, counters.retried, counters.dead_lettered) == (1, 2, 0, 0)


def test_a_tasks_own_retry_policy_goes_before_the_queues(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")

    @app.task(queue="q", retry=Retry(base=0.001, jitter=0, attempts=3), wait=0)
    async def handle(message: Message) -> None:
        raise RuntimeError("no")

    work(app, lambda: source.dead)
    assert [(nack.delay, nack.dead_letter) for _, nack in source.nacked] == [
        (0.001, False),
        (0.002, False),
        (None, True),
    ]


def test_classes_of_errors_are_settable(app: Worker, source: MemorySource) -> None:
    source.send("q", ValueError, FileExistsError)

    @app.task(queue="q", poison=[ValueError], done_on=[FileExistsError])
    async def handle(message: Message) -> None:
        raise message.body("so")

    work(app, lambda: source.left == 0)
    assert [body for body, _ in source.dead] == [ValueError] and source.acked == [FileExistsError]


def test_a_handler_that_calls_exit_or_cancels_itself_has_failed_no_more(app: Worker, source: MemorySource) -> None:
    source.send("q", "exit", "cancel", "fine")

    @app.task(queue="q", wait=0, retry=Retry(attempts=1))
    async def handle(message: Message) -> None:
        if message.body == "exit":
            raise SystemExit(3)
        if message.body == "cancel":
            raise asyncio.CancelledError

    work(app, lambda: source.left == 0)
    assert {(body, nack.error_class) for body, nack in source.dead} == {
        ("exit", "SystemExit"),
        ("cancel", "asyncio.exceptions.CancelledError"),
    }
    assert source.acked == ["fine"]


# --- batches


def test_a_batch_handler_has_a_result_for_each(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(10))
    sizes = []

    @app.task(queue="q", batch=4, concurrency=2)
    async def handle(messages: list[Message]) -> list[BaseException | None]:
        sizes.append(len(messages))
        return [Poison("odd") if message.body % 2 else None for message in messages]

    work(app, lambda: source.left == 0)
    assert max(sizes) == 4
    assert sorted(source.acked) == [0, 2, 4, 6, 8] and sorted(body for body, _ in source.dead) == [1, 3, 5, 7, 9]


def test_a_batch_handler_that_raises_or_answers_too_little_has_failed_for_all(
    app: Worker, source: MemorySource
) -> None:
    source.send("q", *range(3))
    tries = 0

    @app.task(queue="q", batch=3, wait=0)
    async def handle(messages: list[Message]) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("down")
        return [] if tries == 2 else None

    work(app, lambda: source.left == 0)
    assert [nack.error_class for _, nack in source.nacked] == ["RuntimeError"] * 3 + ["TypeError"] * 3
    assert sorted(source.acked) == [0, 1, 2]


# --- threads


def test_a_plain_function_runs_on_threads(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(6))
    together = threading.Barrier(3, timeout=TIMEOUT_S)
    threads = set()

    @app.task(queue="q", concurrency=3)
    def handle(message: Message) -> None:
        together.wait()
        threads.add(threading.current_thread())

    work(app, lambda: source.left == 0)
    assert len(threads) == 3 and threading.main_thread() not in threads


# --- leases


def test_a_slow_handler_keeps_its_lease(app: Worker, source: MemorySource, clock: StillClock) -> None:
    """It takes five times the visibility timeout, and blocks the event loop while at it."""
    source.send("q", "slow")
    visibility_s = 0.3

    def pass_time(times: int) -> None:
        """So many visibility timeouts: a third of one after each extension."""
        for _ in range(3 * times):
            extended, ends = len(source.extended), time.monotonic() + TIMEOUT_S
            while len(source.extended) == extended:
                assert time.monotonic() < ends, "nobody extends the lease"
                time.sleep(0.001)
            clock.now += visibility_s / 3

    @app.task(queue="q", visibility=visibility_s, concurrency=2)
    async def handle(message: Message) -> None:
        pass_time(3)  # the loop is blocked
        await asyncio.to_thread(pass_time, 2)

    work(app, lambda: source.left == 0)
    assert source.deliveries == ["slow"] and source.acked == ["slow"]
    assert app.counters["handle"].extended >= 15 and clock.now == pytest.approx(5 * visibility_s)


@pytest.mark.usefixtures("clock")
def test_extensions_of_many_messages_go_together(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(20))
    enough = asyncio.Event()

    @app.task(queue="q", visibility=0.6, concurrency=20)
    async def handle(message: Message) -> None:
        await enough.wait()

    def seen() -> bool:
        if any(len(changes) == 20 for changes in source.extended):
            enough.set()
        return source.left == 0

    work(app, seen)
    assert source.deliveries == list(range(20))


@pytest.mark.usefixtures("clock")
def test_a_lost_lease_cancels_the_handler_and_is_reported(app: Worker, source: MemorySource) -> None:
    source.send("q", "x", "y")
    watching = Watching()
    app.use(watching)
    ended = []

    @app.task(queue="q", visibility=0.3, concurrency=1, wait=0)
    async def handle(message: Message) -> None:
        if message.body == "x":
            source.steal("x")
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(message.body)

    work(app, lambda: source.acked == ["y"])  # the slot goes on with the next message
    assert ended == ["x"] and source.acked == ["y"] and source.nacked == []
    assert ("lease lost", ("x", "lease_lost")) in watching.told
    assert app.counters["handle"].leases_lost == 1


def test_a_lease_that_cannot_be_extended_in_time_is_lost(app: Worker, source: MemorySource, clock: StillClock) -> None:
    source.send("q", "x")
    source.hold_extensions = True
    watching = Watching()
    app.use(watching)

    @app.task(queue="q", visibility=0.2)
    async def handle(message: Message) -> None:
        if message.receive_count == 1:
            await asyncio.sleep(1000)

    def done() -> bool:
        if watching.told:  # the lease was given up here, and ends there
            clock.now = 1.0
        return source.left == 0

    work(app, done)
    assert ("lease lost", ("x", "unavailable")) in watching.told and source.deliveries == ["x", "x"]


def test_an_answer_that_lay_here_too_long_is_checked_at_once(
    app: Worker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped, or its loop blocked, with the answer in its socket; the lease may be gone by now."""
    monkeypatch.setattr(poller, "LATE_S", 0.1)
    source.send("q", "x")
    receive = source.receive

    async def late(queues: Any, max_messages: int, wait: float, visibility: float) -> Any:
        messages = await receive(queues, max_messages, wait, visibility)
        if messages:
            time.sleep(0.2)  # noqa: ASYNC251 - as if the process had been stopped
            source.steal("x")
        return messages

    source.receive = late  # type: ignore[method-assign]

    @app.task(queue="q", visibility=0.6, wait=0)
    async def handle(message: Message) -> None:
        await asyncio.sleep(1000)

    work(app, lambda: bool(app.counters) and app.counters["handle"].leases_lost == 1)
    assert len(source.extended) == 1


def test_a_late_acknowledgement_is_refused_and_reported(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    watching = Watching()
    app.use(watching)

    @app.task(queue="q", visibility=30)
    async def handle(message: Message) -> None:
        source.steal("x")

    work(app, lambda: app.counters and app.counters["handle"].refused)
    assert ("refused", ("x", "lease_lost")) in watching.told and source.acked == []


def test_a_handler_past_its_deadline_is_stopped_and_the_message_given_back(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    watching = Watching()
    app.use(watching)

    @app.task(queue="q", visibility=30, deadline=0.2, retry=Retry(attempts=1))
    async def handle(message: Message) -> None:
        await asyncio.sleep(1000)

    work(app, lambda: source.left == 0)
    ((body, nack),) = source.dead
    assert (body, nack.error_class, nack.reason) == (
        "x",
        "DeadlineExceeded",
        "the handler was still running after 0.2 s",
    )
    assert ("deadline", "x") in watching.told and app.counters["handle"].deadlines == 1


def test_a_hung_thread_loses_its_lease_at_the_deadline_and_its_late_answer_is_refused(
    source: MemorySource, clock: StillClock
) -> None:
    source.send("q", "x")
    app = Worker(source=source)
    release = threading.Event()

    @app.task(queue="q", visibility=0.3, deadline=0.3, concurrency=2)
    def handle(message: Message) -> None:
        if message.receive_count == 1:
            release.wait(TIMEOUT_S)

    def second_done() -> bool:
        if app.counters and app.counters["handle"].deadlines:
            clock.now = 1.0  # nobody extends it any more
        if source.acked:
            release.set()
        return bool(app.counters) and app.counters["handle"].refused == 1

    work(app, second_done)
    assert source.deliveries == ["x", "x"] and source.acked == ["x"]  # another slot did it, and its answer counted


def test_a_worker_whose_threads_all_hang_ends(source: MemorySource) -> None:
    source.send("q", "x")
    app = Worker(source=source)
    release = threading.Event()

    @app.task(queue="q", visibility=0.3, deadline=0.2, concurrency=1)
    def handle(message: Message) -> None:
        release.wait(TIMEOUT_S)

    assert work(app, lambda: False) == 1
    release.set()


# --- trouble with the broker


def test_an_answer_that_nobody_took_is_given_again(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        source.fail.append(Unavailable())

    work(app, lambda: source.left == 0)
    assert source.acked == ["x"] and app.counters["handle"].refused == 0


def test_receives_that_fail_are_tried_again(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    source.fail += [QueueDoesNotExist("The queue q does not exist."), Unavailable()]

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        """Nothing to do."""

    work(app, lambda: source.left == 0)
    assert source.acked == ["x"]


# --- lanes, patterns and rates


def test_lanes_share_the_slots_by_weight(app: Worker, source: MemorySource) -> None:
    source.send("paid", *(f"p{number}" for number in range(300)))
    source.send("free", *(f"f{number}" for number in range(300)))
    order: list[str] = []

    @app.task(queue=[Lane("paid", 3), Lane("free", 1)], concurrency=8)
    async def handle(message: Message) -> None:
        order.append(message.body[0])

    work(app, lambda: source.left == 0)
    assert 140 <= order[:200].count("p") <= 160


def test_strict_lanes_take_the_first_first_and_starve_nobody(app: Worker, source: MemorySource) -> None:
    source.send("paid", *(f"p{number}" for number in range(200)))
    source.send("free", *(f"f{number}" for number in range(50)))
    order: list[str] = []

    @app.task(queue=["paid", "free"], order="strict", patience=10, concurrency=5)
    async def handle(message: Message) -> None:
        order.append(message.body[0])

    work(app, lambda: source.left == 0)
    assert 5 <= order[:200].count("f") <= 25


def test_a_pattern_is_one_poll_over_many_queues(app: Worker, source: MemorySource) -> None:
    for number in range(50):
        source.send(f"hooks-{number}", number)
    source.send("mail", "not mine")

    @app.task(queue="hooks-*", concurrency=16)
    async def handle(message: Message) -> None:
        assert message.queue == f"hooks-{message.body}"

    work(app, lambda: source.left == 1)
    assert sorted(source.acked) == list(range(50))
    assert {given[0] for name, given in source.requests if name == "receive"} == {("hooks-*",)}


def test_a_rate_holds_for_the_task(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(30))
    times: list[float] = []

    @app.task(queue="q", rate=Rate(100, burst=5), concurrency=30)
    async def handle(message: Message) -> None:
        times.append(time.monotonic())

    started = time.monotonic()
    work(app, lambda: source.left == 0)
    assert times[-1] - started >= (30 - 5) / 100  # a lower bound: no machine is too slow for it


def test_a_rate_a_key_holds_one_key_and_not_the_others(app: Worker, source: MemorySource) -> None:
    for number in range(10):
        source.send("q", ("hot", number), attributes={"key": "hot"})
    for number in range(10):
        source.send("q", ("cold", number), attributes={"key": f"cold-{number}"})
    order: list[str] = []
    times: list[float] = []

    @app.task(queue="q", rate=Rate(50, burst=1, key=lambda message: message.attributes["key"]), concurrency=20)
    async def handle(message: Message) -> None:
        order.append(message.body[0])
        if message.body[0] == "hot":
            times.append(time.monotonic())

    started = time.monotonic()
    work(app, lambda: source.left == 0)
    assert order[1:11] == ["cold"] * 10  # nobody waits behind the hot key
    assert times[-1] - started >= 9 / 50


def test_what_finds_no_place_to_wait_goes_back_until_its_turn(
    app: Worker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.send("q", *range(6))
    no_new_tokens(monkeypatch, lambda: bool(source.given_back))

    @app.task(queue="q", rate=Rate(20, burst=1, key="queue"), concurrency=2, wait=0)
    async def handle(message: Message) -> None:
        """Nothing to do."""

    work(app, lambda: source.left == 0)
    assert sorted(source.acked) == list(range(6)) and source.nacked == []
    assert source.given_back  # with the time until its turn, untried: that is no failure, and no receive
    assert app.counters["handle"].released >= 1


# --- order


def test_the_groups_of_a_fifo_queue_keep_their_order(app: Worker, source: MemorySource) -> None:
    source.fifo.add("q")
    for number in range(5):
        for group in "ab":
            source.send("q", f"{group}{number}", group=group)
    begun: list[str] = []
    at_once: dict[str, int] = {"a": 0, "b": 0}
    most = 0

    @app.task(queue="q", concurrency=10)
    async def handle(message: Message) -> None:
        nonlocal most
        group = message.body[0]
        at_once[group] += 1
        assert at_once[group] == 1
        most = max(most, sum(at_once.values()))
        begun.append(message.body)
        await asyncio.sleep(0.002)
        at_once[group] -= 1

    work(app, lambda: source.left == 0)
    for group in "ab":
        assert [body for body in begun if body[0] == group] == [f"{group}{number}" for number in range(5)]
    assert most == 2 and app.counters["handle"].retried == 0


def test_after_a_failure_the_rest_of_its_group_goes_back(app: Worker, source: MemorySource) -> None:
    source.fifo.add("q")
    source.send("q", "a0", "a1", "a2", group="a")
    begun: list[str] = []

    @app.task(queue="q", concurrency=10, wait=0)
    async def handle(message: Message) -> None:
        begun.append(message.body)
        if message.body == "a1" and message.receive_count == 1:
            raise RuntimeError("not yet")

    work(app, lambda: source.left == 0)
    assert begun[:2] == ["a0", "a1"] and begun.count("a2") == 1
    assert app.counters["handle"].released >= 1


def test_groups_of_other_queues_are_handled_at_once(app: Worker, source: MemorySource) -> None:
    source.send("q", "a0", "a1", "a2", group="a")
    together = asyncio.Barrier(3)

    @app.task(queue="q", concurrency=3)
    async def handle(message: Message) -> None:
        await together.wait()

    work(app, lambda: source.left == 0)
    assert len(source.acked) == 3


# --- middleware


def test_middleware_stands_around_the_handler(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    steps: list[str] = []

    @double()
    class Step(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def around(self, message: Any, call: Any) -> Any:
            steps.append(f"{self.name} in")
            result = await call(message)
            steps.append(f"{self.name} out")
            return result

    app.use(Step("a"))
    app.use(Step("b"))

    @app.task(queue="q")
    def handle(message: Message) -> None:
        steps.append("handler")

    work(app, lambda: source.left == 0)
    assert steps == ["a in", "b in", "handler", "b out", "a out"]


@pytest.fixture
def traced() -> tracing.TraceContext:
    return tracing.start()


def test_the_handler_is_within_the_senders_trace(
    app: Worker, source: MemorySource, traced: tracing.TraceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.send("q", "x")
    monkeypatch.setattr(Message, "trace", property(lambda message: traced))
    app.use(Tracing())
    found = []

    @app.task(queue="q")
    def handle(message: Message) -> None:  # on a thread: the context goes along
        found.append(tracing.current.get())

    work(app, lambda: source.left == 0)
    assert found[0] is not None and found[0].trace_id == traced.trace_id


def test_a_time_limit_is_a_failure_like_any_other(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    app.use(TimeLimit(0.01))

    @app.task(queue="q", retry=Retry(attempts=1))
    async def handle(message: Message) -> None:
        await asyncio.sleep(1000)

    work(app, lambda: source.left == 0)
    failure = source.dead[0][1]
    assert (failure.error_class, failure.reason) == ("TimeoutError", "the handler took longer than 0.01 s")


def test_lines_of_messages(app: Worker, source: MemorySource, caplog: pytest.LogCaptureFixture) -> None:
    source.send("q", "x", "y")
    app.use(Logging())
    caplog.set_level("INFO", "batonq.worker")

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        """Nothing to do."""

    work(app, lambda: source.left == 0)
    assert len([record for record in caplog.records if "done in" in record.getMessage()]) == 2


# --- stopping


def test_stopping_lets_handlers_finish_and_takes_no_more(app: Worker, source: MemorySource) -> None:
    source.send("q", *range(10))
    begun: list[int] = []
    go_on = asyncio.Event()

    @app.task(queue="q", concurrency=4)
    async def handle(message: Message) -> None:
        begun.append(message.body)
        await go_on.wait()

    async def main() -> int:
        serving = asyncio.create_task(app.serve())
        await until(lambda: len(begun) == 4)
        app.stop()
        await asyncio.sleep(0.02)
        assert not serving.done()
        go_on.set()
        return await serving

    assert asyncio.run(main()) == 0
    assert sorted(source.acked) == sorted(begun) == [0, 1, 2, 3] and source.left == 6


def test_what_is_not_done_in_time_is_given_back(app: Worker, source: MemorySource) -> None:
    source.send("q", "x", "y")
    begun = 0

    @app.task(queue="q", visibility=1000, concurrency=2)
    async def handle(message: Message) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(1000)

    assert work(app, lambda: begun == 2, drain_seconds=0.05) == 1
    assert [seconds for _, seconds in source.extended[-1]] == [0.0, 0.0] and app.counters["handle"].released == 2
    assert len(source._take(["q"], 10, 1.0)) == 2  # anybody may have them now


def test_a_hook_that_fails_is_its_own_trouble(app: Worker, source: MemorySource) -> None:
    @double()
    class Bad(Middleware):
        def done(self, message: Message) -> None:
            raise RuntimeError("done")

        def deadline_passed(self, message: Message) -> None:
            raise RuntimeError("deadline")

    source.send("q", "x", "y")
    app.use(Bad())

    @app.task(queue="q", visibility=0.3, deadline=0.4, concurrency=2)
    async def handle(message: Message) -> None:
        await asyncio.sleep(1000 if message.body == "x" and message.receive_count == 1 else 0.3)

    work(app, lambda: source.left == 0)
    assert sorted(source.acked) == ["x", "y"]


def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_end(app: Worker, source: MemorySource) -> None:
    source.send("q", "x")
    begun = 0

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        nonlocal begun
        begun += 1
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # and then it goes on as if nothing had happened

    assert work(app, lambda: begun == 1, drain_seconds=0.01) == 1


def test_an_answer_that_was_on_its_way_at_the_stop_is_given_back(
    app: Worker, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "ANSWER_S", TIMEOUT_S)
    source.send("q", "x")
    receive = source.receive
    leased = asyncio.Event()

    async def slowly(queues: Any, max_messages: int, wait: float, visibility: float) -> Any:
        messages = await receive(queues, max_messages, wait, visibility)
        leased.set()
        await asyncio.sleep(0.05)
        return messages

    source.receive = slowly  # type: ignore[method-assign]

    @app.task(queue="q", visibility=600)
    async def handle(message: Message) -> None:
        """It does not come to that."""

    async def main() -> int:
        serving = asyncio.create_task(app.serve())
        await leased.wait()
        app.stop()
        return await serving

    assert asyncio.run(main()) == 0
    assert source.acked == [] and app.counters["handle"].released == 1
    assert len(source._take(["q"], 10, 1.0)) == 1  # at once, and not after ten minutes
