"""The heartbeat alone, by a clock of the test's own: when leases are extended, and when no more."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.client.models import MessageFields
from batonq.errors import BatonError, LeaseLost, Unavailable
from batonq.worker.heartbeat import Grip, Heartbeat, Held
from batonq.worker.source import Message, Outcome


class FakeSource:
    """A source of which only the keeper is used."""

    def __init__(self, batch_max: int = 1000) -> None:
        self.batch_max = batch_max
        self.requests: list[tuple[str, list[tuple[str, float]]]] = []
        self.outcomes: dict[str, BatonError] = {}
        self.closed = False

    def keeper(self, timeout: float) -> FakeSource:
        return self

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        self.requests.append((queue, list(changes)))
        return [self.outcomes.get(receipt) for receipt, _ in changes]

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return self.extend(f"{queue}, untried", changes)

    def close(self) -> None:
        self.closed = True


class Hands:
    """A holder that keeps what it is told."""

    def __init__(self) -> None:
        self.holding: list[Held] = []
        self.told: list[tuple[str, str]] = []
        self.count = 0

    def take(self, grip: Grip, *names: str, queue: str = "q") -> None:
        self.holding += [(grip, MessageFields(id=name, receipt=name, queue=queue)) for name in names]

    def held(self) -> list[Held]:
        return list(self.holding)

    def extended(self, count: int) -> None:
        self.count += count

    def released(self, count: int) -> None:
        self.count -= count

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        self.told.append(("lost", message.id))

    def overdue(self, grip: Grip, message: Message) -> None:
        self.told.append(("overdue", message.id))


def make(batch_max: int = 1000) -> tuple[FakeSource, Hands, Heartbeat, list[float]]:
    source, hands, now = FakeSource(batch_max), Hands(), [0.0]
    heartbeat = Heartbeat(source, 30, clock=lambda: now[0])  # type: ignore[arg-type]
    heartbeat.add(hands)
    return source, hands, heartbeat, now


def test_a_lease_is_extended_every_third_of_the_visibility() -> None:
    source, hands, heartbeat, _ = make()
    hands.take(Grip(0.0, 30, 3600), "a")
    for now in range(61):
        heartbeat.look(float(now))
    assert source.requests == [("q", [("a", 30)])] * 6 and hands.count == 6


def test_all_that_is_due_goes_in_one_request_a_queue() -> None:
    source, hands, heartbeat, _ = make(batch_max=3)
    for start in (0.0, 1.0):
        hands.take(Grip(start, 30, 3600), f"a{start}", f"b{start}")
    hands.take(Grip(0.0, 30, 3600), "other", queue="r")
    heartbeat.look(12.0)
    assert [(queue, len(changes)) for queue, changes in source.requests] == [("q", 3), ("q", 1), ("r", 1)]


def test_it_ends_at_the_deadline_with_time_for_an_answer() -> None:
    source, hands, heartbeat, _ = make()
    hands.take(Grip(0.0, 30, 45), "a")
    for now in range(200):
        heartbeat.look(float(now))
    # At 40 the lease is made to end at 55: the deadline, and a third of the visibility for an answer.
    assert [seconds for _, ((_, seconds),) in source.requests] == [30, 30, 25, 15]
    assert hands.told == [("overdue", "a")]


def test_a_lost_lease_is_told_once() -> None:
    source, hands, heartbeat, _ = make()
    hands.take(Grip(0.0, 30, 3600), "a", "b")
    source.outcomes["a"] = LeaseLost()
    for now in (10.0, 20.0, 30.0):
        heartbeat.look(now)
    assert hands.told == [("lost", "a")]
    assert source.requests[1:] == [("q", [("b", 30)])] * 2


def test_what_was_acknowledged_meanwhile_is_not_lost() -> None:
    source, hands, heartbeat, _ = make()
    hands.take(Grip(0.0, 30, 3600), "a")
    asked = 0

    def held() -> list[Held]:
        nonlocal asked
        asked += 1
        return hands.holding if asked == 1 else []

    hands.held = held  # type: ignore[method-assign]
    source.outcomes["a"] = LeaseLost()
    heartbeat.look(10.0)
    assert hands.told == []


def test_without_an_answer_it_tries_again_until_the_lease_has_run_out() -> None:
    source, hands, heartbeat, clock = make()
    hands.take(Grip(0.0, 30, 3600), "a")
    source.outcomes["a"] = Unavailable()
    for now in range(40):
        clock[0] = float(now)
        heartbeat.look(float(now))
    assert len(source.requests) > 5 and hands.told == [("lost", "a")]


def test_releasing_gives_back_everything_and_extends_no_more() -> None:
    source, hands, heartbeat, _ = make()
    hands.take(Grip(0.0, 30, 3600), "a", "b")
    heartbeat.postpone(MessageFields(id="c", receipt="c", queue="q"), 5.0)
    assert heartbeat.release_all() == 3
    assert source.requests == [("q", [("a", 0.0), ("b", 0.0)]), ("q, untried", [("c", 5.0)])]
    heartbeat.look(15.0)
    assert len(source.requests) == 2
    heartbeat.stop()
    assert source.closed
