"""A queue that is deleted leaves nothing behind: neither in the owner's shard nor in a follower's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batonq.core.commands import Job
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from tests.core.rig import Bench, claim
from tests.support import ask

DEAD = 1
QUEUES = 200
# By slot of a message, by time, or so many in all: what these hold is not by queue.
BOUNDED = {"timers.leases", "timers.delays", "timers.expiries", "dedup.table", "jobs._of_queue", "jobs._by_key"}


def standard(bench: Bench, number: int) -> None:
    bench.queue(number, max_receives=1, dead_letter_queue=DEAD)
    bench.send(number, "a", "b", priority=number % 3)
    bench.send(number, "c", group="g")
    bench.send(number, "d", delay_ms=5_000)
    leases = bench.receive(number, 2)
    ask.nack(bench.shard, number, [ask.Nack(claim(lease), 0) for lease in leases], bench.now)
    bench.receive(number)


def fifo(bench: Bench, number: int) -> None:
    bench.queue(number, fifo=True)
    for group in ("g", "h"):
        bench.send(number, "a", group=group, dedup_id=group)
    bench.receive(number, 1, attempt="try")


def redriven(bench: Bench, number: int) -> None:
    """A job that is still running when its queue goes."""
    bench.queue(number, max_receives=1)
    bench.send(number, *map(str, range(5)))
    for _ in range(2):
        bench.receive(number, 5, visibility_ms=1)
        bench.later(2)
    job = Job(f"job {number}", number, 0, 0, 1, "RUNNING", 0, 0, only_dead=True)
    bench.shard.start_job(job, bench.now)
    bench.shard.step_jobs(bench.now)


def short_lived(bench: Bench, number: int, use: Callable[[Bench, int], None]) -> None:
    use(bench, number)
    bench.check()
    bench.shard.close_queue(number, 2, bench.now)
    bench.check()
    done = False
    while not done:
        _, done = bench.shard.purge(number, bench.now)
    bench.shard.step_jobs(bench.later(1_000))
    bench.check()
    assert number not in bench.shard.queues


def _lines_of(part: object) -> list[tuple[str, Any]]:
    return list(vars(part.lines).items()) if isinstance(part, Messages) else []


def sizes(shard: Shard) -> dict[str, int]:
    """Everything of a shard that has a length, and what its parts have."""
    found: dict[str, int] = {}
    for name, part in vars(shard).items():
        if type(part).__module__.startswith("batonq.core.shard") and not isinstance(part, Columns):
            for inner, value in (*vars(part).items(), *_lines_of(part)):
                if hasattr(value, "__len__") and not isinstance(value, JobBook):
                    found[f"{name}.{inner}"] = len(value)
    return found


@pytest.mark.parametrize("use", [standard, fifo, redriven])
def test_short_lived_queues_leave_nothing_behind(use: Callable[[Bench, int], None]) -> None:
    bench = Bench()
    bench.queue(DEAD)
    short_lived(bench, 2, use)
    once = sizes(bench.shard), sizes(bench.follower)
    for number in range(3, QUEUES):
        short_lived(bench, number, use)
        bench.shard.woken.clear()  # the host does this at each commit
    bench.delete(DEAD, *bench.receive(DEAD, QUEUES * 3))
    bench.later(86_400_000)
    bench.send(DEAD, "x")
    bench.check()
    for shard, before in zip((bench.shard, bench.follower), once, strict=True):
        after = sizes(shard)
        grown = {name: after[name] for name in after if name not in BOUNDED and after[name] > before[name] + 8}
        assert not grown
