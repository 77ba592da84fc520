"""Rates of queues over the last half minute, from samples of their totals.

Only queues that change cost anything but a glance: the totals of an idle queue are compared with those last seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import BatonError
from batonq.node.shard_host.host import committed
from batonq.node.shard_host.keeper import ShardKeeper

EVERY_S = 5.0
SAMPLES = 7  # so that rates are over 30 s
AT_ONCE = 500  # queues that are compared before other requests get a turn


class Rates(NamedTuple):
    """Messages per second."""

    sent: float = 0.0
    received: float = 0.0
    acked: float = 0.0
    retried: float = 0.0
    dead_lettered: float = 0.0

    def plus(self, other: Rates) -> Rates:
        return Rates(*map(sum, zip(self, other, strict=True)))


NO_RATES = Rates()
Totals = tuple[int, int, int, int, int]


def _totals(queue: QueueState) -> Totals:
    return queue.sent, queue.received, queue.deleted, queue.returned, queue.dead_lettered


class RateSampler:
    """Samples the queues that this node serves. `run` is the task that does it."""

    def __init__(self, shards: Sequence[ShardKeeper], now_ms: Callable[[], int]) -> None:
        self._shards = shards
        self._now_ms = now_ms
        self._seen: dict[int, dict[int, Totals]] = {}  # shard → queue → totals last seen
        self._active: dict[int, dict[int, deque[tuple[int, Totals]]]] = {}  # samples of queues that changed lately

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        for keeper in self._shards:
            if keeper.serving:
                try:
                    await self._sample(keeper)
                except BatonError:
                    self._forget(keeper.number)
            else:
                self._forget(keeper.number)

    def rates(self, shard: int, queue: int) -> Rates:
        samples = self._active.get(shard, {}).get(queue)
        if samples is None or len(samples) < 2:
            return NO_RATES
        (from_ms, first), (until_ms, last) = samples[0], samples[-1]
        seconds = max(1, until_ms - from_ms) / 1000
        return Rates(*((after - before) / seconds for before, after in zip(first, last, strict=True)))

    def _forget(self, shard: int) -> None:
        self._seen.pop(shard, None)
        self._active.pop(shard, None)

    async def _sample(self, keeper: ShardKeeper) -> None:
        shard = keeper.number
        host = keeper.host()
        seen = self._seen.get(shard, {})
        found: dict[int, Totals] = {}
        for at, queue in enumerate([*host.shard.queues.values()]):
            found[queue.number] = _totals(queue)
            if at % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        await committed(host)
        now_ms = self._now_ms()
        active = self._active.setdefault(shard, {})
        for number, totals in found.items():
            before = seen.get(number)
            samples = active.get(number)
            if samples is not None:
                samples.append((now_ms, totals))
                if samples[0][1] == totals and len(samples) == SAMPLES:
                    del active[number]
            elif before is not None and before != totals:
                started = (now_ms - int(EVERY_S * 1000), before)
                active[number] = deque((started, (now_ms, totals)), SAMPLES)
        for number in [number for number in active if number not in found]:
            del active[number]
        self._seen[shard] = found
