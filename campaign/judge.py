"""The judge: reads the shards' committed logs, and runs the simulator's checkers over the history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

from batonq.core.ids import parse_message_id
from batonq.errors import LogCorrupt, Unavailable
from batonq.log import frames
from batonq.log.frames import Frame
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.log.jetstream.store import JetStreamStore
from campaign.clients import Place
from campaign.cluster import Broken, Cluster
from campaign.load import QueuePlan
from sim.checks import Evidence, QueueFacts, check_all
from sim.history import OK, History, Sending, Violation
from sim.ledger import Copy, Ledger

SLACK_MS = 50  # possible difference of the shards' time within a round, in addition to what was observed
# And if a clock was moved: it is slewed at a tenth of the elapsed time (node/clock.py), and for some seconds no lease
# may show it.
MOVED_CLOCK_SLACK_MS = 500
TRIES = 30
TRY_S = 1.0


class RoundLedger(Ledger):
    """The ledger of all shards, limited to the messages of some queues."""

    def __init__(self, all_books: Ledger, queues: set[int]) -> None:
        super().__init__()
        self.books = all_books.books
        self._queues = queues

    def copies(self) -> Iterator[Copy]:
        return (copy for copy in super().copies() if copy.queue in self._queues)


class Judge:
    """Has read every shard's log up to `next`, frame by frame."""

    def __init__(self, cluster: Cluster, shards: int) -> None:
        self.ledger = Ledger(self._read_object)
        self.violations: list[Violation] = []  # of the logs and of the payload store
        self._cluster = cluster
        self._next = dict.fromkeys(range(shards), 1)
        self._last: dict[int, Frame] = {}
        self._broken: set[int] = set()

    def _read_object(self, key: str) -> bytes:
        """A body in the payload store. In the time of a campaign, none is old enough to be swept."""
        try:
            return (self._cluster.payloads / key).read_bytes()
        except FileNotFoundError:
            self.violations.append(Violation("payloads", f"a message was sent, and its body {key} is not in the store"))
            return b""

    async def read(self) -> None:
        """Read every log to its end."""
        store = await self._open()
        try:
            for shard in self._next:
                if shard not in self._broken:
                    await self._patiently(store, shard)
        finally:
            await store.close()

    async def _open(self) -> JetStreamStore:
        for _ in range(TRIES):
            try:
                return await JetStreamStore.open(self._cluster.log_address)
            except Unavailable:
                await asyncio.sleep(TRY_S)
        raise Broken("the logs cannot be read")

    async def _patiently(self, store: JetStreamStore, shard: int) -> None:
        for _ in range(TRIES):
            try:
                await self._read_shard(await store.backend(shard))
                return
            except Unavailable:
                await asyncio.sleep(TRY_S)
            except LogCorrupt as problem:
                self._damaged(shard, problem.message)
                return
        raise Broken(f"the log of shard {shard} cannot be read")

    async def _read_shard(self, backend: JetStreamBackend) -> None:
        shard = backend.shard
        stop = (await backend.bounds()).next
        if self._next[shard] >= stop:
            return
        async with aclosing(backend.tail(self._next[shard])) as reading:
            async for entries in reading:
                for entry in entries:
                    if not self._take(shard, entry.number, frames.parse(entry.data)):
                        return
                if self._next[shard] >= stop:
                    return

    def _take(self, shard: int, number: int, frame: Frame) -> bool:
        """Check a frame: does it follow the previous one, and was its owner allowed to write it?"""
        last = self._last.get(shard)
        if frame.number != number or (last is not None and frame.previous_digest != last.digest):
            self._damaged(
                shard, f"frame {frame.number} with epoch {frame.epoch} is stored at {number} and does not follow"
            )
            return False
        if last is not None and frame.epoch < last.epoch:
            self._damaged(shard, f"frame {number} has epoch {frame.epoch}, the previous one has {last.epoch}")
            return False
        self.ledger.book(shard).fold(frame)
        self._last[shard] = frame
        self._next[shard] = number + 1
        return True

    def _damaged(self, shard: int, text: str) -> None:
        self._broken.add(shard)
        self.violations.append(Violation("stale-owner", f"shard {shard}: {text}"))

    # --- one round ------------------------------------------------------------------------------

    def facts(self, history: History, queues: list[QueuePlan]) -> list[QueueFacts]:
        """Facts about the queues for the checkers; their numbers are in receipts and in the ledger."""
        places: dict[str, Place] = {}
        for call, delivered in history.deliveries():
            places.setdefault(call.queue, Place.of(delivered.receipt))
        for sending in history.of(Sending):
            for answer in sending.answers:
                found = parse_message_id(answer.message_id) if answer.outcome == OK else None
                book = self.ledger.books.get(found[0]) if found else None
                copy = book.copies.get(found[1]) if book is not None and found else None
                if found and copy is not None:
                    places.setdefault(sending.queue, Place(found[0], copy.queue, found[1]))
        return [
            QueueFacts(
                plan.name,
                plan.name,
                places[plan.name].queue,
                places[plan.name].shard,
                fifo=plan.fifo,
                strict=True,
                visibility_ms=plan.visibility_ms,
            )
            if plan.name in places
            else QueueFacts(plan.name, plan.name, 0, 0, fifo=plan.fifo, strict=True)
            for plan in queues
        ]

    def is_empty(self, facts: list[QueueFacts]) -> bool:
        return not any(
            book.live(queue.number) for queue in facts if queue.number for book in self.ledger.books.values()
        )

    def stored(self, facts: list[QueueFacts]) -> int:
        """How many messages of the queues had their bodies in the payload store."""
        numbers = {queue.number for queue in facts}
        return sum(bool(copy.key) for copy in self.ledger.copies() if copy.queue in numbers)

    def left(self, facts: list[QueueFacts]) -> dict[str, int]:
        counts = {
            queue.name: sum(len(book.live(queue.number)) for book in self.ledger.books.values())
            for queue in facts
            if queue.number
        }
        return {name: count for name, count in counts.items() if count}

    def judge(self, history: History, facts: list[QueueFacts], slack_ms: int) -> list[Violation]:
        """The violations in the round's history and in the logs."""
        low_ms, high_ms = bounds_ms(history, slack_ms)
        for call in history.calls:
            call.started_ms += low_ms
            call.ended_ms += high_ms
        ledger = RoundLedger(self.ledger, {queue.number for queue in facts})
        evidence = Evidence(history, ledger, [replace(queue) for queue in facts])
        found = [*self.violations, *check_all(evidence)]
        self.violations = []
        return found


def bounds_ms(history: History, slack_ms: int) -> tuple[int, int]:
    """The minimum and maximum by which the shards' time is ahead of the campaign's, from the leases of a round.

    A lease began between its receive and the response.
    """
    least, most = [0], [0]
    for call, delivered in history.deliveries():
        if not call.attempt:
            least.append(delivered.began_ms - call.started_ms)
            most.append(delivered.began_ms - call.ended_ms)
    return min(least) - slack_ms, max(most) + slack_ms
