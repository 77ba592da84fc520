"""The circuit breaker: its state machine, and the wrapper for threads and tasks."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.client.breaker import PROBE_SECONDS, Breaker, BreakerOpen, Circuit, State, is_outage
from batonq.errors import AccessDenied, InvalidInput, OverLimit, QueueDoesNotExist, Unavailable


def opened(circuit: Circuit, now: float = 0.0) -> Circuit:
    while circuit.state is not State.OPEN:
        ticket = circuit.ask(now)
        assert ticket is not None
        circuit.failed(ticket, now)
    return circuit


def test_failures_in_a_row_open_it() -> None:
    circuit = Circuit(failures=3, pause_s=10)
    for _ in range(2):
        circuit.failed(circuit.ask(0) or 0, 0)
    circuit.succeeded(circuit.ask(0) or 0)  # not in a row
    assert circuit.failures == 0
    opened(circuit)
    assert (circuit.ask(9.9), circuit.wait_s(4)) == (None, 6)


def test_one_probe_decides() -> None:
    circuit = opened(Circuit(pause_s=10))
    probe = circuit.ask(10)
    assert probe is not None
    assert circuit.ask(10) is None  # one at a time
    circuit.succeeded(probe)
    assert circuit.state is State.CLOSED
    assert circuit.ask(10) is not None


def test_a_failed_probe_waits_longer_each_time() -> None:
    circuit = opened(Circuit(pause_s=1, factor=2, pause_max_s=5))
    now, waits = 0.0, []
    for _ in range(5):
        waits.append(circuit.wait_s(now))
        now += circuit.wait_s(now)
        probe = circuit.ask(now)
        assert probe is not None
        circuit.failed(probe, now)
    assert waits == [1, 2, 4, 5, 5]
    circuit.succeeded(circuit.ask(now + 5) or 0)
    assert opened(circuit, now).wait_s(now) == 1  # after a success it begins anew


def test_news_from_before_the_change_is_old_news() -> None:
    circuit = Circuit(failures=1, pause_s=10)
    slow, quick = circuit.ask(0), circuit.ask(0)
    assert slow is not None
    assert quick is not None
    circuit.failed(quick, 0)
    circuit.succeeded(slow)
    assert circuit.state is State.OPEN
    circuit.failed(slow, 5)
    assert circuit.wait_s(5) == 5


def test_a_probe_that_tells_nothing_makes_room_for_another() -> None:
    circuit = opened(Circuit(pause_s=10))
    probe = circuit.ask(10)
    assert probe is not None
    circuit.abandoned(probe)
    assert circuit.ask(10) is not None
    assert circuit.ask(10 + PROBE_SECONDS - 1) is None
    assert circuit.ask(10 + PROBE_SECONDS) is not None  # lost, most likely with its thread


@given(st.lists(st.tuples(st.sampled_from(["ask", "ok", "bad", "gone"]), st.floats(0, 20)), max_size=60))
def test_it_never_stays_shut(events: list[tuple[str, float]]) -> None:
    """Whatever happens: after the longest pause a call may pass, and a success of it closes the circuit."""
    circuit = Circuit(failures=2, pause_s=1, pause_max_s=30)
    now, tickets = 0.0, []
    for event, passed in events:
        now += passed
        if event == "ask":
            ticket = circuit.ask(now)
            tickets += [] if ticket is None else [ticket]
        elif tickets:
            ticket = tickets.pop(0)
            if event == "ok":
                circuit.succeeded(ticket)
            elif event == "bad":
                circuit.failed(ticket, now)
            else:
                circuit.abandoned(ticket)
    last = circuit.ask(now + max(30, PROBE_SECONDS))
    assert last is not None
    circuit.succeeded(last)
    assert circuit.state is State.CLOSED


# --- the wrapper --------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def breaker(clock: Clock) -> Breaker:
    return Breaker(failures=2, pause=10, clock=clock, spread=lambda: 1.0)


def fails(problem: BaseException) -> None:
    raise problem


def test_calls_are_refused_while_it_is_open() -> None:
    clock = Clock()
    guarded = breaker(clock)
    for _ in range(2):
        with pytest.raises(Unavailable):
            guarded.call(fails, Unavailable())
    with pytest.raises(BreakerOpen, match="2 times in a row") as caught:
        guarded.call(fails, AssertionError("it was called"))
    assert caught.value.retry_after == 10
    assert caught.value.retryable
    assert (guarded.refused, guarded.failed, guarded.state) == (1, 2, State.OPEN)
    clock.now = 10
    assert guarded.call(lambda word: word, "back") == "back"
    assert guarded.state is State.CLOSED


def test_tasks_use_it_too() -> None:
    clock = Clock()
    guarded = breaker(clock)

    async def answer(number: int, *, problem: Exception | None = None) -> int:
        await asyncio.sleep(0)
        if problem is not None:
            raise problem
        return number

    async def main() -> None:
        assert await guarded.run(answer, 7) == 7
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await guarded.run(answer, 7, problem=ConnectionError())
        with pytest.raises(BreakerOpen):
            await guarded.run(answer, 7)

    asyncio.run(main())


def test_a_cancelled_probe_is_no_failure_and_no_end() -> None:
    clock = Clock()
    guarded = breaker(clock)
    for _ in range(2):
        with pytest.raises(Unavailable):
            guarded.call(fails, Unavailable())
    clock.now = 10
    with pytest.raises(asyncio.CancelledError):
        guarded.call(fails, asyncio.CancelledError())
    assert guarded.wait() == 0
    assert guarded.call(lambda: 1) == 1


@pytest.mark.parametrize("problem", [InvalidInput(), QueueDoesNotExist(), AccessDenied(), OverLimit()])
def test_a_broker_that_refuses_is_there(problem: Exception) -> None:
    guarded = breaker(Clock())
    for _ in range(5):
        with pytest.raises(type(problem)):
            guarded.call(fails, problem)
    assert guarded.state is State.CLOSED


def test_what_counts_as_an_outage() -> None:
    assert all(is_outage(problem) for problem in (Unavailable(), ConnectionError(), TimeoutError()))
    assert not any(is_outage(problem) for problem in (OverLimit(), InvalidInput(), ValueError()))


@pytest.mark.parametrize(
    "settings", [{"failures": 0}, {"pause_s": 0}, {"factor": 0.5}, {"pause_s": 9, "pause_max_s": 1}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Circuit(**settings)  # type: ignore[arg-type]
