"""Keeps the leases of messages whose handlers are still at work, on a thread with a connection of its own.

It is no part of the event loop, so that a handler that blocks the loop keeps its lease; and it ends at the message's
deadline, so that a handler that hangs loses it, and somebody else gets the message.

The messages of one receive are one `Grip`: they share their times, and most of them are done before the first third of
the visibility timeout is over. Only what is left by then is looked at one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from batonq.errors import BatonError, LeaseLost, MessageGone, ReceiptInvalid, Unavailable
from batonq.worker.source import Keeper, Message, Outcome, Source

TICKS = 12  # looks in the length of a visibility timeout
TICK_MIN_S, TICK_MAX_S = 0.01, 1.0
_GONE = (LeaseLost, MessageGone, ReceiptInvalid)
_log = logging.getLogger("batonq.worker")


class Grip:
    """The messages of one receive that are not done yet. Made and emptied by the event loop's thread; the times are
    the heartbeat's. All times are of the monotonic clock."""

    __slots__ = ("deadline", "ended", "extend_at", "holder", "open", "until", "visibility")

    def __init__(
        self, messages: Iterable[Message], holder: Holder, now: float, visibility: float, deadline: float
    ) -> None:
        self.open = {message.receipt: message for message in messages}
        self.holder = holder
        self.visibility = visibility
        self.until = now + visibility
        self.extend_at = now + visibility / 3
        self.deadline = now + deadline
        self.ended = False


class Holder:
    """Who is told; called on the heartbeat's thread."""

    def extended(self, count: int) -> None:
        """So many leases were extended."""

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        """The lease is not ours any more."""

    def overdue(self, grip: Grip, message: Message) -> None:
        """The deadline has come; the lease is kept a little longer, for an answer, and then no more."""


class Heartbeat:
    """`hold` what was received; what is taken out of a grip's `open` is not held any more."""

    def __init__(self, source: Source, visibility_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._tick_s = min(max(visibility_min / TICKS, TICK_MIN_S), TICK_MAX_S)
        self._timeout_s = max(visibility_min / 3, 1.0)
        self._keeper: Keeper | None = None
        self._grips: dict[int, Grip] = {}
        self._postponed: list[tuple[Message, float]] = []
        self._stop = threading.Event()
        self._work = threading.Lock()  # the thread's look, and a release from another thread, one at a time
        self._thread = threading.Thread(target=self._run, name="baton-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            with self._work:
                self.look(self._clock())
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def hold(self, grip: Grip) -> None:
        self._grips[id(grip)] = grip

    def postpone(self, message: Message, seconds: float) -> None:
        """Give a message back that nobody has begun, for so long. It goes with the next look."""
        self._postponed.append((message, seconds))

    def held(self) -> list[Message]:
        return [message for grip in list(self._grips.values()) for message in list(grip.open.values())]

    def release_all(self) -> int:
        """Give every lease back at once, from whatever thread; how many were given back."""
        with self._work:
            messages = self.held()
            self._grips.clear()
            postponed, self._postponed = self._postponed, []
            outcomes = self._change([*((message, 0.0) for message in messages), *postponed])
        return sum(outcome is None for outcome in outcomes)

    # ---

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            try:
                with self._work:
                    self.look(self._clock())
            except Exception:  # the thread that keeps every lease must outlive whatever a hook or a source does
                _log.exception("the heartbeat failed, and goes on")

    def look(self, now: float) -> None:
        """One look at everything that is held."""
        due: list[tuple[Grip, Message, float]] = []
        for key, grip in list(self._grips.items()):
            if not grip.open:
                del self._grips[key]
            elif now >= grip.deadline and not grip.ended:
                grip.ended = True
                for message in list(grip.open.values()):
                    grip.holder.overdue(grip, message)
            elif grip.ended:
                if now >= grip.until:
                    del self._grips[key]
            elif now >= grip.extend_at:
                # The last extension ends a third after the deadline: time to give the message back with the reason.
                seconds = min(grip.visibility, grip.deadline + grip.visibility / 3 - now)
                due += [(grip, message, seconds) for message in list(grip.open.values())]
        if due:
            self._extend(due, now)
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            self._change(postponed)  # a lease that could not be given back runs out by itself

    def _extend(self, due: list[tuple[Grip, Message, float]], now: float) -> None:
        outcomes = self._change([(message, seconds) for _, message, seconds in due])
        kept: dict[Grip, int] = {}
        for (grip, message, seconds), outcome in zip(due, outcomes, strict=True):
            if outcome is None:
                kept[grip] = kept.get(grip, 0) + 1
                grip.until = now + seconds
                grip.extend_at = now + grip.visibility / 3
            elif message.receipt not in grip.open:
                continue  # it was acknowledged in the meantime
            elif isinstance(outcome, _GONE) or self._clock() >= grip.until:
                if grip.open.pop(message.receipt, None) is not None:
                    grip.holder.lost(grip, message, outcome)
            else:
                grip.extend_at = now + grip.visibility / TICKS  # no answer; there is still time for another try
        for grip, count in kept.items():
            grip.holder.extended(count)

    def _change(self, changes: Sequence[tuple[Message, float]]) -> list[Outcome]:
        """One request a queue for all its messages; the outcomes in the order given."""
        by_queue: dict[str, list[int]] = {}
        for index, (message, _) in enumerate(changes):
            by_queue.setdefault(message.queue, []).append(index)
        outcomes: list[Outcome] = [None] * len(changes)
        for queue, indexes in by_queue.items():
            for start in range(0, len(indexes), self._source.batch_max):
                part = indexes[start : start + self._source.batch_max]
                given = [(changes[index][0].receipt, changes[index][1]) for index in part]
                for index, outcome in zip(part, self._request(queue, given), strict=True):
                    outcomes[index] = outcome
        return outcomes

    def _request(self, queue: str, changes: list[tuple[str, float]]) -> Sequence[Outcome]:
        try:
            if self._keeper is None:
                self._keeper = self._source.keeper(self._timeout_s)
            return self._keeper.extend(queue, changes)
        except BatonError as error:
            return [error] * len(changes)
        except Exception as error:
            _log.warning("leases of %s could not be extended: %r", queue, error)
            return [Unavailable(str(error))] * len(changes)
