"""A simulation of a queue, its workers and a scaler: how a policy behaves before it costs money.

Messages are counted, not stored: those of one tick form a cohort, processed in order of arrival. A started worker works
after `start_s`; a stopped worker has finished its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from batonq.scaling.readings import Reading
from batonq.scaling.scaler import Scaler


@dataclass(slots=True)
class Outcome:
    """The result. `changes` are (time, workers before, workers after)."""

    changes: list[tuple[float, int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)  # at each decision
    oldest_s: float = 0.0  # the longest waiting time of a message
    sent: float = 0.0
    done: float = 0.0
    worker_seconds: float = 0.0  # the cost

    @property
    def turns(self) -> int:
        """How often the direction changed: up and down again is one; more than that is flapping."""
        rising = [after > before for _, before, after in self.changes]
        return sum(first != second for first, second in pairwise(rising))


@dataclass(slots=True, frozen=True)
class World:
    """The simulated environment: arrivals (the number in the tick that starts at a time) and the speed of a worker."""

    arrivals: Callable[[float], float]
    rate_per_worker: float  # messages per second
    start_s: float = 5.0  # until a started worker works
    tick_s: float = 1.0  # of the simulated clock
    interval_s: float = 5.0  # between two decisions
    seen: Callable[[Reading], Reading] = lambda reading: reading  # adds noise, or removes what a source does not know


def simulate(scaler: Scaler, world: World, seconds: float, workers: int | None = None) -> Outcome:
    """Run for this long, starting with the scaler's minimum or the given number of workers."""
    outcome = Outcome()
    wanted = scaler.minimum if workers is None else workers
    starting: deque[tuple[float, int]] = deque()  # when they are ready, and how many
    ready = wanted
    waiting: deque[list[float]] = deque()  # cohorts: when they were sent, how many are left
    decide_at = 0.0
    for tick in range(int(seconds / world.tick_s)):
        now = tick * world.tick_s
        while starting and starting[0][0] <= now:
            ready += starting.popleft()[1]
        arriving = world.arrivals(now)
        if arriving > 0:
            waiting.append([now, arriving])
            outcome.sent += arriving
        working = ready * world.rate_per_worker * world.tick_s
        _work(waiting, working, now, outcome)
        outcome.worker_seconds += wanted * world.tick_s
        if now >= decide_at:
            decide_at += world.interval_s
            decision = scaler.decide(world.seen(_reading(waiting, ready, now, outcome)), now, wanted)
            outcome.workers.append(decision.workers)
            if decision.changes:
                outcome.changes.append((now, wanted, decision.workers))
                if decision.workers > wanted:
                    starting.append((now + world.start_s, decision.workers - wanted))
                else:
                    ready = _stop(starting, ready, wanted - decision.workers)
                wanted = decision.workers
    if waiting:
        outcome.oldest_s = max(outcome.oldest_s, seconds - waiting[0][0])
    return outcome


def _work(waiting: deque[list[float]], messages: float, now: float, outcome: Outcome) -> None:
    while messages > 0 and waiting:
        cohort = waiting[0]
        taken = min(messages, cohort[1])
        outcome.oldest_s = max(outcome.oldest_s, now - cohort[0])
        outcome.done += taken
        messages -= taken
        cohort[1] -= taken
        if cohort[1] <= 1e-9:
            waiting.popleft()


def _reading(waiting: deque[list[float]], ready: int, now: float, outcome: Outcome) -> Reading:
    depth = round(sum(cohort[1] for cohort in waiting))
    in_flight = min(depth, ready)
    return Reading(
        visible=depth - in_flight,
        in_flight=in_flight,
        oldest_age_s=now - waiting[0][0] if waiting else 0.0,
        sent=round(outcome.sent),
        deleted=round(outcome.done),
    )


def _stop(starting: deque[tuple[float, int]], ready: int, count: int) -> int:
    """Workers that are not working yet are stopped first."""
    while count and starting:
        at, coming = starting.pop()
        stopped = min(count, coming)
        count -= stopped
        if coming > stopped:
            starting.append((at, coming - stopped))
    return ready - count
