"""Sends the rows of one task, so that a repeated task does not duplicate messages.

Every row has a number, and the queue accepts a producer's number once. The producer is the job (or the streaming query)
and the partition; the number is derived from the micro-batch and from the row's position among those of the partition
for the same queue. A repeated task therefore gives each row the same number, if its rows are in the same order. Numbers
stay below 2^53, so that every JSON reader keeps them: 2^24 rows per batch, then the next producer name is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from batonq.client.batches import REQUEST_COUNT_MAX
from batonq.client.models import Outgoing, Sent
from batonq.client.retry import Retries, helps
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist
from batonq.pipeline.spark.sink_rows import Row

if TYPE_CHECKING:
    from batonq.sync import Baton

ROW_BITS = 24
BATCH_MAX = (1 << 53 - ROW_BITS) - 2
REASONS_SHOWN = 3


@dataclass(slots=True)
class Counts:
    """Counts of rows. `duplicates` were accepted before, by an earlier attempt or by their key."""

    sent: int = 0
    duplicates: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)  # the first few different ones

    def add(self, other: Counts) -> None:
        self.sent += other.sent
        self.duplicates += other.duplicates
        self.refused += other.refused
        for reason in other.reasons:
            self._note(reason)

    def refuse(self, problem: BatonError) -> None:
        self.refused += 1
        self._note(problem.message)

    def _note(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < REASONS_SHOWN:
            self.reasons.append(reason)

    @property
    def problem(self) -> str:
        """The error message for refused rows."""
        total = self.sent + self.duplicates + self.refused
        return f"{self.refused:,} of {total:,} rows were refused: {' / '.join(self.reasons)}"


def numbered(producer: str, batch: int, row: int) -> tuple[str, int, int]:
    """The producer and the number of a row, and how many rows from it on have the same producer."""
    if not 0 <= batch <= BATCH_MAX:
        raise InvalidInput(f"Batch {batch} exceeds the numbers of a producer. Start with a new checkpoint.")
    part, place = row >> ROW_BITS, row & (1 << ROW_BITS) - 1
    return f"{producer}.{part}" if part else producer, (batch << ROW_BITS) + place + 1, (1 << ROW_BITS) - place


class Sender:
    """Sends rows to queues: in order, in large requests, at most at `rate` per second."""

    def __init__(
        self,
        baton: Baton,
        producer: str,
        *,
        queue: str = "",
        batch: int = 0,
        rate: float = 0.0,
        retries: Retries | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.counts = Counts()
        self._baton = baton
        self._producer = producer
        self._queue = queue
        self._batch = batch
        self._rate = rate
        self._retries = retries or Retries()
        self._clock = clock
        self._sleep = sleep
        self._next_at = 0.0
        self._rows: dict[tuple[str, str], int] = {}  # queue and producer → rows so far

    def send(self, rows: Iterable[Row]) -> None:
        """Raises if a queue does not exist, or accepts nothing for longer than the patience."""
        apart: dict[tuple[str, str], list[Outgoing]] = {}
        for row in rows:
            if isinstance(row.message, BatonError):
                self.counts.refuse(row.message)
            else:
                apart.setdefault((row.queue or self._queue, row.producer or self._producer), []).append(row.message)
        for (queue, producer), messages in apart.items():
            if not queue:
                self.counts.refused += len(messages)
                self.counts.add(Counts(reasons=["The row has no queue: its column queue is null."]))
                continue
            self._to_queue(queue, producer, messages)

    def _to_queue(self, queue: str, producer: str, messages: Sequence[Outgoing]) -> None:
        size = REQUEST_COUNT_MAX if not self._rate else max(1, min(REQUEST_COUNT_MAX, int(self._rate)))
        at = 0
        while at < len(messages):
            row = self._rows.get((queue, producer), 0)
            name, number, room = numbered(producer, self._batch, row)
            part = messages[at : at + min(size, room)]
            self._wait(len(part))
            self._part(queue, name, number, part)
            self._rows[queue, producer] = row + len(part)
            at += len(part)

    def _part(self, queue: str, producer: str, number: int, messages: Sequence[Outgoing]) -> None:
        """Send one request, and repeat it from the first message that was refused temporarily."""
        attempt = 0
        started = self._clock()
        while messages:
            try:
                results = self._baton.queue(queue).send_many(messages, producer=(producer, number))
            except QueueDoesNotExist:
                raise QueueDoesNotExist(
                    f"Queue {queue} does not exist at {self._baton.url}. Create it first."
                ) from None
            done = next((at for at, one in enumerate(results) if _for_now(one)), len(results))
            if done:
                attempt, started = 0, self._clock()
                self._count(results[:done])
            if done < len(results):
                problem = results[done]
                assert isinstance(problem, BatonError)
                pause = self._retries.pause(attempt, problem, self._clock() - started)
                if pause is None:
                    raise problem
                self._sleep(pause)
                attempt += 1
            messages, number = messages[done:], number + done

    def _count(self, results: Sequence[Sent | BatonError]) -> None:
        for result in results:
            if isinstance(result, BatonError):
                self.counts.refuse(result)
            elif result.duplicate:
                self.counts.duplicates += 1
            else:
                self.counts.sent += 1

    def _wait(self, messages: int) -> None:
        if not self._rate:
            return
        now = self._clock()
        if self._next_at > now:
            self._sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + messages / self._rate


def _for_now(result: Sent | BatonError) -> bool:
    return isinstance(result, BatonError) and helps(result)
