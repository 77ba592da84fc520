"""A received message, and what its holder can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from batonq.client.models import MessageFields, Nack
from batonq.errors import InvalidInput

if TYPE_CHECKING:
    from batonq.client.aio.queue import Queue


class Message(MessageFields):
    """A message that was received: yours until `deadline`.

    Acknowledge it when its work is done (`ack`), give it back when it failed (`nack`), or hold it for longer
    (`extend`). Each raises LeaseLost when somebody else may have it by now, and MessageGone when it is no more.
    """

    _home: Any = None  # the Queue; the decoder makes the message, and its queue is put in afterwards

    async def ack(self) -> None:
        """The work is done: delete the message. Calls of many tasks at once go into one request."""
        queue = self._home or self._homeless()
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
        """The work failed: give the message back, saying why.

        It is tried again after `delay` seconds, or as the queue's retry policy says; with `dead_letter` it is not tried
        again but goes to the dead letters at once. With `untried` the work has not begun: that is no failure, and this
        receive does not count.
        """
        queue = self._home or self._homeless()
        nack = Nack(self.receipt, delay, reason, error_class, dead_letter, untried)
        await queue._nacks.put(nack, len(nack.reason) + 200)

    async def extend(self, seconds: float) -> float:
        """Hold the message for so many seconds from now; returns the new deadline."""
        queue = self._home or self._homeless()
        self.deadline_ms = await queue._extensions.put((self.receipt, seconds), 200)
        return self.deadline_ms / 1000

    def _homeless(self) -> Queue:
        raise InvalidInput("This message has left the client that received it: acknowledge it there, by its receipt.")

    def __reduce__(self) -> tuple[Any, ...]:
        """What a message says goes to other processes; its connection does not."""
        return _restored, (asdict(self) | {"_home": None},)


def _restored(fields: dict[str, Any]) -> Message:
    return Message(**fields)


class Messages(Struct):
    """The answer to a receive."""

    messages: list[Message]
