"""Everything that waits at one shard: long polls of one queue, receives over many queues, and waits for a hint.

Waiters are served just before a frame is sealed, from the queues in which something happened through a record or
through time alone. The work per frame is bounded (ServingBudget). It may exceed the limits of the frame by that much,
so that senders who keep the frame full do not starve the waiters. Queues that are left for later, or that need more
than one step, stay in `_unserved`. The work resumes as soon as the frame is committed.
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
from batonq.node.routing.submission import tell
from batonq.node.settings import MIB, Settings
from batonq.node.shard_host.group_commit import GroupCommit
from batonq.node.shard_host.waiters import NO_LEASES, HintWait, Poll, ServingBudget, Waiters, Watcher

ROOM_RETRY_S = 1.0
# Limits on serving waiters before one frame is sealed:
SERVED_ROWS_MAX = 4_096  # records written,
SERVED_BYTES_MAX = 1 * MIB  # bytes of those records,
ATTEMPTS_MAX = 512  # receives tried,
CHECKS_MAX = 4_096  # and queues that watchers are asked about.
TURN_MAX = 64  # long polls of one queue that are served before those of other queues
BATCH_MAX = 256  # queues that the watchers are asked about in one call


class Host(Protocol):
    """The host at which the receives wait."""

    shard: Shard
    log: Log
    commit: GroupCommit
    serving: bool
    why: str

    @property
    def frame_is_full(self) -> bool: ...
    def now_ms(self) -> int: ...
    def make_room(self) -> None: ...
    def admit(self, *, adds: bool = False) -> int: ...
    def run(self, command: Callable[..., Any], *arguments: Any) -> Any: ...
    def due_changed(self) -> None: ...


class LongPolls:
    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self._host = host
        self._loop = loop
        self._waiters = Waiters(settings.waiters_per_queue_max, settings.waiters_max)
        self._served_rows_max = min(SERVED_ROWS_MAX, settings.frame_rows_max)
        self._unserved: dict[int, None] = {}  # queues that may have messages for waiters
        self._ready: list[int] = []  # queues with messages, about which watchers are to be asked
        self._to_ask: deque[Watcher] = deque()  # the watchers that have not been asked about them yet
        self._retry: asyncio.TimerHandle | None = None
        self.answers_at_once = False  # set while the node is stopping: no receive may wait

    # --- adding and removing waiters ------------------------------------------------------------

    @property
    def total(self) -> int:
        return self._waiters.total

    def count(self, queue: int) -> int:
        """Long polls of one queue at this node."""
        return self._waiters.count(queue)

    def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue, including those of other nodes."""
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
            self._host.commit.call(poll.take_done(), NO_LEASES)

    def stop(self) -> None:
        """Answer every waiter now, and accept no new ones: the node is stopping."""
        self.answers_at_once = True
        for poll in self._waiters.polls():
            self._time_over(poll)
        for other in self._waiters.others():
            other.end()

    def end(self, why: str) -> None:
        """Tell every waiter that the host no longer serves."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for poll in self._waiters.polls():
            self._waiters.remove(poll)
            tell(poll.take_done(), Unavailable(why))
        for other in self._waiters.others():
            other.end()

    async def until_filled(self, queue: int, wait_ms: int, waiting: int) -> None:
        """Return when the queue has messages to deliver, this host ends, or the time is over."""
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
        """Add a watcher.

        `unseen`: the shard refused to report what it has, so all its queues are checked as soon as possible.
        """
        if not self._host.serving:
            raise Unavailable(self._host.why)
        self._waiters.add_watcher(watcher)
        if unseen:
            self._unserved.update(dict.fromkeys(self._host.shard.filled_queues()))
        self._see_to_it()

    def unwatch(self, watcher: Watcher) -> None:
        self._waiters.remove_watcher(watcher)

    def take(self, command: Receive, budget: ServingBudget | None = None) -> Leases | None:
        """Lease messages for a receive over many queues. A queue that refuses does not prevent leases from others.

        `budget` is given for a receive that has waited.
        """
        host = self._host
        try:
            if budget is not None:
                return self._lease(command, budget)
            try:
                now_ms = host.admit()
            except BatonError:
                # A receive that goes on to wait is served when the shard can serve again.
                self._unserved[command.queue] = None
                return None
            if self._waiters.count(command.queue):
                self.serve_first(command.queue, 1)
            (outcome,) = host.run(host.shard.receive, [command], now_ms)
            return outcome if isinstance(outcome, Leases) else None
        except BatonError:
            return None

    def _see_to_it(self) -> None:
        """Schedule serving for a new waiter: the open frame, or work left for later, may have messages for it."""
        host = self._host
        if host.shard.paced:
            host.due_changed()
        if host.shard.frame.filled or host.shard.woken or self._unserved:
            host.commit.kick()

    # --- serving --------------------------------------------------------------------------------

    def woken(self) -> None:
        """Messages became deliverable: schedule serving of the waiters just before the frame is sealed."""
        if self._waiters.total:
            self._host.commit.kick()
        else:
            self._host.shard.woken.clear()

    def serve(self) -> None:
        """Serve the waiters with what the frame holds. Called when the frame is about to be sealed."""
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
        """Record what is due, once, before anything is served; but not in a full frame."""
        host = self._host
        host.make_room()
        begin = host.shard.pass_time if host.frame_is_full else host.shard.begin
        now_ms = host.run(begin, host.now_ms())
        return ServingBudget(now_ms, self._served_rows_max, SERVED_BYTES_MAX, ATTEMPTS_MAX, CHECKS_MAX)

    def _serve_batch(self, budget: ServingBudget) -> None:
        """Serve the next queues: first the long polls of one queue. `_ask_watchers` serves the others."""
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
        """Serve the long polls that already wait on a queue before the newcomers."""
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
                tell(poll.take_done(), problem)
                continue
            if not leases:
                return  # if there is more to look at, the shard has marked the queue
            waiters.remove(poll)
            self._host.commit.call(poll.take_done(), leases)
        if waiters.count(queue):
            self._unserved[queue] = None

    def _lease(self, command: Receive, budget: ServingBudget) -> Leases | None:
        """One attempt to lease for a waiter. None when the budget is spent: the queue gets another turn."""
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
        """Answer the hint waits of a queue. They take no messages, so the other waiters go on waiting."""
        for wait in self._waiters.hints(queue):
            try:
                if not self._host.shard.hint(queue).visible:
                    return
            except QueueDoesNotExist:
                pass  # the callers hear the problem when they ask again
            wait.end()

    def _ask_watchers(self, budget: ServingBudget) -> None:
        """Ask each watcher once about the queues that have messages now. A watcher that cannot be served is told so."""
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
