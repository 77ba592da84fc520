"""Sizing: workers, backlog and visibility timeout from rates and times. Pure functions.

Little's law: messages in progress = arrivals per second × processing time. At least that many workers are needed, or
the queue grows; more is headroom, which drains a backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log

from batonq.errors import InvalidInput

HEADROOM = 0.2
BUSY_MAX = 1_000_000
OUTAGE_S = 60.0  # the example backlog: the arrivals of one minute without workers
LATE_SHARE = 0.01  # share of messages that may wait longer than the SLO before more workers are advised
VISIBILITY_MEDIANS = 6
VISIBILITY_P99S = 2
RECEIVES_LEAST, RECEIVES_MOST = 3, 10
UNLUCKY_SHARE = 0.001  # share of good messages that may be dead-lettered because all attempts failed by chance


@dataclass(slots=True, frozen=True)
class Sizing:
    """A worker here processes one message at a time."""

    busy: float
    workers: int
    drain_rate: float  # messages per second, with all workers busy
    utilisation: float
    late_share: float  # share of messages that wait longer than the SLO in steady state
    high_water: int
    backlog: int
    drain_s: float  # until that backlog is drained while messages keep arriving

    @property
    def headroom(self) -> float:
        return self.workers / self.busy - 1


def size(rate: float, seconds: float, slo_s: float, headroom: float = HEADROOM, backlog: int | None = None) -> Sizing:
    """The sizing for a rate of messages with a processing time. Raises InvalidInput."""
    for value, what in ((rate, "the rate"), (seconds, "the processing time of a message"), (slo_s, "the SLO")):
        if not 0 < value < inf:
            raise InvalidInput(f"{what} must be greater than 0, not {value:g}")
    if not 0 <= headroom < inf:
        raise InvalidInput(f"headroom must be a share such as 0.2, not {headroom:g}")
    busy = rate * seconds
    if busy > BUSY_MAX:
        raise InvalidInput(
            f"{busy:,.0f} messages in progress exceed the maximum of {BUSY_MAX:,}; size a part of the load"
        )
    workers = max(1, ceil(busy * (1 + headroom) - 1e-9))
    if workers <= busy:
        workers += 1  # without spare workers, a queue with random arrivals grows without limit
    blocked = blocked_share(busy, workers)
    # Few workers need more headroom than many, because messages sometimes arrive together.
    while (late := late_share(busy, workers, seconds, slo_s, blocked)) > LATE_SHARE:
        workers += 1
        blocked = busy * blocked / (workers + busy * blocked)
    drain_rate = workers / seconds
    waiting = ceil(rate * OUTAGE_S) if backlog is None else backlog
    return Sizing(
        busy=busy,
        workers=workers,
        drain_rate=drain_rate,
        utilisation=busy / workers,
        late_share=late,
        high_water=high_water_mark(drain_rate, slo_s),
        backlog=waiting,
        drain_s=waiting / (drain_rate - rate),
    )


def blocked_share(busy: float, workers: int) -> float:
    """Erlang's B, by a recurrence that does not overflow."""
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = busy * blocked / (count + busy * blocked)
    return blocked


def late_share(busy: float, workers: int, seconds: float, slo_s: float, blocked: float) -> float:
    """The share of randomly arriving messages that wait longer than the SLO (Erlang's C, from B)."""
    waits = blocked / (1 - busy / workers * (1 - blocked))
    return waits * exp(-(workers - busy) / seconds * slo_s)


def high_water_mark(drain_rate: float, sla_s: float) -> int:
    """The depth beyond which a new message is finished too late: drain rate × SLA."""
    return int(drain_rate * sla_s)


def advised_visibility_s(median_s: float, p99_s: float) -> int:
    """The larger of 6 × the median and 2 × the 99th percentile, in whole seconds."""
    return max(1, ceil(max(VISIBILITY_MEDIANS * median_s, VISIBILITY_P99S * p99_s) - 1e-9))


def advised_receives(failed_share: float, tries_p999: int) -> int:
    """Enough receives that at most 1 in 1,000 good messages is dead-lettered by chance, from 3 to 10. A message that
    needs more attempts has a fault that should be seen.
    """
    by_chance = 0
    if 0 < failed_share < 1:
        by_chance = ceil(log(UNLUCKY_SHARE) / log(failed_share) - 1e-9)
    elif failed_share >= 1:
        by_chance = RECEIVES_MOST
    return min(max(by_chance, tries_p999, RECEIVES_LEAST), RECEIVES_MOST)


def quantile(ordered: list[float], share: float) -> float:
    """The value that this share of a sorted list does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, ceil(share * len(ordered)) - 1))]
