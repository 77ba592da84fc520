"""One poller for the lanes of a task: requests as many messages as there are free slots, and waits for a slot."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from batonq.errors import BatonError
from batonq.worker.limits import Limits
from batonq.worker.metrics import Counters
from batonq.worker.source import Message, Source
from batonq.worker.task import Task

PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 10.0
PAUSE_MIN_S = 0.01
LATE_S = 1.0
ANSWER_S = 0.5
_log = logging.getLogger("batonq.worker")


class Taker(Protocol):
    """The receiver of the messages."""

    counters: Counters

    @property
    def free(self) -> int: ...

    def take(self, messages: Sequence[Message], ordered: Collection[str], age: float) -> None:
        """Accept messages that were just received. For queues in `ordered`, the order within groups is kept.

        `age` is how old their leases may be: 0 unless the response had to wait for this process.
        """
        ...

    def give_back(self, messages: Sequence[Message]) -> None:
        """Release messages that arrived after the worker was stopped."""
        ...


class Poller:
    def __init__(self, task: Task, source: Source, limits: Limits, taker: Taker) -> None:
        self._task = task
        self._source = source
        self._limits = limits
        self._taker = taker
        self._lanes = task.new_lanes()
        self._names = [lane.queue for lane in task.lanes]
        self._room: asyncio.Future[None] | None = None  # set while no slot is free
        self._stopped = asyncio.Event()
        self._age = 0.0
        self._asking = False
        self._many_queues = task.many_queues
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._running = asyncio.current_task()
        pause = 0.0
        while not self._stopped.is_set():
            try:
                await self._once()
                pause = 0.0
            except asyncio.CancelledError:
                if not self._stopped.is_set():
                    raise
                return
            except Exception as error:
                pause = min(pause * 2 or PAUSE_FIRST_S, PAUSE_MAX_S)
                if isinstance(error, BatonError):
                    _log.warning("could not receive from %s: %s (%s)", ", ".join(self._names), error, error.code)
                else:  # unexpected error: the messages that are held must be finished all the same
                    _log.exception("could not receive from %s", ", ".join(self._names))
                await self._sleep(pause * random.uniform(0.5, 1))

    def stop(self) -> None:
        """Receive no new messages from now on.

        A request in progress gets a moment, because its response may be on its way, and messages in an unread response
        would stay leased. After that it is a waiting long poll and is cancelled.
        """
        self._stopped.set()
        if self._running is None:
            return
        if self._asking:
            asyncio.get_running_loop().call_later(ANSWER_S, self._running.cancel)
        else:
            self._running.cancel()

    @property
    def asking(self) -> bool:
        """Whether a request is in progress."""
        return self._asking

    def cut_off(self) -> None:
        """Cancel it at once."""
        self._stopped.set()
        if self._running is not None:
            self._running.cancel()

    def wake(self) -> None:
        """A slot has become free."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # ---

    async def _once(self) -> None:
        free = self._taker.free
        if free < 1:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
            return
        now = time.monotonic()
        room = self._limits.room(free, now)
        if room < 1:
            await self._sleep(self._limits.until_room(now))
        else:
            self._asking = True
            try:
                await self._round(room)
            finally:
                self._asking = False

    async def _round(self, room: int) -> None:
        """Ask the lanes in turn without waiting. If all are empty, wait for all of them in one long poll."""
        if len(self._names) == 1:
            await self._took(await self._receive(self._names, room, self._task.wait))
            return
        lanes, taken = self._lanes, 0
        lanes.begin()
        while not self._stopped.is_set() and (ask := lanes.next(room - taken, time.monotonic())):
            messages = await self._receive([ask.lane.queue], ask.wanted, 0.0)
            lanes.took(ask.lane, ask.wanted, len(messages), time.monotonic())
            await self._took(messages)
            taken += len(messages)
        if not taken and not self._stopped.is_set():
            messages = await self._receive(self._names, room, self._task.wait)
            for message in messages:
                lanes.woken(message.queue, 1)
            await self._took(messages)

    async def _receive(self, queues: list[str], count: int, wait: float) -> Sequence[Message]:
        count = min(count, self._source.batch_max)
        asked = time.monotonic()
        messages = await self._source.receive(queues, count, wait, self._task.visibility)
        # If the response took longer than requested, it may have waited here while this process was suspended or its
        # loop was blocked.
        took = time.monotonic() - asked
        self._age = took if took > wait + LATE_S else 0.0
        self._taker.counters.polls += 1
        if not messages and self._task.wait < PAUSE_MIN_S:
            await asyncio.sleep(PAUSE_MIN_S)  # a task with wait=0 must not poll without a pause
        return messages

    async def _took(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._limits.took(len(messages), time.monotonic())
        ordered: Collection[str] = ()
        # In a FIFO queue every message has a group, so the first message of a queue tells.
        if self._many_queues or messages[0].group is not None:
            try:
                ordered = await self._ordered({message.queue for message in messages if message.group is not None})
            except asyncio.CancelledError:
                self._taker.give_back(messages)
                raise
        if self._stopped.is_set():
            self._taker.give_back(messages)
        else:
            self._taker.take(messages, ordered, self._age)

    async def _ordered(self, queues: set[str]) -> set[str]:
        ordered = set()
        for queue in queues:
            try:
                if (await self._source.facts(queue)).fifo:
                    ordered.add(queue)
            except BatonError:  # keeping an order that is not needed is slow, but losing one is wrong
                ordered.add(queue)
        return ordered

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if not self._stopped.is_set():
                raise
