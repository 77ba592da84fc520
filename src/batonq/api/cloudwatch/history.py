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

RANGES = ("15m", "1h", "6h", "24h", "72h")  # of the time series, the finest first


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

    async def steps(self, account: str, queue: str, start_ms: int) -> list[Steps]:
        """The newest part has the finest steps; older parts are added until `start_ms` is covered."""
        parts: list[Steps] = []
        for name in RANGES:
            series = await self._series(account, queue, name)
            if series is None:
                return []
            step_ms = series.step_seconds * 1000
            part = Steps(series.start_at_ms, step_ms, series.values)
            if parts:
                # The finer part begins where a step of this one ends, so that nothing is counted twice or left out.
                border_ms = -(-parts[-1].start_ms // step_ms) * step_ms
                parts[-1] = _from(parts[-1], border_ms)
                part = _until(part, border_ms)
            parts.append(part)
            if series.start_at_ms <= start_ms:
                break
        return parts

    async def _series(self, account: str, queue: str, range_name: str) -> Series | None:
        request = Request(
            "GET", f"/v1/queues/{quote(queue, safe='')}/series", f"range={range_name}", {b"accept": b"application/json"}
        )
        response = await self._rest.handle(request, Caller(account, "", READ))
        return msgspec.json.decode(response.body, type=Series) if response.status == 200 else None

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


def _from(part: Steps, start_ms: int) -> Steps:
    """The steps that begin at `start_ms` or later."""
    skipped = max(0, -(-(start_ms - part.start_ms) // part.step_ms))
    values = {name: column[skipped:] for name, column in part.values.items()}
    return Steps(part.start_ms + skipped * part.step_ms, part.step_ms, values)


def _until(part: Steps, end_ms: int) -> Steps:
    """The steps that end at `end_ms` or before."""
    count = max(0, (end_ms - part.start_ms) // part.step_ms)
    return Steps(part.start_ms, part.step_ms, {name: column[:count] for name, column in part.values.items()})
