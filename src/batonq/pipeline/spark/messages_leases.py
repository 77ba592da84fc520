"""The leases of a streaming query: a heartbeat extends them, and they are acknowledged when their batch is committed.

A position is the number of messages that the query has received. Spark identifies a batch by its two positions, and
requests the next one only when the last is committed: then, and on `commit`, its messages are acknowledged. Whatever
else happens, their leases expire and they are delivered again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batonq.client.models import MessageFields
from batonq.errors import BatonError
from batonq.pipeline.spark.messages_table import stored

log = logging.getLogger(__name__)

RECEIVE_MAX = 1_000  # messages per request
GATHER_S = 1.0  # a slow trickle of messages does not keep a batch open for longer
STOP_S = 1.0
BEATS = 3  # extensions per lease time


class Held(Protocol):
    """The required part of a queue (batonq.sync.Queue)."""

    def receive(
        self, max_messages: int, wait: float, *, visibility: float | None, consumer: str
    ) -> Sequence[MessageFields]: ...

    def extend_many(self, extensions: Sequence[tuple[str, float]]) -> list[float | BatonError]: ...

    def ack_many(self, receipts: Sequence[str]) -> list[BatonError | None]: ...


@dataclass(slots=True, eq=False)
class Batch:
    start: int
    end: int
    messages: list[MessageFields] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # receipts of leases that ended in spite of the heartbeat
    committed: bool = False

    def receipts(self) -> list[str]:
        return [message.receipt for message in self.messages if message.receipt not in self.lost]


class Leases:
    """The leases of one query. The heartbeat runs on its own thread; everything else is called by Spark, one call at a
    time.
    """

    def __init__(
        self,
        queue: Held,
        *,
        visibility_s: float,
        wait_s: float,
        bytes_max: int,
        consumer: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._visibility_s = visibility_s
        self._wait_s = wait_s
        self._bytes_max = bytes_max
        self._consumer = consumer
        self._clock = clock
        self._batches: list[Batch] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.acked = self.lost = 0

    # --- batches --------------------------------------------------------------------------------

    def take(self, start: int, most: int) -> int:
        """Receive up to `count` messages from position `start` on. Returns the position after them.

        Everything before `start` is committed. A batch that was received from there before is not received twice.
        """
        self.settle(start)
        with self._lock:
            for batch in self._batches:
                if batch.start == start:
                    return batch.end
        batch = Batch(start, start)
        began = self._clock()
        size = 0
        while batch.end - start < most and size < self._bytes_max and self._clock() - began <= GATHER_S:
            wait_s = 0.0 if batch.messages else self._wait_s
            found = self._queue.receive(
                min(most - (batch.end - start), RECEIVE_MAX),
                wait_s,
                visibility=self._visibility_s,
                consumer=self._consumer,
            )
            if not found:
                break
            with self._lock:
                batch.messages += found
                batch.end += len(found)
                if batch not in self._batches:
                    self._batches.append(batch)
            size += sum(map(body_size, found))
            self._beat_from_now_on()
            if wait_s:
                began = self._clock()
        return batch.end

    def messages(self, start: int, end: int) -> list[MessageFields]:
        """The messages of the batch between the two; none if another process received them."""
        with self._lock:
            found = [batch for batch in self._batches if start <= batch.start and batch.end <= end]
            messages = [message for batch in found for message in batch.messages]
        if len(messages) < end - start:
            log.warning(
                "REPEATED BATCH WITHOUT ITS MESSAGES: the batch of %d messages is repeated after a restart, but the "
                "process that held their leases is gone. The batch has its old id and %s. The messages will be "
                "delivered again, in a later batch, when their leases end. Do not take this batch id for done, and "
                "expect messages of an earlier attempt again: tell them apart by message_id.",
                end - start,
                f"only {len(messages)} messages" if messages else "no rows",
            )
        return messages

    def settle(self, position: int) -> None:
        """Everything before `position` is committed: acknowledge it. Raises if the node cannot be reached."""
        with self._lock:
            done = [batch for batch in self._batches if batch.end <= position]
            for batch in done:
                batch.committed = True
        for batch in done:
            receipts = batch.receipts()
            problems = [problem for problem in self._queue.ack_many(receipts) if problem is not None]
            self.acked += len(receipts) - len(problems)
            if problems:
                log.warning("%d messages of a batch could not be acknowledged: %s", len(problems), problems[0].message)
            with self._lock:
                self._batches.remove(batch)

    # --- heartbeat ------------------------------------------------------------------------------

    def _beat_from_now_on(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="baton leases", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(self._visibility_s / BEATS):
            try:
                self.extend()
            except BatonError as problem:  # the next heartbeat comes before the leases end
                log.warning("Leases could not be extended; retrying: %s", problem.message)

    def extend(self) -> None:
        """Extend all held leases for another visibility timeout."""
        with self._lock:
            held = {receipt: batch for batch in self._batches for receipt in batch.receipts()}
        results = self._queue.extend_many([(receipt, self._visibility_s) for receipt in held])
        with self._lock:
            lost = [
                receipt
                for (receipt, batch), result in zip(held.items(), results, strict=True)
                if isinstance(result, BatonError) and not result.retryable and not batch.committed
            ]
            for receipt in lost:
                held[receipt].lost.add(receipt)
            self.lost += len(lost)
        if lost:
            log.warning(
                "%d leases of the running batch ended early; those messages will be delivered again.", len(lost)
            )

    def stop(self) -> None:
        """Stop the heartbeat. Uncommitted messages are delivered again when their leases have expired."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(STOP_S)


def body_size(message: MessageFields) -> int:
    return len(stored(message.body)[0])
