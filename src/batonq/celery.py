"""Celery on Baton: priorities and tasks for later, kept by the broker. Call `use_baton()` where the app is made.

Celery's SQS transport knows neither. It drops a task's priority, and it delivers a task with an ETA at once: the worker
holds it until it is due, and if that is longer than the visibility timeout, the broker must take the worker for dead
and deliver it again, and again. With this, the message carries both as attributes that Baton goes by, so a task for
later stays in the queue until it is due, whoever publishes it: `apply_async`, `retry`, `send_task`, a canvas, beat.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import Any

from celery.signals import before_task_publish

from batonq.priorities import NORMAL_PRIORITY
from batonq.priorities import PRIORITY_MAX as BATON_MAX

DELAY_MAX_S = 1_209_600  # 14 days; what is due later is held by a worker for the rest
PRIORITY_MAX = 9  # Celery's; 0 is a task without one


def use_baton() -> None:
    """For all Celery apps of this process; the others' brokers must then speak SQS too."""
    before_task_publish.connect(_before_publish, weak=False, dispatch_uid="batonq")


def attributes_for(
    priority: int | None, eta: str | datetime | None, now: datetime | None = None
) -> dict[str, dict[str, str]]:
    """The message attributes that say to Baton what Celery says to its workers."""
    found = {}
    if priority:
        steps = min(max(int(priority), 0), PRIORITY_MAX)
        found["Baton.Priority"] = _number(NORMAL_PRIORITY + round(steps * (BATON_MAX - NORMAL_PRIORITY) / PRIORITY_MAX))
    if eta:
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        if due.tzinfo is None:
            due = due.replace(tzinfo=UTC)
        # Rounded up: a task that came early would be held by the worker after all.
        delay_s = ceil((due - (now or datetime.now(UTC))).total_seconds())
        if delay_s > 0:
            found["Baton.DelaySeconds"] = _number(min(delay_s, DELAY_MAX_S))
    return found


def _number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}


def _before_publish(
    headers: dict[str, Any], properties: dict[str, Any], routing_key: str | None = None, **_: Any
) -> None:
    eta = None if (routing_key or "").endswith(".fifo") else headers.get("eta")  # a FIFO queue has no delays
    added = attributes_for(properties.get("priority"), eta)
    if added:
        properties["message_attributes"] = {**added, **properties.get("message_attributes", {})}
