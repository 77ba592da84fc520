"""What becomes of an exception, and when the next try is."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.retry import parse_retry
from batonq.idempotency import Busy, OutOfOrder
from batonq.worker import Poison, Retry, RetryLater, Rules
from batonq.worker.errors import REASON_MAX, Failure
from batonq.worker.processes import HandlerFailed, portable


class Corrupt(ValueError):
    """An error of the program's own."""


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def test_anything_is_worth_another_try_by_the_queues_policy() -> None:
    assert Rules().failure(KeyError("id")) == Failure("KeyError", "'id'", None, dead_letter=False)
    failure = Rules().failure(Corrupt())
    assert failure is not None and failure.error_class.endswith("test_failures.Corrupt")
    assert failure.reason == "Corrupt"  # an error without a text still has a reason


def test_poison_dies_at_once_and_retry_later_says_when() -> None:
    assert Rules().failure(Poison("no such user")) == Failure("Poison", "no such user", None, dead_letter=True)
    assert Rules().failure(RetryLater(30, "rate limit")) == Failure("RetryLater", "rate limit", 30.0, dead_letter=False)
    assert Rules().failure(RetryLater()) == Failure("RetryLater", "the handler asked for a retry", None)
    busy = Rules().failure(Busy(2.5))
    assert busy is not None and busy.delay == 2.5 and not busy.dead_letter


def test_rules_name_what_is_poison_and_what_is_done() -> None:
    rules = Rules(poison=(ValueError,), retry=(Corrupt,), done=(LookupError,))
    assert rules.kind(ValueError()) == "poison"
    assert rules.kind(Corrupt()) == "retry"  # the rule that loses nothing goes first
    assert rules.kind(KeyError()) == "done" and rules.failure(KeyError()) is None
    assert rules.kind(RetryLater(1)) == "retry" and rules.kind(Poison()) == "poison"


def test_a_function_may_class_errors() -> None:
    rules = Rules(classify=lambda error: "poison" if "corrupt" in str(error) else None, done=(OSError,))
    assert rules.kind(RuntimeError("corrupt")) == "poison"
    assert rules.kind(OSError("gone")) == "done"
    with pytest.raises(ValueError, match="classify must return"):
        Rules(classify=lambda error: "fatal").kind(OSError())


def test_a_long_reason_is_cut() -> None:
    failure = Rules().failure(ValueError("x" * 5000))
    assert failure is not None and len(failure.reason) == REASON_MAX and failure.reason.endswith("…")


def test_an_error_leaves_its_process_as_it_was_or_as_its_name_and_text() -> None:
    assert isinstance(portable(Corrupt("bad")), Corrupt)
    told = portable(Unpicklable("a", "b"))
    assert isinstance(told, HandlerFailed)
    assert Rules().failure(told) == Failure(told.error_class, "a b")
    assert told.error_class.endswith("Unpicklable")


@pytest.mark.parametrize("error", [RetryLater(5, "soon"), RetryLater(None, "soon"), Busy(3, "held"), OutOfOrder(2)])
def test_what_asks_for_another_try_leaves_its_process_with_its_delay(error: RetryLater | Busy) -> None:
    told = portable(error)
    assert type(told) is type(error) and str(told) == str(error)
    arrived = pickle.loads(pickle.dumps(error))
    assert (str(arrived), arrived.delay) == (str(error), error.delay)
    assert Rules().failure(arrived) == Rules().failure(error)


def test_a_claim_that_is_busy_was_no_try_but_one_out_of_order_was() -> None:
    busy, early = Rules().failure(Busy(3)), Rules().failure(OutOfOrder(3))
    assert busy is not None and early is not None
    assert (busy.untried, busy.delay, early.untried) == (True, 3, False)


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more seconds"):
        RetryLater(-1)


# --- how long until the next try


def test_delays_grow_up_to_a_maximum() -> None:
    retry = Retry(base=1, factor=2, maximum=10, jitter=0)
    assert [retry.delay(count, 0.9) for count in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_a_schedule_goes_step_by_step_and_stays_at_its_end() -> None:
    retry = Retry(schedule=(60, 300, 1800), jitter=0)
    assert [retry.delay(count, 0.5) for count in range(1, 6)] == [60, 300, 1800, 1800, 1800]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.floats(1, 10))
def test_a_delay_is_between_its_bounds(count: int, draw: float, jitter: float, factor: float) -> None:
    retry = Retry(base=1, factor=factor, maximum=600, jitter=jitter)
    whole = min(factor ** min(count - 1, 64), 600)
    assert retry.delay(count, 0.5) == pytest.approx(whole)
    assert whole * (1 - jitter) <= retry.delay(count, draw) * (1 + 1e-9)
    assert retry.delay(count, draw) <= whole * (1 + jitter) * (1 + 1e-9)


def test_jitter_means_the_same_in_a_task_and_in_a_queue() -> None:
    policy = parse_retry('{"kind": "schedule", "delaysSeconds": [60], "jitter": 0.2}')
    queues = [policy.delay_ms(1, sequence, 1) / 1000 for sequence in range(1000)]
    retry = Retry(schedule=(60,), jitter=0.2)
    tasks = [retry.delay(1, draw / 1000) for draw in range(1000)]
    for delays in (queues, tasks):
        assert 48 <= min(delays) < 49
        assert 71 < max(delays) <= 72


def test_the_last_attempt() -> None:
    assert [Retry(attempts=3).is_last(count) for count in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Retry().is_last(1000)


@pytest.mark.parametrize("given", [{"base": -1}, {"factor": 0.5}, {"jitter": 2}, {"schedule": (-1,)}, {"attempts": 0}])
def test_bad_policies_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Retry"):
        Retry(**given)  # type: ignore[arg-type]
