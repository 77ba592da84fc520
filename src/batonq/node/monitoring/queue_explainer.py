"""Collects the figures of a queue from its shards, its time series and its consumers, for queue_diagnosis.py."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from batonq.node.broker import Broker
from batonq.node.catalog.queue_control import Queue
from batonq.node.messages.consumers import ConsumerRow
from batonq.node.messages.queue_diagnosis import Diagnosis, Figures, Flow, diagnose, merged_groups
from batonq.node.messages.queue_figures import GROUPS, ShardFigures
from batonq.node.monitoring.series import Value
from batonq.node.monitoring.series_reader import Series
from batonq.node.routing.splitter import summed

RANGE = "15m"
RECENT_S = 30  # "now"; the time before it is what it is compared with
BEFORE_S = 60  # how much of that time must be known


class Explained(NamedTuple):
    figures: Figures
    diagnosis: Diagnosis


async def explain(broker: Broker, queue: Queue) -> Explained:
    """Why the messages of a queue wait. Nothing is changed. Raises Unavailable if a shard is not served."""
    shards = await broker.figures(queue)
    consumers = await broker.consumers.listed(queue.number)
    series = await broker.monitor.series.read(RANGE, queue.number)
    figures = collect(
        queue, broker.now_ms(), shards, consumers, series, broker.queue_name(queue.policy.dead_letter_queue)
    )
    return Explained(figures, diagnose(figures))


def collect(
    queue: Queue,
    now_ms: int,
    shards: Sequence[ShardFigures],
    consumers: Sequence[ConsumerRow],
    series: Series,
    dead_letter_queue: str,
) -> Figures:
    policy = queue.policy
    recent_ms = now_ms - RECENT_S * 1000
    now, before = flows(series)
    failing = [one.worst for one in shards if one.worst is not None]
    locked = [one.locked for one in shards if one.locked is not None]
    return Figures(
        queue=queue.name,
        now_ms=now_ms,
        counters=summed([one.counters for one in shards]),
        fifo=queue.fifo,
        paused=policy.paused,
        deliveries_per_s=policy.deliveries_per_s,
        only_group=policy.only_group,
        priority_min=policy.priority_min,
        in_flight_max=policy.in_flight_max * len(queue.shards),
        at_in_flight_limit=any(one.counters.in_flight >= policy.in_flight_max for one in shards),
        max_receives=policy.max_receives,
        dead_letter_queue=dead_letter_queue,
        deliverable=sum(one.deliverable for one in shards),
        paced=any(one.paced for one in shards),
        waiting_receives=max((one.waiting_receives for one in shards), default=0),
        consumers=sum(row.waiting > 0 or row.polled_ms >= recent_ms for row in consumers),
        polled_ms=max((row.polled_ms for row in consumers), default=0),
        now=now,
        before=before,
        examined=sum(one.examined for one in shards),
        failing=sum(one.failing for one in shards),
        worst=max(failing, key=lambda one: one.receives, default=None),
        locked=max(locked, key=lambda one: one.waiting, default=None),
        groups=merged_groups((one.groups for one in shards), GROUPS),
        next_visible_ms=min((one.next_visible_ms for one in shards if one.next_visible_ms), default=0),
    )


def flows(series: Series) -> tuple[Flow, Flow | None]:
    """The rates of the last half minute, and of the time before it; None if too little of that is known."""
    steps = RECENT_S // series.step_s
    recent = _flow(series, slice(-steps, None))
    known = sum(value is not None for value in series.values["sent"][:-steps])
    return recent, _flow(series, slice(None, -steps)) if known * series.step_s >= BEFORE_S else None


def _flow(series: Series, part: slice) -> Flow:
    values = series.values
    handling = _known(values["handlingP50Ms"][part])
    sent, received, acked, retried = (_mean(values[name][part]) for name in ("sent", "received", "acked", "retried"))
    return Flow(sent, received, acked, retried, median(handling) if handling else None)


def _known(values: Sequence[Value]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[Value]) -> float:
    known = _known(values)
    return sum(known) / len(known) if known else 0.0
