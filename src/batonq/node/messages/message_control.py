"""Single messages for the front doors: finds a message by its id, wherever its queue's shards are served, and deletes,
edits or retries it. Groups dead letters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from batonq.core.ids import parse_message_id
from batonq.core.records import EDITING_VERSION, State
from batonq.core.shard.commands.operator import Destination
from batonq.errors import BatonError, InvalidInput, MessageGone, MessageNotFound
from batonq.node.catalog.queue_control import Queue
from batonq.node.jobs.redrive_filter import encode_pick
from batonq.node.messages.dead_letter_groups import EXAMINED_MAX as DEAD_LETTERS_MAX
from batonq.node.messages.dead_letter_groups import DeadLetters, merged
from batonq.node.messages.message_history import MessageFound
from batonq.node.messages.peek import ANY_MESSAGE, Peeked, PeekFilter, PeekPage
from batonq.node.routing.ports import ShardPort

T = TypeVar("T")
ANY_QUEUE = 0
MOVES_MAX = 8  # earlier places of a message that its history includes
ELSEWHERE = "The events before the message arrived are on another shard and are not included."


class Ask(Protocol):
    """Asks one shard of a queue."""

    async def __call__(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]], /) -> T: ...


class Peek(Protocol):
    async def __call__(self, queue: Queue, after: int, limit: int, wanted: PeekFilter, /) -> PeekPage: ...


class MessageControl:
    def __init__(
        self,
        ask: Ask,
        peek: Peek,
        port: Callable[[int], ShardPort],
        queue_by_number: Callable[[int], Queue | None],
        shards: Callable[[], Container[int]],
        too_old: Callable[[int], Awaitable[str]],
        with_bodies: Callable[[Sequence[Peeked]], Awaitable[list[Peeked]]],
    ) -> None:
        """`too_old` names the nodes that cannot read a version of the log format. `with_bodies` reads bodies that are
        in the payload store.
        """
        self._with_bodies = with_bodies
        self._shards = shards
        self._too_old = too_old
        self._queue_by_number = queue_by_number
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
        page: PeekPage | None = None
        if found is None or (found.peeked.view.state == State.DELETED and found.events[-1].event == "moved"):
            # It may have come back, or may have been moved here from elsewhere.
            page = await self._peek(queue, 0, 1, PeekFilter(original_id=message))
            for moved in page.messages:
                found = await self._at(queue, *place_of(queue, moved.current_id)) or found
        if found is None:
            found = await self._passed_through(queue, shard, sequence)
        if found is None:
            raise MessageNotFound(
                f"Queue {queue.name} does not have the message {message}, and the retained log has no trace of it."
                f"{_unsearched(page)}"
            )
        found = await self._with_earlier_places(await self._with_later_place(found))
        (peeked,) = await self._with_bodies([found.peeked])
        return found._replace(peeked=peeked)

    async def _with_later_place(self, found: MessageFound) -> MessageFound:
        """Add the id that a message has in the queue of another shard to which it was moved, if it is still there."""
        if found.peeked.view.state != State.DELETED or found.events[-1].event != "moved" or found.moved_as:
            return found
        numbers = [event.to_queue for event in found.events if event.event == "moving"]
        queue = self._queue_by_number(numbers[-1]) if numbers else None
        if queue is None:
            return found
        past = found.peeked.lineage
        sent_as = (past.first_id if past is not None else "") or found.peeked.message_id
        with suppress(BatonError):
            for moved in (await self._peek(queue, 0, 1, PeekFilter(original_id=sent_as))).messages:
                return found._replace(moved_as=moved.current_id)
        return found

    async def _passed_through(self, queue: Queue, shard: int, sequence: int) -> MessageFound | None:
        """A message that was sent elsewhere with this id, was moved to the queue, and has left it again. Moves within
        one shard can be followed.
        """
        with suppress(BatonError):
            for _ in range(MOVES_MAX):
                moved = await self._on_shard(shard, ANY_QUEUE, sequence)
                place = parse_message_id(moved.moved_as) if moved is not None and moved.moved_as else None
                if place is None:
                    return None
                shard, sequence = place
                found = await self._at(queue, shard, sequence) if shard in queue.shards else None
                if found is not None:
                    return found
        return None

    async def _on_shard(self, shard: int, queue: int, sequence: int) -> MessageFound | None:
        return await self._port(shard).message(queue, sequence) if shard in self._shards() else None

    async def _at(self, queue: Queue, shard: int, sequence: int) -> MessageFound | None:
        return await self._ask(queue, shard, lambda port: port.message(queue.number, sequence))

    async def delete(self, queue: Queue, message: str) -> None:
        """Raises MessageNotFound, MessageHeld."""
        await self._act(queue, message, lambda port, sequence: port.delete_message(queue.number, sequence))

    async def edit(self, queue: Queue, message: str, edit: Mapping[str, Any]) -> None:
        """Change a message; `edit` is as for a redrive. Raises MessageNotFound, MessageHeld, InvalidInput."""
        text = encode_pick(None, edit, queue.message_bytes_max)
        if not text:
            raise InvalidInput("The request changes nothing. Name a new body, or attributes to set or to remove.")
        older = await self._too_old(EDITING_VERSION)
        if older:
            raise InvalidInput(f"Messages cannot be edited yet. {older}")
        await self._act(queue, message, lambda port, sequence: port.edit_message(queue.number, sequence, text))

    async def retry(self, queue: Queue, message: str) -> None:
        """Let a message be delivered now: its delay ends, or, if it is a dead letter, it returns to its source queue.

        Raises MessageNotFound, MessageHeld, JobConflict, InvalidInput, OverLimit.
        """

        async def retry(port: ShardPort, sequence: int) -> None:
            page = await port.peek(queue.number, sequence - 1, 1, ANY_MESSAGE, 1)
            if not page.messages or place_of(queue, page.messages[0].current_id)[1] != sequence:
                raise MessageGone
            to = self._source_of(page.messages[0].view.origin)
            await port.retry_message(queue.number, sequence, to)

        await self._act(queue, message, retry)

    def _source_of(self, origin: int) -> Destination | None:
        if not origin:
            return None
        source = self._queue_by_number(origin & 0xFFFFFFFF)
        if source is None:
            raise InvalidInput(
                "The queue that this dead letter came from was deleted. Redrive the message to another queue."
            )
        return Destination(source.number, source.shard, source.link.spread)

    async def _act(self, queue: Queue, message: str, act: Callable[[ShardPort, int], Awaitable[None]]) -> None:
        """Do something to a message that is named by its current id, or by the id with which it was sent."""
        shard, sequence = place_of(queue, message)
        if shard in queue.shards:
            with suppress(MessageGone):
                return await self._ask(queue, shard, lambda port: act(port, sequence))
        page = await self._peek(queue, 0, 1, PeekFilter(original_id=message))
        for moved in page.messages:
            at, current = place_of(queue, moved.current_id)
            with suppress(MessageGone):
                return await self._ask(queue, at, partial(_at, act, current))
        raise MessageNotFound(f"Queue {queue.name} does not have the message {message}.{_unsearched(page)}")

    async def dead_letters(self, queue: Queue, only_dead: bool) -> DeadLetters:
        """Groups of the newest dead letters of a queue."""
        examine_max = max(1, DEAD_LETTERS_MAX // len(queue.shards))
        parts = [
            await self._ask(queue, shard, lambda port: port.dead_letters(queue.number, only_dead, examine_max))
            for shard in queue.shards
        ]
        return merged(parts) if len(parts) > 1 else parts[0]

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
                before = await self._on_shard(place[0], past.source_queue, place[1])
            except BatonError:
                before = None
            if before is None:
                return found._replace(note=found.note or ELSEWHERE)
            oldest = before
            note = found.note or before.note
            found = found._replace(events=[*before.events, *found.events], complete=before.complete, note=note)
        return found


def _unsearched(page: PeekPage | None) -> str:
    """What a search by the id with which a message was sent has left out."""
    if page is None or page.complete:
        return ""
    return (
        f" If it was moved there, it may be further back: only its first {page.examined:,} messages were examined. "
        "Use the message's current id."
    )


async def _at(act: Callable[[ShardPort, int], Awaitable[None]], sequence: int, port: ShardPort) -> None:
    await act(port, sequence)


def place_of(queue: Queue, message: str) -> tuple[int, int]:
    """The shard and the sequence that a message id names. Raises MessageNotFound."""
    place = parse_message_id(message)
    if place is None:
        raise MessageNotFound(
            f"{message[:80]!r} is not a message id of this server, so queue {queue.name} does not have it."
        )
    return place
