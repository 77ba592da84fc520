"""The waiters of one shard: first come, first served per queue, and no work while nothing arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from batonq.core.commands import Leases, Receive
from batonq.errors import OverLimit
from batonq.node.routing.submission import Done

T = TypeVar("T")


class Poll:
    """One receive at a shard. It may wait for messages."""

    __slots__ = ("_done", "_remove", "command", "left", "timer")

    def __init__(self, command: Receive, done: Done, remove: Callable[[Poll], None]) -> None:
        self.command = command
        self._done: Done | None = done
        self.left = False  # the caller has abandoned it
        self.timer: asyncio.TimerHandle | None = None
        self._remove = remove

    def abandon(self) -> None:
        """The caller no longer wants the receive. Leases that it already has are reported, to be given back."""
        self.left = True
        if self._done is not None:
            self._remove(self)

    def take_done(self) -> Done:
        """The callback, to be called once, now or after a commit. From then on the receive no longer waits.

        The poll forgets the callback: the callback's owner may hold the poll, and a cycle of references would keep
        the request in memory.
        """
        done, self._done = self._done, None
        assert done is not None, "a receive is answered once"
        return done


NO_LEASES = Leases(0, 0)


class Watcher(Protocol):
    """A receive that waits on many queues at once, see multi_queue_receive.py."""

    def wants(self, queue: int) -> bool: ...

    def serve(self, host: Any, queues: Sequence[int], budget: ServingBudget) -> None:
        """Take what may have arrived in these queues. The watcher leaves if there is something for it."""

    def end(self) -> None:
        """Answer with nothing."""

    def fail(self, problem: Exception) -> None:
        """Answer with a problem: the watcher can no longer be served."""


class HintWait:
    """A wait until a queue has messages to deliver, on behalf of a number of waiters. See spread_long_poll.py."""

    __slots__ = ("future", "queue", "waiting")

    def __init__(self, queue: int, waiting: int, future: asyncio.Future[None]) -> None:
        self.queue = queue
        self.waiting = waiting
        self.future = future

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ServingBudget:
    """The work that may still be done for waiters before the open frame is sealed.

    At the start it allows at least one attempt.
    """

    __slots__ = ("attempts", "bytes", "checks", "dry", "now_ms", "rows")

    def __init__(self, now_ms: int, rows: int, size: int, attempts: int, checks: int) -> None:
        self.now_ms = now_ms  # the time of all its decisions
        self.rows = rows
        self.bytes = size
        self.attempts = attempts  # receives
        self.checks = checks  # questions whether a watcher wants a queue
        self.dry: set[int] = set()  # queues that had fewer messages than a receive asked for

    @property
    def over(self) -> bool:
        return self.rows <= 0 or self.attempts <= 0 or self.checks <= 0 or self.bytes <= 0


class Waiters:
    """Every waiter of one shard: long polls of one queue, hint waits, and receives over many queues.

    A dict of a queue's waiters keeps their order and lets any of them leave.
    """

    def __init__(self, per_queue_max: int, total_max: int) -> None:
        self._per_queue_max = per_queue_max
        self._total_max = total_max
        self._polls: dict[int, dict[Poll, None]] = {}
        self._hints: dict[int, dict[HintWait, None]] = {}
        self.watchers: dict[Watcher, None] = {}  # in order of arrival
        self.total = 0

    def _check(self, in_queue: int = 0) -> None:
        if self.total >= self._total_max or in_queue >= self._per_queue_max:
            raise OverLimit("The limit of long polls on this shard is reached. Retry, or use fewer connections.")

    def add(self, poll: Poll) -> None:
        self._check(self.count(poll.command.queue))
        self._polls.setdefault(poll.command.queue, {})[poll] = None
        self.total += 1

    def remove(self, poll: Poll) -> bool:
        """Remove a long poll, and cancel its timer. Returns False if it was no longer waiting."""
        if not _take_out(self._polls, poll.command.queue, poll):
            return False
        self.total -= 1
        if poll.timer is not None:
            poll.timer.cancel()
            poll.timer = None
        return True

    def add_hint(self, wait: HintWait) -> None:
        self._check()
        self._hints.setdefault(wait.queue, {})[wait] = None
        self.total += 1

    def remove_hint(self, wait: HintWait) -> None:
        if _take_out(self._hints, wait.queue, wait):
            self.total -= 1

    def add_watcher(self, watcher: Watcher) -> None:
        self._check()
        self.watchers[watcher] = None
        self.total += 1

    def remove_watcher(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            del self.watchers[watcher]
            self.total -= 1

    def first(self, queue: int) -> Poll | None:
        line = self._polls.get(queue)
        return next(iter(line)) if line else None

    def count(self, queue: int) -> int:
        """Long polls of one queue."""
        return len(self._polls.get(queue, ()))

    def hints(self, queue: int) -> list[HintWait]:
        return list(self._hints.get(queue, ()))

    def waited_on(self, queues: set[int]) -> set[int]:
        """The subset of these queues that may have waiters."""
        if self.watchers:
            return queues
        return {queue for queue in queues if queue in self._polls or queue in self._hints}

    def polls(self) -> list[Poll]:
        """Every long poll at the time of the call."""
        return [poll for line in self._polls.values() for poll in line]

    def others(self) -> list[HintWait | Watcher]:
        return [*(wait for line in self._hints.values() for wait in line), *self.watchers]


def _take_out(lines: dict[int, dict[T, None]], queue: int, one: T) -> bool:
    line = lines.get(queue)
    if line is None or one not in line:
        return False
    del line[one]
    if not line:
        del lines[queue]
    return True
