"""GET /v1/queues:stats, /v1/queues/{queue}/series and /v1/series: queues in figures, now and over time."""

from __future__ import annotations

from typing import cast

from msgspec import UNSET

from batonq.api.rest import series_shapes as shapes
from batonq.api.rest.queues import query, whole
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.status_shapes import Level
from batonq.errors import InvalidInput
from batonq.node.alarms.verdict import queue_level
from batonq.node.monitoring import series_reader
from batonq.node.monitoring.overview import Overview, QueueReading
from batonq.node.monitoring.queue_listing import NAME, SORTS, QueueRow
from batonq.node.monitoring.series import RESOLUTIONS

LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
OFFSET_MAX = 10_000_000
SEARCH_MAX = 80  # the length of a queue's name
RANGES = tuple(resolution.name for resolution in RESOLUTIONS)
ORDERS = ("asc", "desc")
UNAVAILABLE = "The shard of the queue is not being served at the moment."


async def list_queue_stats(call: Call) -> Answer:
    values = query(call, ("search", "sort", "order", "offset", "limit"))
    search = values.get("search", "")
    if len(search) > SEARCH_MAX:
        raise InvalidInput(f"search can have at most {SEARCH_MAX} characters, which is the longest name of a queue.")
    sort = choice(values, "sort", SORTS, NAME)
    order = choice(values, "order", ORDERS, "asc" if sort == NAME else "desc")
    offset = whole(values.get("offset"), "offset", 0, OFFSET_MAX, 0)
    limit = whole(values.get("limit"), "limit", 1, LIMIT_MAX, LIMIT_DEFAULT)
    listing = await call.broker.monitor.queues.page(
        call.caller.account, search=search, sort=sort, descending=order == "desc", offset=offset, limit=limit
    )
    now = Overview(listing.at_ms)
    return Answer(
        200,
        shapes.QueueStats(
            total=listing.total,
            offset=offset,
            at_ms=listing.at_ms,
            queues=[summary(now, row) for row in listing.rows],
        ),
    )


def summary(now: Overview, row: QueueRow) -> shapes.QueueSummary:
    queue, counters = row.reading, row.reading.counters
    level, note = queue_level(now, queue) if queue.shards else ("critical", UNAVAILABLE)
    return shapes.QueueSummary(
        name=queue.name,
        account=queue.account,
        mode="FIFO" if queue.fifo else "STANDARD",
        dead_letter_queue=queue.dead_letter_queue or UNSET,
        is_dead_letter_queue=queue.dead_letters,
        sources=[*queue.sources],
        max_receive_count=queue.max_receives or UNSET,
        sla_seconds=queue.sla_seconds or UNSET,
        severity=queue.severity or UNSET,
        paused=queue.paused or UNSET,
        deliveries_per_second=queue.deliveries_per_s or UNSET,
        only_group=queue.only_group or UNSET,
        minimum_priority=queue.priority_min or UNSET,
        visible=counters.visible,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        owed=counters.owed,
        dead=counters.dead,
        bytes=counters.bytes,
        oldest_age_seconds=now.age_ms(queue) / 1000,
        oldest_visible_age_seconds=now.visible_age_ms(queue) / 1000,
        **rates_of(queue),
        sent=counters.sent,
        received=counters.received,
        deleted=counters.deleted,
        arrived=counters.arrived,
        dead_lettered=counters.dead_lettered,
        expired=counters.expired_messages,
        waiting_receives=queue.waiters,
        trend=row.trend,
        level=cast(Level, level),
        note=note,
    )


def rates_of(queue: QueueReading) -> dict[str, float]:
    rates = queue.rates
    return {
        "sent_per_second": round(rates.sent, 3),
        "received_per_second": round(rates.received, 3),
        "acked_per_second": round(rates.acked, 3),
        "retried_per_second": round(rates.retried, 3),
    }


async def queue_series(call: Call) -> Answer:
    range_name = _range(call)
    queue = call.queue()
    return Answer(200, shown(await call.broker.monitor.series.read(range_name, queue.number), queue.name))


async def server_series(call: Call) -> Answer:
    call.require_operator(False)
    return Answer(200, shown(await call.broker.monitor.series.read(_range(call), None)))


def _range(call: Call) -> str:
    return choice(query(call, ("range",)), "range", RANGES, RANGES[0])


def shown(series: series_reader.Series, queue: str = "") -> shapes.Series:
    return shapes.Series(
        queue=queue or UNSET,
        range=series.range,  # type: ignore[arg-type]
        step_seconds=series.step_s,
        start_at_ms=series.start_ms,
        end_at_ms=series.end_ms,
        values=series.values,
        marks=[shapes.SeriesMark(at_ms=mark.at_ms, kind=mark.kind, text=mark.text) for mark in series.marks],
    )


def choice(values: dict[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = values.get(name, default)
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value[:100]!r}.")
    return value
