"""The interface between the worker and a broker. Implemented for Baton, SQS and the in-memory broker of tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.client.models import MessageFields, Nack
from batonq.errors import BatonError

Message = MessageFields
Outcome = BatonError | None  # one per message of a request, in order; None is success


class QueueFacts(NamedTuple):
    """What the worker needs to know about a queue."""

    fifo: bool = False
    max_receives: int = 0  # then the message is dead-lettered; 0: unlimited
    dead_letter_queue: str = ""  # empty: none


class Source(Protocol):
    """The worker's side of a broker, used on the worker's event loop.

    A request that fails as a whole raises a BatonError; errors of single messages are in the list of results.
    """

    @property
    def batch_max(self) -> int:
        """Maximum number of messages per request."""
        ...

    async def open(self, consumer: str, connections: int) -> None:
        """Connect; `connections` is the maximum number of concurrent requests."""
        ...

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        """One long poll over these queues and patterns. If it is cancelled, messages that it may have received are
        released.
        """
        ...

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]: ...

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]: ...

    async def facts(self, queue: str) -> QueueFacts:
        """Facts about the queue, which may be a minute old. Asked for queues whose messages have a group or fail."""
        ...

    async def close(self) -> None: ...

    def keeper(self, timeout: float) -> Keeper:
        """A separate connection for the heartbeat's thread."""
        ...


class Keeper(Protocol):
    """Extends leases, on one thread, without an event loop."""

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        """Set the end of each lease (by receipt) to this many seconds from now; 0 releases the message."""
        ...

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        """Release messages that were not started, each with a delay in seconds.

        This is not a failure, and where the broker supports it not a receive, so it never dead-letters a message.
        """
        ...

    def close(self) -> None: ...
