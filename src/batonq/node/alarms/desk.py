"""The alarm desk of a node: evaluates the rules, keeps the book, and answers questions about the alarms of the server.

Exactly one node or process of a server evaluates the rules: the one that has the catalog. When the catalog moves, the
next one continues with the alarms of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from batonq.core.catalog.entries import QueueEntry
from batonq.errors import BatonError, InvalidInput, NotFound
from batonq.node import events
from batonq.node.alarms.book import HISTORY_MAX, NOTE_LENGTH_MAX, Alarm, AlarmBook, alarm_id, merged, queue_id
from batonq.node.alarms.rules import Marks, NodeFacts, QueueFacts, Rules, ShardFacts
from batonq.node.alarms.store import AlarmStore
from batonq.node.alarms.usual import UsualDepths
from batonq.node.alarms.webhooks import Tried, Webhooks
from batonq.node.clock import duration
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.overview import Overview, QueueReading
from batonq.node.settings import Settings

EVERY_S = 5.0
EVERY_PER_QUEUE_S = 0.003  # with very many queues the rules are evaluated less often
AT_ONCE = 250  # queues that are judged before other requests get a turn
STOPPED = "shard-stopped"


class Part(msgspec.Struct):
    """The alarms of one node. `ruled`: what its rules raised when it last evaluated them, at `evaluated_ms`."""

    active: list[Alarm]
    history: list[Alarm]
    ruled: list[Alarm]
    evaluated_ms: int


class Listed(NamedTuple):
    active: list[Alarm]  # the most severe first
    history: list[Alarm]  # newest first


class OwnershipFacts(NamedTuple):
    """What the rules need to know of a cluster."""

    moves: dict[int, int]  # per shard: changes of its owner in the last ten minutes
    lag: dict[str, dict[int, int]]  # node → shard → frames behind the owner
    gone_ms: dict[str, int]  # nodes that left without being drained, and how long ago


ALONE = OwnershipFacts({}, {}, {})
_part = msgspec.msgpack.Decoder(Part)
_alarm = msgspec.msgpack.Decoder(Alarm | None)


class AlarmDesk:
    """`run` is the task that evaluates and saves. `evaluates` says whether this node is the one that evaluates."""

    def __init__(
        self,
        settings: Settings,
        book: AlarmBook,
        *,
        everywhere: Everywhere,
        overview: Callable[[], Awaitable[Overview]],
        queues: Callable[[], Mapping[int, QueueEntry]],
        ownership: Callable[[], Awaitable[OwnershipFacts]],
        evaluates: Callable[[], bool],
        webhooks: Webhooks,
        now_ms: Callable[[], int],
        store: AlarmStore | None,
    ) -> None:
        self.book = book
        self.webhooks = webhooks
        self._settings = settings
        self._everywhere = everywhere
        self._overview = overview
        self._queues = queues
        self._ownership = ownership
        self._evaluates = evaluates
        self._now_ms = now_ms
        self._store = store
        self._evaluated_ms = 0
        self._queues_read = 0
        self._saved = (0, 0)
        marks = Marks(
            settings.alarm_depth,
            settings.alarm_unusual_factor,
            settings.alarm_no_consumer_s,
            settings.disk_share,
        )
        saved = store.load() if store is not None else None
        self._rules = Rules(marks, UsualDepths(saved.usual if saved is not None else None))
        if saved is not None:
            book.restore(saved)
        self._rules.resume(book.ruled())
        self._evaluating = asyncio.Lock()
        book.evaluating = False
        book.listeners.append(webhooks.tell)
        everywhere.provide("alarms", self._read_here)
        everywhere.provide("acknowledge-alarm", self._acknowledge_here)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                try:
                    await self.evaluate()
                except BatonError as problem:
                    events.info("alarms_not_evaluated", f"The alarms' rules could not be evaluated: {problem.message}")
                except Exception:  # one bad reading must not end the watch
                    events.logger.exception("the alarms' rules could not be evaluated")
                await self._save_changes()
                await asyncio.sleep(max(EVERY_S, self._queues_read * EVERY_PER_QUEUE_S))
        finally:
            await self.webhooks.close()

    async def close(self) -> None:
        """Save what has changed. The task must have ended."""
        await self._save_changes()

    async def _save_changes(self) -> None:
        changes = (self.book.changes, self._rules.usual.hours_ended)
        if self._store is not None and changes != self._saved:
            self._saved = changes
            saved = self.book.saved()
            saved.usual = self._rules.usual.saved()
            await self._store.save(saved)

    # --- the rules

    async def evaluate(self) -> None:
        """Evaluate the rules once, if that is this node's part. Raises BatonError when the server cannot be read."""
        async with self._evaluating:
            if not self._evaluates():
                self.book.evaluating = False
                return
            if not self.book.evaluating:
                await self._take_over()
            overview = await self._overview()
            ownership = await self._ownership()
            await self._judge(overview, ownership)
            self._evaluated_ms = self._now_ms()

    async def _take_over(self) -> None:
        """Continue with the alarms of the node that evaluated the rules last."""
        parts = await self._everywhere.read_as(_part, "alarms", history=False)
        last = max((part.value for part in parts[1:] if part.value is not None), key=_evaluated, default=None)
        if last is not None and last.evaluated_ms > self._evaluated_ms:
            self.book.adopt(last.ruled)
            self._rules.resume(self.book.ruled())
        self.book.evaluating = True

    async def _judge(self, overview: Overview, ownership: OwnershipFacts) -> None:
        rules, own = self._rules, self._settings.account
        entries = self._queues()
        known = {queue_id(entry.name, entry.account, own) for entry in entries.values()}
        rules.begin(self._now_ms())
        read: set[str] = set()  # completely: not those of which a shard is missing
        for start in range(0, len(overview.queues), AT_ONCE):
            for reading in overview.queues[start : start + AT_ONCE]:
                id = queue_id(reading.name, reading.account, own)
                entry = entries.get(reading.number)
                if entry is not None and reading.shards < len(entry.shards):
                    continue
                read.add(id)
                counters = reading.counters
                if counters.oldest_sent_ms or counters.visible or counters.dead or reading.paused:
                    rules.add_queue(_queue_facts(overview, reading, id))
                else:
                    rules.add_empty_queue(id, counters.received, reading.waiters)
            await asyncio.sleep(0)
        self._queues_read = len(overview.queues)
        # Without the node that raised it, which the id names after @.
        stopped = {alarm.id.partition("@")[0] for alarm in overview.alarms if alarm.kind == STOPPED}
        shards = [
            ShardFacts(shard.number, shard.state, shard.why, ownership.moves.get(shard.number, 0))
            for shard in overview.shards
            if alarm_id(STOPPED, shard.number) not in stopped
        ]
        rules.add_servers(shards, self._node_facts(overview, ownership))
        outcome = rules.finish(known, known - read)
        for alarm in outcome.seen:
            self.book.renew(alarm)
        for id in outcome.ended:
            self.book.end(id)

    def _node_facts(self, overview: Overview, ownership: OwnershipFacts) -> Iterator[NodeFacts]:
        several, one_disk = bool(self.book.node), self._settings.processes > 1
        for at, node in enumerate(overview.nodes):
            disk = (0, 0) if one_disk and at else (node.process.disk_free_bytes, node.process.disk_total_bytes)
            lag = tuple(sorted(ownership.lag.get(node.name, {}).items()))
            yield NodeFacts(node.name if several else "", node.problem, *disk, lag)
        for name in ownership.gone_ms.keys() - {node.name for node in overview.nodes}:
            gone = duration(ownership.gone_ms[name])
            yield NodeFacts(name, f"it left the cluster {gone} ago without being drained.")

    # --- questions

    async def listed(self, history: bool) -> Listed:
        """The alarms of the whole server."""
        parts = await self._everywhere.read_as(_part, "alarms", history=history)
        found = [part.value for part in parts if part.value is not None]
        ended = sorted((alarm for part in found for alarm in part.history), key=lambda alarm: -alarm.ended_ms)
        return Listed(merged(alarm for part in found for alarm in part.active), ended[:HISTORY_MAX])

    async def acknowledge(self, id: str, by: str, note: str) -> Alarm:
        """Acknowledge an active alarm, whichever node has it. Raises NotFound."""
        parts = await self._everywhere.read_as(_alarm, "acknowledge-alarm", alarm=id, by=by, note=note)
        for part in parts:
            if part.value is not None:
                found: Alarm = part.value
                return found
        raise NotFound(f"No alarm {id[:200]!r} is active. List the active alarms to see their ids.")

    async def test(self) -> Sequence[Tried]:
        """Send a test event to the webhooks. Raises InvalidInput when there are none."""
        if not self.webhooks.names:
            raise InvalidInput("The server has no alarm webhooks. Set --alarm-webhooks and restart it.")
        return await self.webhooks.test()

    async def _read_here(self, arguments: dict[str, Any]) -> Part:
        history = [*self.book.history] if arguments.get("history") else []
        ruled = [] if arguments.get("history") else self.book.ruled()
        return Part(self.book.active(), history, ruled, self._evaluated_ms)

    async def _acknowledge_here(self, arguments: dict[str, Any]) -> Alarm | None:
        id, by, note = (str(arguments.get(name, "")) for name in ("alarm", "by", "note"))
        active = {alarm.id for alarm in self.book.active()}
        if id not in active:
            return None
        acknowledged = self.book.acknowledge(id, by[:NOTE_LENGTH_MAX], note)
        await self._save_changes()
        return acknowledged


def _evaluated(part: Part) -> int:
    return part.evaluated_ms


def _age_ms(overview: Overview, reading: QueueReading) -> int:
    """The age of the queue's oldest message. A delayed message is not late, however long ago it was sent: if there is
    one, or if a message is older than any message without a delay can be, visible messages count.
    """
    age_ms = overview.age_ms(reading)
    if reading.counters.delayed or age_ms > reading.retention_seconds * 1000:
        return overview.visible_age_ms(reading)
    return age_ms


def _queue_facts(overview: Overview, reading: QueueReading, id: str) -> QueueFacts:
    counters = reading.counters
    return QueueFacts(
        id=id,
        name=reading.name,
        account=reading.account,
        visible=counters.visible,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        dead=counters.dead,
        age_ms=_age_ms(overview, reading),
        received=counters.received,
        waiting=reading.waiters,
        dead_letters=reading.dead_letters,
        sla_ms=reading.sla_seconds * 1000,
        retention_ms=reading.retention_seconds * 1000,
        depth_mark=reading.alarm_depth,
        severity=reading.severity,
        expires_to_dead_letter=reading.expiry_to_dead_letter,
        returned=counters.returned,
        paused=reading.paused,
    )
