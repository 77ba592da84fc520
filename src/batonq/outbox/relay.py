"""The relay: publishes committed rows of the outbox, in order per key, and exactly once.

1. Under a lane's lock, rows are recorded as a batch, each with a number of the lane's producer, and committed.
2. The batch is published. The queue ignores numbers that it has accepted before.
3. Accepted rows are marked as published, and the batch's record is deleted with the mark, and committed.

If a relay is killed at any point, the next one finds the record and continues at 2 with the same numbers. While a queue
is unavailable or full, its batches stay on record, the queue is paused for a while, and other queues continue.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from batonq.errors import BatonError, InvalidInput
from batonq.outbox.publishers import Publisher
from batonq.outbox.rows import to_message
from batonq.outbox.source import Batch, Source

BATCH_ROWS_MAX = 1000
REST_MIN_S = 0.5
REST_MAX_S = 30.0
PRUNE_EVERY_S = 60.0
_log = logging.getLogger("batonq.outbox")


@dataclass(slots=True)
class Counts:
    """Counts of this relay."""

    published: int = 0
    refused: int = 0
    batches: int = 0
    failures: int = 0  # requests that failed, or were refused in part temporarily
    pruned: int = 0


@dataclass(slots=True)
class _Rest:
    until: float
    seconds: float


class Relay:
    """`Relay(source, publisher).run()`; several may run at once, in one process or in many.

    Up to `batch` rows per lane are published at a time. `poll` is the maximum time between two checks for new rows.
    With `prune_after`, rows that were published more than that many seconds ago are deleted at intervals.
    """

    def __init__(
        self,
        source: Source,
        publisher: Publisher,
        *,
        batch: int = 500,
        poll: float = 1.0,
        prune_after: float | None = None,
    ) -> None:
        if not 1 <= batch <= BATCH_ROWS_MAX:
            raise InvalidInput(f"batch must be 1 to {BATCH_ROWS_MAX:,} rows.")
        if poll <= 0:
            raise InvalidInput("poll must be greater than 0 seconds.")
        self.counts = Counts()
        self._source = source
        self._publisher = publisher
        self._batch = batch
        self._poll = poll
        self._prune_after = prune_after
        self._prune_at = 0.0
        self._resting: dict[str, _Rest] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let `run` end after its current batch; may be called from a signal handler or another thread."""
        self._stopped.set()

    def run(self) -> None:
        """Publish until `stop` is called. If the database is unavailable, it is retried."""
        pause = REST_MIN_S
        while not self._stopped.is_set():
            try:
                if self.run_once():
                    pause = REST_MIN_S
                    continue
                self._prune_sometimes()
                self._source.wait(self._until_next())
                pause = REST_MIN_S
            except BatonError as problem:
                _log.warning("the outbox cannot be read: %s; retrying in %.1f s", problem, pause)
                self._stopped.wait(pause)
                pause = min(2 * pause, REST_MAX_S)

    def run_once(self) -> int:
        """Publish some of the waiting rows. Returns the number of finished rows; 0 if nothing can be done now."""
        batches = self._source.claim(self._batch, self._resting_now())
        settled = 0
        try:
            for batch in batches:
                if batch.queue not in self._resting or self._resting[batch.queue].until <= time.monotonic():
                    settled += self._publish(batch)
        finally:
            self._source.release()
        return settled

    def run_until_empty(self) -> int:
        """Publish until no more rows can be published now. Returns the number of finished rows."""
        total = 0
        while settled := self.run_once():
            total += settled
        return total

    def _publish(self, batch: Batch) -> int:
        refused: list[tuple[int, str]] = []
        numbered = []
        ids = []
        for number, row in batch.rows:
            try:
                numbered.append((number, to_message(row)))
                ids.append(row.id)
            except InvalidInput as problem:
                refused.append((row.id, str(problem)))
        try:
            results = self._publisher.publish(batch.queue, batch.producer, numbered) if numbered else []
        except BatonError as problem:
            self._rest(batch.queue, problem)
            return 0
        published = []
        for_now: BatonError | None = None
        for id, result in zip(ids, results, strict=True):
            if result is None:
                published.append(id)
            elif result.retryable:
                for_now = for_now or result
            else:
                refused.append((id, f"{result.code}: {result}"))
        self._source.settle(batch, published, refused, for_now is None)
        for id, reason in refused:
            _log.error("row %d was refused permanently by queue %s and is set aside: %s", id, batch.queue, reason)
        if for_now is None:
            self._resting.pop(batch.queue, None)
        else:
            self._rest(batch.queue, for_now)
        self.counts.batches += 1
        self.counts.published += len(published)
        self.counts.refused += len(refused)
        return max(1, len(published) + len(refused)) if for_now is None else len(published) + len(refused)

    def _rest(self, queue: str, problem: BatonError) -> None:
        before = self._resting.get(queue)
        seconds = REST_MIN_S if before is None else min(2 * before.seconds, REST_MAX_S)
        self._resting[queue] = _Rest(time.monotonic() + seconds, seconds)
        self.counts.failures += 1
        _log.warning("queue %s accepts nothing at the moment: %s; retrying in %.1f s", queue, problem, seconds)

    def _resting_now(self) -> list[str]:
        now = time.monotonic()
        return [queue for queue, rest in self._resting.items() if rest.until > now]

    def _until_next(self) -> float:
        now = time.monotonic()
        return max(0.01, min([self._poll, *(rest.until - now for rest in self._resting.values() if rest.until > now)]))

    def _prune_sometimes(self) -> None:
        if self._prune_after is None or time.monotonic() < self._prune_at:
            return
        while pruned := self._source.prune(self._prune_after):
            self.counts.pruned += pruned
            if self._stopped.is_set():
                return
        self._prune_at = time.monotonic() + PRUNE_EVERY_S
