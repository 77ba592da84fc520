"""Queue names from a shard's history: from PolicySet records, and from a Base for the dropped front."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from batonq.core import sections
from batonq.core.records import ROW_BYTES, ROW_WORDS, Type
from batonq.core.shard.state.queue_state import TOTALS
from batonq.errors import LogCorrupt
from batonq.log.frames import Frame


class QueueNames(NamedTuple):
    tenant: str
    name: str


Names = dict[int, QueueNames]


def told_by(frame: Frame) -> Names:
    """The names in a frame's records. Most frames contain none, which a check of the type bytes shows."""
    kinds = frame.rows[::ROW_BYTES]
    if Type.POLICY_SET not in kinds and Type.BASE not in kinds:
        return {}
    words = frame.words()
    found: Names = {}
    for at, kind in enumerate(kinds):
        if kind in (Type.POLICY_SET, Type.BASE):
            extent = words[at * ROW_WORDS + 6]
            offset = extent & 0xFFFFFFFF
            found |= told(kind, frame.variable[offset : offset + (extent >> 32)])
    return found


def told(kind: int, variable: bytes) -> Names:
    """The name in a PolicySet or Base record."""
    try:
        found = policies(kind, variable)
        return {policy["queue"]: QueueNames(policy["tenant"], policy["name"]) for policy in found}
    except (ValueError, KeyError, TypeError) as problem:
        raise LogCorrupt(f"a record of type {Type(kind).name} cannot be read: {problem!r}") from None


def base_detail(variable: bytes) -> str:
    """The policies in a Base record, as JSON, each with the queue's counters there."""
    try:
        told = [{**queue["policy"], **_counters(queue)} for queue in _queues(variable)]
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, KeyError, TypeError) as problem:
        raise LogCorrupt(f"a record of type BASE cannot be read: {problem!r}") from None


def schedule_detail(variable: bytes) -> str:
    """What a ScheduleSet record changes, as JSON, without the schedule's message: bodies are a column of their own."""
    try:
        changes = json.loads(variable)
        changes.pop("message", None)
        return json.dumps(changes, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, AttributeError) as problem:
        raise LogCorrupt(f"a record of type SCHEDULE_SET cannot be read: {problem!r}") from None


def policies(kind: int, variable: bytes) -> list[dict[str, Any]]:
    """In the shard's format. Raises the errors of json and of missing keys."""
    if kind == Type.POLICY_SET:
        return [json.loads(variable)]
    return [queue["policy"] for queue in _queues(variable)]


def _queues(variable: bytes) -> list[dict[str, Any]]:
    base = sections.unpack(variable)
    found: list[dict[str, Any]] = json.loads(base["items"]) if "items" in base else json.loads(base["facts"])["queues"]
    return found


def _counters(queue: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What the audit balances. A Base of a release that did not store all of it has none."""
    if "present" not in queue:
        return {}
    totals = dict(zip(TOTALS, queue["totals"], strict=True))
    moved, expired_moved = queue.get("moves", (0, 0))
    counters = {
        "sent": totals["sent"],
        "arrived": totals["arrived"],
        "deleted": totals["deleted"],
        "expired": totals["expired_messages"] - expired_moved,
        "moved": moved,
        "present": queue["present"],
    }
    return {"counters": counters}
