"""Where messages come from: what the worker needs of a broker, no more. Baton, SQS and the tests' memory fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from batonq.client.models import MessageFields, Nack
from batonq.errors import BatonError

Message = MessageFields
Outcome = BatonError | None  # one for each message of a request, in its order; None is success


class Source(Protocol):
    """The worker's side of a broker, used on the worker's event loop.

    A request that failed as a whole raises a BatonError; what failed for one message is in the list of outcomes.
    """

    @property
    def batch_max(self) -> int:
        """Most messages of one request."""
        ...

    async def open(self, consumer: str, connections: int) -> None:
        """Get ready; `connections` is how many requests there may be at once."""
        ...

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        """One poll over these queues and patterns. Cancelling it gives back what it may have been given."""
        ...

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]: ...

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]: ...

    async def is_fifo(self, queue: str) -> bool:
        """Whether the queue keeps the order of its groups; asked for queues whose messages name a group."""
        ...

    async def close(self) -> None: ...

    def keeper(self, timeout: float) -> Keeper:
        """A connection of its own for the heartbeat's thread."""
        ...


class Keeper(Protocol):
    """Keeps leases, on one thread, without an event loop."""

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        """Make each lease (by receipt) end so many seconds from now; 0 gives the message back."""
        ...

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        """Give messages back that nobody has begun with, each for so many seconds.

        That is no failure, and where the broker can tell, no receive: however often it happens, no message dies of it.
        """
        ...

    def close(self) -> None: ...
