"""Single messages for the front doors: finds a message by its id, wherever its queue's shards are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from batonq.core.ids import parse_message_id
from batonq.core.records import State
from batonq.errors import BatonError, MessageNotFound
from batonq.node.catalog.queue_control import Queue
from batonq.node.messages.message_history import MessageFound
from batonq.node.messages.peek import PeekFilter, PeekPage
from batonq.node.routing.ports import ShardPort

T = TypeVar("T")
MOVES_MAX = 8  # earlier places of a message that its history includes
ELSEWHERE = "The events before the message arrived are on another shard and are not included."


class Ask(Protocol):
    """Asks one shard of a queue."""

    async def __call__(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]], /) -> T: ...


class Peek(Protocol):
    async def __call__(self, queue: Queue, after: int, limit: int, wanted: PeekFilter, /) -> PeekPage: ...


class MessageControl:
    def __init__(self, ask: Ask, peek: Peek, port: Callable[[int], ShardPort]) -> None:
        self._ask = ask
        self._peek = peek
        self._port = port

    async def find(self, queue: Queue, message: str) -> MessageFound:
        """A message by its current id, or by the id with which it was sent. A message that has been deleted or moved
        is found while the log has it.
        """
        shard, sequence = place_of(queue, message)
        found: MessageFound | None = None
        if shard in queue.shards:
            found = await self._at(queue, shard, sequence)
        if found is None or (found.peeked.view.state == State.DELETED and found.events[-1].event == "moved"):
            # It may have come back, or may have been moved here from elsewhere.
            page = await self._peek(queue, 0, 1, PeekFilter(original_id=message))
            for moved in page.messages:
                found = await self._at(queue, *place_of(queue, moved.current_id)) or found
        if found is None:
            raise MessageNotFound(
                f"Queue {queue.name} does not have the message {message}, and the retained log has no trace of it."
            )
        return await self._with_earlier_places(found)

    async def _at(self, queue: Queue, shard: int, sequence: int) -> MessageFound | None:
        return await self._ask(queue, shard, lambda port: port.message(queue.number, sequence))

    async def _with_earlier_places(self, found: MessageFound) -> MessageFound:
        """Add the events of the shards that the message came from."""
        oldest = found
        for _ in range(MOVES_MAX):
            past = oldest.peeked.lineage
            if oldest.from_shard < 0:
                break
            place = parse_message_id(past.message_id or past.first_id) if past is not None else None
            if past is None or place is None or place[0] != oldest.from_shard or not past.source_queue:
                return found._replace(note=found.note or ELSEWHERE)
            try:
                before = await self._port(place[0]).message(past.source_queue, place[1])
            except BatonError:
                before = None
            if before is None:
                return found._replace(note=found.note or ELSEWHERE)
            oldest = before
            note = found.note or before.note
            found = found._replace(events=[*before.events, *found.events], complete=before.complete, note=note)
        return found


def place_of(queue: Queue, message: str) -> tuple[int, int]:
    """The shard and the sequence that a message id names. Raises MessageNotFound."""
    place = parse_message_id(message)
    if place is None:
        raise MessageNotFound(
            f"{message[:80]!r} is not a message id of this server, so queue {queue.name} does not have it."
        )
    return place
