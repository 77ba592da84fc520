"""An alarm as REST and webhooks show it."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from batonq.node.alarms import book

Severity = Literal["info", "warning", "critical"]


class Alarm(Struct, rename="camel", kw_only=True):
    alarm: str
    kind: str
    severity: Severity
    text: str
    remedy: str
    runbook: str
    raised_at_ms: int
    last_at_ms: int
    count: int
    queue: str | UnsetType = UNSET
    account: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    value: float | UnsetType = UNSET
    threshold: float | UnsetType = UNSET
    ended_at_ms: int | UnsetType = UNSET
    acknowledged_at_ms: int | UnsetType = UNSET
    acknowledged_by: str | UnsetType = UNSET
    note: str | UnsetType = UNSET


def shown(alarm: book.Alarm) -> Alarm:
    return Alarm(
        alarm=alarm.id,
        kind=alarm.kind,
        severity=alarm.severity,  # type: ignore[arg-type]  # one of kinds.SEVERITIES
        text=alarm.text,
        remedy=alarm.remedy,
        runbook=alarm.runbook,
        raised_at_ms=alarm.raised_ms,
        last_at_ms=alarm.last_ms,
        count=alarm.count,
        queue=alarm.queue or UNSET,
        account=alarm.account or UNSET,
        node=alarm.node or UNSET,
        label=alarm.label or UNSET,
        value=UNSET if alarm.value is None else alarm.value,
        threshold=UNSET if alarm.threshold is None else alarm.threshold,
        ended_at_ms=alarm.ended_ms or UNSET,
        acknowledged_at_ms=alarm.acknowledged_ms or UNSET,
        acknowledged_by=alarm.acknowledged_by or UNSET,
        note=alarm.note or UNSET,
    )
