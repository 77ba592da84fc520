"""A received message and what its holder can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from batonq.client.models import MessageFields, Nack
from batonq.errors import InvalidInput

if TYPE_CHECKING:
    from batonq.client.aio.queue import Queue


class Message(MessageFields):
    """A received message. It is leased to you until `deadline`.

    Call `ack` when the work is done, `nack` when it failed, or `extend` to keep the lease for longer. Each raises
    LeaseLost if another consumer may hold the message now, and MessageGone if the message no longer exists.
    """

    _home: Any = None  # the Queue; set after the decoder has created the message

    async def ack(self) -> None:
        """Ack the message: the work is done, and it is deleted. Calls of many tasks at once share one request."""
        queue = self._home or self._homeless()
        with queue._operation("ack", 1, [self]):
            await queue._acks.put(self.receipt, len(self.receipt))

    async def nack(
        self,
        *,
        delay: float | None = None,
        reason: str = "",
        error_class: str = "",
        dead_letter: bool = False,
        untried: bool = False,
    ) -> None:
        """Nack the message: the work failed, and the message becomes visible again.

        It becomes visible after `delay` seconds, or as the queue's retry policy says. With `dead_letter` it is
        dead-lettered at once. With `untried` the work was not started: this is not a failure, and the receive does not
        count.
        """
        queue = self._home or self._homeless()
        nack = Nack(self.receipt, delay, reason, error_class, dead_letter, untried)
        with queue._operation("nack", 1, [self]):
            await queue._nacks.put(nack, len(nack.reason) + 200)

    async def extend(self, seconds: float) -> float:
        """Extend the lease to end `seconds` from now. Returns the new deadline."""
        queue = self._home or self._homeless()
        with queue._operation("extend", 1, [self]):
            self.deadline_ms = await queue._extensions.put((self.receipt, seconds), 200)
        return self.deadline_ms / 1000

    def _homeless(self) -> Queue:
        raise InvalidInput(
            "This copy of the message has no connection to the server, because it was moved to another process. "
            "Ack it where it was received, or by its receipt with queue.ack_many."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Only the message's content goes to other processes, not its connection."""
        return _restored, (asdict(self) | {"_home": None},)


def _restored(fields: dict[str, Any]) -> Message:
    return Message(**fields)


class Messages(Struct):
    """The response to a receive."""

    messages: list[Message]
