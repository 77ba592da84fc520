"""A task: a handler, its queues and its settings, checked when it is declared."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from batonq.worker.errors import Rules
from batonq.worker.lanes import PATIENCE, Lane, Lanes, Order
from batonq.worker.limits import Limits, Rate
from batonq.worker.retry import Retry
from batonq.worker.router import Router

Run = Literal["async", "thread", "process"]
Handler = Callable[[Any], Any]
Queues = str | Lane | Sequence[str | Lane]
Rates = float | Rate | Sequence[Rate]

CONCURRENCY = 16
VISIBILITY_S = 30.0
VISIBILITY_MAX_S = 43_200.0
DEADLINE_S = 3600.0
WAIT_S = 20.0
BATCH_MAX = 1000


@dataclass(slots=True, frozen=True, kw_only=True)
class Task:
    """One handler. Its lanes share `concurrency` slots; with `batch`, a slot holds up to that many messages at once."""

    name: str
    handler: Handler
    lanes: tuple[Lane, ...]
    order: Order = "fair"
    patience: int = PATIENCE
    concurrency: int = CONCURRENCY
    retry: Retry | None = None
    visibility: float = VISIBILITY_S
    deadline: float = DEADLINE_S
    run: Run = "async"
    batch: int = 0
    rates: tuple[Rate, ...] = ()
    rules: Rules = field(default_factory=Rules)
    router: Router | None = None
    wait: float = WAIT_S

    def __post_init__(self) -> None:
        def demand(holds: bool, what: str) -> None:
            if not holds:
                raise ValueError(f"task {self.name!r}: {what}")

        demand(callable(self.handler), "a handler must be a function of a message")
        demand(
            self.run in ("async", "thread", "process"), f'run must be "async", "thread" or "process", not {self.run!r}'
        )
        is_async = inspect.iscoroutinefunction(self.handler)
        demand(self.run != "async" or is_async, 'a handler without async needs run="thread" or run="process"')
        demand(self.run != "thread" or not is_async, 'an async handler needs run="async" or run="process"')
        demand(1 <= self.concurrency <= 100_000, f"concurrency must be 1 to 100,000, not {self.concurrency}")
        demand(
            0 < self.visibility <= VISIBILITY_MAX_S,
            f"visibility must be greater than 0 and at most 12 hours, in seconds, not {self.visibility}",
        )
        demand(0 < self.deadline < float("inf"), f"deadline must be greater than 0 seconds, not {self.deadline}")
        demand(0 <= self.batch <= BATCH_MAX, f"batch must be 1 to {BATCH_MAX} messages, not {self.batch}")
        demand(0 <= self.wait <= WAIT_S, f"wait must be 0 to {WAIT_S:g} seconds, not {self.wait}")
        Lanes(self.lanes, self.order, self.patience)

    @property
    def many_queues(self) -> bool:
        """Whether the messages of one receive may be of several queues."""
        return len(self.lanes) > 1 or self.lanes[0].is_pattern

    @property
    def capacity(self) -> int:
        """Maximum number of messages that it holds at once."""
        return self.concurrency * (self.batch or 1)

    def new_lanes(self) -> Lanes:
        return Lanes(self.lanes, self.order, self.patience)

    def new_limits(self) -> Limits:
        return Limits(self.rates)

    def only(self, queues: Sequence[str]) -> Task | None:
        """The task with only the given lanes; None if none of them belongs to it."""
        lanes = tuple(lane for lane in self.lanes if lane.queue in queues)
        return replace(self, lanes=lanes) if lanes else None


def as_lanes(given: Queues) -> tuple[Lane, ...]:
    """The `queue` argument of a task: a name or pattern, a lane, or several of them."""
    several = [given] if isinstance(given, (str, Lane)) else list(given)
    return tuple(lane if isinstance(lane, Lane) else Lane(lane) for lane in several)


def as_rates(given: Rates | None) -> tuple[Rate, ...]:
    """The `rate` argument of a task: messages per second, a Rate, or several."""
    if given is None:
        return ()
    if isinstance(given, (int, float)):
        return (Rate(given),)
    return (given,) if isinstance(given, Rate) else tuple(given)


def usual_run(handler: Handler) -> Run:
    return "async" if inspect.iscoroutinefunction(handler) else "thread"


def usual_concurrency(run: Run) -> int:
    return (os.cpu_count() or 1) if run == "process" else CONCURRENCY
