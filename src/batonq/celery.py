"""Celery on Baton: priorities and delayed tasks, handled by the broker. Call `use_baton()` where the app is created.

Celery's SQS transport supports neither. It drops a task's priority, and it delivers a task with an ETA at once: the
worker holds it until it is due. If that is longer than the visibility timeout, the broker delivers the task again and
again. With `use_baton()` the message carries both as attributes, so a delayed task stays in the queue until it is due,
however it is published: `apply_async`, `retry`, `send_task`, a canvas, beat.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import ceil
from typing import Any

from celery.signals import before_task_publish

from batonq.priorities import NORMAL_PRIORITY
from batonq.priorities import PRIORITY_MAX as BATON_MAX

DELAY_MAX_S = 366 * 86_400  # a worker holds a later task for the rest of the time
PRIORITY_MAX = 9  # Celery's default; 0 is a task without a priority


def use_baton() -> None:
    """For all Celery apps of this process. All of them must then use an SQS broker."""
    before_task_publish.connect(_before_publish, weak=False, dispatch_uid="batonq")


def attributes_for(
    priority: int | None, eta: str | datetime | None, now: datetime | None = None
) -> dict[str, dict[str, str]]:
    """The message attributes for Baton that express a task's priority and ETA."""
    found = {}
    if priority:
        steps = min(max(int(priority), 0), PRIORITY_MAX)
        found["Baton.Priority"] = _number(NORMAL_PRIORITY + round(steps * (BATON_MAX - NORMAL_PRIORITY) / PRIORITY_MAX))
    if eta:
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        if due.tzinfo is None:
            due = due.replace(tzinfo=UTC)
        # Rounded up: otherwise a worker would have to hold a task that arrived early.
        delay_s = ceil((due - (now or datetime.now(UTC))).total_seconds())
        if delay_s > 0:
            found["Baton.DelaySeconds"] = _number(min(delay_s, DELAY_MAX_S))
    return found


def _number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}


def _before_publish(
    headers: dict[str, Any], properties: dict[str, Any], routing_key: str | None = None, **_: Any
) -> None:
    # messages in a FIFO queue cannot have their own delay
    eta = None if (routing_key or "").endswith(".fifo") else headers.get("eta")
    added = attributes_for(properties.get("priority"), eta)
    if added:
        properties["message_attributes"] = {**added, **properties.get("message_attributes", {})}
