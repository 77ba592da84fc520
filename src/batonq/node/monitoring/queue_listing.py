"""Lists queues with their figures: searched, sorted and in pages, whatever their number.

Of all queues only the figure by which they are sorted is read. The rest is read for the queues on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from batonq.core.catalog.entries import QueueEntry
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.queue_state import QueueState
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.overview import OverviewReader, QueueReading, joined_queue, unread_queue
from batonq.node.monitoring.sampler import Sampler
from batonq.node.monitoring.series import TREND_POINTS
from batonq.node.shard_host.keeper import ShardKeeper

NAME = "name"
Key = tuple[float, float]  # the figure by which queues are sorted, and another one if it is the same


class QueueRow(NamedTuple):
    reading: QueueReading
    trend: list[int]  # visible messages during the last 15 minutes


class Listing(NamedTuple):
    total: int  # number of queues that the search found
    at_ms: int
    rows: list[QueueRow]


ROWS = msgspec.msgpack.Decoder(list[QueueRow])
KEYS = msgspec.msgpack.Decoder(dict[int, Key])


# The figures that a queue has on each shard; ages and rates are read in `_key`.
_FIGURES: dict[str, Callable[[QueueState], float]] = {
    "visible": lambda queue: queue.visible,
    "inFlight": lambda queue: queue.in_flight,
    "delayed": lambda queue: queue.delayed,
    "dead": lambda queue: queue.dead,
    "depth": lambda queue: queue.messages,
    "sent": lambda queue: queue.sent,
    "received": lambda queue: queue.received,
    "acked": lambda queue: queue.deleted,
}
_RATES = ("sent", "received", "acked")  # sorted by the rate first, then by the total
_OLDEST = "oldest"
_DEAD = "dead"
SORTS = (NAME, *_FIGURES, _OLDEST)


class QueueLister:
    def __init__(
        self,
        *,
        everywhere: Everywhere,
        entries: Callable[[], Mapping[int, QueueEntry]],
        shards: Sequence[ShardKeeper],
        reader: OverviewReader,
        sampler: Sampler,
        now_ms: Callable[[], int],
    ) -> None:
        self._everywhere = everywhere
        self._entries = entries
        self._shards = shards
        self._reader = reader
        self._sampler = sampler
        self._now_ms = now_ms
        everywhere.provide("queue_keys", self._keys_here)
        everywhere.provide("queue_rows", self._rows_here)

    async def page(
        self, account: str, *, search: str = "", sort: str = NAME, descending: bool = False, offset: int = 0, limit: int
    ) -> Listing:
        """The queues of an account whose name contains a text, sorted by name or a figure (SORTS)."""
        found = self._found(account, search)
        if sort == NAME:
            found.sort(key=lambda entry: entry.name, reverse=descending)
        else:
            keys = await self._keys(account, search, sort)
            found.sort(key=lambda entry: entry.name)
            found.sort(key=lambda entry: keys.get(entry.number, (0.0, 0.0)), reverse=descending)
        page = found[offset : offset + limit]
        return Listing(len(found), self._now_ms(), await self._rows(page))

    def _found(self, account: str, search: str) -> list[QueueEntry]:
        return [entry for entry in self._entries().values() if entry.account == account and search in entry.name]

    async def _keys(self, account: str, search: str, sort: str) -> dict[int, Key]:
        asked = {"account": account, "search": search, "sort": sort, "now_ms": self._now_ms()}
        whole: dict[int, Key] = {}
        for part in await self._everywhere.read_as(KEYS, "queue_keys", **asked):
            for number, (value, other) in (part.value or {}).items():
                first, second = whole.get(number, (0.0, 0.0))
                whole[number] = max(first, value) if sort == _OLDEST else first + value, second + other
        return whole

    async def _rows(self, page: Sequence[QueueEntry]) -> list[QueueRow]:
        parts = await self._everywhere.read_as(ROWS, "queue_rows", queues=[entry.number for entry in page])
        found: dict[int, list[QueueRow]] = {}
        for part in parts:
            for row in part.value or ():
                found.setdefault(row.reading.number, []).append(row)
        return [_joined(found.get(entry.number, ()), entry) for entry in page]

    # --- this node's part -------------------------------------------------------------------------

    async def _keys_here(self, arguments: dict[str, Any]) -> dict[int, Key]:
        sort, now_ms = arguments["sort"], arguments["now_ms"]
        entries = self._entries()
        dead_letter_queues = (
            {entry.dead_letter.number for entry in entries.values() if entry.dead_letter} if sort == _DEAD else set()
        )
        shards = {keeper.number: keeper.host().shard for keeper in self._shards if keeper.serving}
        keys: dict[int, Key] = {}
        for entry in self._found(arguments["account"], arguments["search"]):
            number = entry.number
            slices = [
                (shards[shard], queue)
                for shard in entry.shards
                if shard in shards and (queue := shards[shard].queues.get(number)) is not None
            ]
            if slices:
                by = "depth" if number in dead_letter_queues else sort
                keys[number] = self._key(by, number, slices, now_ms)
        return keys

    def _key(self, sort: str, number: int, slices: Sequence[tuple[Shard, QueueState]], now_ms: int) -> Key:
        if sort == _OLDEST:
            sents = [sent_ms for shard, _ in slices if (sent_ms := shard.oldest_sent(number))]
            return max(0.0, now_ms - min(sents)) + 1 if sents else 0.0, 0.0
        figure = _FIGURES[sort]
        total = sum(figure(queue) for _, queue in slices)
        return (getattr(self._sampler.rates(number), sort), total) if sort in _RATES else (total, 0.0)

    async def _rows_here(self, arguments: dict[str, Any]) -> list[QueueRow]:
        readings = await self._reader.read_queues(arguments["queues"])
        book = self._sampler.book
        return [QueueRow(reading, book.trend(reading.number, reading.counters.visible)) for reading in readings]


def _joined(rows: Sequence[QueueRow], entry: QueueEntry) -> QueueRow:
    if not rows:
        return QueueRow(unread_queue(entry), [0] * TREND_POINTS)
    if len(rows) == 1:
        return rows[0]
    trends = zip(*(row.trend for row in rows), strict=True)
    return QueueRow(joined_queue([row.reading for row in rows]), [*map(sum, trends)])
