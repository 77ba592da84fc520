"""Tiny limits: limits so small that a run reaches them, and counts of how often that happened.

A tiny limit is an integer that notices comparisons, so it counts by itself, wherever the limited code is. Limits that
are constants of a module are replaced during the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any, Self, TypeVar

from batonq.core import open_frame as openframe
from batonq.core.limits import ShardLimits
from batonq.core.shard import expiry
from batonq.core.shard.commands import jobs
from batonq.core.shard.moves import returns
from batonq.core.shard.state import job_book as jobbook
from batonq.node import broker
from batonq.node.cluster import node_server as answering
from batonq.node.cluster import peers
from batonq.node.jobs import job_runner as jobrunner
from batonq.node.jobs import redrive_scan as examining
from batonq.node.routing import forwarding
from batonq.node.routing import multi_queue_receive as watching
from batonq.node.routing import splitter as spreading
from batonq.node.routing import spread_sdk_retry as named
from batonq.node.settings import Settings
from batonq.node.shard_host import command_groups, host, long_polls
from sim.patches import Patches

TINY_SHARE = 0.5  # of the limits, in a run with tiny limits
KIB = 1024
T = TypeVar("T")

# Fields of Settings, and of its ShardLimits, with their tiny values.
SETTINGS: dict[str, tuple[int, ...]] = {
    "frame_rows_max": (6, 15, 30),
    "frame_bytes_max": (1 * KIB, 4 * KIB),
    "pending_max": (2, 4, 8),
    "waiters_per_queue_max": (2, 3),
    "waiters_max": (3, 5),
    "window_entries": (1, 2, 4),
    "window_bytes": (1, 2 * KIB),
    "alarms_max": (1, 3),
}
SHARD_LIMITS: dict[str, tuple[int, ...]] = {
    "slots_max": (15, 40),
    "dedup_entries_max": (3, 8),
    "idempotency_keys_max": (3, 10),
    "sdk_names_max": (2, 5),
    "producers_max": (1, 2),
    "attempts_max": (1, 2),
    "verdicts_max": (4,),
    "timer_records_max": (1, 3),
    "retries_max": (1, 2),
    "given_up_max": (1, 2),
    "purge_step_max": (1, 3),
    "job_scans_max": (1, 3),
    "job_moves_max": (1, 2),
}
# Constants of modules: the modules that hold each, and its tiny values.
NODE_CONSTANTS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "CHOSEN_MAX": ((jobrunner,), (1, 3)),
    "LOOKED_AT_MAX": ((examining,), (1, 3)),
    "TURN_MESSAGES": ((examining,), (1, 2)),
    "TOTAL_MAX": ((jobbook,), (2, 4)),
    "TOLD_MAX": ((named,), (1, 3)),
    "KNOWN_MAX": ((watching,), (2, 5)),
    "SELECTIONS_KEPT": ((broker,), (1, 2)),
    "HINTS_MAX": ((spreading,), (1, 3)),
    "TOGETHER_MAX": ((command_groups, forwarding), (1, 2, 5)),
    "TOGETHER_BYTES_MAX": ((command_groups, forwarding), (1, 1 * KIB)),
    "GROUP_MESSAGES_MAX": ((command_groups,), (1, 10)),
    "SERVED_ROWS_MAX": ((long_polls,), (2, 10)),
    "SERVED_BYTES_MAX": ((long_polls,), (200, 1 * KIB)),
    "ATTEMPTS_MAX": ((long_polls,), (1, 3)),
    "CHECKS_MAX": ((long_polls,), (6, 12)),
    "TURN_MAX": ((long_polls,), (1, 2)),
    "BATCH_MAX": ((long_polls,), (1, 2)),
    "STEP_BYTES_MAX": ((expiry, jobs), (256, 1 * KIB)),
}
CLUSTER_CONSTANTS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    **NODE_CONSTANTS,
    "REMEMBERED_MAX": ((answering,), (1, 3)),
    "REMEMBERED_BYTES_MAX": ((answering,), (200, 2 * KIB)),
    "NAMES_MAX": ((answering,), (160,)),  # the nodes of a quiet cluster make 120 calls in that time
    "IDLE_MAX": ((peers,), (1, 2)),
    "WAITING_MAX": ((forwarding,), (1, 3)),
}

# The number of rows that a frame has room for, and the number after which one more command still fits. A command that
# needs more rows is a bug in the code that admitted it. These limits are therefore tiny only together with the limits
# on what one command may write, and where crowds are not refused.
FRAME_ROWS_CONSTANTS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "FRAME_ROWS_MAX": ((openframe,), (110,)),
    "ROLL_ROWS": ((host,), (40,)),
}
WRITTEN_AT_ONCE = (
    "frame_rows_max",
    "window_entries",
    "timer_records_max",
    "retries_max",
    "given_up_max",
    "job_moves_max",
    "CHOSEN_MAX",
    "STEP_BYTES_MAX",
    "GROUP_MESSAGES_MAX",
)
REFUSES_CROWDS = (
    "frame_bytes_max",
    "pending_max",
    "waiters_per_queue_max",
    "waiters_max",
    "slots_max",
    "dedup_entries_max",
)

# Limits on what is remembered for minutes: a cluster's run is too short for these.
LONG_REMEMBERED = ("dedup_entries_max", "idempotency_keys_max", "sdk_names_max", "producers_max")


@dataclass(slots=True)
class LimitCounts:
    """How often each limit was found reached, and how often it was found free again afterwards."""

    reached: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    _at: set[str] = field(default_factory=set)  # the limits that were reached at the last comparison

    def met(self, name: str, is_reached: bool) -> None:
        if is_reached:
            self.reached[name] += 1
            self._at.add(name)
        elif name in self._at:
            self._at.discard(name)
            self.left[name] += 1


class TinyLimit(int):
    """A limit that counts how often a value compared with it has reached it."""

    name: str
    counts: LimitCounts

    def __new__(cls, value: int, name: str, counts: LimitCounts) -> Self:
        limit = super().__new__(cls, value)
        limit.name = name
        limit.counts = counts
        return limit

    def meet(self, other: object) -> None:
        if isinstance(other, int):
            self.counts.met(self.name, int.__le__(self, other))

    def __lt__(self, other: int) -> bool:
        self.meet(other)
        return int.__lt__(self, other)

    def __le__(self, other: int) -> bool:
        self.meet(other)
        return int.__le__(self, other)

    def __gt__(self, other: int) -> bool:
        self.meet(other)
        return int.__gt__(self, other)

    def __ge__(self, other: int) -> bool:
        self.meet(other)
        return int.__ge__(self, other)

    def __eq__(self, other: object) -> bool:
        self.meet(other)
        return int.__eq__(self, other)

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __mul__(self, factor: int) -> TinyLimit:
        """The same limit in another unit."""
        return TinyLimit(int.__mul__(self, factor), self.name, self.counts)

    def __radd__(self, start: int) -> TinyLimit:
        """The same limit for a count that begins at `start`."""
        return TinyLimit(int.__add__(self, start), self.name, self.counts)

    def __rsub__(self, other: int) -> int:
        self.meet(other)
        return int.__rsub__(self, other)

    def __sub__(self, used: int) -> Remaining:
        """A budget: the rest of the limit."""
        return Remaining(int.__sub__(self, used), self)


class Remaining(int):
    """The rest of a limit that is used up step by step."""

    limit: TinyLimit

    def __new__(cls, value: int, limit: TinyLimit) -> Self:
        remaining = super().__new__(cls, value)
        remaining.limit = limit
        limit.counts.met(limit.name, value <= 0)
        return remaining

    def __sub__(self, used: int) -> Remaining:
        return Remaining(int.__sub__(self, used), self.limit)


def counted_islice(values: Iterable[T], most: int) -> list[T]:
    """Like `islice`, which only reads its limit and does not compare it."""
    taken = list(islice(values, most))
    if isinstance(most, TinyLimit):
        most.meet(len(taken))
    return taken


@dataclass(slots=True, frozen=True)
class TinyLimits:
    """The tiny limits of one run, by name."""

    values: dict[str, int] = field(default_factory=dict)
    counts: LimitCounts = field(default_factory=LimitCounts)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value} (reached {self.counts.reached[name]}, left {self.counts.left[name]} times)"
            for name, value in self.values.items()
        )

    def limit(self, name: str) -> TinyLimit:
        return TinyLimit(self.values[name], name, self.counts)

    def settings(self, settings: Settings) -> Settings:
        """The same settings with these limits."""
        own: dict[str, Any] = {name: self.limit(name) for name in SETTINGS if name in self.values}
        of_shards: dict[str, Any] = {name: self.limit(name) for name in SHARD_LIMITS if name in self.values}
        return replace(settings, **own, shard_limits=replace(ShardLimits(), **of_shards))

    def patches(self) -> Patches:
        """The replacements for constants during the run."""
        constants = [
            (place, name, self.limit(name))
            for name, (places, _) in {**CLUSTER_CONSTANTS, **FRAME_ROWS_CONSTANTS}.items()
            if name in self.values
            for place in places
        ]
        islices = [(place, "islice", counted_islice) for place in (returns, long_polls)]
        return [*constants, *islices] if self.values else []


NO_TINY_LIMITS = TinyLimits()


def choose_limits(
    random: Random, cluster: bool = False, full_frames: bool = False, refusals: bool = False
) -> TinyLimits:
    """About half of all limits. `full_frames`: the limits that show whether too much is written at once. `refusals`:
    the limits on channels between shards.
    """
    constants = CLUSTER_CONSTANTS if cluster else NODE_CONSTANTS
    choices = {**SETTINGS, **SHARD_LIMITS, **{name: values for name, (_, values) in constants.items()}}
    values = {name: random.choice(values) for name, values in choices.items()}
    chosen = {name for name in values if random.random() < TINY_SHARE}
    if cluster:
        chosen.difference_update(LONG_REMEMBERED)
    else:
        chosen.add("LOOKED_AT_MAX")  # only then does peeking at messages take several steps
    if refusals:
        values["window_entries"] = 4
        chosen = chosen.difference(REFUSES_CROWDS, ("window_bytes",)).union(("verdicts_max", "retries_max"))
    if "verdicts_max" in chosen:  # a window must fit into it
        chosen.add("window_entries")
    if "CHECKS_MAX" in chosen:  # a batch must fit into it
        chosen.add("BATCH_MAX")
    if full_frames:
        values.update({name: tiny[0] for name, (_, tiny) in FRAME_ROWS_CONSTANTS.items()})
        values.update(frame_rows_max=10, timer_records_max=3)
        chosen = chosen.difference(REFUSES_CROWDS).union(FRAME_ROWS_CONSTANTS, WRITTEN_AT_ONCE)
    return TinyLimits({name: value for name, value in values.items() if name in chosen})
