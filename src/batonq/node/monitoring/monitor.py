"""What the APIs may ask about the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from batonq.node.alarms.desk import AlarmDesk
from batonq.node.monitoring.cluster_view import ClusterView
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.exposition import DECODER
from batonq.node.monitoring.metrics import HTTP_CONNECTIONS
from batonq.node.monitoring.overview import Overview
from batonq.node.monitoring.queue_listing import QueueLister
from batonq.node.monitoring.series_reader import SeriesReader
from batonq.node.settings import Settings

CHEAP_S = 0.02  # an overview that takes less is read anew whenever somebody asks
SHARE_MAX = 0.05  # others take at most this share of the time, however many ask
AGE_MAX_S = 2.0


class ServerMonitor:
    """`overview` is shared by all who ask at about the same time."""

    def __init__(
        self,
        settings: Settings,
        *,
        read: Callable[[], Awaitable[Overview]],
        cluster: Callable[[], Awaitable[ClusterView]],
        everywhere: Everywhere,
        alarms: AlarmDesk,
        seconds: Callable[[], float],
        queues: QueueLister,
        series: SeriesReader,
    ) -> None:
        self.queues = queues
        self.series = series
        self.settings = settings
        self.everywhere = everywhere
        self.alarms = alarms
        self.cluster = cluster
        self._read = read
        self._seconds = seconds
        self._last: Overview | None = None
        self._fresh_until_s = 0.0
        self._reading = asyncio.Lock()

    async def overview(self) -> Overview:
        """All queues, shards and nodes of the server. On a server with very many queues it may be two seconds old."""
        async with self._reading:
            if self._last is None or self._seconds() >= self._fresh_until_s:
                return await self._read_now()
            return self._last

    async def fresh_overview(self) -> Overview:
        """Like `overview`, and never older than the question."""
        async with self._reading:
            return await self._read_now()

    async def _read_now(self) -> Overview:
        began_s = self._seconds()
        self._last = await self._read()
        now_s = self._seconds()
        took_s = now_s - began_s
        self._fresh_until_s = now_s + (min(took_s / SHARE_MAX, AGE_MAX_S) if took_s > CHEAP_S else 0.0)
        return self._last

    async def connections(self) -> int:
        """Open client connections, of all nodes that answer."""
        parts = await self.everywhere.read_as(DECODER, "metrics", names=[HTTP_CONNECTIONS.name])
        families = [family for part in parts if part.value is not None for family in part.value]
        return sum(int(value) for family in families for _, value in family.samples)
