"""What a buffer holds and what becomes of it: bounds, batches, results, pauses. No waiting and no sending here.

The rule is that no message is dropped in silence. It is in the store until the server has taken it; one that the server
will never take is put aside and told of; one that there is no room for is refused to the caller's face.
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
# The request itself was wrong, so it is about the message and not about the queue, the key or the server.
_MESSAGE_STATUSES = frozenset((400, 409, 413, 415, 422))
_log = logging.getLogger("batonq.client")
_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Outgoing)}


class BufferFull(OverLimit):
    """The local buffer is full: the message was not taken. Slow down, or refuse the work that it is about."""


class Unsent(Unavailable):
    """Messages are still in the local buffer."""

    def __init__(self, message: str | None = None, waiting: int = 0, refused: int = 0) -> None:
        super().__init__(message)
        self.waiting = waiting
        self.refused = refused


class Counters(Struct):
    """What happened since the buffer was made; `waiting`, `refused` and `stored_bytes` are as they stand now."""

    put: int = 0
    sent: int = 0
    duplicates: int = 0  # of those sent: the server had them already
    full: int = 0  # puts that were refused for want of room
    failures: int = 0  # requests that failed
    waiting: int = 0
    refused: int = 0  # for good, and kept for `take_refused`
    stored_bytes: int = 0  # of both


class RefusedMessage(NamedTuple):
    """A message that the server will never take as it is, and what it said."""

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
        """Take a message in, and give its position. Raises BufferFull, and InvalidInput for what cannot be encoded."""
        data = bytes(codec.encode_message(outgoing))
        store, limits = self.store, self.limits
        if store.count >= limits.messages or store.stored_bytes + len(data) > limits.bytes:
            self._counters.full += 1
            raise BufferFull(
                f"The local buffer is full: {store.count:,} messages, {store.stored_bytes:,} bytes "
                f"(it may hold {limits.messages:,} and {limits.bytes:,}). This message was not taken: slow down "
                f"or refuse the work that it is about.{self._because()}"
            )
        try:
            position = store.put(data)
        except OverLimit as problem:
            self._counters.full += 1
            raise BufferFull(problem.message) from None
        self._counters.put += 1
        return position

    def _because(self) -> str:
        refused = f" {self._refused:,} of them were refused by the server: take_refused() gives them." * (
            self._refused > 0
        )
        return refused + (f" The last error was: {self.last_error}" if self.last_error else "")

    # --- out ------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Messages that are still to be sent."""
        return self.store.count - self._refused

    def batch(self) -> Batch | None:
        """The oldest messages, with the numbers that let the server know a repeated one. There must be some; None when
        the store cannot be read just now."""
        try:
            found = self.store.first(self._batch, BATCH_BYTES)
        except Exception as problem:  # a file that fails is no reason to stop sending for ever
            self.last_error = str(problem)
            self._failed()
            _log.error("The messages of the local buffer cannot be read: %s", self.last_error)
            return None
        positions = [position for position, _ in found]
        return Batch(positions, [_decode(data) for _, data in found], (self.store.producer, positions[0]))

    def settle(
        self, batch: Batch, results: Sequence[Sent | BatonError], told: Container[int] = ()
    ) -> dict[int, Sent | BatonError]:
        """The server answered for each. Gives what is final: sent, or refused for good. The callers of those that are
        in `told` are waiting and get the error themselves, so that nothing has to be kept for later."""
        if len(results) != len(batch.positions):
            raise Unavailable(f"{len(batch.positions)} messages were sent and {len(results)} answered for")
        final: dict[int, Sent | BatonError] = {}
        for position, result in zip(batch.positions, results, strict=True):
            if isinstance(result, Sent) or _is_final(result):
                final[position] = result
            else:
                self.last_error = result.message
        done = [position for position, result in final.items() if isinstance(result, Sent) or position in told]
        self.store.remove(done)
        for position, result in final.items():
            if isinstance(result, Sent):
                self._counters.sent += 1
                self._counters.duplicates += result.duplicate
            elif position not in told:
                self._refuse(position, result)
        if final:
            self.failures_in_a_row = 0
            self._batch = self.limits.batch
        else:
            self._failed()
        return final

    def fail(self, batch: Batch, problem: Exception, told: Container[int] = ()) -> dict[int, Sent | BatonError]:
        """The request failed as a whole: nobody knows what was taken, or nothing was. Everything stays, unless this is
        one message that makes every request wrong."""
        before, self.last_error = self.last_error, str(problem) or repr(problem)
        if isinstance(problem, BatonError) and _is_final(problem):
            if len(batch.positions) == 1:
                return self.settle(batch, [problem], told)
            self._batch = max(1, len(batch.positions) // 2)  # to find the one that is wrong
            return {}
        if not isinstance(problem, BreakerOpen):  # then somebody else's call failed
            self._failed()
            if self.failures_in_a_row == 1 or self.last_error != before:  # not with every try
                _log.warning("%d messages wait in the local buffer: %s", self.waiting, self.last_error)
        return {}

    def _failed(self) -> None:
        self._counters.failures += 1
        self.failures_in_a_row += 1

    def _refuse(self, position: int, problem: BatonError) -> None:
        self.store.refuse(position, problem.message)
        self._refused += 1
        _log.error("The server refused a buffered message, which is kept for take_refused(): %s", problem.message)

    def pause_s(self) -> float:
        """How long to wait before the next request: longer after each failure, by chance shorter."""
        if not self.failures_in_a_row:
            return 0.0
        return min(PAUSE_MAX_S, PAUSE_BASE_S * 2.0 ** min(self.failures_in_a_row - 1, 20)) * self._chance()

    # --- told -----------------------------------------------------------------------------------

    def take_refused(self) -> list[RefusedMessage]:
        taken = self.store.take_refused()
        self._refused = 0
        return [RefusedMessage(_decode(each.data), each.error) for each in taken]

    def counters(self) -> Counters:
        now = self._counters
        now.waiting, now.refused, now.stored_bytes = self.waiting, self._refused, self.store.stored_bytes
        return msgspec.structs.replace(now)

    def unsent(self, spill: str | None) -> Unsent | None:
        """What to raise when it is time to go: None when everything was sent."""
        if not self.store.count:
            return None
        parts = []
        if self.waiting:
            stay = f"they stay in {spill} and are sent by the next buffer that opens it" if spill else "they are lost"
            parts.append(f"{self.waiting:,} messages could not be sent, and when the process ends {stay}")
        if self._refused:
            parts.append(f"{self._refused:,} were refused by the server: take_refused() gives them")
        last = f" The last error was: {self.last_error}" if self.last_error else ""
        return Unsent("; ".join(parts) + "." + last, self.waiting, self._refused)


def _is_final(problem: BatonError) -> bool:
    return problem.status in _MESSAGE_STATUSES and not problem.retryable


def _decode(data: bytes) -> Outgoing:
    return Outgoing(**{_FIELDS[name]: value for name, value in msgspec.msgpack.decode(data).items()})
