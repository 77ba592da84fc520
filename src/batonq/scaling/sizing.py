"""How many workers, how much backlog, how long a lease: arithmetic on rates and times. Pure.

Little's law: messages being worked on = arrivals a second × seconds that one takes. So many must be worked on at once,
or the queue grows; what is above that is headroom, and headroom is what drains a backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log

from batonq.errors import InvalidInput

HEADROOM = 0.2
BUSY_MAX = 1_000_000
OUTAGE_S = 60.0  # the backlog that is shown as an example: what arrives while nobody works for a minute
LATE_SHARE = 0.01  # how many may wait longer than the SLO before more workers are advised
VISIBILITY_MEDIANS = 6
VISIBILITY_P99S = 2
RECEIVES_LEAST, RECEIVES_MOST = 3, 10
UNLUCKY_SHARE = 0.001  # of sound messages, how many may die because all their tries failed by chance


@dataclass(slots=True, frozen=True)
class Sizing:
    """Workers here are places at which one message is worked on at a time."""

    busy: float
    workers: int
    drain_rate: float  # messages a second, with all of them at work
    utilisation: float
    late_share: float  # of messages, how many wait longer than the SLO in steady state
    high_water: int
    backlog: int
    drain_s: float  # until that backlog is gone while messages go on arriving

    @property
    def headroom(self) -> float:
        return self.workers / self.busy - 1


def size(rate: float, seconds: float, slo_s: float, headroom: float = HEADROOM, backlog: int | None = None) -> Sizing:
    """For so many messages a second that take so long each. Raises InvalidInput."""
    for value, what in ((rate, "the rate"), (seconds, "the time a message takes"), (slo_s, "the SLO")):
        if not 0 < value < inf:
            raise InvalidInput(f"{what} must be more than 0, not {value:g}")
    if not 0 <= headroom < inf:
        raise InvalidInput(f"headroom is a share such as 0.2, not {headroom:g}")
    busy = rate * seconds
    if busy > BUSY_MAX:
        raise InvalidInput(f"{busy:,.0f} messages at once are beyond {BUSY_MAX:,}: size a part of the load")
    workers = max(1, ceil(busy * (1 + headroom) - 1e-9))
    if workers <= busy:
        workers += 1  # with none to spare, a queue of random arrivals grows without end
    blocked = blocked_share(busy, workers)
    # A few workers need more headroom than many: chance brings several messages at once.
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
    """Erlang's B, by the recurrence that does not overflow."""
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = busy * blocked / (count + busy * blocked)
    return blocked


def late_share(busy: float, workers: int, seconds: float, slo_s: float, blocked: float) -> float:
    """Of messages that arrive at random, how many wait longer than the SLO (Erlang's C, from his B)."""
    waits = blocked / (1 - busy / workers * (1 - blocked))
    return waits * exp(-(workers - busy) / seconds * slo_s)


def high_water_mark(drain_rate: float, sla_s: float) -> int:
    """The depth beyond which a message that is sent now is done too late: drain rate × SLA."""
    return int(drain_rate * sla_s)


def advised_visibility_s(median_s: float, p99_s: float) -> int:
    """The larger of 6 × the median and 2 × the 99th percentile, in whole seconds."""
    return max(1, ceil(max(VISIBILITY_MEDIANS * median_s, VISIBILITY_P99S * p99_s) - 1e-9))


def advised_receives(failed_share: float, tries_p999: int) -> int:
    """So many receives that a sound message dies by bad luck once in a thousand at most, from 3 to 10. More than ten
    tries is no luck but a fault that should be seen."""
    by_chance = 0
    if 0 < failed_share < 1:
        by_chance = ceil(log(UNLUCKY_SHARE) / log(failed_share) - 1e-9)
    elif failed_share >= 1:
        by_chance = RECEIVES_MOST
    return min(max(by_chance, tries_p999, RECEIVES_LEAST), RECEIVES_MOST)


def quantile(ordered: list[float], share: float) -> float:
    """The value that this share of an ordered list does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, ceil(share * len(ordered)) - 1))]
