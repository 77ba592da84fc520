"""The history of queues from the node: current figures from the broker, the past from its own time series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from batonq.api.cloudwatch.metrics import Steps
from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller
from batonq.core.catalog.entries import READ
from batonq.errors import QueueDoesNotExist
from batonq.node.broker import Broker

# The ranges of the time series, finest first: name and seconds.
RANGES = (("15m", 900), ("1h", 3_600), ("6h", 21_600), ("24h", 86_400), ("72h", 259_200))


class InProcessRest(Protocol):
    async def handle(self, request: Request, caller: Caller) -> Response: ...


class Series(Struct, rename="camel"):
    """The answer of the operation queueSeries, as far as it is needed here."""

    step_seconds: int
    start_at_ms: int
    values: dict[str, list[float | None]]


class NodeHistory:
    """See metrics.QueueHistory."""

    def __init__(self, broker: Broker, rest: InProcessRest) -> None:
        self._broker = broker
        self._rest = rest

    def now_ms(self) -> int:
        return self._broker.now_ms()

    def queues(self, account: str) -> list[str]:
        return sorted(queue.name for queue in self._broker.queues(account))

    async def steps(self, account: str, queue: str, start_ms: int) -> Steps | None:
        age_s = (self.now_ms() - start_ms) / 1000
        name = next((name for name, seconds in RANGES if seconds >= age_s), RANGES[-1][0])
        request = Request(
            "GET", f"/v1/queues/{quote(queue, safe='')}/series", f"range={name}", {b"accept": b"application/json"}
        )
        response = await self._rest.handle(request, Caller(account, "", READ))
        if response.status != 200:
            return None
        series = msgspec.json.decode(response.body, type=Series)
        return Steps(series.start_at_ms, series.step_seconds * 1000, series.values)

    async def now(self, account: str, queue: str) -> Mapping[str, float]:
        try:
            counters = await self._broker.counters(self._broker.queue(account, queue))
        except QueueDoesNotExist:
            return {}
        oldest_ms = counters.oldest_sent_ms
        return {
            "visible": counters.visible,
            "inFlight": counters.in_flight,
            "delayed": counters.delayed,
            "oldestSeconds": max(0, self.now_ms() - oldest_ms) / 1000 if oldest_ms else 0.0,
        }
