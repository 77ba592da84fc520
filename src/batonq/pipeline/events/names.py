"""The names of queues, as a shard's history tells them: by PolicySet, and by a Base for the front that was dropped."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from batonq.core import sections
from batonq.core.records import ROW_BYTES, ROW_WORDS, Type
from batonq.errors import LogCorrupt
from batonq.log.frames import Frame


class QueueNames(NamedTuple):
    tenant: str
    name: str


Names = dict[int, QueueNames]


def told_by(frame: Frame) -> Names:
    """What a frame's records tell; most frames tell nothing, and a look at the types' bytes shows that."""
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
    """What a PolicySet or Base record tells."""
    try:
        found = policies(kind, variable)
        return {policy["queue"]: QueueNames(policy["tenant"], policy["name"]) for policy in found}
    except (ValueError, KeyError, TypeError) as problem:
        raise LogCorrupt(f"a record of type {Type(kind).name} cannot be read: {problem!r}") from None


def base_detail(variable: bytes) -> str:
    """The policies that a Base record opens with, as JSON."""
    try:
        return json.dumps(policies(Type.BASE, variable), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, KeyError, TypeError) as problem:
        raise LogCorrupt(f"a record of type BASE cannot be read: {problem!r}") from None


def policies(kind: int, variable: bytes) -> list[dict[str, Any]]:
    """As the shard keeps them. Raises what json and the look-ups raise."""
    if kind == Type.POLICY_SET:
        return [json.loads(variable)]
    base = sections.unpack(variable)
    queues = json.loads(base["items"]) if "items" in base else json.loads(base["facts"])["queues"]
    return [queue["policy"] for queue in queues]
