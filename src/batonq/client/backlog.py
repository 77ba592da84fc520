"""The state of a send buffer: limits, batches, results and pauses. This module neither waits nor sends.

No message is dropped silently. A message stays in the store until the server has accepted it. A message that the server
will never accept is set aside and reported. A message for which there is no room is refused with an error.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from batonq.client import codec
from batonq.client.breaker import BreakerOpen
from batonq.client.models import Outgoing, Sent
from batonq.client.spill import Store
from batonq.errors import BatonError, OverLimit, Unavailable

BATCH_BYTES = 1 << 20
PAUSE_BASE_S = 0.1
PAUSE_MAX_S = 30.0
# Errors about the message itself, not about the queue, the key or the server.
_MESSAGE_STATUSES = frozenset((400, 409, 413, 415, 422))
_log = logging.getLogger("batonq.client")
_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Outgoing)}


class BufferFull(OverLimit):
    """The local buffer is full, and the message was not accepted. Slow down, or refuse the work that it belongs to."""


class Unsent(Unavailable):
    """The local buffer still contains messages."""

    def __init__(self, message: str | None = None, waiting: int = 0, refused: int = 0) -> None:
        super().__init__(message)
        self.waiting = waiting
        self.refused = refused


class Counters(Struct):
    """Counts since the buffer was created; `waiting`, `refused` and `stored_bytes` are current values."""

    put: int = 0
    sent: int = 0
    duplicates: int = 0  # sent messages that the server already had
    full: int = 0  # puts refused because the buffer was full
    failures: int = 0  # failed requests
    waiting: int = 0
    refused: int = 0  # refused permanently, kept for `take_refused`
    stored_bytes: int = 0  # of both


class RefusedMessage(NamedTuple):
    """A message that the server will never accept as it is, with the server's error."""

    message: Outgoing
    error: str


class Limits(Struct, frozen=True, kw_only=True):
    messages: int = 10_000
    bytes: int = 64 << 20
    batch: int = 500


class Batch(NamedTuple):
    positions: list[int]
    messages: list[Outgoing]
    producer: tuple[str, int]


class Backlog:
    def __init__(
        self, store: Store, limits: Limits, chance: Callable[[], float] = lambda: random.uniform(0.5, 1.0)
    ) -> None:
        self.store = store
        self.limits = limits
        self.last_error = ""
        self.failures_in_a_row = 0
        self._chance = chance
        self._batch = limits.batch
        self._counters = Counters()
        self._refused = len(store.refused())

    # --- in -------------------------------------------------------------------------------------

    def put(self, outgoing: Outgoing) -> int:
        """Add a message and return its position. Raises BufferFull, and InvalidInput if it cannot be encoded."""
        data = bytes(codec.encode_message(outgoing))
        store, limits = self.store, self.limits
        if store.count >= limits.messages or store.stored_bytes + len(data) > limits.bytes:
            self._counters.full += 1
            raise BufferFull(
                f"The local buffer is full: it contains {store.count:,} messages with {store.stored_bytes:,} "
                f"bytes (the limits are {limits.messages:,} and {limits.bytes:,}). This message was not "
                f"accepted. Slow down, or refuse the work that it belongs to.{self._because()}"
            )
        try:
            position = store.put(data)
        except OverLimit as problem:
            self._counters.full += 1
            raise BufferFull(problem.message) from None
        self._counters.put += 1
        return position

    def _because(self) -> str:
        refused = f" The server refused {self._refused:,} of them: get them with take_refused()." * (self._refused > 0)
        return refused + (f" Last error: {self.last_error}" if self.last_error else "")

    # --- out ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of messages that are still to be sent."""
        return self.store.count - self._refused

    def batch(self) -> Batch | None:
        """The oldest messages, with the numbers that let the server recognize a repeated one. The store must not be
        empty. None if it cannot be read at the moment.
        """
        try:
            found = self.store.first(self._batch, BATCH_BYTES)
        except Exception as problem:  # a file error must not stop the sender forever
            self.last_error = str(problem)
            self._failed()
            _log.error("The messages of the local buffer cannot be read: %s", self.last_error)
            return None
        positions = [position for position, _ in found]
        return Batch(positions, [_decode(data) for _, data in found], (self.store.producer, positions[0]))

    def settle(
        self, batch: Batch, results: Sequence[Sent | BatonError], awaited: Container[int] = ()
    ) -> dict[int, Sent | BatonError]:
        """Apply the server's result per message. Returns the final ones: sent, or refused permanently. The callers of
        the messages in `awaited` are waiting and get the error themselves, so those messages are not kept.
        """
        if len(results) != len(batch.positions):
            raise Unavailable(f"{len(batch.positions)} messages were sent, but the response has {len(results)} results")
        final: dict[int, Sent | BatonError] = {}
        for position, result in zip(batch.positions, results, strict=True):
            if isinstance(result, Sent) or _is_final(result):
                final[position] = result
            else:
                self.last_error = result.message
        done = [position for position, result in final.items() if isinstance(result, Sent) or position in awaited]
        self.store.remove(done)
        for position, result in final.items():
            if isinstance(result, Sent):
                self._counters.sent += 1
                self._counters.duplicates += result.duplicate
            elif position not in awaited:
                self._refuse(position, result)
        if final:
            self.failures_in_a_row = 0
            self._batch = self.limits.batch
        else:
            self._failed()
        return final

    def fail(self, batch: Batch, problem: Exception, awaited: Container[int] = ()) -> dict[int, Sent | BatonError]:
        """The request failed as a whole, so the outcome is unknown or nothing was accepted. All messages stay, unless
        the batch is a single message that makes every request invalid.
        """
        before, self.last_error = self.last_error, str(problem) or repr(problem)
        if isinstance(problem, BatonError) and _is_final(problem):
            if len(batch.positions) == 1:
                return self.settle(batch, [problem], awaited)
            self._batch = max(1, len(batch.positions) // 2)  # to find the invalid message
            return {}
        if not isinstance(problem, BreakerOpen):  # then it was somebody else's call that failed
            self._failed()
            if self.failures_in_a_row == 1 or self.last_error != before:  # not at every attempt
                _log.warning("%d messages are waiting in the local buffer: %s", self.waiting, self.last_error)
        return {}

    def _failed(self) -> None:
        self._counters.failures += 1
        self.failures_in_a_row += 1

    def _refuse(self, position: int, problem: BatonError) -> None:
        self.store.refuse(position, problem.message)
        self._refused += 1
        _log.error("The server refused a buffered message; it is kept for take_refused(): %s", problem.message)

    def pause_s(self) -> float:
        """The delay before the next request: exponential backoff with jitter."""
        if not self.failures_in_a_row:
            return 0.0
        return min(PAUSE_MAX_S, PAUSE_BASE_S * 2.0 ** min(self.failures_in_a_row - 1, 20)) * self._chance()

    # --- results ----------------------------------------------------------------------------------

    def take_refused(self) -> list[RefusedMessage]:
        taken = self.store.take_refused()
        self._refused = 0
        return [RefusedMessage(_decode(each.data), each.error) for each in taken]

    def counters(self) -> Counters:
        now = self._counters
        now.waiting, now.refused, now.stored_bytes = self.waiting, self._refused, self.store.stored_bytes
        return msgspec.structs.replace(now)

    def unsent(self, spill: str | None) -> Unsent | None:
        """The error to raise when the buffer is closed; None if everything was sent."""
        if not self.store.count:
            return None
        parts = []
        if self.waiting:
            stay = f"they stay in {spill}, and the next buffer that opens it sends them" if spill else "they are lost"
            parts.append(f"{self.waiting:,} messages could not be sent, and when the process ends {stay}")
        if self._refused:
            parts.append(f"the server refused {self._refused:,} messages: get them with take_refused()")
        last = f" Last error: {self.last_error}" if self.last_error else ""
        return Unsent("; ".join(parts) + "." + last, self.waiting, self._refused)


def _is_final(problem: BatonError) -> bool:
    return problem.status in _MESSAGE_STATUSES and not problem.retryable


def _decode(data: bytes) -> Outgoing:
    return Outgoing(**{_FIELDS[name]: value for name, value in msgspec.msgpack.decode(data).items()})
