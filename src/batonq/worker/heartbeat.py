"""Extends the leases of messages whose handlers are running, on its own thread and connection.

It does not use the event loop, so a handler that blocks the loop keeps its lease. It stops at the message's deadline,
so a handler that hangs loses its lease and another consumer gets the message.

The messages of one receive share their times in one `Grip`. Messages are not registered here: at intervals the
heartbeat asks the holders which messages they have. Most messages are done before that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from batonq.errors import BatonError, LeaseLost, MessageGone, ReceiptInvalid, Unavailable
from batonq.worker.ack_batches import Pad
from batonq.worker.source import Keeper, Message, Outcome, Source

TICKS = 12  # checks per visibility timeout
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
        self.ended = False  # the deadline has passed
        self.lost: set[str] = set()  # receipts whose leases were lost
        self.pad = pad  # the queue to ack, if all messages are of one queue


Held = tuple[Grip, Message]


class Holder(Protocol):
    """An object that holds messages. All methods are called on the heartbeat's thread."""

    def held(self) -> list[Held]:
        """The messages that it holds now."""
        ...

    def extended(self, count: int) -> None:
        """This many leases were extended."""
        ...

    def released(self, count: int) -> None:
        """This many messages were released, because the worker is stopping."""
        ...

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        """The lease was lost."""
        ...

    def overdue(self, grip: Grip, message: Message) -> None:
        """The deadline has passed. The lease is kept a little longer for an answer, and then no more."""
        ...


_Due = tuple[Holder, Grip, Message, float]


class Heartbeat:
    """Call `add` for each holder, then `start`."""

    def __init__(self, source: Source, visibility_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._tick_s = min(max(visibility_min / TICKS, TICK_MIN_S), TICK_MAX_S)
        self._timeout_s = max(visibility_min / 3, 1.0)
        self._keeper: Keeper | None = None
        self._holders: list[Holder] = []
        self._postponed: deque[tuple[Message, float]] = deque()
        self._stop = threading.Event()
        self._bell = threading.Event()  # there is work before the next tick
        self._work = threading.Lock()  # held by the thread's check, or by a release from another thread
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
        """Release a message that was not started, with a delay. It is sent soon, together with other releases."""
        self._postponed.append((message, seconds))
        self._bell.set()

    def release_all(self, seconds: float = 0.0) -> int:
        """Release every lease, at once or with a delay, from any thread. Returns the number of released leases."""
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
            except Exception:  # this thread keeps every lease, so it must survive any error of a hook or a source
                _log.exception("the heartbeat failed; it continues")

    def look(self, now: float) -> None:
        """Check all held messages once."""
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
                    # The last extension ends a third after the deadline, to leave time to nack the message with a
                    # reason.
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
                if (grip, message) in holder.held():  # otherwise it was acknowledged in the meantime
                    holder.lost(grip, message, outcome)
            else:
                grip.extend_at = now + grip.visibility / TICKS  # no response; there is time for another attempt
        for holder, count in kept.items():
            holder.extended(count)

    def _return_postponed(self) -> int:
        """A lease that cannot be released expires by itself."""
        postponed: list[tuple[Message, float]] = []
        while self._postponed:  # one by one, because the event loop's thread may be appending
            postponed.append(self._postponed.popleft())
        return sum(outcome is None for outcome in self._change(postponed, untried=True))

    def _change(self, changes: Sequence[tuple[Message, float]], untried: bool = False) -> list[Outcome]:
        """One request per queue for all its messages; the results are in the order given."""
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
