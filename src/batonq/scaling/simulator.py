"""A queue, its workers and a scaler in simulated time: how a policy behaves before anybody pays for it.

Messages are counted, not held: those of one tick are a cohort, taken in order of arrival. A worker that is started
works after `start_s`; one that is stopped has finished what it held.
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
    """What happened. `changes` are (time, workers before, workers after)."""

    changes: list[tuple[float, int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)  # at each decision
    oldest_s: float = 0.0  # the longest that any message waited
    sent: float = 0.0
    done: float = 0.0
    worker_seconds: float = 0.0  # what it costs

    @property
    def turns(self) -> int:
        """How often the direction changed: up and down again is one; more than that is flapping."""
        rising = [after > before for _, before, after in self.changes]
        return sum(first != second for first, second in pairwise(rising))


@dataclass(slots=True, frozen=True)
class World:
    """What is scaled: how messages arrive (how many in the tick that begins at a time) and how quick a worker is."""

    arrivals: Callable[[float], float]
    rate_per_worker: float  # messages a second
    start_s: float = 5.0  # until a worker that was started works
    tick_s: float = 1.0  # of the simulated clock
    interval_s: float = 5.0  # between two decisions
    seen: Callable[[Reading], Reading] = lambda reading: reading  # noise, or what a source cannot tell


def simulate(scaler: Scaler, world: World, seconds: float, workers: int | None = None) -> Outcome:
    """Run for so long, from the scaler's minimum or from so many workers."""
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
    """Those that are not working yet are stopped first."""
    while count and starting:
        at, coming = starting.pop()
        stopped = min(count, coming)
        count -= stopped
        if coming > stopped:
            starting.append((at, coming - stopped))
    return ready - count
