"""The names of queues, as a shard's history tells them: by PolicySet, and by a Base for the front that was dropped."""

from __future__ import annotations

import json
from typing import NamedTuple

from batonq.core import sections
from batonq.core.records import Type
from batonq.errors import LogCorrupt


class QueueNames(NamedTuple):
    tenant: str
    name: str


Names = dict[int, QueueNames]


def told(kind: int, variable: bytes) -> Names:
    """What a PolicySet or Base record tells."""
    try:
        if kind == Type.POLICY_SET:
            policies = [json.loads(variable)]
        else:
            facts = json.loads(sections.unpack(variable)["facts"])
            policies = [queue["policy"] for queue in facts["queues"]]
        return {policy["queue"]: QueueNames(policy["tenant"], policy["name"]) for policy in policies}
    except (ValueError, KeyError, TypeError) as problem:
        raise LogCorrupt(f"a record of type {Type(kind).name} cannot be read: {problem!r}") from None
