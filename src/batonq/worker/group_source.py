"""Messages from a reader group of a Baton queue: a handler's success commits, its failure counts.

The handlers of one worker run concurrently; what is committed on each shard is what is done without a gap. After a
crash the messages after that are processed again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batonq.client.models import MessageFields, Nack, RetainedFields
from batonq.errors import BatonError, InvalidInput, StaleMember
from batonq.worker.baton_source import BatonSource, SharedKeeper, is_pattern
from batonq.worker.group_progress import Entry, ShardProgress, State
from batonq.worker.source import Message, Outcome, QueueFacts

if TYPE_CHECKING:
    from batonq.client.aio.reader import Reader
    from batonq.client.blocking.baton import Baton as BlockingBaton

HELD_MAX = 2_000  # messages that are fetched and not committed, per queue
LOOK_S = 0.2  # how often a poll looks for messages that have become ready
BACKOFF_S = 1.0
BACKOFF_MAX_S = 60.0
GONE = "This worker no longer reads the shard of the message: another member has it. It is processed again there."


class GroupSource(BatonSource):
    """Like BatonSource, but the messages are those of a reader group; each task has one queue."""

    def __init__(self, group: str, like: BatonSource) -> None:
        super().__init__(like.url, like._access_key, like._secret_key, like._given)
        self.group = group
        self._reading: dict[str, GroupReading] = {}

    def _of(self, queue: str) -> GroupReading:
        found = self._reading.get(queue)
        if found is None:
            member = "".join(letter if "!" <= letter <= "~" else "_" for letter in self._consumer)[:80]
            reader = self._queue(queue).reader(self.group, member=member or None)
            found = self._reading[queue] = GroupReading(reader, queue)
        return found

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        if len(queues) != 1 or is_pattern(queues[0]):
            raise InvalidInput(
                f"A worker over a reader group needs one queue per task, not {', '.join(queues)}. Declare a task for "
                "each queue."
            )
        return await self._of(queues[0]).receive(max_messages, wait)

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        return await self._of(queue).finish(dict.fromkeys(receipts))

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]:
        return await self._of(queue).finish({nack.receipt: nack for nack in nacks})

    async def facts(self, queue: str) -> QueueFacts:
        info = await self._of(queue).reader.info()
        return QueueFacts(False, info.max_failures if info.dead_letter_queue else 0, info.dead_letter_queue)

    async def close(self) -> None:
        if self._baton is not None:
            for reading in self._reading.values():
                try:
                    await reading.reader.leave()
                except BatonError:
                    pass  # the others get the shards when this member's session ends
            self._reading.clear()
        await super().close()

    def keeper(self, timeout: float) -> GroupKeeper | SharedGroupKeeper:  # type: ignore[override]
        if self._given is not None:
            assert self._loop is not None, "the source is not open"
            return SharedGroupKeeper(self, SharedKeeper(self._given, self._loop, timeout))
        return GroupKeeper(self, self._connect_keeper(timeout))

    def members(self) -> dict[str, tuple[str, list[int]]]:
        """Queue → this worker's name in the group, and its shards."""
        return {queue: (one.reader.member, one.reader.shards) for queue, one in [*self._reading.items()]}


class GroupReading:
    """This worker's part of one group: what it has fetched and not committed."""

    def __init__(self, reader: Reader, queue: str) -> None:
        self.reader = reader
        self._queue = queue
        self._shards: dict[int, ShardProgress] = {}
        self._tenures: dict[int, int] = {}
        self._settling = asyncio.Lock()
        self._changed = asyncio.Event()

    async def receive(self, max_messages: int, wait: float) -> list[Message]:
        ends = time.monotonic() + wait
        while True:
            found = self._ready(max_messages)
            left = ends - time.monotonic()
            if found or left <= 0:
                if not found and wait <= 0:
                    await self._fetch(max_messages, 0.0)
                    found = self._ready(max_messages)
                return found
            self._changed.clear()
            held = sum(len(progress.entries) for progress in self._shards.values())
            if held >= HELD_MAX:
                try:
                    await asyncio.wait_for(self._changed.wait(), min(left, LOOK_S))
                except TimeoutError:
                    await self.reader.join()
            else:
                await self._fetch(max_messages, min(left, LOOK_S) if held else left)

    async def _fetch(self, max_messages: int, wait: float) -> None:
        found = await self.reader.fetch(min(max(max_messages, 1), 1_000), wait)
        self._drop_lost()
        for message in found:
            self._shards.setdefault(message.shard, ShardProgress()).add(message)

    def _drop_lost(self) -> None:
        """Forget what another member has now. A shard that was lost and is back is begun again by the fetch."""
        now = self.reader.tenures()
        for shard in [shard for shard in self._shards if self._tenures.get(shard) != now.get(shard)]:
            del self._shards[shard]
        self._tenures = now

    def _ready(self, limit: int) -> list[Message]:
        found: list[Message] = []
        now_s = time.monotonic()
        for progress in self._shards.values():
            found += [self._message(entry) for entry in progress.ready(limit - len(found), now_s)]
        return found

    def _message(self, entry: Entry) -> Message:
        message: RetainedFields = entry.message
        return MessageFields(
            id=message.id,
            receipt=message.position,
            body=message.body,
            receive_count=entry.failures + 1,
            sequence=message.sequence,
            queue=self._queue,
            attributes=message.attributes,
            group=message.group,
            dedup_key=message.dedup_key,
            priority=message.priority,
            sent_at_ms=message.sent_at_ms,
            first_received_at_ms=int(time.time() * 1000),
            deadline_ms=int((time.time() + self.reader.session) * 1000),
            traceparent=message.traceparent,
            tracestate=message.tracestate,
        )

    async def finish(self, outcomes: dict[str, Nack | None]) -> list[Outcome]:
        """Take the outcomes of handlers by position: None is success. Returns an error per message that is lost."""
        results: dict[str, Outcome] = {}
        shards: dict[int, list[str]] = {}
        for position, nack in outcomes.items():
            shard = int(position.partition(":")[0])
            entry = self._shards[shard].entries.get(position) if shard in self._shards else None
            if entry is None or entry.state is not State.OUT:
                results[position] = StaleMember(GONE)
                continue
            _end(entry, nack)
            results[position] = None
            shards.setdefault(shard, []).append(position)
        async with self._settling:  # commits of one shard must not overtake each other
            for shard, positions in shards.items():
                try:
                    await self._settle(shard)
                except StaleMember as problem:
                    self._shards.pop(shard, None)
                    results.update(dict.fromkeys(positions, problem))
        self._changed.set()
        return [results[position] for position in outcomes]

    async def _settle(self, shard: int) -> None:
        """Commit what is done, and report the first message if it failed."""
        while (progress := self._shards.get(shard)) is not None:
            last = progress.take_done()
            if last is not None:
                await self.reader.commit(last)  # type: ignore[arg-type]
            first = progress.first
            if first is None or first.state is not State.FAILED:
                return
            if not await self._report(first):
                return
            progress.entries.pop(first.message.position, None)

    async def _report(self, entry: Entry) -> bool:
        """Report a failed message; returns whether it was skipped. Otherwise it is tried again after a delay."""
        result = await self.reader.fail(entry.message, entry.error)  # type: ignore[arg-type]
        if entry.poison and not result.skipped:
            for _ in range(result.failures, (await self.reader.info()).max_failures):
                result = await self.reader.fail(entry.message, entry.error)  # type: ignore[arg-type]
        entry.failures = result.failures
        if result.skipped:
            return True
        delay_s = entry.not_before_s or min(BACKOFF_S * 2 ** (result.failures - 1), BACKOFF_MAX_S)
        entry.state, entry.not_before_s = State.WAITING, time.monotonic() + delay_s
        return False


def _end(entry: Entry, nack: Nack | None) -> None:
    if nack is None:
        entry.state = State.DONE
    elif nack.untried:
        entry.state = State.WAITING
    else:
        entry.state = State.FAILED
        entry.error = f"{nack.error_class}: {nack.reason}" if nack.error_class else nack.reason
        entry.poison = nack.dead_letter
        entry.not_before_s = nack.delay or 0.0  # seconds from the report on, until it is reported


class GroupKeeper:
    """Keeps this worker a member while its handlers run, on a connection of its own."""

    def __init__(self, source: GroupSource, baton: BlockingBaton) -> None:
        self._source = source
        self._baton = baton

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        member = self._source.members().get(queue)
        if member is None:
            return [None] * len(changes)
        shards = self._baton.queue(queue).reader(self._source.group, member=member[0]).join()
        return [None if int(position.partition(":")[0]) in shards else StaleMember(GONE) for position, _ in changes]

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return [None] * len(changes)  # what is not committed is read again, by this worker or another

    def close(self) -> None:
        self._baton.close()


class SharedGroupKeeper:
    """The same through the program's own client, on its event loop."""

    def __init__(self, source: GroupSource, keeper: SharedKeeper) -> None:
        self._source = source
        self._keeper = keeper

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        reading = self._source._reading.get(queue)
        if reading is None:
            return [None] * len(changes)
        shards = self._keeper._on_the_loop(reading.reader.join())
        return [None if int(position.partition(":")[0]) in shards else StaleMember(GONE) for position, _ in changes]

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return [None] * len(changes)

    def close(self) -> None:
        """The client belongs to the program and stays open."""
