"""Keeps the leases of messages whose handlers are still at work, on a thread with a connection of its own.

It is no part of the event loop, so that a handler that blocks the loop keeps its lease; and it ends at the message's
deadline, so that a handler that hangs loses it, and somebody else gets the message.

The messages of one receive share their times, in one `Grip`. Nobody registers a message here: every so often the
heartbeat asks the holders what they have in their hands. Most messages are done before anybody asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from batonq.errors import BatonError, LeaseLost, MessageGone, ReceiptInvalid, Unavailable
from batonq.worker.settling import Pad
from batonq.worker.source import Keeper, Message, Outcome, Source

TICKS = 12  # looks in the length of a visibility timeout
TICK_MIN_S, TICK_MAX_S = 0.01, 1.0
_GONE = (LeaseLost, MessageGone, ReceiptInvalid)
_log = logging.getLogger("batonq.worker")


class Grip:
    """The lease of the messages of one receive, by the monotonic clock. Only the heartbeat's thread changes it."""

    __slots__ = ("deadline", "ended", "extend_at", "lost", "pad", "until", "visibility")

    def __init__(self, now: float, visibility: float, deadline: float, pad: Pad | None = None) -> None:
        self.visibility = visibility
        self.until = now + visibility
        self.extend_at = now + visibility / 3
        self.deadline = now + deadline
        self.ended = False  # the deadline has come
        self.lost: set[str] = set()  # receipts that are not ours any more
        self.pad = pad  # where acknowledgements go, if all are of one queue


Held = tuple[Grip, Message]


class Holder(Protocol):
    """Who has messages in hand. All of this is called on the heartbeat's thread."""

    def held(self) -> list[Held]:
        """What it has in hand now."""
        ...

    def extended(self, count: int) -> None:
        """So many leases were extended."""
        ...

    def released(self, count: int) -> None:
        """So many messages were given back, because the worker ends."""
        ...

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        """The lease is not ours any more."""
        ...

    def overdue(self, grip: Grip, message: Message) -> None:
        """The deadline has come; the lease is kept a little longer, for an answer, and then no more."""
        ...


_Due = tuple[Holder, Grip, Message, float]


class Heartbeat:
    """`add` the holders, then `start`."""

    def __init__(self, source: Source, visibility_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._tick_s = min(max(visibility_min / TICKS, TICK_MIN_S), TICK_MAX_S)
        self._timeout_s = max(visibility_min / 3, 1.0)
        self._keeper: Keeper | None = None
        self._holders: list[Holder] = []
        self._postponed: deque[tuple[Message, float]] = deque()
        self._stop = threading.Event()
        self._bell = threading.Event()  # there is something to do before the next tick
        self._work = threading.Lock()  # the thread's look, and a release from another thread, one at a time
        self._thread = threading.Thread(target=self._run, name="baton-heartbeat", daemon=True)

    def add(self, holder: Holder) -> None:
        self._holders.append(holder)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()
            with self._work:
                self._return_postponed()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def postpone(self, message: Message, seconds: float) -> None:
        """Give a message back that nobody has begun, for so long; soon, with what else is given back by then."""
        self._postponed.append((message, seconds))
        self._bell.set()

    def release_all(self, seconds: float = 0.0) -> int:
        """Give every lease back, at once or for so long, from whatever thread; how many were given back."""
        with self._work:
            self._stop.set()
            holders = [(holder, message) for holder in self._holders for message in _all_ours(holder)]
            outcomes = self._change([(message, seconds) for _, message in holders])
            given_back = [holder for (holder, _), outcome in zip(holders, outcomes, strict=True) if outcome is None]
            for holder in self._holders:
                holder.released(given_back.count(holder))
            return len(given_back) + self._return_postponed()

    # ---

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.wait(self._tick_s)
            self._bell.clear()
            try:
                with self._work:
                    self.look(self._clock())
            except Exception:  # the thread that keeps every lease must outlive whatever a hook or a source does
                _log.exception("the heartbeat failed, and goes on")

    def look(self, now: float) -> None:
        """One look at everything that is held."""
        if self._stop.is_set():
            return
        due: list[_Due] = []
        for holder in self._holders:
            overdue = []
            for grip, message in holder.held():
                if grip.ended:
                    continue
                if now >= grip.deadline:
                    overdue.append((grip, message))
                elif now >= grip.extend_at and _ours(grip, message):
                    # The last extension ends a third after the deadline: time to give the message back with a reason.
                    seconds = min(grip.visibility, grip.deadline + grip.visibility / 3 - now)
                    due.append((holder, grip, message, seconds))
            for grip, message in overdue:
                grip.ended = True
                if _ours(grip, message):
                    holder.overdue(grip, message)
        if due:
            self._extend(due, now)
        self._return_postponed()

    def _extend(self, due: list[_Due], now: float) -> None:
        outcomes = self._change([(message, seconds) for _, _, message, seconds in due])
        kept: dict[Holder, int] = {}
        for (holder, grip, message, seconds), outcome in zip(due, outcomes, strict=True):
            if outcome is None:
                kept[holder] = kept.get(holder, 0) + 1
                grip.until = now + seconds
                grip.extend_at = now + grip.visibility / 3
            elif isinstance(outcome, _GONE) or self._clock() >= grip.until:
                grip.lost.add(message.receipt)
                if (grip, message) in holder.held():  # else it was acknowledged in the meantime
                    holder.lost(grip, message, outcome)
            else:
                grip.extend_at = now + grip.visibility / TICKS  # no answer; there is still time for another try
        for holder, count in kept.items():
            holder.extended(count)

    def _return_postponed(self) -> int:
        """A lease that cannot be given back runs out by itself."""
        postponed: list[tuple[Message, float]] = []
        while self._postponed:  # one by one: the event loop's thread may be adding to it
            postponed.append(self._postponed.popleft())
        return sum(outcome is None for outcome in self._change(postponed, untried=True))

    def _change(self, changes: Sequence[tuple[Message, float]], untried: bool = False) -> list[Outcome]:
        """One request a queue for all its messages; the outcomes in the order given."""
        by_queue: dict[str, list[int]] = {}
        for index, (message, _) in enumerate(changes):
            by_queue.setdefault(message.queue, []).append(index)
        outcomes: list[Outcome] = [None] * len(changes)
        for queue, indexes in by_queue.items():
            for start in range(0, len(indexes), self._source.batch_max):
                part = indexes[start : start + self._source.batch_max]
                given = [(changes[index][0].receipt, changes[index][1]) for index in part]
                for index, outcome in zip(part, self._request(queue, given, untried), strict=True):
                    outcomes[index] = outcome
        return outcomes

    def _request(self, queue: str, changes: list[tuple[str, float]], untried: bool) -> Sequence[Outcome]:
        try:
            if self._keeper is None:
                self._keeper = self._source.keeper(self._timeout_s)
            return self._keeper.release(queue, changes) if untried else self._keeper.extend(queue, changes)
        except BatonError as error:
            return [error] * len(changes)
        except Exception as error:
            _log.warning("leases of %s could not be extended: %r", queue, error)
            return [Unavailable(str(error))] * len(changes)


def _all_ours(holder: Holder) -> list[Message]:
    return [message for grip, message in holder.held() if _ours(grip, message)]


def _ours(grip: Grip, message: Message) -> bool:
    return message.receipt not in grip.lost
