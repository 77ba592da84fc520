"""Reader groups for the front doors, wherever the queue's shards are served.

A group's positions are on each shard of its queue. The queue's first shard coordinates the group, see
core/shard/commands/readers.py. A position that failed too often is first sent to the group's dead-letter queue, as a
numbered message whose number is the position, and then committed. If a node dies in between, the next fetch repeats
both, and the dead-letter queue recognises the number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import md5
from typing import NamedTuple, Protocol, TypeVar

from batonq.core.commands import Send, Sent
from batonq.core.payload import STORED, Attribute, decode_attributes, encode_attributes
from batonq.core.positions import position_text
from batonq.core.shard.commands.readers import Assignment
from batonq.core.shard.state.readers import GroupSettings, Reader, Start
from batonq.errors import BatonError, InvalidInput, PayloadDamaged, PositionInvalid, ReaderDoesNotExist, StaleMember
from batonq.node.catalog.queue_control import Queue
from batonq.node.messages.group_reading import Fetched, ReaderView
from batonq.node.messages.retained_reader import BYTES_MAX, RetainedMessage, RetainedPage
from batonq.node.routing.ports import ShardPort

T = TypeVar("T")
SKIPS_MAX = 100  # failed positions that one fetch skips
NO_POSITION = -1
RETRY_MS = 1_000  # how long a fetch waits before a message whose body is lost is tried again
NO_DEAD_LETTER_QUEUE = "The reader group has no dead-letter queue for it. Seek past it."
CREATIONS_MAX = 8  # attempts to create a group that other requests create at the same time
CREATION_PAUSE_S = 0.01  # before the second attempt, then doubled


class Ask(Protocol):
    """Asks one shard of a queue."""

    async def __call__(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]], /) -> T: ...


class GroupView(NamedTuple):
    """A reader group with all its shards."""

    reader: Reader  # as the queue's first shard knows it
    parts: list[ReaderView]  # one per shard

    @property
    def lag_messages(self) -> int:
        return sum(part.lag_messages for part in self.parts)

    @property
    def lag_ms(self) -> int:
        return max((part.lag_ms for part in self.parts), default=0)


class Failed(NamedTuple):
    """The outcome of a failure: how often the position has failed, and whether it was skipped."""

    failures: int
    is_skipped: bool
    why: str = ""  # why it was not skipped although it has failed often enough


class FetchedShard(NamedTuple):
    """What a fetch found on one shard."""

    view: ReaderView
    page: RetainedPage
    blocked_at: str = ""  # a position whose body is lost, which is skipped when what was fetched before it is committed


class ReaderControl:
    def __init__(
        self,
        ask: Ask,
        send: Callable[[Queue, Send], Awaitable[Sent]],
        queue_by_number: Callable[[int], Queue | None],
        now_ms: Callable[[], int],
        with_bodies: Callable[[RetainedPage], Awaitable[RetainedPage]],
    ) -> None:
        """`with_bodies` reads bodies that are in the payload store."""
        self._with_bodies = with_bodies
        self._ask = ask
        self._send = send
        self._queue_by_number = queue_by_number
        self._now_ms = now_ms

    # --- groups -------------------------------------------------------------------------------------

    async def create(self, queue: Queue, group: str, settings: GroupSettings, start: Start) -> tuple[GroupView, bool]:
        """Create a group; returns it, and whether it is new. Raises NotRetained, ReaderExists, OverLimit."""
        dead = self._queue_by_number(settings.dead_letter_queue) if settings.dead_letter_queue else None
        if dead is not None and dead.fifo != queue.fifo:
            kind = "a FIFO" if queue.fifo else "a standard"
            raise InvalidInput(f"The dead-letter queue of a reader group on {kind} queue must be {kind} queue too.")
        tries = 0
        while True:
            try:
                is_new = await self._create(queue, group, settings, start)
                break
            except StaleMember:
                tries += 1
                if tries == CREATIONS_MAX:
                    raise
                await asyncio.sleep(CREATION_PAUSE_S * 2**tries)
        return await self.get(queue, group), is_new

    async def _create(self, queue: Queue, group: str, settings: GroupSettings, start: Start) -> bool:
        """Returns whether the group is new. Raises StaleMember if another request creates it at the same time."""
        first, number = queue.shards[0], queue.number
        created_ms = await self._ask(queue, first, lambda port: port.reader_begin_create(number, group, settings))
        if not created_ms:
            return False
        for shard in reversed(queue.shards[1:]):
            await self._set(queue, shard, group, created_ms, settings, start, created_ms)
        # The first shard is the last: before that, the group does not exist.
        await self._ask(queue, first, lambda port: port.reader_create(number, group, created_ms, settings, start))
        return True

    async def _set(
        self,
        queue: Queue,
        shard: int,
        group: str,
        created_ms: int,
        settings: GroupSettings,
        start: Start,
        epoch: int,
        only_new: bool = False,
    ) -> ReaderView:
        return await self._ask(
            queue,
            shard,
            lambda port: port.reader_set(queue.number, group, created_ms, settings, start, epoch, only_new),
        )

    async def groups(self, queue: Queue) -> list[GroupView]:
        """The groups of a queue, by name."""
        number = queue.number
        told = await asyncio.gather(
            *(self._ask(queue, shard, lambda port: port.readers(number)) for shard in queue.shards)
        )
        views = [{view.reader.group: view for view in part} for part in told]
        return [
            GroupView(view.reader, [part[group] for part in views if group in part])
            for group, view in sorted(views[0].items())
        ]

    async def get(self, queue: Queue, group: str) -> GroupView:
        """Raises ReaderDoesNotExist."""
        first = await self._ask(queue, queue.shards[0], lambda port: port.reader(queue.number, group))
        parts = [first]
        for shard in queue.shards[1:]:
            with suppress(ReaderDoesNotExist):  # the queue has this shard since a short time
                parts.append(await self._ask(queue, shard, lambda port: port.reader(queue.number, group)))
        return GroupView(first.reader, parts)

    async def delete(self, queue: Queue, group: str) -> None:
        """Raises ReaderDoesNotExist."""
        for at, shard in enumerate(queue.shards):
            try:
                await self._ask(queue, shard, lambda port: port.reader_delete(queue.number, group))
            except ReaderDoesNotExist:
                if not at:
                    raise

    async def seek(
        self, queue: Queue, group: str, start: Start | None, positions: Sequence[tuple[int, int]]
    ) -> GroupView:
        """Set the group's positions: on all shards to `start`, or on some shards to begin with the messages at these
        positions. What members have fetched before can no longer be committed.
        """
        known = await self._ask(queue, queue.shards[0], lambda port: port.reader(queue.number, group))
        starts = dict.fromkeys(queue.shards, start) if start is not None else {}
        for shard, number in positions:
            await self._check_position(queue, shard, number)
            starts[shard] = Start("position", number)
        first = queue.shards[0]
        epoch = await self._ask(queue, first, lambda port: port.reader_begin_seek(queue.number, group))
        reader = known.reader
        try:
            for shard, each in starts.items():
                if each is not None:
                    await self._set(queue, shard, group, reader.created_ms, reader.settings, each, epoch)
        finally:
            await self._ask(queue, first, lambda port: port.reader_end_seek(queue.number, group, epoch))
        return await self.get(queue, group)

    async def _check_position(self, queue: Queue, shard: int, number: int) -> None:
        self.check_shard(queue, shard, number)
        page = await self._read(queue, shard, number - 1, 1)
        if not page or page.positions[0] != number:
            bounds = await self._ask(queue, shard, lambda port: port.retained_bounds(queue.number, 0))
            text = f"Queue {queue.name} has no retained message at position {position_text(shard, number)}."
            if not bounds.messages:
                raise PositionInvalid(f"{text} Nothing is retained on shard {shard}.")
            first, last = position_text(shard, bounds.first), position_text(shard, bounds.last)
            raise PositionInvalid(f"{text} Its retained messages on shard {shard} are from {first} to {last}.")

    @staticmethod
    def check_shard(queue: Queue, shard: int, number: int) -> None:
        if shard not in queue.shards:
            shards = ", ".join(map(str, queue.shards))
            raise PositionInvalid(
                f"Position {position_text(shard, number)} is on shard {shard}, but queue {queue.name} is on "
                f"{'shard' if len(queue.shards) == 1 else 'shards'} {shards}."
            )

    # --- members ------------------------------------------------------------------------------------

    async def join(self, queue: Queue, group: str, member: str) -> Assignment:
        number, shards = queue.number, queue.shards
        return await self._ask(queue, shards[0], lambda port: port.reader_join(number, group, member, shards))

    async def leave(self, queue: Queue, group: str, member: str) -> None:
        number, shards = queue.number, queue.shards
        await self._ask(queue, shards[0], lambda port: port.reader_leave(number, group, member, shards))

    async def fetch(
        self,
        queue: Queue,
        group: str,
        member: str,
        epoch: int,
        shards: Sequence[int] | None,
        after: Mapping[int, int],
        limit: int,
        wait_ms: int,
    ) -> list[FetchedShard]:
        """Messages from the member's shards, in order per shard. `shards` None: as the coordinator assigns them.

        `after` are positions to continue after instead of what is committed. Waits for the first message. A message
        whose body is missing or damaged in the payload store has failed: once per fetch, until it is skipped. Raises
        PayloadDamaged if it cannot be skipped and there are no other messages.
        """
        found: list[FetchedShard] = []
        problem: PayloadDamaged | None = None
        is_retried = False
        for fetched in await self._fetch_all(queue, group, member, epoch, shards, after, limit, wait_ms):
            blocked_at = ""
            try:
                page = await self._with_bodies(fetched.page)
            except PayloadDamaged as damage:
                failed = await self._fail_damaged(queue, fetched, member, epoch, damage.message)
                position = position_text(fetched.view.shard, fetched.page.positions[0])
                if failed.why:
                    problem = PayloadDamaged(f"Position {position} cannot be read: {damage.message} {failed.why}")
                if not failed.failures:
                    blocked_at = position
                is_retried |= not failed.is_skipped
                page = fetched.page.first_messages(0)
            found.append(FetchedShard(fetched.view, page, blocked_at))
        if not any(fetched.page for fetched in found):
            if problem is not None:
                raise problem
            if is_retried:
                await asyncio.sleep(min(wait_ms, RETRY_MS) / 1000)
        return found

    async def _fail_damaged(self, queue: Queue, fetched: Fetched, member: str, epoch: int, error: str) -> Failed:
        """Count a failure of the first message of a page, whose body is lost. `Failed.why`: it stays the next one."""
        reader, shard, position = fetched.view.reader, fetched.view.shard, fetched.page.positions[0]
        if reader.failed == position and reader.failures >= reader.settings.max_failures:
            why = await self._skip(queue, shard, fetched.view, member, epoch)
            failed = Failed(reader.failures, not why, why)
        else:
            try:
                failed = await self.fail(queue, reader.group, member, epoch, (shard, position), error)
            except PositionInvalid:
                return Failed(0, False)  # its turn comes when what was fetched before it is committed
        return failed if reader.settings.dead_letter_queue else failed._replace(why=NO_DEAD_LETTER_QUEUE)

    async def _fetch_all(
        self,
        queue: Queue,
        group: str,
        member: str,
        epoch: int,
        shards: Sequence[int] | None,
        after: Mapping[int, int],
        limit: int,
        wait_ms: int,
    ) -> list[Fetched]:
        if shards is None:
            first = queue.shards[0]
            own = await self._ask(queue, first, lambda port: port.reader_assignment(queue.number, group, member))
            shards = own.shards
        for shard in shards:
            self.check_shard(queue, shard, after.get(shard, 0))
        found: list[Fetched] = []
        room = BYTES_MAX
        turn = self._now_ms() % len(shards) if shards else 0  # so that no shard comes last every time
        for shard in (*shards[turn:], *shards[:turn]):
            if limit <= 0 or room <= 0:
                break
            fetched = await self._fetch(queue, shard, group, member, epoch, after, limit, room, 0)
            limit -= len(fetched.page)
            room -= sum(map(len, fetched.page.bodies))
            found.append(fetched)
        if any(fetched.page for fetched in found) or wait_ms <= 0:
            return found
        if not shards:
            await asyncio.sleep(wait_ms / 1000)
            return []
        return await self._wait(queue, shards, group, member, epoch, after, limit, wait_ms)

    async def _wait(
        self,
        queue: Queue,
        shards: Sequence[int],
        group: str,
        member: str,
        epoch: int,
        after: Mapping[int, int],
        limit: int,
        wait_ms: int,
    ) -> list[Fetched]:
        """Wait at all shards for the first that has a message. A fetch takes nothing, so the others are cancelled."""
        tasks = [
            asyncio.ensure_future(self._fetch(queue, shard, group, member, epoch, after, limit, BYTES_MAX, wait_ms))
            for shard in shards
        ]
        try:
            found: list[Fetched] = []
            for done in asyncio.as_completed(tasks):
                fetched = await done
                found.append(fetched)
                if fetched.page:
                    return [fetched]
            return found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(
        self,
        queue: Queue,
        shard: int,
        group: str,
        member: str,
        epoch: int,
        after: Mapping[int, int],
        limit: int,
        room: int,
        wait_ms: int,
    ) -> Fetched:
        async def fetch(port: ShardPort) -> Fetched:
            position = after.get(shard, NO_POSITION)
            return await port.reader_fetch(queue.number, group, member, epoch, position, limit, room, wait_ms)

        for _ in range(SKIPS_MAX):
            try:
                fetched = await self._ask(queue, shard, fetch)
            except ReaderDoesNotExist:
                await self._set_on_new_shard(queue, shard, group)
                fetched = await self._ask(queue, shard, fetch)
            if not fetched.view.reader.is_given_up or await self._skip(queue, shard, fetched.view, member, epoch):
                break
        return fetched

    async def _set_on_new_shard(self, queue: Queue, shard: int, group: str) -> None:
        """Create the group on a shard that the queue got after the group was created."""
        known = await self._ask(queue, queue.shards[0], lambda port: port.reader(queue.number, group))
        reader = known.reader
        start, epoch = Start("start"), reader.reset_epoch
        await self._set(queue, shard, group, reader.created_ms, reader.settings, start, epoch, only_new=True)

    async def commit(
        self, queue: Queue, group: str, member: str, epoch: int, positions: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Commit a position on each of some shards. Returns what is committed on each now."""
        for shard, number in positions:
            self.check_shard(queue, shard, number)
        committed: list[tuple[int, int]] = []
        for shard, number in positions:
            now = await self._commit(queue, shard, group, member, epoch, number)
            committed.append((shard, now))
        return committed

    async def _commit(self, queue: Queue, shard: int, group: str, member: str, epoch: int, number: int) -> int:
        return await self._ask(
            queue, shard, lambda port: port.reader_commit(queue.number, group, member, epoch, number)
        )

    async def fail(
        self, queue: Queue, group: str, member: str, epoch: int, position: tuple[int, int], error: str
    ) -> Failed:
        """Count a failure of a position. One that has failed too often goes to the group's dead-letter queue."""
        shard, number = position
        self.check_shard(queue, shard, number)
        view = await self._ask(
            queue, shard, lambda port: port.reader_fail(queue.number, group, member, epoch, number, error)
        )
        if not view.reader.is_given_up:
            return Failed(view.reader.failures, False)
        why = await self._skip(queue, shard, view, member, epoch)
        return Failed(view.reader.failures, not why, why)

    async def _skip(self, queue: Queue, shard: int, view: ReaderView, member: str, epoch: int) -> str:
        """Send the failed position to the dead-letter queue, and commit it. Returns why that is not possible now."""
        reader = view.reader
        dead = self._queue_by_number(reader.settings.dead_letter_queue)
        if dead is None:
            return f"The dead-letter queue {reader.settings.dead_letter_name} no longer exists."
        try:
            page = await self._read(queue, shard, reader.failed - 1, 1)
            for message in page.messages():
                if message.position == reader.failed:
                    for result in (await self._send(dead, _dead_letter(queue, shard, reader, message))).results():
                        if isinstance(result, BatonError):
                            raise result
            await self._commit(queue, shard, reader.group, member, epoch, reader.failed)
        except BatonError as problem:
            return problem.message
        return ""

    # --- without a group ------------------------------------------------------------------------------

    async def read(self, queue: Queue, shard: int, after: int, limit: int) -> RetainedPage:
        """Retained messages of one shard after a position. Raises NotRetained."""
        return await self._with_bodies(await self._read(queue, shard, after, limit))

    async def _read(self, queue: Queue, shard: int, after: int, limit: int) -> RetainedPage:
        return await self._ask(queue, shard, lambda port: port.retained(queue.number, after, limit, BYTES_MAX))

    async def before_time(self, queue: Queue, shard: int, time_ms: int) -> int:
        """The position on a shard after which the messages of a time begin."""
        bounds = await self._ask(queue, shard, lambda port: port.retained_bounds(queue.number, time_ms))
        return bounds.before


def _dead_letter(queue: Queue, shard: int, reader: Reader, message: RetainedMessage) -> Send:
    position = position_text(shard, message.position)
    notes = {"reader-group": reader.group, "reader-position": position, "reader-error": reader.error}
    extra = [Attribute(name, "String", text.encode(), False) for name, text in notes.items() if text]
    own = [attribute for attribute in decode_attributes(message.attributes) if attribute.name not in notes]
    return Send(
        reader.settings.dead_letter_queue,
        [message.body],
        [b"" if message.content & STORED else md5(message.body, usedforsecurity=False).digest()],
        message.sender,
        message.content,
        attributes=[encode_attributes([*own, *extra])],
        groups=[message.group] if message.group else (),
        dedup_ids=[f"{reader.group}:{reader.reset_epoch}:{position}"] if queue.fifo else (),
        traces=[message.trace] if message.trace else (),
        priorities=[message.priority],
        producer=f"reader:{queue.number}:{reader.group}:{shard}:{reader.reset_epoch}",
        numbers=[message.position],
    )
