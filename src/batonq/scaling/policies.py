"""Policies: the number of workers that a reading asks for, and why. Pure functions; the scaler limits the pace.

| policy | workers |
|---|---|
| Steps | a fixed number for each range of depths |
| PerWorker | depth ÷ messages per worker (target tracking) |
| Drain | depth ÷ (rate per worker × drain time) |
| KeepUp | arrivals ÷ rate per worker (Little's law) |
| Sla | enough to finish the backlog before it is too old, and what arrives meanwhile |
| Lag | a reader group's lag ÷ messages per worker, at most one worker per shard |
| Largest | the largest number of several policies |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol

from batonq.errors import InvalidInput
from batonq.scaling.readings import Rates, Reading

_ROUNDING = 1e-9  # 0.1 + 0.2 workers must not become one more than 0.3


class Wish(NamedTuple):
    workers: int
    why: str


class Policy(Protocol):
    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        """The number of workers, before any limit; None if the reading is not sufficient."""
        ...


def _up(workers: float) -> int:
    return max(0, ceil(workers - _ROUNDING))


def _positive(value: float, what: str) -> None:
    if not 0 < value < float("inf"):
        raise InvalidInput(f"{what} must be greater than 0, not {value:g}")


@dataclass(slots=True, frozen=True)
class Steps:
    """A number of workers from a depth on: ((0, 5), (500, 20), (2000, 50))."""

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        depths = [depth for depth, _ in self.steps]
        workers = [count for _, count in self.steps]
        if not depths or depths[0] != 0:
            raise InvalidInput("the first step must be for depth 0, for example 0:5,500:20,2000:50")
        if sorted(set(depths)) != depths or sorted(workers) != workers or workers[0] < 0:
            raise InvalidInput("each step must have a larger depth than the previous one, and at least as many workers")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        depth, workers = next(step for step in reversed(self.steps) if reading.depth >= step[0])
        plural = "" if workers == 1 else "s"
        return Wish(workers, f"{reading.depth:,} messages: from {depth:,} on, {workers} worker{plural}")


@dataclass(slots=True, frozen=True)
class PerWorker:
    """Target tracking: a number of messages per worker."""

    messages: float  # per worker

    def __post_init__(self) -> None:
        _positive(self.messages, "messages per worker")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        return Wish(
            _up(reading.depth / self.messages), f"{reading.depth:,} messages ÷ {self.messages:g} messages per worker"
        )


@dataclass(slots=True, frozen=True)
class Drain:
    """The backlog must be drained within this many seconds. The rate of a worker is measured if it is not given."""

    seconds: float
    rate_per_worker: float | None = None  # messages per second

    def __post_init__(self) -> None:
        _positive(self.seconds, "the drain time")
        if self.rate_per_worker is not None:
            _positive(self.rate_per_worker, "the rate of a worker")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        rate = self.rate_per_worker or rates.per_worker
        if not rate:
            return None
        workers = _up(reading.depth / (rate * self.seconds))
        return Wish(workers, f"{reading.depth:,} messages ÷ ({rate:.3g} per second per worker × {self.seconds:g} s)")


@dataclass(slots=True, frozen=True)
class KeepUp:
    """As many workers as the arrivals keep busy, plus headroom: with fewer, a backlog only grows."""

    rate_per_worker: float | None = None  # messages per second
    headroom: float = 0.2  # share of spare workers

    def __post_init__(self) -> None:
        if self.rate_per_worker is not None:
            _positive(self.rate_per_worker, "the rate of a worker")
        if self.headroom < 0:
            raise InvalidInput(f"headroom must be a share such as 0.2, not {self.headroom:g}")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        rate = self.rate_per_worker or rates.per_worker
        if not rate or rates.arrivals is None:
            return None
        workers = _up(rates.arrivals * (1 + self.headroom) / rate)
        return Wish(
            workers,
            f"{rates.arrivals:.3g} messages per second arrive ÷ {rate:.3g} per second per worker, + "
            f"{self.headroom:.0%}",
        )


@dataclass(slots=True, frozen=True)
class Sla:
    """No message waits longer than this. `aim` is the planned share of that time; the rest is for workers that are
    still starting.
    """

    seconds: float
    rate_per_worker: float | None = None  # messages per second
    aim: float = 0.5

    def __post_init__(self) -> None:
        _positive(self.seconds, "the SLA")
        if self.rate_per_worker is not None:
            _positive(self.rate_per_worker, "the rate of a worker")
        if not 0 < self.aim <= 1:
            raise InvalidInput(f"aim must be greater than 0 and at most 1, not {self.aim:g}")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        age_s = reading.oldest_age_s or 0.0
        left_s = self.seconds * self.aim - age_s
        if reading.depth and left_s <= 0:
            return Wish(
                reading.depth, f"the oldest message has waited {age_s:.0f} s of {self.seconds:g} s: use the maximum"
            )
        rate = self.rate_per_worker or rates.per_worker
        if not rate:
            return None
        arriving = rates.arrivals or 0.0
        workers = _up((reading.depth / left_s + arriving) / rate if left_s > 0 else arriving / rate)
        return Wish(
            workers,
            f"{reading.depth:,} messages in {max(left_s, 0):.0f} s and {arriving:.3g} per second more ÷ "
            f"{rate:.3g} per second per worker",
        )


@dataclass(slots=True, frozen=True)
class Lag:
    """A number of messages that a reader group may be behind, per worker. Each shard of the queue has one reader, so
    more workers than shards are not asked for.
    """

    messages: float  # per worker

    def __post_init__(self) -> None:
        _positive(self.messages, "the lag per worker")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        if reading.lag is None:
            return None
        workers = _up(reading.lag / self.messages)
        why = f"lag of {reading.lag:,} messages ÷ {self.messages:g} messages per worker"
        if reading.shards is not None and workers > reading.shards:
            plural = "" if reading.shards == 1 else "s"
            return Wish(reading.shards, f"{why}, but the queue has {reading.shards} shard{plural}")
        return Wish(workers, why)


@dataclass(slots=True, frozen=True)
class Largest:
    """The largest number of several policies; those without a result are ignored."""

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise InvalidInput("at least one policy is needed")

    def wish(self, reading: Reading, rates: Rates) -> Wish | None:
        wishes = [policy.wish(reading, rates) for policy in self.policies]
        return max((wish for wish in wishes if wish is not None), key=lambda wish: wish.workers, default=None)
