"""Plain calls of this node's clients to shards that other nodes serve: those of one turn of the event loop as one call.

While a call to a shard is under way the next one gathers, so that they grow with the load. The call goes the way of
every other (ports.py): its name, the owner's epoch and the owner's memory of answers see to it that it is run once.
What the owner did not run goes the general way. What it may have run and did not answer never does: it gets the error
that the general way would give.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batonq.core.commands import Claim
from batonq.errors import BatonError
from batonq.node import events
from batonq.node.host import TOGETHER_BYTES_MAX, TOGETHER_MAX
from batonq.node.ports import ShardPort
from batonq.node.relayed import FAULT, RelayedAnswer, RelayedCall

WAITING_MAX = 4_096  # that gather for one shard
PATIENCE_S = 0.5  # while an owner has not answered for so long, nobody waits behind what it was asked

# Called once, with what the owner answered; None: it was not run, and goes the general way.
Answered = Callable[[RelayedAnswer | BatonError], None]


class _One(NamedTuple):
    call: RelayedCall
    size: int
    answered: Answered


@dataclass(slots=True)
class _Lane:
    """What is on its way to one shard."""

    waiting: list[_One] = field(default_factory=list)
    scheduled: bool = False
    asking: bool = False
    since_s: float = 0.0  # when the call that is under way began


class Relaying:
    """`port` leads to a shard, wherever it is served; `knows` says whether another node is known to serve it now."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, port: Callable[[int], ShardPort], knows: Callable[[int], bool]
    ) -> None:
        self._loop = loop
        self._port = port
        self._knows = knows
        self._lanes: dict[int, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.TimerHandle | None = None

    def takes(self, shard: int) -> bool:
        """Whether a call can be added: there is somebody to ask, who answers in time."""
        if not self._knows(shard):
            return False
        lane = self._lanes.get(shard)
        if lane is None:
            return True
        return len(lane.waiting) < WAITING_MAX and not self._is_slow(lane)

    def _is_slow(self, lane: _Lane) -> bool:
        return lane.asking and self._loop.time() - lane.since_s > PATIENCE_S

    def add(self, shard: int, call: RelayedCall, size: int, answered: Answered) -> None:
        """`size` is how many bytes the call brings."""
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = _Lane()
        lane.waiting.append(_One(call, size, answered))
        if not lane.scheduled and not lane.asking:
            lane.scheduled = True
            self._loop.call_soon(self._begin, shard, lane)

    def _begin(self, shard: int, lane: _Lane) -> None:
        lane.scheduled = False
        count = size = 0
        for one in lane.waiting:
            size += one.size
            if count == TOGETHER_MAX or (count and size > TOGETHER_BYTES_MAX):
                break
            count += 1
        some, lane.waiting = lane.waiting[:count], lane.waiting[count:]
        if not some:
            return
        lane.asking = True
        lane.since_s = self._loop.time()
        if self._watching is None:
            self._watching = self._loop.call_later(PATIENCE_S, self._watch)
        self._spawn(self._ask(shard, lane, some))

    async def _ask(self, shard: int, lane: _Lane, some: list[_One]) -> None:
        answers: Sequence[RelayedAnswer | BatonError]
        try:
            answers = await self._port(shard).relay([one.call for one in some])
        except BatonError as problem:
            answers = [problem] * len(some)
        except Exception:
            events.logger.exception("shard %d: forwarded requests failed", shard)
            answers = [BatonError(FAULT)] * len(some)
        lane.asking = False
        self._begin(shard, lane)  # the owner is at work again while the replies are written
        for one, answer in zip(some, answers, strict=True):
            _tell(one, answer)

    def _watch(self) -> None:
        """Those who wait behind a call that takes long can as well go the general way: they were not run."""
        self._watching = None
        for lane in self._lanes.values():
            if self._is_slow(lane):
                waiting, lane.waiting = lane.waiting, []
                for one in waiting:
                    _tell(one, None)
        if any(lane.asking for lane in self._lanes.values()):
            self._watching = self._loop.call_later(PATIENCE_S / 2, self._watch)

    def give_back(self, shard: int, queue: int, claims: Sequence[Claim]) -> None:
        """These leases were made for an answer that did not leave: nobody got the messages, and it was no receive."""
        self._spawn(self._give_back(shard, queue, claims))

    async def _give_back(self, shard: int, queue: int, claims: Sequence[Claim]) -> None:
        with suppress(BatonError):  # then they run out
            await self._port(shard).give_back(queue, claims)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tell(one: _One, answer: RelayedAnswer | BatonError) -> None:
    """One that cannot be told must not keep the others from hearing it."""
    try:
        one.answered(answer)
    except Exception:
        events.logger.exception("a forwarded request could not be answered")
