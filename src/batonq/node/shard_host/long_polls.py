"""Everybody who waits at one shard: long polls of one queue, receives over many queues, and waits for a hint.

Whoever waits is served just before a frame is sealed, from the queues in which something happened: by a record, or by
time alone. That is a bounded piece of work (ServingBudget). It may go beyond the limits of the frame by as much, so
that senders who keep the frame full do not keep others waiting. Queues that are left for later, or that have more to
look at than one step may, stay in `_unserved`, and the work goes on as soon as the frame is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

from batonq.core.commands import Leases, Receive
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.settings import MIB, Settings
from batonq.node.shard_host.group_commit import GroupCommit
from batonq.node.shard_host.waiters import HintWait, Poll, ServingBudget, Waiters, Watcher

ROOM_RETRY_S = 1.0
# What serving those who wait may do before one frame is sealed:
SERVED_ROWS_MAX = 4_096  # records that are written,
SERVED_BYTES_MAX = 1 * MIB  # with what belongs to them,
ATTEMPTS_MAX = 512  # receives that are tried,
CHECKS_MAX = 4_096  # and queues that watchers are asked about.
TURN_MAX = 64  # long polls of one queue that are served before those of others
BATCH_MAX = 256  # queues that the watchers are asked about together


class Host(Protocol):
    """The host at which they wait."""

    shard: Shard
    log: Log
    commit: GroupCommit
    serving: bool
    why: str

    @property
    def frame_is_full(self) -> bool: ...
    def now_ms(self) -> int: ...
    def make_room(self) -> None: ...
    def begin(self, *, adds: bool = False) -> int: ...
    def run(self, command: Callable[..., Any], *arguments: Any) -> Any: ...


class LongPolls:
    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self._host = host
        self._loop = loop
        self._waiters = Waiters(settings.waiters_per_queue_max, settings.waiters_max)
        self._served_rows_max = min(SERVED_ROWS_MAX, settings.frame_rows_max)
        self._unserved: dict[int, None] = {}  # queues in which there may be something for those who wait
        self._ready: list[int] = []  # queues with messages that
        self._to_ask: deque[Watcher] = deque()  # these watchers have not been asked about yet
        self._retry: asyncio.TimerHandle | None = None
        self.answers_at_once = False  # while the node is stopping, nobody waits

    # --- coming and going -----------------------------------------------------------------------

    @property
    def total(self) -> int:
        return self._waiters.total

    def count(self, queue: int) -> int:
        """Long polls of one queue at this node."""
        return self._waiters.count(queue)

    def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue, those of other nodes counted in."""
        return self._waiters.count(queue) + sum(wait.waiting for wait in self._waiters.hints(queue))

    def add(self, poll: Poll) -> None:
        """Let a receive wait for messages. Raises OverLimit."""
        self._waiters.add(poll)
        self._see_to_it()
        poll.timer = self._loop.call_later(poll.command.wait_ms / 1000, self._time_over, poll)

    def remove(self, poll: Poll) -> None:
        self._waiters.remove(poll)

    def _time_over(self, poll: Poll) -> None:
        if self._waiters.remove(poll):
            self._host.commit.call(poll.committed)

    def stop(self) -> None:
        """Answer everybody who waits now, and let no other wait: the node is stopping."""
        self.answers_at_once = True
        for poll in self._waiters.polls():
            self._time_over(poll)
        for other in self._waiters.others():
            other.end()

    def end(self, why: str) -> None:
        """Nothing is served any more: tell whoever waits."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for poll in self._waiters.polls():
            self._waiters.remove(poll)
            poll.committed(Unavailable(why))
        for other in self._waiters.others():
            other.end()

    async def until_filled(self, queue: int, wait_ms: int, waiting: int) -> None:
        """Until the queue has something to give, this host ends, or the time is over."""
        wait = HintWait(queue, waiting, self._loop.create_future())
        self._waiters.add_hint(wait)
        self._see_to_it()
        timer = self._loop.call_later(wait_ms / 1000, wait.end)
        try:
            await wait.future
        finally:
            timer.cancel()
            self._waiters.remove_hint(wait)

    def watch(self, watcher: Watcher, unseen: bool = False) -> None:
        """`unseen`: the shard refused to say what it has, so all of it is looked at as soon as that is possible."""
        if not self._host.serving:
            raise Unavailable(self._host.why)
        self._waiters.add_watcher(watcher)
        if unseen:
            self._unserved.update(dict.fromkeys(self._host.shard.filled))
        self._see_to_it()

    def unwatch(self, watcher: Watcher) -> None:
        self._waiters.remove_watcher(watcher)

    def take(self, command: Receive, budget: ServingBudget | None = None) -> Leases | None:
        """Lease messages for a receive over many queues; one queue that refuses is no reason to give nothing of the
        others. With a budget it is for somebody who has waited.
        """
        host = self._host
        try:
            if budget is not None:
                return self._lease(command, budget)
            try:
                now_ms = host.begin()
            except BatonError:
                self._unserved[command.queue] = None  # whoever goes on to wait is served when the shard can again
                return None
            if self._waiters.count(command.queue):
                self.serve_first(command.queue, 1)
            (outcome,) = host.run(host.shard.receive, [command], now_ms)
            return outcome if isinstance(outcome, Leases) else None
        except BatonError:
            return None

    def _see_to_it(self) -> None:
        """Somebody has begun to wait: what is in the open frame, or was left for later, may be for them."""
        host = self._host
        if host.shard.frame.filled or host.shard.woken or self._unserved:
            host.commit.kick()

    # --- serving --------------------------------------------------------------------------------

    def woken(self) -> None:
        """Something became deliverable: those who wait are served just before the frame is sealed."""
        if self._waiters.total:
            self._host.commit.kick()
        else:
            self._host.shard.woken.clear()

    def serve(self) -> None:
        """The frame is about to be sealed: serve whoever waits for something in it."""
        host, shard = self._host, self._host.shard
        if not self._waiters.total:
            shard.woken.clear()
            self._unserved.clear()
            return
        touched = {word >> 32 for word in shard.frame.heads()}
        self._unserved.update(dict.fromkeys(self._waiters.waited_on(touched)))
        if not self._has_work():
            return
        if host.log.room() is Room.NONE:
            if self._retry is None:
                self._retry = self._loop.call_later(ROOM_RETRY_S, self._retry_serving)
            return
        budget = self._begin_serving()
        while host.serving and self._has_work():
            if budget.over:
                host.commit.resume()
                return
            if not self._to_ask:
                self._serve_batch(budget)
            self._ask_watchers(budget)

    def _has_work(self) -> bool:
        woken = self._host.shard.woken
        if woken:
            self._unserved.update(dict.fromkeys(self._waiters.waited_on(woken)))
            woken.clear()
        return bool(self._unserved or self._to_ask)

    def _retry_serving(self) -> None:
        self._retry = None
        if self._host.serving:
            self._host.commit.kick()

    def _begin_serving(self) -> ServingBudget:
        """What is due is recorded first, and only once; but not in a frame that is full."""
        host = self._host
        host.make_room()
        begin = host.shard.pass_time if host.frame_is_full else host.shard.begin
        now_ms = host.run(begin, host.now_ms())
        return ServingBudget(now_ms, self._served_rows_max, SERVED_BYTES_MAX, ATTEMPTS_MAX, CHECKS_MAX)

    def _serve_batch(self, budget: ServingBudget) -> None:
        """The next queues: first whoever waits on one of them alone; the others are asked by `_ask_watchers`."""
        batch = list(islice(self._unserved, BATCH_MAX))
        for queue in batch:
            if budget.over:
                break
            del self._unserved[queue]
            budget.checks -= 1
            self._serve_polls(queue, budget)
            self._tell_hints(queue)
        if self._waiters.watchers:
            self._ready = self._with_messages(queue for queue in batch if queue not in self._unserved)
            self._to_ask.extend(self._waiters.watchers if self._ready else ())

    def _with_messages(self, queues: Iterable[int]) -> list[int]:
        states = self._host.shard.queues
        return [number for number in queues if number in states and states[number].visible]

    def serve_first(self, queue: int, newcomers: int) -> None:
        """Those who wait on a queue come before whoever comes now."""
        for _ in range(newcomers):
            self._serve_polls(queue, self._begin_serving())
            if queue not in self._unserved:
                break
        self._host.make_room()
        if self._unserved:
            self._host.commit.kick()

    def _serve_polls(self, queue: int, budget: ServingBudget) -> None:
        waiters = self._waiters
        for _ in range(TURN_MAX):
            poll = waiters.first(queue)
            if poll is None:
                return
            if budget.over:
                break
            try:
                leases = self._lease(poll.command, budget)
            except BatonError as problem:
                waiters.remove(poll)
                poll.committed(problem)
                continue
            if not leases:
                return  # if there is more to look at, the shard has marked the queue
            waiters.remove(poll)
            poll.leases = leases
            self._host.commit.call(poll.committed)
        if waiters.count(queue):
            self._unserved[queue] = None

    def _lease(self, command: Receive, budget: ServingBudget) -> Leases | None:
        """One attempt for somebody who waits; none when the budget is over: the queue's turn comes again."""
        host, queue = self._host, command.queue
        if budget.over:
            self._unserved[queue] = None
            return None
        host.make_room()
        frame = host.shard.frame
        rows, size = frame.row_count, frame.size
        budget.attempts -= 1
        leases: Leases | None = None
        try:
            leases = host.run(host.shard.receive_at, command, budget.now_ms)
        finally:
            budget.rows -= frame.row_count - rows
            budget.bytes -= frame.size - size
            if leases is None or len(leases) < command.max_messages:
                budget.dry.add(queue)
        return leases

    def _tell_hints(self, queue: int) -> None:
        """They take nothing, so the others go on waiting for the same."""
        for wait in self._waiters.hints(queue):
            try:
                if not self._host.shard.hint(queue).visible:
                    return
            except QueueDoesNotExist:
                pass  # that is what they hear when they ask again
            wait.end()

    def _ask_watchers(self, budget: ServingBudget) -> None:
        """Each watcher is asked once about the queues that have messages now; one that cannot be served is told so."""
        host = self._host
        self._ready = self._with_messages(self._ready)
        while self._to_ask and self._ready:
            if budget.over or not host.serving:
                return
            watcher = self._to_ask.popleft()
            if watcher not in self._waiters.watchers:
                continue
            budget.checks -= len(self._ready)
            try:
                wanted = [queue for queue in self._ready if watcher.wants(queue)]
                if wanted:
                    watcher.serve(host, wanted, budget)
            except Exception as problem:
                if not isinstance(problem, BatonError):
                    events.logger.exception("shard %d: a long poll over several queues failed", host.shard.number)
                watcher.fail(problem)
                continue
            if wanted:
                self._ready = self._with_messages(queue for queue in self._ready if queue not in budget.dry)
        self._to_ask.clear()
        self._ready = []
