"""All metrics of a node: what it counts itself, and the text that `/metrics` returns.

Metrics of queues and shards cover what the overview covers. Everything else is counted per process. With several
processes, those samples have the label `process`. A node of a cluster shows only what it serves and counts itself, and
every sample has the label `node`: all nodes are to be scraped, and sums over them are right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from batonq.core.catalog.entries import QueueEntry
from batonq.node.monitoring import metrics, process
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.exposition import (
    DECODER,
    Families,
    HistogramSample,
    histograms,
    label,
    many,
    merged,
    written,
)
from batonq.node.monitoring.overview import Overview
from batonq.node.monitoring.process import LagMeter
from batonq.node.monitoring.queue_metrics import (
    DETAILS,
    QueueDetail,
    joined_details,
    listed,
    queue_families,
    read_details,
    server_families,
)
from batonq.node.monitoring.sampler import Sampler
from batonq.node.monitoring.series import RATES
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import ShardKeeper

Source = Callable[[], Families]
_EVENTS = ("sent", "received", "acked", "retried", "dead_lettered", "expired")  # in the order of series.RATES
assert len(_EVENTS) == len(RATES)


class Alarming(Protocol):
    """The book of alarms, as far as its limit is concerned."""

    def active(self) -> Sequence[Any]: ...


class NodeMetrics:
    """`sources` are functions that return further metrics of this process; the front door and others add theirs.

    `label_name` is the label that tells processes apart, `node` the node's name in a cluster: empty for none.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        everywhere: Everywhere,
        shards: Sequence[ShardKeeper],
        sampler: Sampler,
        lag: LagMeter,
        started_ms: int,
        alarms: Alarming,
        empty_receives: Callable[[], Mapping[int, int]],
        entries: Callable[[], Mapping[int, QueueEntry]],
        overview: Callable[[], Any],
        label_name: str = "",
        node: str = "",
    ) -> None:
        self.sources: list[Source] = []
        self.asking_sources: list[Callable[[], Awaitable[Families]]] = []  # that ask other nodes
        self._settings = settings
        self._everywhere = everywhere
        self._shards = shards
        self._sampler = sampler
        self._lag = lag
        self._started_ms = started_ms
        self._alarms = alarms
        self._empty_receives = empty_receives
        self._entries = entries
        self._overview = overview
        self._label_name = label_name
        self._node = node
        self._listed: set[int] = set()  # queues that had metrics of their own last time
        everywhere.provide("metrics", self._read_here)
        everywhere.provide("queue_details", self._read_details)

    async def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        overview: Overview = await self._overview()
        queues = listed(overview, self._settings.metrics_queues_max, self._listed)
        self._listed = {queue.number for queue in queues}
        details = await self._details([queue.number for queue in queues])
        entries = self._entries()
        families = [
            *queue_families(overview, queues, details, entries),
            *server_families(overview, len(entries), len(queues)),
            *await self._of_processes(),
        ]
        for source in self.asking_sources:
            families += await source()
        if self._node:
            node = label("node", self._node)
            families = [family.labelled(node) for family in families]
        return await written(families)

    async def _of_processes(self) -> Families:
        if not self._label_name:
            return merged({"": self.here()}, "")
        parts = await self._everywhere.read_as(DECODER, "metrics")
        told = {part.node: part.value for part in sorted(parts, key=lambda part: part.node) if part.value is not None}
        return merged(told, self._label_name)

    async def _details(self, numbers: Sequence[int]) -> dict[int, QueueDetail]:
        if self._node or not numbers:
            return joined_details([read_details(numbers, self._shards, self._empty_receives())])
        parts = await self._everywhere.read_as(DETAILS, "queue_details", queues=[*numbers])
        return joined_details([part.value for part in parts if part.value is not None])

    async def _read_here(self, arguments: dict[str, Any]) -> Families:
        """The metrics of this process; with `names`, only those."""
        names = arguments.get("names")
        return [family for family in self.here() if names is None or family.metric in names]

    async def _read_details(self, arguments: dict[str, Any]) -> list[QueueDetail]:
        return read_details(arguments["queues"], self._shards, self._empty_receives())

    def here(self) -> Families:
        """What this process counts itself."""
        families = [*process.families(self._settings.data, self._started_ms, self._lag), *self._totals()]
        families += self._limits()
        for source in self.sources:
            families += source()
        return families

    def _totals(self) -> Families:
        server = self._sampler.book.server
        kinds = (metrics.WAIT, metrics.HANDLING, metrics.END_TO_END)
        return [
            many(
                metrics.EVENTS,
                [(f'event="{name}"', count) for name, count in zip(_EVENTS, server.totals, strict=False)],
            ),
            *(
                histograms(metric, [HistogramSample("", counts, sum_ms / 1000)])
                for metric, counts, sum_ms in zip(kinds, server.histograms, self._sampler.sums_ms, strict=True)
            ),
        ]

    def _limits(self) -> Families:
        settings = self._settings
        hosts = [keeper.host() for keeper in self._shards if keeper.serving]
        counted = (
            ("pending_requests", settings.pending_max, max((host.commit.pending for host in hosts), default=0)),
            ("waiting_receives", settings.waiters_max, max((host.polls.total for host in hosts), default=0)),
            ("alarms", settings.alarms_max, len(self._alarms.active())),
            ("series_queues", settings.series_queues_max, len(self._sampler.book.queues)),
        )
        return [
            many(metrics.LIMIT, [(f'limit="{name}"', limit) for name, limit, _ in counted]),
            many(metrics.LIMIT_USED, [(f'limit="{name}"', used) for name, _, used in counted]),
        ]
